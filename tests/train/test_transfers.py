import jax
import numpy as np
import pytest

from train import parallel
from train.loop import stack
from train.step import Trainer


def test_a_dispatch_transfers_nothing(group, task):
    """State and batches are placed before; what is left on the host, the guard finds."""
    trainer = Trainer(group, task)
    state = parallel.over_devices(parallel.over_seeds(trainer.start))(
        parallel.replicate(np.array(group.seeds))
    )
    stream = task.training(0)
    batches = stack([stack([stream[0], stream[1]]) for _ in group.seeds])
    placed = parallel.shard(batches, axis=2)
    on_host = jax.tree.map(np.asarray, placed)
    dispatch = parallel.over_devices(parallel.over_seeds(trainer.steps), donate=(0,))
    state, _ = dispatch(state, placed)  # compiled
    with jax.transfer_guard("disallow"):
        donated, (state, _) = state, dispatch(state, placed)
        with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
            dispatch(state, on_host)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
