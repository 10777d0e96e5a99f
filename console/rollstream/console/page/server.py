"""Serves the page: on loopback to anybody on this machine, elsewhere with a token alone."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import socket
import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rollstream.console.page.document import as_json, html_of, policy
from rollstream.console.page.look import RunLook
from rollstream.console.page.shown import named_by, row_object
from rollstream.runtime.few_calls import FewCallsServer, TimelyCalls
from rollstream.sampler.history.run import ORDERS, TableQuery
from rollstream.schemas.errors import RollstreamError

CONNECTIONS_MAX = 64  # One more is closed unanswered: a browser opens six.
_CALL_S = 15.0  # For a call to come, and for its answer to be taken.
_FIRST_S = 60.0  # That a call waits for the files to be read the first time.
_log = logging.getLogger("rollstream.page")


class CannotListen(RollstreamError):
    """The address cannot be listened at; the message names it, the cause and the remedy."""


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class PageServer(FewCallsServer):
    """Answers on threads of its own until ``shutdown``. It reads, and changes nothing.

    Args:
        look: what is shown.
        host, port: where it listens. 0: any port that is free.
        token: without which nothing is answered; None: nobody needs one, and only calls that name
            this machine are answered, so that no other site's name can lead to this server.

    Raises:
        CannotListen: something else listens there, or the address is none of this machine.
    """

    def __init__(self, look: RunLook, host: str, port: int, token: str | None) -> None:
        assert token is not None or is_loopback(host), host
        self.look = look
        self.token = None if token is None else _digest(token)
        self.cookie = ""
        try:
            super().__init__((host, port), _Calls, CONNECTIONS_MAX)
        except OSError as error:
            raise CannotListen(
                f"cannot listen at {host} port {port}: {error.strerror or error}; end what listens "
                "there, or use another --host or --port"
            ) from error
        # Browsers send a cookie to every port of a host: each page has its own.
        self.cookie = f"rollstream_page_{self.server_address[1]}"

    @property
    def url(self) -> str:
        """Where it is."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else host
        return f"http://{shown!s}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event; anything else is a defect."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a call of %s failed", client_address)


class _Refused(Exception):
    """A call that is not answered with what it asked for."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Calls(TimelyCalls):
    server: PageServer
    timeout = _CALL_S
    server_version, sys_version = "rollstream", ""

    def do_GET(self) -> None:
        try:
            self._check_host()
            path, _, asked = self.path.partition("?")
            query = {name: values[-1] for name, values in parse_qs(asked).items()}
            if self._lets_in(query):
                return
            if path == "/":
                self._send(HTTPStatus.OK, html_of(None), "text/html; charset=utf-8")
            else:
                self._send_json(HTTPStatus.OK, self._answer(path, query))
        except _Refused as refused:
            self._send_json(refused.status, {"error": str(refused)})
        except RollstreamError as error:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": str(error)})

    def _answer(self, path: str, query: dict[str, str]) -> Any:
        look = self.server.look
        match path:
            case "/api/run":
                return _known(look.run(_FIRST_S))
            case "/api/rollouts":
                found = _known(look.rows(_query(query), _FIRST_S))
                return {"found": found.found, "rows": [*map(row_object, found.rows)]}
            case "/api/rollout":
                named = named_by(query.get("key", ""))
                if named is None:
                    raise _Refused(HTTPStatus.BAD_REQUEST, "the key names no rollout")
                return look.rollout(*named)
        raise _Refused(HTTPStatus.NOT_FOUND, f"there is no {path[:200]!r}")

    def _check_host(self) -> None:
        if self.server.token is not None:
            return
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            host = ""
        if not is_loopback(host):
            raise _Refused(
                HTTPStatus.MISDIRECTED_REQUEST, "this page is at 127.0.0.1 or localhost alone"
            )

    def _lets_in(self, query: dict[str, str]) -> bool:
        """Whether the call is answered: a token in the address becomes a cookie.

        Raises:
            _Refused: no token, or a wrong one.
        """
        known = self.server.token
        if known is None:
            return False
        if hmac.compare_digest(_digest(query.get("token", "")), known):
            self.send_response(HTTPStatus.SEE_OTHER)
            cookie = f"{self.server.cookie}={query['token']}"
            self.send_header("Set-Cookie", f"{cookie}; HttpOnly; SameSite=Lax; Path=/")
            self.send_header("Location", "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return True
        # SimpleCookie reads nothing behind another server's cookie that it dislikes.
        cookies = [one.strip() for one in self.headers.get("Cookie", "").split(";")]
        mine = f"{self.server.cookie}="
        given = [one.removeprefix(mine) for one in cookies if one.startswith(mine)]
        given.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if not any(hmac.compare_digest(_digest(one), known) for one in given):
            raise _Refused(
                HTTPStatus.UNAUTHORIZED,
                "a token is missing or wrong; open the address that `rollstream page` printed",
            )
        return False

    def _send_json(self, status: HTTPStatus, value: Any) -> None:
        self._send(status, as_json(value), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": f"{policy(served=True)}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _known(value: Any) -> Any:
    if value is None:
        raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the files are still being read")
    return value


def _query(query: dict[str, str]) -> TableQuery:
    order = query.get("order", ORDERS[0])
    first, count = query.get("first", "0"), query.get("count", "50")
    if order not in ORDERS or not (first.isdecimal() and count.isdecimal()):
        raise _Refused(
            HTTPStatus.BAD_REQUEST, f"order is one of {', '.join(ORDERS)}; first and count: numbers"
        )
    # Beyond these lengths there is nothing to find.
    return TableQuery(
        text=query.get("text", "")[:1_000],
        environment=query.get("environment", ""),
        order=next(one for one in ORDERS if one == order),
        first=int(first[:12]),
        most=int(count[:12]),
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
