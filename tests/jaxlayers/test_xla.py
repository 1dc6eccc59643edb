import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlayers import xla  # sets what XLA needs


@pytest.mark.parametrize("classes", [2, 4])
def test_a_read_out_and_its_cross_entropy_are_right_for_many_members(classes):
    """XLA of jaxlib 0.10 on CPU gets members 16 and on wrong, unless told to leave YNNPACK alone."""
    members, examples, width = 33, 1952, 64
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(members, examples, width)).astype(np.float32)
    head = (rng.normal(size=(width, classes)) / 8).astype(np.float32)
    labels = rng.integers(0, classes, examples)

    @jax.jit
    def losses(rows, head, labels):
        logits = (rows.reshape(-1, width) @ head).reshape(members, examples, classes)
        target = (labels[:, None] == jnp.arange(classes)).astype(rows.dtype)
        top = logits.max(-1)
        return (top - (target * logits).sum(-1)) + jnp.log(jnp.exp(logits - top[..., None]).sum(-1))

    logits = rows.astype(np.float64) @ head.astype(np.float64)
    expected = np.log(np.exp(logits).sum(-1)) - logits[:, np.arange(examples), labels]
    assert np.abs(losses(rows, head, labels) - expected).max() < 1e-5


def test_programs_are_dropped_where_they_are_many(full):
    xla.make_room()
    assert full._cache_size() == 0


@pytest.mark.parametrize("lines", [None, 20_000])
def test_programs_are_kept_where_they_are_few_or_nobody_counts(full, tmp_path, lines):
    (tmp_path / "maps").unlink()
    if lines:
        (tmp_path / "maps").write_text("\n" * lines)
    xla.make_room()
    assert full._cache_size() == 1
