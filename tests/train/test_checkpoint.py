"""A checkpoint is what was saved or is found out, and a good one outlives whatever comes after it."""

import gc
import resource
from contextlib import suppress

import jax
import numpy as np
import pytest

from jaxlayers.refusal import Refusal
from train import parallel
from train.checkpoint import Checkpoints, Damaged, saved
from train.files import full_disk_refused
from train.log import shown
from train.step import State, Trainer

pytestmark = pytest.mark.filterwarnings(  # what orbax's threads leave behind where they fail
    "ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def state(step):
    """Noise, which does not compress."""
    noise = np.random.default_rng(step).standard_normal((2, 3000)).astype(np.float32)
    return State(
        {"kernel": noise, "scale": noise[:, :3].astype("bfloat16")},
        (np.array(step),),
        np.array([True, False]),
    )


def assert_same_bits(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture
def folder(tmp_path):
    """Holds the checkpoints of steps 4 and 8."""
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, state(4))
        checkpoints.save(8, state(8))
    yield tmp_path
    gc.collect()  # what is left behind is found in this test, not in another


def largest(folder, step):
    files = [path for path in (folder / "checkpoints" / str(step)).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def tear(folder):
    path = largest(folder, 8)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(folder):
    path = largest(folder, 8)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose(folder):
    largest(folder, 8).unlink()


def swap(folder):
    """Each step's checkpoint under the other's name."""
    names = [folder / "checkpoints" / name for name in ("4", "8", "x")]
    names[1].rename(names[2])
    names[0].rename(names[1])
    names[2].rename(names[0])


@pytest.mark.parametrize("damage", [tear, flip, lose])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(damage, folder, console):
    damage(folder)
    with shown(console), Checkpoints(folder) as checkpoints:
        step, found = checkpoints.newest(like=state(0))
        assert step == 4
        assert_same_bits(found, state(4))
        checkpoints.save(8, state(8))  # its name is free again
    moved = (
        f"{folder}/checkpoints/8 is damaged and moved to {folder}/damaged/8; training goes on from step 4\n"
    )
    assert console.file.getvalue() == moved
    with Checkpoints(folder) as checkpoints:
        assert_same_bits(checkpoints.newest(like=state(0))[1], state(8))


def test_a_checkpoint_under_another_step_is_damaged(folder):
    swap(folder)
    with Checkpoints(folder) as checkpoints:
        with pytest.raises(Damaged, match="checkpoints/8 is not what was saved: its seal does not fit"):
            checkpoints.newest(like=state(0))
        with pytest.raises(Damaged, match="checkpoints/4 is not what was saved"):
            checkpoints.restore(4, like=state(0))
    assert saved(folder) == 8  # nothing is moved where there is nothing better


def test_no_checkpoint_is_no_damage(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.newest(like=state(0)) is None
    assert saved(tmp_path) == 0


def test_two_are_kept(folder):
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(12, state(12))
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [8, 12]


@pytest.fixture
def no_space():
    """Files may not grow beyond 8 kB: the operating system itself says no, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_last_good_checkpoint(folder, no_space):
    """What the background finds surfaces when the checkpoints are closed."""
    with (
        pytest.raises(Refusal, match=f"{folder}: File too large: free some space and run the same command"),
        full_disk_refused(folder),
        Checkpoints(folder) as checkpoints,
    ):
        checkpoints.save(12, state(12))
    with Checkpoints(folder) as checkpoints:
        step, found = checkpoints.newest(like=state(0))
    assert step == 8
    assert_same_bits(found, state(8))


def test_a_save_that_failed_surfaces_at_the_next(folder, no_space):
    with suppress(ValueError), Checkpoints(folder) as checkpoints:
        checkpoints.save(12, state(12))
        with pytest.raises(ValueError, match="File too large"):
            checkpoints.save(16, state(16))


def test_other_errors_are_not_about_space(tmp_path):
    with pytest.raises(ValueError, match="other"), full_disk_refused(tmp_path):
        raise ValueError("other")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_checkpoints_move_between_numbers_of_devices(before, after, group, task, tmp_path, monkeypatch):
    """The same bits on every device."""
    everything = jax.local_devices()
    trainer = Trainer(group, task)
    monkeypatch.setattr(parallel, "devices", lambda: everything[:before])
    start = parallel.over_devices(parallel.over_seeds(trainer.start))(parallel.replicate(np.array([0, 5])))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, parallel.first(start))

    monkeypatch.setattr(parallel, "devices", lambda: everything[:after])
    with Checkpoints(tmp_path) as checkpoints:
        _, found = checkpoints.newest(like=parallel.first(start))
    placed = parallel.replicate(found)
    for leaf, wanted in zip(jax.tree.leaves(placed), jax.tree.leaves(start), strict=True):
        assert len(leaf.addressable_shards) == after
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data)[0], np.asarray(wanted)[0])
