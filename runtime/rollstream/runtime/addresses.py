"""Addresses that callers and configurations give: of brokers, and of a store's root. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

PORT_MAX = 65_535
# As librdkafka reads it: a protocol may stand in front, and a port behind.
_BROKER = re.compile(
    r"(?:(?i:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?"
    r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:/,]+)(?::(?P<port>\d+))?"
)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def check_bootstrap(bootstrap: str) -> None:
    """``host:port``, several with commas, can name brokers; else ``ValueError``."""
    for address in bootstrap.split(","):
        found = _BROKER.fullmatch(address.strip())
        if found is None or int(found["port"] or 0) > PORT_MAX:
            raise ValueError(
                f"{address.strip()!r} in {bootstrap!r} is no broker's address; write host:port, "
                f"with a port up to {PORT_MAX}, for example localhost:9092"
            )


class Bucket(NamedTuple):
    """A store's root in an object store.

    Attributes:
        scheme: ``s3`` or ``gs``.
        prefix: what the keys of all blobs begin with, without ``/`` at either end; may be empty.
    """

    scheme: str
    name: str
    prefix: str


def root_of(root: str) -> Path | Bucket:
    """The folder or the bucket of a store's root; else ``ValueError``, which names no secret."""
    url = urlsplit(root)
    path = unquote(url.path)
    check_no_secret(root)
    if url.scheme in ("s3", "gs") and _BUCKET.fullmatch(url.netloc) and not url.fragment:
        names = [name for name in path.split("/") if name]
        if not any(name.startswith(".") for name in names):
            return Bucket(url.scheme, url.netloc, "/".join(names))
    if url.scheme == "file" and url.netloc in ("", "localhost") and Path(path).is_absolute():
        return Path(path)
    raise ValueError(
        f"{root!r} is no root of a store; write file:///an/absolute/folder, s3://bucket/prefix or "
        "gs://bucket/prefix"
    )


def check_no_secret(address: str) -> None:
    """A store's address holds no credentials; else ``ValueError``, which does not show them."""
    url = urlsplit(address)
    if "@" in url.netloc or url.query:
        raise ValueError(
            "it holds credentials or options (not shown here); write the address alone, and give "
            "credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role"
        )
