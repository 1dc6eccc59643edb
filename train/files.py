"""What must hold of files when processes end at any moment, and when several work in one folder."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from jaxlayers.refusal import Refusal

LOCK = "lock"
FULL = [os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]


@contextmanager
def full_disk_refused(folder: Path) -> Iterator[None]:
    """Whoever finds that there is no space: Python raises OSError, tensorstore ValueError."""
    try:
        yield
    except Refusal:
        raise
    except (OSError, ValueError) as error:
        reason = next((reason for reason in FULL if reason in str(error)), None)
        if reason is None:
            raise
        raise Refusal(
            f"{folder}: {reason}: free some space and run the same command, which goes on from the last "
            "checkpoint"
        ) from error


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """A file to write, that appears under its path once it is whole; of several writers the last wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{socket.gethostname()}-{os.getpid()}.part")
    try:
        with part.open("w", newline="") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds a folder of runs for this process.

    The lock is the system's (`flock`): it ends with its holder, however that ends. The file stays, since of
    two processes one could lock a removed file and the other its successor.

    Raises:
        Refusal: another process holds the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Refusal(
                f"{folder} is being trained by process {file.read().strip() or 'unknown'}: "
                "wait for it, end it, or give this sweep another name"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
