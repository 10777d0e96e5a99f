"""Batches for verl; needs ``pip install '.[torch]'`` beside verl. Tried by hand with verl 0.9.1.

- ``proto`` ``proto_arguments``: examples as what ``DataProto.from_dict`` takes
"""

from __future__ import annotations

from rollstream.verl.proto import ProtoArguments, proto_arguments

__all__ = ["ProtoArguments", "proto_arguments"]
