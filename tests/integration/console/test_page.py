"""``rollstream page`` and the page of ``report --html`` in a real browser."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from harness.browser import CHROMIUM, chromium
from harness.eventful_run import HOSTILE, LATE, NAME, EventfulRun
from rollstream.console.page.look import RunLook
from rollstream.console.page.server import PageServer
from rollstream.console.services import Services

CHARTS = 9
PHONE, DESKTOP = (390, 844), (1280, 900)
TOKEN = "5e5ame"
# Of each chart, how many colours its canvas has: axes alone are of few.
COLOURS = """[...document.querySelectorAll('#charts canvas')].map((canvas) => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(data.buffer)).size;
})"""
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> EventfulRun:
    return EventfulRun(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def look(run: EventfulRun) -> RunLook:
    line = run.line
    services = Services(
        broker=lambda _: line.broker(), store=lambda _: line.blobs, clock=line.clock
    )
    look = RunLook(services, line.config, NAME, from_files=False, timeout_s=30.0)
    look.read_files()
    look.read_logs()
    return look


@contextmanager
def served(look: RunLook, token: str | None = None) -> Iterator[str]:
    with PageServer(look, "127.0.0.1", 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(look: RunLook) -> Iterator[str]:
    with served(look) as url:
        yield url


@pytest.fixture(scope="module")
def written(run: EventfulRun, tmp_path_factory: pytest.TempPathFactory) -> str:
    to = tmp_path_factory.mktemp("written") / "page.html"
    done = run.line.run("report", "--sampler", NAME, "--html", str(to))
    assert done.exit_code == 0, done.output
    return to.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright, chromium(playwright) as browser:
        yield browser


class Opened:
    """A page in a browser. Nothing may be said on its console."""

    def __init__(
        self, browser: Any, url: str, size: tuple[int, int] = DESKTOP, scheme: str = "light"
    ) -> None:
        self._said: list[str] = []
        viewport = {"width": size[0], "height": size[1]}
        self._context = browser.new_context(viewport=viewport, color_scheme=scheme)
        self.page = self._context.new_page()
        self.page.on("console", lambda one: self._said.append(one.text))
        self.page.on("pageerror", lambda error: self._said.append(str(error)))
        self.page.on("dialog", lambda one: self._said.append(one.message))
        self.page.goto(url)

    def __enter__(self) -> Any:
        self.page.wait_for_selector("#rows tr")
        return self.page

    def __exit__(self, *_: object) -> None:
        self._context.close()
        assert self._said == []


@pytest.mark.proves("F9")
@needs_browser
@pytest.mark.parametrize("source", ["url", "written"])
def test_charts_have_data_search_finds_a_uid_and_its_page_opens(
    browser: Any, source: str, request: pytest.FixtureRequest
) -> None:
    with Opened(browser, request.getfixturevalue(source)) as page:
        assert page.locator("html").get_attribute("data-charts") == str(CHARTS)
        assert min(page.evaluate(COLOURS)) > 20
        page.fill("#text", "math-22-1-2")
        page.wait_for_selector("#found:has-text('1 to 1 of 1')")
        page.click("#rows a")
        page.wait_for_selector("#rollout .tokens span")
        assert page.locator("#rollout h2").first.text_content() == "math-22-1-2"
        shades = page.evaluate(
            "[...document.querySelectorAll('.tokens span')].map((one) => one.className)"
        )
        assert all(one.startswith("p") for one in shades)
        assert [one.endswith(" masked") for one in shades] == [
            index == 1 for index in range(len(shades))
        ]
        page.go_back()
        page.wait_for_selector("#charts canvas")


@needs_browser
def test_texts_of_a_run_stay_texts(browser: Any, url: str) -> None:
    with Opened(browser, url) as page:
        page.fill("#text", LATE)
        page.wait_for_selector("#found:has-text('1 to 1 of 1')")
        assert "0.625" in page.locator("#rows").text_content()
        page.click("#rows a")
        page.wait_for_selector("#rollout .tokens span")
        assert HOSTILE in page.locator("#rollout pre").first.text_content()
        assert page.locator("img").count() == 0
        assert page.title() == f"{NAME} · Rollstream"


@needs_browser
def test_a_trajectory_is_shown_turn_by_turn(browser: Any, url: str) -> None:
    with Opened(browser, url) as page:
        page.select_option("#environment", "web")
        page.select_option("#order", "longest")
        page.wait_for_selector("#rows tr:first-child:has-text('web-0')")
        page.click("#rows a")
        page.wait_for_selector("#rollout .turn")
        assert page.locator("#rollout .turn").count() == 4


@needs_browser
@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_a_page_fits_its_width_and_has_two_themes(
    browser: Any, url: str, size: tuple[int, int]
) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        with Opened(browser, url, size, scheme) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            page.click("#theme")
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    light, dark = grounds[:2]
    assert grounds == [light, dark, dark, light]
    assert light != dark


# Without a browser: who is answered.


def get(url: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_a_call_by_another_name_is_not_answered(url: str) -> None:
    assert get(url, "/api/run")[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example:80", "[::1", ""):
        assert get(url, "/api/run", Host=host)[0] == 421
    assert get(url, "/", Host="localhost:1")[0] == 200


def test_with_a_token_nothing_is_answered_without_it(look: RunLook) -> None:
    with served(look, TOKEN) as url:
        for path in ("/", "/api/run", "/api/rollouts", "/?token=wrong", "/?token="):
            assert get(url, path)[0] == 401
        assert get(url, "/", Cookie=f"rollstream_page_{urlsplit(url).port}=wrong")[0] == 401
        status, headers, _ = get(url, f"/?token={TOKEN}")
        assert (status, headers["Location"]) == (303, "/")
        assert "HttpOnly; SameSite=Lax" in headers["Set-Cookie"]
        cookie = headers["Set-Cookie"].partition(";")[0]
        assert get(url, "/api/run", Cookie=cookie)[0] == 200
        assert get(url, "/api/run", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(url, "/", Cookie=cookie, Host="a.name")[0] == 200
        with served(look, "0ther") as other:
            given = get(other, "/?token=0ther")[1]["Set-Cookie"].partition(";")[0]
            # A browser sends all cookies of a host, also those of servers at other ports.
            of_host = f'mode={{"a": [1, 2]}}; {given}; {cookie}'
            assert get(url, "/", Cookie=of_host)[0] == get(other, "/", Cookie=of_host)[0] == 200
        assert get(url, "/", Cookie=given, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_answers_may_not_be_framed_sniffed_or_kept(url: str) -> None:
    _, headers, _ = get(url, "/")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/../etc/passwd", 404),
        ("/api/rollouts?order=worst", 400),
        ("/api/rollouts?first=-1", 400),
        ("/api/rollout", 400),
        ("/api/rollout?key=[]", 400),
        (f"/api/rollout?key={'[' * 20_000}", 400),
        ('/api/rollout?key=["math",1,0,0,"../../etc/passwd","uid"]', 404),
        ('/api/rollout?key=["math",1,0,[],{},"uid"]', 404),
    ],
)
def test_a_wrong_call_gets_a_reason(url: str, path: str, status: int) -> None:
    found, _, body = get(url, quote(path, safe="/?=&.,-"))
    assert (found, bool(json.loads(body)["error"])) == (status, True)


def test_beyond_loopback_the_command_prints_a_token(run: EventfulRun, tmp_path: Path) -> None:
    run.line.stopping.set()
    try:
        done = run.line.run("page", "--sampler", NAME, "--port", "0")
        assert "http://127.0.0.1:" in done.output
        assert "token" not in done.output
        done = run.line.run("page", "--sampler", NAME, "--port", "0", "--host", "0.0.0.0")
        assert "?token=" in done.output
    finally:
        run.line.stopping.clear()
