"""What DeepNet showed (Wang et al. 2022), in small: a hundred blocks, one learning rate."""

import jax
import numpy as np
import pytest

from train import parallel
from train.config import Cadence, GroupConfig, Optimiser
from train.loop import stack
from train.step import Trainer
from train.tasks import Rows, SyntheticConfig, Task

STEPS = 40


@pytest.fixture
def chain():
    """Of 16 tokens each is followed by one of two, which may be the same: at most ln 2 nats for who sees the
    last token, ln 16 for who does not."""
    draw = np.random.default_rng(0)
    successors = np.stack([draw.permutation(16), draw.permutation(16)], 1)
    rows = np.zeros((2000, 33), np.int32)
    rows[:, 0] = draw.integers(16, size=2000)
    for t in range(32):
        rows[:, t + 1] = successors[rows[:, t], draw.integers(2, size=2000)]
    split = Rows(rows[:, :-1], rows[:, 1:], np.ones((2000, 32), np.float32))
    return Task("chain", 16, 16, 32, 8, {"train": split})


@pytest.mark.slow
def test_deepnorm_learns_where_post_norm_stalls(group, chain, monkeypatch):
    monkeypatch.setattr(parallel, "total", lambda tree: tree)  # one device, without pmap
    batches = stack([chain.training(0)[i] for i in range(STEPS)])

    def losses(residual):
        fields = {"width": 32, "heads": 2, "norm": "layer", "residual": residual, "remat": True}
        config = GroupConfig(
            **{name: getattr(group, name) for name in ("task_name", "architecture_name")},
            task=SyntheticConfig(length=32, batch=8, steps=STEPS, learning_rate=3e-3),
            architecture=group.architecture.model_copy(update=fields),
            depth=100,
            seeds=(0,),
            optimiser=Optimiser(),
            cadence=Cadence(),
        )
        trainer = Trainer(config, chain)
        _, metrics = jax.jit(trainer.steps)(jax.jit(trainer.start)(0), batches)
        return np.asarray(metrics.loss).reshape(8, -1).mean(1)

    assert losses("deepnorm")[-1] < 1
    assert losses("post-norm")[-1] > 2.7
