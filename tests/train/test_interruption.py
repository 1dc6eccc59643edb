"""Signals, to this process and to the command."""

import os
import signal
import subprocess
import sys
import time

import pytest

from train.interruption import Interruption, Stopped


def test_while_postponed_a_signal_is_a_request():
    with Interruption() as interruption, interruption.postponed():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.number == signal.SIGTERM


def test_the_second_does_not_wait():
    with Interruption() as interruption, interruption.postponed():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)


def test_with_nothing_to_save_a_signal_ends_at_once():
    with Interruption(), pytest.raises(Stopped, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interruption():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


STUCK = """
import ctypes
from train.interruption import Interruption
with Interruption(grace=0.5) as interruption, interruption.postponed():
    libc = ctypes.CDLL(None)
    print("stuck", flush=True)
    while libc.sleep(100):
        pass
"""


def test_a_process_that_is_stuck_ends_after_the_grace():
    """In a call of C that no handler of Python's interrupts, as a compilation is."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as it:
        assert it.stdout.readline() == b"stuck\n"
        begun = time.monotonic()
        it.send_signal(signal.SIGTERM)
        assert it.wait(timeout=30) == 143
        assert 0.4 < time.monotonic() - begun < 5
        assert b"stopped at once" in it.stderr.read()
