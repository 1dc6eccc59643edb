"""The table on planted models, where the answer is known: every verdict in all three states."""

import json
from dataclasses import fields

import numpy as np
import pytest

from analysis.evidence import Member
from analysis.measurements import Measurements
from analysis.predictions import CAUSE, PREDICTIONS, across_models, added_layers, verdicts
from analysis.statistics import Estimate
from analysis.verdicts import Claim, Finding, Prediction, decide

N, K = 240, 5
DEPTHS = (1, 2, 3, 4, 6, 8)


def planted(depth=1, seed=0, task="text", architecture="plain", bias=10.0, ratio=0.9, **changes):
    """Measurements in which nothing is true but what is planted: all else is noise of its own."""
    random = np.random.default_rng([depth, seed, len(task), len(architecture)])
    n = len(changes.get("group", range(N)))
    given = {
        "task": task,
        "architecture": architecture,
        "depth": depth,
        "seed": seed,
        "parameters": 1000 * depth,
        "training_flops": 0.0,
        "regulariser": 0.0,
        "update": 0.0,
        "config_hash": "",
        "members": tuple(Member(f"m{k}", "mlp", k) for k in range(K)),
        "classes": 4,
        "group": np.arange(n) // 4,
        "correct": random.random(n) < 0.5,
        "bias": bias + 0.5 * random.random(n),
        "splits": {},
        "information_classes": 4,
        "information": {"miller_madow": dict.fromkeys(("error_rate", "fano_bound"), Estimate(0.5, 0.1, 59))},
        "saturated": {"pairwise": False},
        "performance": {"violation_rate": Estimate(0.1, 0.1, 7), "ratio": Estimate(0.8, 0.1, 7)},
        "greedy_order": np.arange(K),
        "prefix_redundancy": Estimate(np.zeros(K), np.ones(K), 59),
        "prefix_conditional_redundancy": Estimate(np.zeros(K), np.ones(K), 59),
    } | changes
    given.setdefault("diversity", ratio * given["bias"] + 0.01 * random.normal(size=n))
    given.setdefault("loss", given["bias"] - given["diversity"])
    given.setdefault("accuracy", Estimate(float(given["correct"].mean()), 0.03, 59))
    for field in fields(Measurements):
        given.setdefault(field.name, Estimate(0.0, 1.0, 59))
    return Measurements(**given)


def sweep(plant, depths=DEPTHS, seeds=3, tasks=("text",), noise=0.0):
    """Models whose planted numbers `plant(depth)` gives, each with noise of its own."""
    random = np.random.default_rng(0)
    return [
        planted(depth, seed, task, **{k: v + noise * random.normal() for k, v in plant(depth).items()})
        for task in tasks
        for depth in depths
        for seed in range(seeds)
    ]


def verdict(models, name):
    """On one prediction, as if it were the whole table."""
    return decide([row for row in (*PREDICTIONS, CAUSE) if row.id == name], models)[0]


@pytest.mark.parametrize(
    ("relative", "state"), [(0.0, "holds"), (0.9e-5, "holds"), (1e-5, "undecided"), (1.1e-5, "fails")]
)
def test_p1_holds_to_rounding(relative, state):
    model = planted(1, 1)
    loss = model.loss.copy()
    loss[17] += relative * (1 + model.bias[17])
    row = verdict([planted(), planted(2), planted(1, 1, loss=loss)], "P1")
    assert row.state == state
    assert row.estimate == pytest.approx(relative, abs=1e-12)
    assert row.p_value is None
    assert row.data[2]["residual"] == pytest.approx(relative * (1 + model.bias[17]), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("bias", "diversity", "state"),
    [(-1, 1, "holds"), (-1, -1, "fails"), (1, 1, "fails"), (0, 0, "undecided"), (-1, 0, "undecided")],
)
def test_p2_is_of_both_partial_coefficients(bias, diversity, state):
    """Accuracy is planted as a sum of the two, which move apart; the second task has another scale."""
    random = np.random.default_rng(0)
    models = []
    for task, scale in (("text", 1.0), ("polarity", 0.1)):
        for depth in DEPTHS:
            b, d = random.normal(size=2)
            for seed in range(3):
                size, ratio = 10 + b + 0.1 * random.normal(), 0.5
                level = scale * (bias * b + diversity * d + 0.3 * random.normal())
                given = planted(depth, seed, task, bias=size, ratio=ratio)
                models.append(
                    planted(
                        depth,
                        seed,
                        task,
                        bias=given.bias,
                        diversity=given.bias * ratio + d,
                        accuracy=Estimate(0.5 + 0.05 * level, 0.0, 59),
                    )
                )
    row = verdict(models, "P2")
    assert row.state == state
    assert len(row.claims) == 2
    assert [record["term"] for record in row.data[:4]] == ["bias", "diversity", "ln bias", "ρ"]
    assert across_models(models).claims[0].estimate.freedom == 12 - 2 - 2  # configurations, terms, tasks


@pytest.mark.parametrize(("interaction", "state"), [(0.2, "holds"), (-0.2, "fails"), (0.0, "undecided")])
def test_p3_finds_where_diversity_matters(interaction, state):
    random = np.random.default_rng(1)
    models = []
    for depth in (1, 2, 3):
        for seed in range(3):
            b, d = random.normal(size=(2, N))
            chance = 0.5 + np.clip(-0.1 * b + 0.1 * d + interaction * b * d, -0.5, 0.5)
            correct = random.random(N) < chance
            models.append(planted(depth, seed, bias=10 + b, diversity=5 + d, loss=5 + b - d, correct=correct))
    row = verdict(models, "P3")
    assert row.state == state
    assert row.estimate == pytest.approx(0.75 * interaction, abs=0.04)  # chances end at 0 and 1
    slopes = [record["slope"] for record in row.data]
    assert [record["quartile"] for record in row.data] == [1, 2, 3, 4]
    if interaction:
        assert slopes == sorted(slopes, reverse=interaction < 0)


def test_p3_tells_slopes_of_quartiles_on_one_scale():
    """Diversity follows bias, so it varies less within a quartile; its effect is the same in each."""
    random = np.random.default_rng(0)
    b, d = random.normal(size=(2, 40_000))
    d += 3 * b
    correct = random.random(40_000) < 0.5 + 0.1 * np.clip(d / d.std(), -5, 5)
    group = np.arange(40_000) // 40
    model = planted(bias=10 + b, diversity=5 + d, loss=5 + b - d, correct=correct, group=group)
    slopes = [record["slope"] for record in verdict([model], "P3").data]
    np.testing.assert_allclose(slopes, 0.1, atol=0.06)


@pytest.mark.parametrize(("sign", "state"), [(1, "holds"), (-1, "fails"), (0, "undecided")])
def test_p4_ranks_gains_and_changes_within_a_curve(sign, state):
    """Every curve has a scale of its own; the noise of a seed is small against its steps."""
    random = np.random.default_rng(2)
    models = []
    for task, scale in (("text", 1.0), ("polarity", 0.1)):
        gains = random.permutation(np.linspace(0.01, 0.1, 5)) * scale
        changes = sign * gains if sign else random.permutation(gains)
        losses = 2 - np.concatenate([[0], np.cumsum(gains)])
        ratios = 0.7 + np.concatenate([[0], np.cumsum(changes)])
        for seed in range(3):
            for depth, loss, ratio in zip(DEPTHS, losses, ratios, strict=True):
                loss = np.full(N, loss + 1e-4 * random.normal())
                models.append(planted(depth, seed, task, loss=loss, ratio=ratio))
    row = verdict(models, "P4")
    assert row.state == state
    if sign:
        assert row.estimate == pytest.approx(sign, abs=0.01)
    assert len(row.data) == 2 * 3 * 5
    assert added_layers(models).claims[0].estimate.freedom == 10 - 2 - 2  # steps, curves


def curve_models(curve, noise=2e-3, rate=0.01, error=1e-3):
    random = np.random.default_rng(3)
    return [
        planted(
            depth,
            seed,
            loss=np.full(N, curve(depth) + noise * random.normal()),
            performance={"violation_rate": Estimate(rate + error * random.normal(), error, 59)},
        )
        for depth in DEPTHS
        for seed in range(5)
    ]


@pytest.mark.parametrize(
    ("curve", "rate", "error", "state"),
    [
        (lambda d: 1.5 + 0.6 / d, 0.01, 1e-3, "holds"),
        (lambda d: 2 - 0.01 * d**2, 0.01, 1e-3, "fails"),
        (lambda d: 1.5 + 0.6 / d, 0.3, 1e-3, "fails"),
        (lambda d: 1.5 + 0.6 / d, 0.04, 0.05, "undecided"),
        (lambda d: 2 - 0.05 * d, 0.01, 1e-3, "undecided"),
    ],
)
def test_p5_is_of_members_and_of_trained_depths(curve, rate, error, state):
    row = verdict(curve_models(curve, rate=rate, error=error), "P5")
    assert row.state == state
    assert {record["kind"] for record in row.data} == {"depth", "members"}


@pytest.mark.parametrize(
    ("curve", "noise", "state"),
    [
        (lambda d: 2 - 0.15 * np.log(d), 2e-4, "holds"),
        (lambda d: 1.5 + 0.6 * d**-0.7, 2e-3, "fails"),
        (lambda d: 2 - 0.15 * np.log(d), 3e-2, "undecided"),
    ],
)
def test_p6_lets_the_forms_extrapolate(curve, noise, state):
    row = verdict(curve_models(curve, noise), "P6")
    assert row.state == state
    assert {record["form"] for record in row.data} == {
        "constant",
        "linear",
        "log",
        "inverse",
        "power",
        "exponential",
    }


@pytest.mark.parametrize(
    ("alone", "given", "error", "state"),
    [
        (0.1, 0.1, 0.01, "holds"),
        (0.1, -0.1, 0.01, "fails"),
        (0.1, 0.1, 0.2, "undecided"),
        (0.1, 0.0, 0.01, "undecided"),
    ],
)
def test_p7_is_of_both_slopes(alone, given, error, state):
    random = np.random.default_rng(4)
    models = [
        planted(
            depth,
            seed,
            redundancy_slope=Estimate(alone + 0.01 * random.normal(), error, 59),
            conditional_redundancy_slope=Estimate(given + 0.01 * random.normal(), error, 59),
        )
        for depth in (1, 2, 3)
        for seed in range(3)
    ]
    assert verdict(models, "P7").state == state


def test_p7_asks_no_saturated_estimate():
    row = verdict([planted(saturated={"pairwise": True})], "P7")
    assert row.state == "not measured"
    assert "saturated" in row.why


@pytest.mark.parametrize(
    ("margin", "error", "state"),
    [(0.1, 0.01, "holds"), (0.0, 1e-3, "holds"), (-0.1, 0.01, "fails"), (-0.02, 0.01, "undecided")],
)
def test_p8_asks_the_worst_model(margin, error, state):
    models = [
        planted(depth, seed, fano_margin=Estimate(0.2, 0.01, 59)) for depth in (1, 2) for seed in (0, 1)
    ]
    row = verdict([*models, planted(3, 0, fano_margin=Estimate(margin, error, 59))], "P8")
    assert row.state == state
    assert row.estimate == pytest.approx(margin)


def test_p8_shares_its_level_among_the_models_it_picks_from():
    margin = Estimate(-0.02, 0.0038, 59)  # 2.6 errors under the slack
    others = [
        planted(depth, seed, fano_margin=Estimate(0.2, 0.01, 59)) for depth in DEPTHS for seed in range(5)
    ]
    few = verdict([planted(fano_margin=margin)], "P8")
    many = verdict([planted(fano_margin=margin), *others], "P8")
    assert (few.state, many.state) == ("fails", "undecided")


def test_one_model_is_judged_where_it_can_be_and_told_what_is_missing_elsewhere():
    rows = {row.id: row for row in verdicts([planted()])}
    assert [name for name, row in rows.items() if row.state == "not measured"] == ["P2", "P4", "P5", "P6"]
    assert "depths" in rows["P6"].why
    assert "Train" in rows["P6"].would_change


def test_the_claim_that_is_contradicted_most_decides():
    claims = tuple(Claim("", "above", Estimate(value, 0.2, 50)) for value in (-1.0, -2.0))
    row = decide([Prediction("P0", "", "", "", lambda models: Finding(claims, []))], [])[0]
    assert (row.state, row.estimate) == ("fails", -2.0)
    assert row.p_holm == row.claims[1].p_holm < row.claims[0].p_holm <= 0.05


def test_what_is_infinite_is_null_in_json():
    row = verdict([planted(fano_margin=Estimate(0.1, np.inf, 59))], "P8")
    assert row.low == -np.inf
    assert row.json()["low"] is None
    assert row.json()["claims"][0]["high"] is None


def test_without_models_nothing_is_measured():
    assert {row.state for row in verdicts([])} == {"not measured"}


def test_every_row_says_why_what_would_change_it_and_its_numbers_in_json():
    table = verdicts(sweep(lambda depth: {"bias": 10.0 + depth}, tasks=("text", "polarity"), noise=0.1))
    assert [row.id for row in table] == [f"P{i}" for i in range(1, 9)]
    for row in json.loads(json.dumps([row.json() for row in table], allow_nan=False)):
        assert row["why"].endswith(".")
        assert row["would_change"].endswith(".")
        assert row["data"]
        for claim in row["claims"]:
            decided = not claim["low"] <= claim["threshold"] <= claim["high"]
            if claim["p_holm"] is not None:
                assert decided == (claim["p_holm"] <= 0.05)


def test_a_seed_that_misses_a_depth_costs_the_depth_and_two_models_alike_are_refused():
    models = curve_models(lambda d: 1.5 + 0.6 / d)
    steps = verdict(models[:-1], "P5").data
    assert max(record["depth"] for record in steps if record["kind"] == "depth") == 5
    assert "depth 8 and seed 4" in verdict([*models, models[-1]], "P5").why


def clustered_null(key):
    """Correctness, bias and diversity that go together within a sequence, and do not interact."""
    random = np.random.default_rng(key)
    shared = np.repeat(random.normal(size=(3, N // 4)), 4, axis=1)
    bias, diversity, luck = shared + 0.2 * random.normal(size=(3, N))
    return [planted(bias=10 + bias, diversity=5 + diversity, loss=5 + bias - diversity, correct=luck > 0)]


def independent_steps(key):
    """Two curves of gains and changes in ρ that have nothing to do with each other."""
    random = np.random.default_rng(key)
    models = []
    for task in ("text", "polarity"):
        for depth in DEPTHS:
            loss, ratio = 1 + 0.01 * random.normal(), 0.9 + 0.01 * random.normal()
            models += [
                planted(depth, seed, task, loss=np.full(N, loss + 1e-3 * random.normal()), ratio=ratio)
                for seed in range(3)
            ]
    return models


def unrelated_configurations(key):
    """The accuracy of a configuration, shared by its seeds, and bias and diversity apart."""
    random = np.random.default_rng(key)
    models = []
    for task in ("text", "polarity"):
        for depth in DEPTHS:
            level, size, ratio = random.normal(), 10 + depth + random.normal(), 0.9 + 0.01 * random.normal()
            for seed in range(3):
                accuracy = Estimate(0.5 + 0.05 * (level + 0.1 * random.normal()), 0.01, 59)
                models.append(planted(depth, seed, task, bias=size, ratio=ratio, accuracy=accuracy))
    return models


def rewarded(effect, key=5, rise=0.02, seeds=range(3), λ=0.5):
    """Two models a depth and seed; the reward moves ln bias, which moves accuracy by -0.3 times as much."""
    random = np.random.default_rng(key)
    models = []
    for depth in DEPTHS[:4]:
        for seed in seeds:
            moved = 0.2 * random.normal()
            accuracy = 0.5 - 0.3 * moved + effect + 0.01 * random.normal()
            models.append(planted(depth, seed, accuracy=Estimate(0.5, 0.0, 59)))
            changes = {"bias": 10 * np.exp(moved), "ratio": 0.9 + rise, "regulariser": λ}
            models.append(planted(depth, seed, accuracy=Estimate(accuracy, 0.0, 59), **changes))
    return models


def straight_curve(key):
    random = np.random.default_rng(key)
    return [
        planted(
            depth,
            seed,
            loss=np.full(N, 2 - 0.05 * depth + 0.01 * random.normal()),
            performance={"violation_rate": Estimate(0.0, 1e-6, 59)},
        )
        for depth in DEPTHS
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("name", "null"),
    [
        ("P2", unrelated_configurations),
        ("P3", clustered_null),
        ("P4", independent_steps),
        ("P5", straight_curve),
        ("P9", lambda key: rewarded(0.0, key)),
    ],
)
def test_where_nothing_is_true_a_verdict_is_rarely_reached(name, null):
    """In at most 5 of 100 tables; up to 9 of 100 in 300 of them have a chance of 1 in 1000 at that rate."""
    decided = sum(verdict(null(key), name).state != "undecided" for key in range(300))
    assert decided <= 27


@pytest.mark.parametrize(("effect", "state"), [(0.05, "holds"), (-0.05, "fails"), (0.0, "undecided")])
def test_p9_is_the_effect_of_a_reward_for_diversity_at_equal_bias(effect, state):
    row = verdict(rewarded(effect), "P9")
    assert row.state == state
    assert row.estimate == pytest.approx(effect, abs=0.01)
    assert len(row.data) == 12


def test_two_rewards_of_one_model_are_one_observation():
    once, strong = rewarded(0.05), [m for m in rewarded(0.05, λ=0.9) if m.regulariser]
    one, two = (CAUSE.measure(models).claims[0].estimate for models in (once, once + strong))
    assert two.freedom == one.freedom == 12 - 2
    assert float(two.error) == pytest.approx(float(one.error), rel=0.1)  # not by a factor of root 2


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (rewarded(0.05, seeds=range(0)), "0 models"),
        (rewarded(0.05, rise=-0.02), "has not raised ρ"),
        ([m for m in rewarded(0.05) if m.regulariser], "0 models with λ = 0 have a partner"),
    ],
)
def test_p9_is_not_measured_without_its_premise(models, words):
    row = verdict(models, "P9")
    assert row.state == "not measured"
    assert words in row.why


def test_p9_appears_with_the_first_rewarded_model_which_has_a_curve_of_its_own():
    plain = [m for m in rewarded(0.05) if not m.regulariser]
    assert [row.id for row in verdicts(plain)] == [f"P{i}" for i in range(1, 9)]
    rows = {row.id: row for row in verdicts(rewarded(0.05))}
    assert list(rows) == [f"P{i}" for i in range(1, 10)]
    assert {record["architecture"] for record in rows["P4"].data} == {"plain", "plain, λ = 0.5"}
