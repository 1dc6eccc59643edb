"""Scaling laws: planted parameters come back, on independent optima, and what cannot be fitted is refused."""

from itertools import product

import jax
import numpy as np
import pytest
from scipy import optimize, stats

from analysis.fitting import HUBER, Form, least_squares
from analysis.scaling import FORMS, compare, fit, marginal_gains
from analysis.statistics import seed_resamples
from jaxlayers.refusal import Refusal

DEPTHS = np.array([1.0, 2, 3, 4, 6, 8])
PLANTED = {
    "constant": [1.5],
    "linear": [2.0, 0.05],
    "log": [2.0, 0.15],
    "inverse": [1.4, 0.6],
    "power": [1.4, 0.6, 0.7],
    "exponential": [1.5, 0.6, 2.0],
}


CURVES = {
    "constant": lambda a: a + 0 * DEPTHS,
    "linear": lambda a, b: a - b * DEPTHS,
    "log": lambda a, b: a - b * np.log(DEPTHS),
    "inverse": lambda floor, a: floor + a / DEPTHS,
    "power": lambda floor, a, rate: floor + a * DEPTHS**-rate,
    "exponential": lambda floor, a, length: floor + a * np.exp(-DEPTHS / length),
}


def planted(name, noise=0.0, seeds=3, key=0):
    noises = noise * np.random.default_rng(key).normal(size=(seeds, len(DEPTHS)))
    return CURVES[name](*PLANTED[name]) + noises


@pytest.mark.parametrize("name", FORMS)
def test_each_form_recovers_the_parameters_planted_in_it(name):
    found = fit(DEPTHS, planted(name), name)
    np.testing.assert_allclose(list(found.parameters.values()), PLANTED[name], rtol=1e-9)
    assert found.holdout_error < 1e-9
    np.testing.assert_allclose(found.predict(DEPTHS), planted(name)[0], rtol=1e-9)


@pytest.mark.parametrize("name", ["linear", "log", "inverse", "power", "exponential"])
def test_the_planted_form_extrapolates_best_and_has_the_smallest_aicc(name):
    ranked = compare(DEPTHS, planted(name, noise=1e-3))
    assert ranked[0].form.name == name
    assert min(ranked, key=lambda fit: fit.aicc).form.name == name
    assert [fit.holdout_error for fit in ranked] == sorted(fit.holdout_error for fit in ranked)


def test_of_forms_that_agree_to_rounding_the_simplest_comes_first():
    for name in "constant", "inverse":  # which is a power, too
        ranked = compare(DEPTHS, planted(name))
        assert ranked[0].form.name == name
        assert min(ranked, key=lambda fit: fit.aicc).form.name == name


def test_a_linear_form_is_ordinary_least_squares():
    losses = planted("log", noise=0.05)
    line = stats.linregress(np.tile(np.log(DEPTHS), 3), losses.ravel())
    found = fit(DEPTHS, losses, "log").parameters
    np.testing.assert_allclose([found["a"], found["b"]], [line.intercept, -line.slope], rtol=1e-12)


def test_weights_are_those_of_weighted_least_squares():
    random = np.random.default_rng(0)
    losses, weights = planted("log", noise=0.05), random.integers(1, 5, (3, 6)).astype(float)
    slope, level = np.polyfit(np.tile(np.log(DEPTHS), 3), losses.ravel(), 1, w=np.sqrt(weights.ravel()))
    with jax.enable_x64(True):
        found = least_squares(FORMS["log"], DEPTHS, losses, weights)
    np.testing.assert_allclose(found, [level, -slope], rtol=1e-12)


@pytest.mark.parametrize("name", ["power", "exponential"])
def test_a_decay_reaches_the_optimum_that_a_simplex_search_finds(name):
    losses = planted(name, noise=5e-3)

    def objective(logs):
        gap = np.abs(np.log(CURVES[name](*np.exp(logs))) - np.log(losses))
        return np.where(gap < HUBER, gap**2 / 2, HUBER * (gap - HUBER / 2)).sum()

    start = np.log(PLANTED[name])
    settings = {"xatol": 1e-12, "fatol": 1e-18, "maxiter": 20_000, "maxfev": 20_000}
    simplex = optimize.minimize(objective, start, method="Nelder-Mead", options=settings)
    found = fit(DEPTHS, losses, name)
    at = objective(np.log(list(found.parameters.values())))
    assert at <= simplex.fun * (1 + 1e-9)


def test_the_held_out_error_never_saw_what_it_is_measured_on():
    losses = planted("log", noise=1e-2)
    moved = losses.copy()
    moved[:, -2:] += 0.5
    line = stats.linregress(np.tile(np.log(DEPTHS[:-2]), 3), losses[:, :-2].ravel())
    for given in losses, moved:
        gap = line.intercept + line.slope * np.log(DEPTHS[-2:]) - given[:, -2:].mean(0)
        found = fit(DEPTHS, given, "log")
        assert found.held_out == 2
        np.testing.assert_allclose(found.holdout_error, np.sqrt((gap**2).mean()), rtol=1e-9)
    assert fit(DEPTHS[:5], losses[:, :5], "log").held_out == 1


def test_aicc_is_that_of_gaussian_residuals():
    losses = planted("linear", noise=0.02)
    found = fit(DEPTHS, losses, "linear")
    residuals = losses - (found.parameters["a"] - found.parameters["b"] * DEPTHS)
    spread = np.sqrt((residuals**2).mean())
    deviance = -2 * stats.norm.logpdf(residuals, scale=spread).sum()
    expected = deviance + 2 * 3 + 2 * 3 * 4 / (18 - 3 - 1) - 18 * (1 + np.log(2 * np.pi))
    np.testing.assert_allclose(found.aicc, expected, rtol=1e-10)


def test_an_outlying_run_moves_least_squares_but_not_the_huber_fit():
    losses = planted("power", noise=1e-4)
    losses[2, 3] += 0.3
    assert fit(DEPTHS, losses, "power").parameters["α"] == pytest.approx(0.7, abs=0.02)
    clean, moved = (fit(DEPTHS, given, "inverse").parameters["E"] for given in (planted("power"), losses))
    assert abs(moved - clean) > 5e-3


def test_the_interval_of_a_linear_parameter_is_students_over_the_seeds():
    """The slope is linear in the losses, so the bootstrap's error is that of the mean over the seeds."""
    losses = planted("log", noise=0.02, seeds=6)
    slopes = [stats.linregress(np.log(DEPTHS), row).slope for row in losses]
    low, high = stats.t.interval(0.95, 5, -np.mean(slopes), stats.sem(slopes))
    found = fit(DEPTHS, losses, "log", resamples=40_000).intervals["b"]
    np.testing.assert_allclose(found, (low, high), atol=0.02 * (high - low))


@pytest.mark.slow
def test_intervals_cover_the_planted_parameters():
    covered = {"log": 0, "power": 0}
    for key in range(100):
        for name, parameter in (("log", 1), ("power", 2)):
            found = fit(DEPTHS, planted(name, noise=2e-3, seeds=4, key=key), name)
            low, high = list(found.intervals.values())[parameter]
            covered[name] += low <= PLANTED[name][parameter] <= high
    assert 89 <= covered["log"] <= 99
    assert 89 <= covered["power"] <= 99


def test_resampled_seeds_have_the_variance_of_their_mean():
    values = np.random.default_rng(0).normal(size=4)
    means = seed_resamples(4, 100_000) @ values / 3
    np.testing.assert_allclose(means.std(), stats.sem(values), rtol=0.01)


CHINCHILLA = Form(
    "chinchilla",
    "E + A/N^α + B/D^β",
    ("E", "A", "α", "B", "β"),
    lambda p, x: p[0] + p[1] * x[:, 0] ** -p[2] + p[3] * x[:, 1] ** -p[4],
    lambda x, loss: np.array(
        list(product(np.exp([-0.5, 0, 0.5]), *2 * (np.exp([2, 5, 8, 11]), [0.2, 0.5, 1.0])))
    ),
)
REFIT = {"E": 1.8172, "A": 482.01, "α": 0.3478, "B": 2085.43, "β": 0.3658}


def chinchilla_runs(noise):
    """Losses of two runs each at 48 models from 57 M to 16 B parameters on 5 to 500 tokens a parameter."""
    random = np.random.default_rng(0)
    parameters = np.exp(np.linspace(np.log(5.7e7), np.log(1.6e10), 48))
    tokens = parameters * np.exp(random.uniform(np.log(5), np.log(500), 48))
    exact = REFIT["E"] + REFIT["A"] * parameters ** -REFIT["α"] + REFIT["B"] * tokens ** -REFIT["β"]
    return np.stack([parameters, tokens], 1), exact * np.exp(noise * random.normal(size=(2, 48)))


def test_the_refit_of_chinchilla_is_reproduced_from_its_parametric_form():
    """The values of Besiroglu et al. (2024), from losses made with them: exactly, and through noise."""
    x, losses = chinchilla_runs(noise=0)
    found = fit(x, losses, CHINCHILLA, resamples=1)
    for name, value in REFIT.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6), name

    x, losses = chinchilla_runs(noise=2e-3)
    found = fit(x, losses, CHINCHILLA, resamples=1)
    assert found.parameters["E"] == pytest.approx(REFIT["E"], rel=0.02)
    assert found.parameters["α"] == pytest.approx(REFIT["α"], rel=0.05)
    assert found.parameters["β"] == pytest.approx(REFIT["β"], rel=0.05)


def test_the_mean_instead_of_the_sum_stops_a_usual_optimiser_early():
    """Why the fit above goes on until the gradient is nothing (Besiroglu et al. 2024, section 4)."""
    x, losses = chinchilla_runs(noise=2e-3)
    lengths, logs = np.log(x), np.log(losses)

    def huber(theta, scale):
        floor, a, alpha, b, beta = theta
        predicted = np.logaddexp(floor, np.logaddexp(a - alpha * lengths[:, 0], b - beta * lengths[:, 1]))
        gap = np.abs(predicted - logs)
        return scale * np.where(gap < HUBER, gap**2 / 2, HUBER * (gap - HUBER / 2)).sum()

    start = np.array([0.0, 5, 0.5, 5, 0.5])
    ours = fit(x, losses, CHINCHILLA, resamples=1).parameters
    least = huber([np.log(ours["E"]), np.log(ours["A"]), ours["α"], np.log(ours["B"]), ours["β"]], 1)
    stopped = optimize.minimize(huber, start, args=1 / losses.size, method="L-BFGS-B")
    assert stopped.success
    assert huber(stopped.x, 1) > 1.5 * least


def test_gains_are_differences_per_unit_of_size():
    losses = np.array([[2.0, 1.8, 1.7, 1.6], [2.2, 1.8, 1.8, 1.6]])
    found = marginal_gains(np.array([1.0, 2, 4, 6]), losses)
    np.testing.assert_allclose(found.x, [1.5, 3, 5])
    np.testing.assert_allclose(found.gains, [[0.2, 0.05, 0.05], [0.4, 0.0, 0.1]], atol=1e-12)
    np.testing.assert_allclose(found.gain.value, [0.3, 0.025, 0.075], atol=1e-12)
    low, high = stats.t.interval(0.95, 1, 0.3, stats.sem([0.2, 0.4]))
    np.testing.assert_allclose((found.gain.low[0], found.gain.high[0]), (low, high))
    np.testing.assert_allclose(found.curvature.value, [-0.275 / 1.5, 0.025], atol=1e-12)


@pytest.mark.parametrize(("name", "sign"), [("log", -1), ("linear", 0)])
def test_the_sign_of_the_second_difference_waits_for_its_interval(name, sign):
    found = marginal_gains(DEPTHS, planted(name, noise=1e-4, seeds=8))
    assert found.sign[0] == sign


BAD = {
    "3 sizes": (DEPTHS[:3], np.ones((3, 3)), "log", "give at least 4"),
    "1 seed": (DEPTHS, np.ones((1, 6)), "log", "at least 2"),
    "NaN": (DEPTHS, np.full((2, 6), np.nan), "log", "NaN"),
    "not increasing": (DEPTHS[::-1].copy(), np.ones((2, 6)), "log", "increase"),
    "size 0": (DEPTHS - 1, np.ones((2, 6)), "log", "positive"),
    "loss 0": (DEPTHS, np.zeros((2, 6)), "power", "ln L"),
    "form": (DEPTHS, np.ones((2, 6)), "cubic", "must be one of constant, linear, log"),
    "shapes": (DEPTHS, np.ones((2, 5)), "log", "shape"),
    "few sizes for five parameters": (np.ones((5, 2)), np.ones((2, 5)), CHINCHILLA, "add sizes"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_fitted_is_refused_with_the_reason(case):
    x, losses, form, reason = BAD[case]
    with pytest.raises(Refusal, match=reason):
        fit(x, losses, form)


def test_a_rising_curve_gets_no_negative_decay():
    found = fit(DEPTHS, 1.5 + 0.05 * DEPTHS + np.array([[0.0], [1e-3], [2e-3]]), "power")
    assert all(value >= 0 for value in found.parameters.values())
    assert np.isfinite(found.holdout_error)
