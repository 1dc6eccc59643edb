"""The depth coordinate check: with one learning rate, how much the stream and the logits move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train import parallel
from train.config import Optimiser
from train.loop import stack
from train.step import Trainer
from train.tasks import SyntheticConfig, load

DEPTHS = (1, 2, 8, 32)
STEPS = 5


def rms(x):
    return float(jnp.sqrt(jnp.square(x).mean()))


@pytest.fixture
def movement(group, monkeypatch):
    """(depth, branch exponent) → RMS change of the stream and of the logits in a few steps, and the loss."""
    monkeypatch.setattr(parallel, "total", lambda tree: tree)  # one device, without pmap
    config = SyntheticConfig(length=16, batch=32, steps=100)
    task = load(config)
    stream = task.training(0)
    batches = stack([stream[i] for i in range(STEPS)])
    tokens = jnp.array(stream[STEPS]["tokens"])

    def measure(depth, exponent):
        trainer = Trainer(
            group.model_copy(
                update={
                    "task": config,
                    "depth": depth,
                    "optimiser": Optimiser(warmup=0),
                    "architecture": group.architecture.model_copy(
                        update={"width": 32, "branch_exponent": exponent}
                    ),
                }
            ),
            task,
        )

        @jax.jit
        def look(parameters):
            model = trainer.model(parameters)
            x = model.hidden(tokens)
            return x, model.read_out(x)

        start = jax.jit(trainer.start)(0)
        end, metrics = jax.jit(trainer.steps)(start, batches)
        (x0, z0), (x1, z1) = look(start.parameters), look(end.parameters)
        return rms(x1 - x0), rms(z1 - z0), metrics.loss[-1]

    return measure


def test_updates_stay_level_from_depth_1_to_32(movement):
    """At exponent 1 the growth with depth is none: |d ln RMS / d ln depth| < 0.1, within a factor 1.5.
    At exponent 0 the stream's movement grows nearly like depth: the check sees what it is there to see."""
    level = np.array([movement(depth, 1.0) for depth in DEPTHS])
    grows = np.array([movement(depth, 0.0) for depth in DEPTHS])

    def slope(values):
        return np.polyfit(np.log(DEPTHS), np.log(values), 1)[0]

    for i in (0, 1):
        assert abs(slope(level[:, i])) < 0.1
        assert level[:, i].max() / level[:, i].min() < 1.5
    assert slope(grows[:, 0]) > 0.8
    assert np.ptp(level[:, 2]) < 0.1  # no depth lags or diverges
