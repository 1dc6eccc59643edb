"""Packages come from a folder that pip takes for its index, so nothing here needs a network."""

import hashlib
import io
import socket
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxlayers.refusal import Refusal
from train.tasks.packages import Package, members

WHEEL = {
    "toy/data.txt": b"seven words",
    "toy-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
    "toy-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "toy-1.0.dist-info/RECORD": b"",
}


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def pinned(content: bytes, file: str = "toy-1.0-py3-none-any.whl") -> Package:
    return Package("toy", "1.0", file, hashlib.sha256(content).hexdigest())


@pytest.fixture
def index(tmp_path, monkeypatch):
    """The folder in which pip finds its packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    return folder


def test_a_package_is_fetched_once(index, tmp_path):
    published = index / "toy-1.0-py3-none-any.whl"
    published.write_bytes(zipped(WHEEL))
    package = pinned(zipped(WHEEL))
    path = package.fetch(tmp_path / "cache")
    assert members(path.read_bytes(), "toy/*") == {"toy/data.txt": b"seven words"}
    published.unlink()
    assert package.fetch(tmp_path / "cache") == path


def test_without_network_and_cache_the_error_says_what_to_do(index, tmp_path):
    with pytest.raises(Refusal, match=r"toy 1\.0 .*no such file.*No matching distribution") as refusal:
        pinned(b"").fetch(tmp_path / "cache")
    assert f"put toy-1.0-py3-none-any.whl into {tmp_path / 'cache'}" in str(refusal.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_index_that_does_not_answer_is_given_a_deadline(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/simple")
        monkeypatch.delenv("PIP_NO_INDEX", raising=False)
        start = time.monotonic()
        with pytest.raises(Refusal, match=r"no answer within 0\.5 s"):
            pinned(b"").fetch(tmp_path, deadline=0.5)
        assert time.monotonic() - start < 5
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_another_hash_is_not_taken_from_the_index(index, tmp_path):
    (index / "toy-1.0-py3-none-any.whl").write_bytes(zipped({**WHEEL, "toy/data.txt": b"other words"}))
    with pytest.raises(Refusal, match="DO NOT MATCH THE HASHES"):
        pinned(zipped(WHEEL)).fetch(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cached_file_with_another_hash_is_replaced(index, tmp_path):
    (index / "toy-1.0-py3-none-any.whl").write_bytes(zipped(WHEEL))
    cached = tmp_path / "toy-1.0-py3-none-any.whl"
    cached.write_bytes(b"tampered with")
    assert pinned(zipped(WHEEL)).fetch(tmp_path) == cached
    assert cached.read_bytes() == zipped(WHEEL)


def test_a_cached_file_with_another_hash_is_refused_where_it_cannot_be_replaced(index, tmp_path):
    cached = tmp_path / "toy-1.0-py3-none-any.whl"
    cached.write_bytes(b"tampered with")
    with pytest.raises(Refusal, match="holds another file of that name"):
        pinned(zipped(WHEEL)).fetch(tmp_path)
    assert cached.read_bytes() == b"tampered with"


BACKEND = """
from pathlib import Path
def prepare_metadata_for_build_wheel(folder, settings=None):
    Path({mark!r}).touch()
    metadata = Path(folder) / "toy-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\\nName: toy\\nVersion: 1.0\\n")
    return "toy-1.0.dist-info"
"""
PROJECT = b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.mark.parametrize("genuine", [True, False])
def test_the_build_script_of_a_source_archive_runs_only_if_the_hash_is_right(index, tmp_path, genuine):
    mark = tmp_path / "ran"
    source = tarred(
        {
            "toy-1.0/pyproject.toml": PROJECT,
            "toy-1.0/backend.py": BACKEND.format(mark=str(mark)).encode(),
            "toy-1.0/PKG-INFO": b"Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
        }
    )
    (index / "toy-1.0.tar.gz").write_bytes(source)
    package = pinned(source if genuine else b"", "toy-1.0.tar.gz")
    if genuine:
        assert package.fetch(tmp_path / "cache").read_bytes() == source
    else:
        with pytest.raises(Refusal):
            package.fetch(tmp_path / "cache")
    assert mark.exists() == genuine


def test_callers_at_the_same_time_all_get_the_file(index, tmp_path):
    (index / "toy-1.0-py3-none-any.whl").write_bytes(zipped(WHEEL))
    package = pinned(zipped(WHEEL))
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: package.fetch(tmp_path / "cache"), range(3)))
    assert [path.read_bytes() for path in paths] == [zipped(WHEEL)] * 3
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [package.file]


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_members_are_those_that_match_and_nothing_is_written(pack, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    files = {
        "../escaped.txt": b"out",
        f"{tmp_path}/absolute.txt": b"out",
        "a/b.txt": b"in",
        "a/b.bin": b"no",
    }
    found = members(pack(files), "*.txt")
    assert sorted(found.values()) == [b"in", b"out", b"out"]
    assert found["a/b.txt"] == b"in"
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_folders_and_links_of_a_tar_are_no_members():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, kind in [("folder.txt", tarfile.DIRTYPE), ("link.txt", tarfile.SYMTYPE)]:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/hostname"
            archive.addfile(entry)
    assert members(stream.getvalue(), "*.txt") == {}
