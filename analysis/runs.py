"""From a trained sweep to evidence: open its runs and take each model apart on the test split."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int
from optax import softmax_cross_entropy_with_integer_labels as cross_entropy
from pydantic import ValidationError

from analysis.evidence import Evidence
from jaxlayers import Decoder, ledger
from jaxlayers.refusal import Refusal
from train.checkpoint import saved
from train.config import GroupConfig, SweepConfig, first_error
from train.cost import training_flops
from train.metrics import FILE, lines
from train.sweep import SWEEP, trained
from train.tasks import Task, load

ROWS = 32  # sequences traced at once


@dataclass(frozen=True)
class Sample:
    """Which predictions of a test split are taken apart; the same for every model of a task."""

    rows: np.ndarray  # [N] int: the sequence
    positions: np.ndarray  # [N] int: the place in it

    @classmethod
    def of(cls, task: Task, examples: int, per_sequence: int) -> "Sample":
        """Up to `examples` counted positions, at most `per_sequence` from each of evenly spaced sequences."""
        weights = task.rows["test"].weights
        counted = (weights > 0).sum(1)
        wanted = -(-examples // min(per_sequence, int(counted.max())))
        chosen = np.unique(np.linspace(0, len(weights) - 1, min(wanted, len(weights))).round().astype(int))
        random = np.random.default_rng(0)
        pairs = []
        for row in chosen:
            places = np.flatnonzero(weights[row])
            some = random.choice(places, min(per_sequence, len(places)), replace=False)
            pairs += [(row, place) for place in np.sort(some)]
        rows, positions = np.array(pairs[:examples]).T
        return cls(rows, positions)


def read_sweep(folder: Path) -> SweepConfig:
    """The configuration of a trained sweep; Refusal where it is missing or not finished."""
    path = folder / SWEEP
    if not path.is_file():
        raise Refusal(f"{folder} holds no {SWEEP}: name the folder of a sweep that `python -m train` made")
    try:
        sweep = SweepConfig.model_validate(json.loads(path.read_text()))
    except ValidationError as error:
        raise Refusal(f"{path}: {first_error(error)}") from None
    except ValueError as error:
        raise Refusal(
            f"{path}: not JSON ({error}); run `python -m train` with the sweep's TOML again"
        ) from None
    for group in sweep.groups():
        if (step := saved(folder / group.path)) < group.task.steps:
            raise Refusal(
                f"{folder / group.path} has made {step} of {group.task.steps} steps: "
                "run `python -m train` with the sweep's TOML to finish it"
            )
    return sweep


def evidence(
    folder: Path, sweep: SweepConfig, examples: int, per_sequence: int
) -> Iterator[tuple[Path, Evidence]]:
    """The evidence of each run, one model at a time; what an earlier call has saved is read back.

    Runs that diverged are left out.
    """
    for name, config in sweep.tasks.items():
        task = load(config)
        sample = Sample.of(task, examples, per_sequence)
        for group in (g for g in sweep.groups() if g.task_name == name):
            yield from group_evidence(folder, group, task, sample)


def diverged(folder: Path, group: GroupConfig) -> list[int]:
    """The seeds whose training diverged, or whose test loss is not finite; there is nothing to take apart."""
    found = list(lines(folder / group.path / FILE))
    ended = {x["seed"] for x in found if x["split"] == "test" and x["loss"] is not None}
    return [seed for seed in group.seeds if seed not in ended]


def group_evidence(
    folder: Path, group: GroupConfig, task: Task, sample: Sample
) -> Iterator[tuple[Path, Evidence]]:
    models: list[tuple[Decoder, Decoder]] | None = None
    left_out = diverged(folder, group)
    for i, seed in enumerate(group.seeds):
        if seed in left_out:
            continue
        path = folder / group.path / "evidence" / f"seed-{seed}.safetensors"
        if path.exists():
            found = Evidence.load(path)
            same = found.group is not None and np.array_equal(found.group, sample.rows)
            if same and found.config_hash == group.hash:
                yield path, found
                continue
        if models is None:
            models = trained(folder, group, task)
        collected = collect(*models[i], task, sample, group, seed)
        collected.save(path)
        yield path, collected


def collect(
    start: Decoder, model: Decoder, task: Task, sample: Sample, group: GroupConfig, seed: int
) -> Evidence:
    """Traces the sampled sequences, a few at a time, and keeps the sampled positions.

    Args:
        start: the model before training, which says how far training moved it.
    """
    start, model = ledger.full_precision(start), ledger.full_precision(model)
    test, used = task.rows["test"], np.unique(sample.rows)
    kept: list[np.ndarray] = []
    epsilons: list[np.ndarray] = []
    predictions: list[np.ndarray] = []  # the model's own, in an ordinary forward pass:
    losses: list[np.ndarray] = []  # what the reader of the evidence holds the ledger to
    moved: list[np.ndarray] = []
    for begin in range(0, len(used), ROWS):
        rows = used[begin : begin + ROWS]
        padded = np.concatenate([rows, np.repeat(rows[-1:], ROWS - len(rows))])  # one compilation
        batch = jax.tree.map(jnp.asarray, dict(test.take(padded)))
        traced = ledger.trace(model, batch["tokens"])
        here = np.isin(sample.rows, rows)
        at = np.searchsorted(rows, sample.rows[here]), sample.positions[here]
        kept.append(np.asarray(traced.contributions[:, at[0], at[1]], np.float32))
        epsilons.append(np.asarray(traced.epsilon[at], np.float32))
        before, _ = run(start, batch["tokens"], task.classes)
        stream, logits = run(model, batch["tokens"], task.classes)
        moved.append(np.asarray(jnp.square(stream - before)[at].mean(-1)))
        logits = logits[at]
        predictions.append(np.asarray(logits.argmax(-1), np.int32))
        losses.append(np.asarray(cross_entropy(logits, batch["labels"][at]), np.float32))
    contributions = np.concatenate(kept, 1)
    head = np.asarray(traced.head[:, : task.classes], np.float32)
    bias = np.asarray(traced.bias[: task.classes], np.float32)
    tokens = group.task.steps * group.task.batch * task.length
    return Evidence(
        contributions=contributions,
        head=head,
        bias=bias,
        labels=test.labels[sample.rows, sample.positions].astype(np.int32),
        predictions=np.concatenate(predictions),
        loss=np.concatenate(losses),
        group=sample.rows.astype(np.int32),
        epsilon=np.concatenate(epsilons),
        members=traced.members,
        norm=model.config.norm,
        task=group.task_name,
        architecture=group.architecture_name,
        depth=group.depth,
        seed=seed,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model))),
        training_flops=training_flops(model.config, task.classes, tokens),
        update=float(np.sqrt(np.concatenate(moved).mean())),
        config_hash=group.hash,
    )


def run(
    model: Decoder, tokens: Int[Array, "B T"], classes: int
) -> tuple[Float[Array, "B T D"], Float[Array, "B T C"]]:
    """The final norm's output and the logits of an ordinary forward pass, at the highest matmul precision."""
    structure, parameters = nnx.split(model)
    with jax.default_matmul_precision("highest"):
        return _run(structure, parameters, tokens, classes)


@partial(jax.jit, static_argnums=(0, 3))
def _run(structure, parameters, tokens, classes):
    model = nnx.merge(structure, parameters)
    stream = model.hidden(tokens)
    return model.norm(stream), model.read_out(stream, classes)
