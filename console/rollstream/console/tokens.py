"""Makes tokens readable by the configured tokenizers, where there are any."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from rollstream.runtime.config.sections import RollstreamConfig
from rollstream.runtime.extras import how_to_install
from rollstream.schemas.errors import RollstreamError

Decode = Callable[[Sequence[int]], str]
"""Token ids to their text."""
FILE_NAME = "tokenizer.json"


class UnreadableTokenizer(RollstreamError, ValueError):
    """The configured tokenizer is missing, or no file of the package `tokenizers`."""


def configured_tokenizer(config: RollstreamConfig, environment: str) -> str | None:
    """The path that the environment's section has, else the top-level one; None: there is none."""
    section = config.environments.get(environment)
    return (section and section.tokenizer) or config.tokenizer


@cache  # A run has one or two, and rollouts of all environments are shown in turns.
def decoder_of(configured: str) -> Decode | None:
    """What makes tokens text, special ones too; None: the package `tokenizers` is not installed.

    Args:
        configured: the file, or a folder that has it as ``tokenizer.json``.

    Raises:
        UnreadableTokenizer: the file is missing, or not one of `tokenizers`.
    """
    path = Path(configured)
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise UnreadableTokenizer(
            f"tokenizer {configured!r}: there is no file {path}; correct the key `tokenizer`, or "
            "leave it out to see token ids"
        )
    try:
        package = importlib.import_module("tokenizers")
    except ModuleNotFoundError:
        return None
    try:
        tokenizer = package.Tokenizer.from_file(str(path))
    except Exception as error:  # The package raises no narrower class.
        raise UnreadableTokenizer(
            f"tokenizer {configured!r}: {path} cannot be read: {error}; name a {FILE_NAME} of "
            "Hugging Face `tokenizers`"
        ) from error

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False))

    return decode


NOT_INSTALLED = f"token ids, since `tokenizers` is not installed; {how_to_install('tokenizer')}"
