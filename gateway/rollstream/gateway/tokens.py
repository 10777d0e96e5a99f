"""Who may write to which environment. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from pydantic import SecretStr


class Tokens:
    """Bearer tokens by environment. Only their SHA-256 digests are held, and each is compared in
    constant time, so that neither memory nor the time of an answer tells a token.

    Args:
        tokens: by environment, several where one is being replaced; none at all: everybody may
            write everywhere.
    """

    def __init__(self, tokens: Mapping[str, Sequence[SecretStr]]) -> None:
        self._known = [
            (environment, _digest(token.get_secret_value()))
            for environment, several in tokens.items()
            for token in several
        ]

    @property
    def required(self) -> bool:
        """Whether a call needs one."""
        return bool(self._known)

    def environments_of(self, token: str) -> frozenset[str]:
        """Those that the token may write to; none where it is not known."""
        digest = _digest(token)
        # Every one is compared, whichever it is.
        return frozenset(name for name, known in self._known if hmac.compare_digest(digest, known))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
