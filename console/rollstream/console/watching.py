"""``rollstream status --watch`` in a terminal: one look after another on a full screen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Footer, Static

from rollstream.console.services import LOOK_FAILURES
from rollstream.console.status_view import Look, age, stages_view, stuck_view
from rollstream.runtime.clock import Clock

TICK_S = 0.25  # How old the ages on the first line may be.
SLOW_S = 3.0  # A look that takes longer is told.


class Seen(Message):
    """A look was had."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look


class Refused(Message):
    """A look failed: of this error if the next one may succeed, else of a defect."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class WatchStatus(App[Look]):
    """Shows the newest look until q, Ctrl-C or ``stopping``. The keys work at any moment: a thread
    looks, and nobody waits for it.

    While looks fail the reason is shown above the last one that did not; they are repeated until
    one succeeds. A defect ends it.

    Args:
        look: returns figures, or raises, by a deadline of its own.
        of: what is looked at, for the first line.
        clock: of the ages.
        stopping: once set, it ends.
        every_s: between two looks.
        until_stuck: ends it once a stage is stuck; it then returns that look.
    """

    TITLE = "rollstream status"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("p", "pause", "Pause"),
    ]
    CSS = """
    #first { padding: 0 1; background: $panel; }
    #stuck { height: auto; max-height: 50%; padding: 0 1; border-bottom: solid $panel; }
    #stages { padding: 0 1; }
    .old { opacity: 60%; }
    """

    def __init__(
        self,
        look: Callable[[], Look],
        of: str,
        *,
        clock: Clock,
        stopping: threading.Event,
        every_s: float,
        until_stuck: bool = False,
    ) -> None:
        super().__init__()
        self.paused = False
        # Held, since the last look may come while the screen is taken down.
        self._first, self._stuck, self._stages = Static(id="first"), Static(), Static()
        self._look = look
        self._of = of
        self._clock = clock
        self._stopping = stopping
        self._every_s = every_s
        self._until_stuck = until_stuck
        self._seen_s: float | None = None
        self._began_s: float | None = None  # The look that is under way.
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._may_look = threading.Event()
        self._may_look.set()

    def raise_defect(self) -> None:
        """Raises what ended it, if it was a defect."""
        if self._error is not None and not isinstance(self._error, LOOK_FAILURES):
            raise self._error

    def compose(self) -> ComposeResult:
        """The first line, what is stuck, the stages, and the keys."""
        yield self._first
        yield VerticalScroll(self._stuck, id="stuck")
        yield VerticalScroll(self._stages, id="stages")
        yield Footer()

    def on_mount(self) -> None:
        """Begins to look."""
        self.query_one("#stages").focus()
        self._tick()
        self.set_interval(TICK_S, self._tick)
        # A daemon, since a look may outlast the screen by its whole deadline.
        threading.Thread(target=self._keep_looking, name="rollstream-looks", daemon=True).start()

    def on_unmount(self) -> None:
        """Lets the thread end."""
        self._ended.set()
        self._may_look.set()

    def action_pause(self) -> None:
        """Keeps what is shown, or goes on."""
        self.paused = not self.paused
        (self._may_look.clear if self.paused else self._may_look.set)()
        self._tick()

    @on(Seen)
    def _show(self, seen: Seen) -> None:
        look = seen.look
        if self.paused:
            return
        if self._until_stuck and look.stuck:
            self.exit(look)
            return
        self._error, self._seen_s = None, self._clock.monotonic_s()
        self._stuck.update(stuck_view(look.figures, look.stuck))
        self._stages.update(stages_view(look.figures, look.samplers))
        self._tick()

    @on(Refused)
    def _refuse(self, refused: Refused) -> None:
        self._error = refused.error
        if isinstance(self._error, LOOK_FAILURES):
            self._tick()
        else:
            self.exit()

    def _tick(self) -> None:
        if self._stopping.is_set():
            self.exit()
            return
        now_s, began_s = self._clock.monotonic_s(), self._began_s
        parts = [self._of]
        if self._seen_s is not None:
            parts.append(f"seen {age(now_s - self._seen_s)} ago")
        if self.paused:
            parts.append("paused, p goes on")
        elif began_s is not None and now_s - began_s > SLOW_S:
            parts.append(f"no answer for {age(now_s - began_s)}")
        elif self._seen_s is None:
            parts.append("looking")
        first = Text(" · ".join(parts))
        if self._error is not None:
            first.append(f"\n{self._error}; tried again every {self._every_s:g} s", "bold red")
        self._first.update(first)
        for shown in (self._stuck, self._stages):
            shown.set_class(self._error is not None, "old")

    def _keep_looking(self) -> None:
        while not self._ended.is_set():
            self._began_s = self._clock.monotonic_s()
            message: Message
            try:
                message = Seen(self._look())
            except Exception as error:  # noqa: BLE001 - the screen ends of a defect
                message = Refused(error)
            self._began_s = None
            if not self._ended.is_set():
                self.post_message(message)
            self._clock.wait(self._ended, self._every_s)
            self._may_look.wait()
