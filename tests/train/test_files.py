"""Locks and whole files, against processes that end at any moment."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from jaxlayers.refusal import Refusal
from train.files import held, written_whole

HOLD = """
import sys
from pathlib import Path
from train.files import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder until its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_is_refused_with_the_holder(holder, tmp_path):
    with pytest.raises(Refusal, match=f"trained by process {holder.pid} on {socket.gethostname()}: wait"):
        held(tmp_path).__enter__()


def test_a_killed_holder_leaves_no_lock(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with held(tmp_path):
        assert (tmp_path / "lock").read_text().split()[0] == str(os.getpid())


def test_a_folder_is_free_after_its_holder(tmp_path):
    for _ in range(2):
        with held(tmp_path):
            pass


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "new" / "file"
    with written_whole(path) as file:
        file.write("first")
    with suppress(ZeroDivisionError), written_whole(path) as file:
        file.write("sec")
        file.flush()
        assert path.read_text() == "first"
        raise ZeroDivisionError
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.read_text() == "first"
