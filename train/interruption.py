"""Leaving when asked to, with what was trained: SIGTERM from a cluster, SIGINT from a keyboard."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE = 8.0  # seconds from the signal; a cluster that preempts kills soon after


class Stopped(KeyboardInterrupt):
    """By a signal. Like a KeyboardInterrupt it passes whatever handles errors."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """While it is entered, the first signal is a request, and work that can be saved looks for it.

    Where nothing is to be saved, and from the second signal on, `Stopped` is raised at once. Python runs a
    handler only between two of its own instructions, so a thread watches too: where the process is still
    in a compilation or a long dispatch after the grace, it ends there, and the last checkpoint counts.
    """

    def __init__(self, grace: float = GRACE):
        self.grace = grace
        self.number: int | None = None  # of the signal that asks
        self.postponing = False
        self.left = Event()

    def __enter__(self) -> "Interruption":
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self.handlers = {number: signal.signal(number, self.handle) for number in SIGNALS}
        self.wakeup = signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        self.thread = Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self.wakeup)
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.left.set()
        os.close(self.writer)
        self.thread.join()
        os.close(self.reader)

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Work that looks at `number` where it can be left."""
        self.postponing = True
        try:
            yield
        finally:
            self.postponing = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        os.write(self.writer, bytes([number]))  # for when the wake-up descriptor is another's
        if self.number is not None or not self.postponing:
            raise Stopped(number)
        self.number = number

    def watch(self) -> None:
        while byte := os.read(self.reader, 1):
            if byte[0] in SIGNALS and not self.left.wait(self.grace):
                os.write(2, b"stopped at once; the same command goes on from the last checkpoint\n")
                os._exit(128 + byte[0])


NEVER = Interruption()
"""Not entered: no signal is handled."""
