"""How the loss falls with size: six forms, fitted, compared and extrapolated.

The runs of S seeds at X sizes (depths, parameters or FLOPs) give losses [S, X]. A form is a row of
`FORMS`: a function of parameters and size. One that is linear in its parameters is fitted by least squares.
For the rest, all of whose parameters are positive, the sum of Huber losses (δ = 1e-3) of the residuals of
ln L is minimised over the logarithms of the parameters by L-BFGS from a grid of starts (Hoffmann et al.
2022), to convergence (Besiroglu et al. 2024).

Every fit is one of the same losses under weights [S, X]: all ones for the fit itself, zero at the largest
sizes for the held-out error, a seed's count in a resample for the bootstrap.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from analysis.fitting import Form, huber, least_squares
from analysis.statistics import Estimate, seed_resamples
from jaxlayers.refusal import Refusal

ROUNDING = 64 * np.finfo(float).eps  # of the largest loss: smaller errors are none


def _decay_starts(
    decay: Callable[[np.ndarray, np.ndarray], np.ndarray], rates: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Starts of E + A·decay(x, rate): floors E under the smallest loss, A such that the first loss is met."""

    def starts(x: np.ndarray, loss: np.ndarray) -> np.ndarray:
        grid = product(loss.min() * np.array([0.1, 0.5, 0.9, 0.99]), rates(x))
        return np.array([(floor, (loss[0] - floor) / decay(x[0], rate), rate) for floor, rate in grid])

    return starts


FORMS = {
    form.name: form
    for form in (
        Form("constant", "a", ("a",), lambda p, x: p[0] + 0 * x),
        Form("linear", "a - b·d", ("a", "b"), lambda p, x: p[0] - p[1] * x),
        Form("log", "a - b·ln d", ("a", "b"), lambda p, x: p[0] - p[1] * jnp.log(x)),
        Form("inverse", "E + A/d", ("E", "A"), lambda p, x: p[0] + p[1] / x),
        Form(
            "power",
            "E + A·d^-α",
            ("E", "A", "α"),
            lambda p, x: p[0] + p[1] * x ** -p[2],
            _decay_starts(lambda x, rate: x**-rate, lambda x: np.array([0.1, 0.3, 1.0, 3.0])),
        ),
        Form(
            "exponential",
            "E + A·e^(-d/τ)",
            ("E", "A", "τ"),
            lambda p, x: p[0] + p[1] * jnp.exp(-x / p[2]),
            _decay_starts(
                lambda x, rate: np.exp(-x / rate), lambda x: x[-1] * np.array([0.1, 0.3, 1.0, 3.0])
            ),
        ),
    )
}


@dataclass(frozen=True)
class ScalingFit:
    """One form, fitted to the losses of S seeds at X sizes.

    The AICc (Hurvich & Tsai 1989) of every form is that of independent Gaussian residuals of L itself,
    whatever the form was fitted by, so that forms compare. Of a form fitted by Huber's loss it is an upper
    bound: the likelihood is not at its maximum.
    """

    form: Form
    parameters: dict[str, float]
    intervals: dict[str, tuple[float, float]]  # 95 %, by bootstrap over seeds
    aicc: float
    holdout_error: (
        float  # nats, of the mean loss at the sizes held out (root mean square), fitted without them
    )
    held_out: int  # how many of the largest sizes: one, from six sizes on two
    resampled_errors: Float[np.ndarray, " R"] = field(
        repr=False
    )  # the same in the same resamples for all forms

    def predict(self, x: ArrayLike) -> Float[np.ndarray, " X"]:
        with jax.enable_x64(True):
            values = jnp.array(list(self.parameters.values()))
            return np.asarray(self.form.predict(values, jnp.asarray(x, float)))


def fit(x: ArrayLike, losses: ArrayLike, form: Form | str, resamples: int = 400) -> ScalingFit:
    """`form` fitted to `losses` [S, X] at the sizes `x` [X], or [X, V] for a form of V variables.

    The rows of x stand in order of size: the last are the ones held out. Raises `Refusal`, with the reason,
    for fewer than four sizes or two seeds, and for numbers that a form cannot be fitted to.
    """
    if isinstance(form, str):
        if form not in FORMS:
            raise Refusal(f"form is {form!r}, but must be one of {', '.join(FORMS)}")
        form = FORMS[form]
    x, losses = np.asarray(x, float), np.asarray(losses, float)
    _check(x, losses)
    seeds, sizes = losses.shape
    held_out = 2 if sizes >= 6 else 1
    if sizes - held_out < len(form.parameters):
        raise Refusal(
            f"{form.name!r} has {len(form.parameters)} parameters, and {sizes} sizes with {held_out} "
            "held out do not determine them: add sizes"
        )
    if form.starts is not None and losses.min() <= 0:
        raise Refusal(
            f"{form.name!r} is fitted to ln L, but losses holds {losses.min():g}: give positive losses"
        )

    # Few seeds make few different resamples; each is fitted once.
    drawn, which = np.unique(seed_resamples(seeds, resamples), axis=0, return_inverse=True)
    counts = np.concatenate([np.ones((1, seeds)), drawn])
    kept = np.arange(sizes) < sizes - held_out
    weights = counts[:, :, None] * np.stack([np.ones(sizes), kept])[:, None, None]  # [2, R, S, X]
    with jax.enable_x64(True):
        if form.starts is None:
            fits = least_squares(form, x, losses, weights)
        else:
            fits = huber(form, x, losses, weights, form.starts(x, losses.mean(0)))
        parameters = fits[0]
        curves = np.asarray(
            jax.vmap(jax.vmap(form.predict, (0, None)), (0, None))(jnp.asarray(fits), jnp.asarray(x))
        )
    means = counts @ losses / counts.sum(1, keepdims=True)
    rounding = ROUNDING * np.abs(losses).max()
    holdout = np.maximum(np.sqrt(((curves[1] - means)[:, ~kept] ** 2).mean(1)), rounding)

    error = parameters[1:][which].std(0)
    low, high = Estimate(parameters[0], error, seeds - 1).interval()
    low, high = np.maximum(low, 0 if form.starts else -np.inf), np.asarray(high)
    return ScalingFit(
        form,
        dict(zip(form.parameters, parameters[0].tolist(), strict=True)),
        dict(zip(form.parameters, zip(low.tolist(), high.tolist(), strict=True), strict=True)),
        _aicc(losses - curves[0, 0], len(form.parameters), rounding),
        float(holdout[0]),
        held_out,
        holdout[1:][which],
    )


def compare(
    x: ArrayLike, losses: ArrayLike, forms: Sequence[Form] = tuple(FORMS.values()), resamples: int = 400
) -> list[ScalingFit]:
    """The forms fitted to the same losses, the smallest held-out error first; of equals the simpler one.

    Arguments and errors as for `fit`.
    """
    fits = [fit(x, losses, form, resamples) for form in forms]
    return sorted(fits, key=lambda fit: fit.holdout_error)


@dataclass(frozen=True)
class MarginalGains:
    """What a unit of size adds: -ΔL/Δd between neighbouring sizes, and how that changes, with intervals."""

    x: Float[np.ndarray, " G"]  # half-way between the sizes, G = X - 1
    gains: Float[np.ndarray, "S G"]
    gain: Estimate  # [G]
    curvature: Estimate  # [G-1], per unit of size: negative where gains diminish
    mean_curvature: Estimate

    @property
    def sign(self) -> Int[np.ndarray, " H"]:
        """Of the curvature, [G-1]: -1 diminishing, 1 growing, 0 where the interval holds both."""
        return np.greater(self.curvature.low, 0).astype(int) - np.less(self.curvature.high, 0)


def marginal_gains(x: ArrayLike, losses: ArrayLike) -> MarginalGains:
    """The gains of `losses` [S, X] along at least three sizes `x` [X]. Raises `Refusal` as `fit` does."""
    x, losses = np.asarray(x, float), np.asarray(losses, float)
    _check(x, losses, least=3)
    gains = -np.diff(losses) / np.diff(x)
    middle = (x[1:] + x[:-1]) / 2
    curvature = np.diff(gains) / np.diff(middle)
    return MarginalGains(
        middle, gains, _over_seeds(gains), _over_seeds(curvature), _over_seeds(curvature.mean(1))
    )


def _over_seeds(values: Float[np.ndarray, "S *B"]) -> Estimate:
    seeds = len(values)
    return Estimate(values.mean(0), values.std(0, ddof=1) / np.sqrt(seeds), seeds - 1)


def _check(x: np.ndarray, losses: np.ndarray, least: int = 4) -> None:
    if losses.ndim != 2 or x.ndim not in (1, 2) or losses.shape[1] != len(x):
        raise Refusal(
            f"losses has shape {losses.shape} and x {x.shape}: give losses [S, X] at the sizes x [X]"
        )
    if losses.shape[0] < 2:
        raise Refusal(f"losses holds {losses.shape[0]} seed: an interval needs at least 2")
    if len(x) < least:
        raise Refusal(f"x holds {len(x)} sizes: give at least {least}")
    if not (np.isfinite(x).all() and np.isfinite(losses).all()):
        raise Refusal("x or losses holds NaN or infinite values: leave diverged runs out")
    if x.min() <= 0:
        raise Refusal(f"x holds {x.min():g}: sizes are positive")
    if x.ndim == 1 and (np.diff(x) <= 0).any():
        raise Refusal("x must increase: sort the sizes, and give runs of one size as seeds")


def _aicc(residuals: Float[np.ndarray, "S X"], parameters: int, rounding: float) -> float:
    """With the variance as one more parameter; a perfect fit has the variance of rounding."""
    runs, free = residuals.size, parameters + 1
    variance = max((residuals**2).mean(), rounding**2)
    return float(runs * np.log(variance) + 2 * free + 2 * free * (free + 1) / (runs - free - 1))
