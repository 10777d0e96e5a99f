"""A proxy between a store's client and an S3 server that refuses, delays and cuts what passes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote, urlsplit

from harness.s3_server import client

ALWAYS = 1 << 30
TIMEOUT_S = 60.0
Kind = Literal["refuse", "hang", "cut_body", "cut_answer", "lose_answer", "drop_condition"]


@dataclass(slots=True)
class Fault:
    """What happens to the next requests of a kind.

    Attributes:
        method: ``PUT``, ``GET`` (of an object), ``LIST``, ``HEAD`` or ``DELETE``.
        kind: ``refuse`` answers ``status`` and does not pass it on; ``hang`` answers once the proxy
            ends; ``cut_body`` closes the connection after half of the request; ``cut_answer``
            passes it on and closes after half of the answer; ``lose_answer`` passes it on and
            answers nothing; ``drop_condition`` passes it on without ``If-None-Match``.
        times: how many requests.
        prolog: of the XML that a refusal answers.
    """

    method: str
    kind: Kind
    times: int = ALWAYS
    status: int = 403
    code: str = "AccessDenied"
    prolog: str = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass(slots=True)
class S3Proxy:
    """Passes requests on to an S3 server, but for those that a fault takes.

    Attributes:
        endpoint: its address.
        faults: those to come; the first that fits a request takes it.
        asked: the methods of all requests so far, as ``Fault`` names them.
    """

    endpoint: str
    faults: list[Fault] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def taken_by(self, method: str) -> Fault | None:
        """The fault that takes this request."""
        with self._lock:
            self.asked.append(method)
            for fault in self.faults:
                if fault.method == method and fault.times:
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def s3_proxy(server: str) -> Iterator[S3Proxy]:
    """A proxy in front of the server at that address, on loopback."""
    with _Server(urlsplit(server).netloc) as http:
        proxy = http.proxy
        thread = threading.Thread(target=http.serve_forever, name="s3-proxy", daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            http.shutdown()
            thread.join(TIMEOUT_S)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behind: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = behind
        self.proxy = S3Proxy(f"http://127.0.0.1:{self.server_port}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT_S

    def _pass(self) -> None:
        assert isinstance(self.server, _Server)
        proxy = self.server.proxy
        fault = proxy.taken_by(_method_of(self.command, self.path))
        size = int(self.headers.get("Content-Length", 0))
        kind = fault.kind if fault else ""
        if kind == "cut_body":
            self.rfile.read(size // 2)
            self.close_connection = True
            return
        body = self.rfile.read(size)
        if kind == "hang":
            proxy.ended.wait(TIMEOUT_S)
            self.close_connection = True
            return
        if fault and kind == "refuse":
            self._answer(fault.status, {}, _refusal(fault, self.headers.items()))
            return
        if kind == "drop_condition":
            bucket, _, key = unquote(urlsplit(self.path).path).strip("/").partition("/")
            put = client(f"http://{self.server.behind}").put_object
            etag = put(Bucket=bucket, Key=key, Body=body)["ETag"]
            self._answer(200, {"ETag": etag}, b"")
            return
        upstream = HTTPConnection(self.server.behind, timeout=TIMEOUT_S)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
            if kind == "lose_answer":
                self.close_connection = True
                return
            self._answer(
                answer.status, dict(answer.getheaders()), content, whole=kind != "cut_answer"
            )
        finally:
            upstream.close()

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, *, whole: bool = True
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if whole else body[: len(body) // 2])
        if not whole:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def _method_of(command: str, path: str) -> str:
    query = urlsplit(path).query
    if command == "GET" and "list-type" in query:
        return "LIST"
    return "DELETE" if command == "POST" and "delete" in query else command


def _refusal(fault: Fault, headers: Iterable[tuple[str, str]]) -> bytes:
    """As S3 has it, which repeats the headers that were signed."""
    signed = "".join(f"{name}:{value}&#xA;" for name, value in headers)
    text = f"<Code>{fault.code}</Code><CanonicalRequest>{signed}</CanonicalRequest>"
    return f"{fault.prolog}<Error>{text}</Error>".encode()
