"""Addresses that callers and configurations give: of brokers, and of a store's root. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

PORT_MAX = 65_535
# As librdkafka reads it: a protocol may stand in front, and a port behind.
_BROKER = re.compile(
    r"(?:(?i:PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?"
    r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s\[\]:/,]+)(?::(?P<port>\d+))?"
)


def check_bootstrap(bootstrap: str) -> None:
    """``host:port``, several with commas, can name brokers; else ``ValueError``."""
    for address in bootstrap.split(","):
        found = _BROKER.fullmatch(address.strip())
        if found is None or int(found["port"] or 0) > PORT_MAX:
            raise ValueError(
                f"{address.strip()!r} in {bootstrap!r} is no broker's address; write host:port, "
                f"with a port up to {PORT_MAX}, for example localhost:9092"
            )


def local_folder(root: str) -> Path:
    """The folder of a store's root, ``file:///an/absolute/folder``; else ``ValueError``."""
    url = urlsplit(root)
    path = Path(unquote(url.path))
    if url.scheme != "file" or url.netloc not in ("", "localhost") or not path.is_absolute():
        raise ValueError(
            f"{root!r} is no local folder, and only those are supported; write it as "
            "file:///an/absolute/folder"
        )
    return path
