"""TensorBoard and Weights & Biases hold what metrics.jsonl holds, no step twice."""

import struct

import numpy as np
import pytest

from train.metrics import Metrics, lines
from train.sinks import opened


def write(metrics, group, steps):
    for step in steps:
        for seed in group.seeds:
            metrics.write(step=step, seed=seed, split="train", loss=seed + 1 / step, accuracy=float("nan"))


def scalars(folder):
    """The (tag, step, value) of every event file in a folder, with the checksums left unread."""
    from tensorboardX.proto.event_pb2 import Event

    for path in folder.glob("events*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + size])
            at += size + 16
            yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


def test_tensorboard_holds_each_step_once_after_a_resume(group, tmp_path):
    """A run that was at step 6 goes on from its checkpoint of step 4."""
    pytest.importorskip("tensorboardX")

    def sinks(kept):
        return opened(["tensorboard"], tmp_path, group, kept)

    with Metrics(tmp_path, 0, sinks) as metrics:
        write(metrics, group, range(1, 7))
    for path in tmp_path.rglob("events*"):
        path.rename(path.with_name("events of an earlier second"))
    with Metrics(tmp_path, 4, sinks) as metrics:
        write(metrics, group, range(5, 9))
    for seed in group.seeds:
        found = sorted(scalars(tmp_path / "tensorboard" / f"seed-{seed}"))
        told = [x for x in lines(tmp_path / "metrics.jsonl") if x["seed"] == seed]
        assert found == [("train/loss", x["step"], np.float32(x["loss"])) for x in told]
        assert [step for _, step, _ in found] == list(range(1, 9))


def leveldb_records(log):
    """LevelDB's log format, after a header of 7 bytes: records in pieces, none across blocks of 32 KiB."""
    at, record = 7, b""
    while at + 7 <= len(log):
        if 32768 - at % 32768 < 7:
            at += -at % 32768
        _, size, kind = struct.unpack_from("<IHB", log, at)
        record += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


@pytest.mark.slow
def test_weights_and_biases_gets_each_step_once(group, tmp_path, monkeypatch):
    """Without a network it starts anew, from the lines that are kept; its service orders by step."""
    wandb = pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write_to = [tmp_path]

    def sinks(kept):
        return opened(["wandb"], write_to[0], group, kept)

    def steps(seed):
        """Of the last start's file."""
        (path,) = write_to[0].glob(f"wandb/offline-run-*/run-{group.hash}-{seed}.wandb")
        records = map(Record.FromString, leveldb_records(path.read_bytes()))
        return [r.history.step.num for r in records if r.WhichOneof("record_type") == "history"]

    with Metrics(tmp_path, 0, sinks) as metrics:
        write(metrics, group, range(1, 7))
    write_to[0] = tmp_path / "again"
    write_to[0].mkdir()
    with Metrics(tmp_path, 4, sinks) as metrics:
        write(metrics, group, range(5, 9))
    wandb.teardown()  # its process has written all
    assert [steps(seed) for seed in group.seeds] == [list(range(1, 9))] * 2
