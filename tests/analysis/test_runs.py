"""From trained runs to evidence."""

import json
import shutil
from io import StringIO

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from analysis import runs
from analysis.__main__ import Options, Source, ahead
from analysis.evidence import Evidence
from analysis.runs import Sample, evidence, read_sweep
from jaxlayers import Decoder, ledger
from jaxlayers.config import Architecture
from jaxlayers.refusal import Refusal
from train.config import Cadence, SweepConfig
from train.sweep import run, trained
from train.tasks import SyntheticConfig, load


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Trained: two depths, two seeds, in bfloat16, of which the evidence must show nothing."""
    config = SweepConfig(
        name="s",
        folder=tmp_path_factory.mktemp("runs"),
        depths=(1, 2),
        seeds=(0, 4),
        architectures={"tiny": Architecture(width=16, heads=2, norm="layer", bias=True, dtype="bfloat16")},
        tasks={"words": SyntheticConfig(length=8, batch=8, steps=4)},
        cadence=Cadence(dispatch=4, validate_every=4, save_every=4),
    )
    run(config, Console(file=StringIO()))
    return config


def test_evidence_is_the_model_on_the_sample(sweep):
    """Logits from the file against those of the model, called plainly on the sequences, in float32."""
    task = load(sweep.tasks["words"])
    rows = task.rows["test"]
    found = list(evidence(sweep.path, read_sweep(sweep.path), examples=50, per_sequence=3))
    assert [(e.depth, e.seed) for _, e in found] == [(1, 0), (1, 4), (2, 0), (2, 4)]
    for (path, e), group in zip(found, [g for g in sweep.groups() for _ in g.seeds], strict=True):
        _, model = trained(sweep.path, group, task)[group.seeds.index(e.seed)]
        model = ledger.full_precision(model)
        logits = model(jnp.array(rows.tokens[e.group], jnp.int32))
        plain = np.sort(np.asarray(logits[:, :, : task.classes]), axis=-1)
        ours = np.concatenate([part for _, part in e.logits()])
        # the position is not in the file: one of the sequence's positions must give these logits
        gaps = np.abs(plain - np.sort(ours, axis=-1)[:, None]).max(-1).min(-1)
        assert gaps.max() < 1e-5
        assert (e.examples, len(e.members), e.norm) == (50, 1 + 2 * e.depth, "layer")
        assert path.is_file()


def test_the_update_is_how_far_the_stream_moved_from_its_start(sweep):
    """Over every position of the split: root mean square of the difference, component by component."""
    task = load(sweep.tasks["words"])
    rows = task.rows["test"]
    length, tokens = rows.tokens.shape[1], jnp.array(rows.tokens, jnp.int32)
    found = [e for _, e in evidence(sweep.path, sweep, examples=rows.tokens.size, per_sequence=length)]
    for e, group in zip(found, [g for g in sweep.groups() for _ in g.seeds], strict=True):
        own = Decoder(group.model(task), nnx.Rngs(jax.random.key(e.seed)))
        _, end = trained(sweep.path, group, task)[group.seeds.index(e.seed)]
        models = map(ledger.full_precision, (own, end))
        before, after = (model.norm(model.hidden(tokens)) for model in models)
        moved = np.square(after - before)[rows.weights > 0]
        np.testing.assert_allclose(e.update, np.sqrt(moved.mean()), rtol=1e-5)
        assert e.update > 0.1


def test_every_model_is_asked_the_same(sweep):
    found = [e for _, e in evidence(sweep.path, sweep, examples=50, per_sequence=3)]
    for e in found[1:]:
        np.testing.assert_array_equal(e.labels, found[0].labels)
        np.testing.assert_array_equal(e.group, found[0].group)


def test_a_second_call_reads_and_another_sample_traces(sweep, monkeypatch):
    first = [e for _, e in evidence(sweep.path, sweep, examples=50, per_sequence=3)]

    def no(*_):
        raise AssertionError("traced again")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "collect", no)
        again = [e for _, e in evidence(sweep.path, sweep, examples=50, per_sequence=3)]
        np.testing.assert_array_equal(again[0].contributions, first[0].contributions)
        with pytest.raises(AssertionError, match="traced again"):
            list(evidence(sweep.path, sweep, examples=50, per_sequence=2))


def test_sample_is_spread_over_the_split():
    task = load(SyntheticConfig(length=8, batch=8, steps=4))
    sample = Sample.of(task, examples=200, per_sequence=2)
    assert len(sample.rows) == 200
    assert len(set(zip(sample.rows, sample.positions, strict=True))) == 200
    assert np.unique(sample.rows, return_counts=True)[1].max() == 2
    assert sample.rows.min() == 0
    assert sample.rows.max() == len(task.rows["test"]) - 1
    assert set(sample.positions) == set(range(8))
    everything = Sample.of(task, examples=10**6, per_sequence=100)
    assert len(everything.rows) == (task.rows["test"].weights > 0).sum()


def test_missing_and_unfinished_runs_are_refused(sweep, tmp_path):
    with pytest.raises(Refusal, match=r"holds no sweep\.json"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(Refusal, match="not JSON"):
        read_sweep(tmp_path)
    words = sweep.tasks["words"].model_copy(update={"steps": 9})
    longer = sweep.model_copy(update={"tasks": {"words": words}})
    (tmp_path / "sweep.json").write_text(longer.model_dump_json())
    with pytest.raises(Refusal, match="depth-01 has made 0 of 9 steps: run `python -m train`"):
        read_sweep(tmp_path)


def test_a_torn_evidence_file_is_refused_by_name(sweep):
    (path, whole), *_ = evidence(sweep.path, sweep, examples=50, per_sequence=3)
    whole.save(path.with_name("torn.safetensors"))
    torn = path.with_name("torn.safetensors")
    torn.write_bytes(torn.read_bytes()[:-100])
    with pytest.raises(Refusal, match=r"torn\.safetensors: not a whole safetensors file"):
        Evidence.load(torn)


def test_a_run_that_diverged_is_left_out_and_named(sweep, tmp_path):
    """Its loss is not a number in the metrics; its neighbours in the group are measured."""
    folder = tmp_path / "s"
    shutil.copytree(sweep.path, folder)
    metrics = folder / sweep.groups()[1].path / "metrics.jsonl"
    kept = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in kept:
        if (line["seed"], line["split"]) == (4, "test"):
            line["loss"] = None
    metrics.write_text("".join(json.dumps(line) + "\n" for line in kept))
    found = [(e.depth, e.seed) for _, e in evidence(folder, sweep, examples=50, per_sequence=3)]
    assert found == [(1, 0), (1, 4), (2, 0)]
    source = Source.of(Options(models=[folder]))
    assert source.diverged == ["words tiny depth 2 seed 4"]
    assert source.number == 3


def test_the_programs_of_models_do_not_pile_up(full):
    assert list(ahead(iter([1, 2]))) == [1, 2]
    assert full._cache_size() == 0
