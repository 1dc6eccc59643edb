"""What a person may have to know later, in the folder that it is about."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console

from jaxlayers.refusal import Refusal

FILE = "log.txt"
log = logging.getLogger("train")
log.setLevel(logging.INFO)
log.propagate = False  # libraries set up the root logger as they please
LOGGERS = (log, logging.getLogger("absl"))  # orbax's: of failed writes, before they are raised


class Fault(Exception):
    """An error of the program; its traceback is in a log."""


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """What is logged goes to the folder's log. An error that nobody foresaw leaves its traceback there; so
    does one of a background thread, which surfaces where its work is waited for.

    Raises:
        Fault: in that error's place.
    """
    path = folder / FILE
    handler = FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for logger in LOGGERS:
        logger.addHandler(handler)
        logger.propagate = False
    hook, threading.excepthook = threading.excepthook, log_thread
    try:
        yield
    except (Refusal, Fault):
        raise
    except Exception as error:
        folder.mkdir(parents=True, exist_ok=True)
        log.exception("internal fault")
        said = next(iter(str(error).splitlines()), "")
        raise Fault(f"internal fault: {type(error).__name__}: {said} (traceback in {path})") from error
    finally:
        threading.excepthook = hook
        for logger in LOGGERS:
            logger.removeHandler(handler)


def log_thread(error: threading.ExceptHookArgs) -> None:
    where = error.thread.name if error.thread else "a thread"
    log.error(f"in {where}", exc_info=error.exc_value)


@contextmanager
def shown(console: Console) -> Iterator[None]:
    """Warnings go to the console too, a line each."""
    handler = ConsoleHandler(console)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class FileHandler(logging.Handler):
    """Appends to a file, and keeps silent where it cannot: on a full disk more is lost than a log."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError), self.path.open("a") as file:
            file.write(self.format(record) + "\n")


class ConsoleHandler(logging.Handler):
    def __init__(self, console: Console):
        super().__init__(logging.WARNING)
        self.addFilter(lambda record: not record.exc_info)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.out(record.getMessage(), highlight=False)
