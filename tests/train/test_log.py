import re
import threading
from contextlib import suppress

import pytest

from jaxlayers.refusal import Refusal
from train.log import Fault, log, logged, shown


def test_an_internal_fault_leaves_its_traceback(tmp_path):
    folder = tmp_path / "new"
    sentence = re.escape(f"internal fault: KeyError: 'x' (traceback in {folder}/log.txt)")
    with pytest.raises(Fault, match=sentence), logged(folder):
        {}["x"]
    said = (folder / "log.txt").read_text()
    assert "Traceback (most recent call last)" in said
    assert '{}["x"]' in said


def test_a_refusal_leaves_nothing(tmp_path):
    with pytest.raises(Refusal, match="no"), logged(tmp_path / "new"):
        raise Refusal("no")
    assert not (tmp_path / "new").exists()


def test_the_innermost_folder_is_named_and_both_have_it(tmp_path):
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    outer.mkdir()
    with pytest.raises(Fault, match=f"{inner}/log.txt"), logged(outer), logged(inner):
        raise ZeroDivisionError
    for folder in (inner, outer):
        assert (folder / "log.txt").read_text().count("Traceback") == 1


def test_warnings_are_shown_and_faults_are_not(tmp_path, console):
    with shown(console), suppress(Fault), logged(tmp_path):
        log.info("a note")
        log.warning("mind [this]")
        raise ZeroDivisionError
    assert console.file.getvalue() == "mind [this]\n"
    assert "a note" in (tmp_path / "log.txt").read_text()


def test_a_thread_leaves_its_traceback_in_the_log(tmp_path):
    with logged(tmp_path):
        thread = threading.Thread(target=lambda: 1 / 0, name="saver")
        thread.start()
        thread.join()
    said = (tmp_path / "log.txt").read_text()
    assert "in saver" in said
    assert "ZeroDivisionError" in said


def test_a_log_that_cannot_be_written_hides_nothing(tmp_path, capfd):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with suppress(Refusal), logged(tmp_path):
        log.warning("of no space either")
        raise Refusal("full")
    assert capfd.readouterr().err == ""
