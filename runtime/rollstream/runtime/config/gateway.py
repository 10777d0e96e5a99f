"""The section ``[gateway]``."""

from __future__ import annotations

from typing import Self

from pydantic import Field, FiniteFloat, SecretStr, field_validator, model_validator

from rollstream.runtime.config.section import Section

_TOKEN_CHARS_MIN = 16


class GatewayConfig(Section):
    """Configures the HTTP gateway, which takes steps from writers in any language."""

    tokens: dict[str, tuple[SecretStr, ...]] = Field(default_factory=dict)
    """Bearer tokens of each environment, with 16 characters or more and no spaces. Several while
    you replace one."""
    allow_anonymous: bool = False
    """Whether it runs without tokens. Then it listens on a loopback address only."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Most bytes of a request's body, else 413. A check takes about 20 ms a MiB, up to 100 ms with
    many short texts in the metadata, and up to 25 times the bytes in memory."""
    max_pending_bytes: int = Field(default=256 * 1024 * 1024, ge=1024)
    """Most bytes of bodies that have come and of steps on their way to the broker, else 429."""
    max_pending_bytes_per_environment: int | None = Field(default=None, ge=1024)
    """Most of these bytes of one environment, else 429. Default: an equal share of up to 4
    environments, and a quarter of more. Then half of all is kept for the environments, in equal
    parts, so that each has some whatever the others take."""
    max_requests: int = Field(default=256, ge=1)
    """Most requests that are answered at once, else 503."""
    max_requests_per_environment: int | None = Field(default=None, ge=1)
    """Most of these requests of one environment, else 429. Default: likewise."""
    max_connections: int = Field(default=4096, ge=1)
    """Most open connections, else 503. The process needs a file descriptor for each. If all are
    open, a new one takes the place of the oldest that has not sent a token."""
    max_connections_per_environment: int | None = Field(default=None, ge=1)
    """Most open connections whose last call was one environment's, else 429. Default:
    likewise."""
    max_open_prompts: int = Field(default=16_384, ge=1)
    """Most prompts of each environment that began here and have not ended, else 429."""
    timeout_s: FiniteFloat = Field(default=30.0, gt=0)
    """Seconds in which a request is answered and the broker has the accepted steps."""
    client_timeout_s: FiniteFloat = Field(default=10.0, gt=0, le=86_400)
    """Seconds in which the headers of a request have to come, and each next part of its body, else
    408."""
    shutdown_delay_s: FiniteFloat = Field(default=5.0, ge=0)
    """Seconds after SIGTERM in which calls are still taken, while `/readyz` answers 503, so that
    load balancers see it."""
    drain_timeout_s: FiniteFloat = Field(default=20.0, gt=0)
    """Seconds that an ending gateway waits for open requests, and then for the broker."""

    @field_validator("tokens")
    @classmethod
    def _are_hard_to_guess(
        cls, tokens: dict[str, tuple[SecretStr, ...]]
    ) -> dict[str, tuple[SecretStr, ...]]:
        for environment, several in tokens.items():
            if not several:
                raise ValueError(f"{environment} has no token; write one, or leave it out")
            for token in several:
                text = token.get_secret_value()
                printable = text.isascii() and text.isprintable() and " " not in text
                if len(text) < _TOKEN_CHARS_MIN or not printable:
                    raise ValueError(
                        f"a token of {environment} has {len(text)} characters, and needs "
                        f"{_TOKEN_CHARS_MIN} printable ones of ASCII at least, none a space; make "
                        "one with openssl rand -hex 32"
                    )
        return tokens

    @model_validator(mode="after")
    def _can_progress(self) -> Self:
        for name in ("max_pending_bytes", "max_pending_bytes_per_environment"):
            most = getattr(self, name)
            if most is not None and most < self.max_body_bytes:
                raise ValueError(
                    f"{name} {most} is below max_body_bytes {self.max_body_bytes}: the largest "
                    "bodies could never be taken; raise it"
                )
        return self
