"""How sure a number is: standard errors, Student's intervals, the family of tests.

One calculus serves every interval and every verdict: an estimate, its standard error and the error's degrees
of freedom. With three seeds a percentile bootstrap spans no more than the three values themselves and covers
the truth three times in four; Student's t covers it at the level it states.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtr, stdtrit

LEVEL = 0.05
"""The share of intervals that may miss."""


@dataclass(frozen=True)
class Estimate:
    """A number, or an array of them, with standard errors."""

    value: Float[np.ndarray, "*B"] | float
    error: Float[np.ndarray, "*B"] | float
    freedom: float | int  # degrees of freedom of the error

    def interval(self, level: float = LEVEL) -> tuple:
        """The ends of Student's interval, which misses with probability `level`."""
        width = stdtrit(self.freedom, 1 - level / 2) * self.error
        return self.value - width, self.value + width

    @property
    def low(self) -> Float[np.ndarray, "*B"] | float:
        return self.interval()[0]

    @property
    def high(self) -> Float[np.ndarray, "*B"] | float:
        return self.interval()[1]

    def p_value(self, null: float = 0.0) -> float:
        """Of the two-sided test that the number is `null`: the level at which an end of the interval is."""
        distance, error = abs(float(self.value) - null), float(self.error)
        if distance == 0:
            return 1.0
        return float(2 * stdtr(self.freedom, -distance / error)) if error > 0 else 0.0


def clustered_mean(values: Float[np.ndarray, "N *B"], group: Int[np.ndarray, " N"]) -> Estimate:
    """The mean over the examples, groups of which depend on each other (Liang & Zeger 1986).

    Its standard error is the one to which the bootstrap of whole groups tends.
    """
    _, numbered = np.unique(group, return_inverse=True)
    groups = int(numbered.max()) + 1
    mean = values.mean(0, dtype=np.float64)
    if groups == 1:
        return Estimate(mean, np.full_like(mean, np.inf), 1)
    sums = np.zeros((groups, *values.shape[1:]))
    np.add.at(sums, numbered, values - mean)
    error = np.sqrt((sums**2).sum(0) * groups / (groups - 1)) / len(values)
    return Estimate(mean, error, groups - 1)


def seed_resamples(seeds: int, resamples: int = 400, key: int = 0) -> Int[np.ndarray, "R S"]:
    """How often each seed is in each resample.

    One fewer are drawn than there are, with replacement, which makes the variance over the resamples that of
    the mean without bias (McCarthy & Snowden 1985); as many as there are would make it (S - 1)/S of that.
    """
    return np.random.default_rng(key).multinomial(seeds - 1, np.full(seeds, 1 / seeds), resamples)


class Holm(NamedTuple):
    adjusted: Float[np.ndarray, " M"]  # p-values
    level: Float[np.ndarray, " M"]  # at which each test was made


def holm(p_values: Sequence[float], level: float = LEVEL) -> Holm:
    """Holm's step-down procedure (1979): with probability 1 - `level` no test of the family rejects falsely.

    The r-th smallest p-value is tested at level / (M - r + 1); where a test fails all larger ones fail with
    it, at the level at which the procedure stopped. So a test rejects if and only if the interval at its
    level excludes the null.
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p, kind="stable")
    factors = np.arange(len(p), 0, -1.0)
    adjusted = np.minimum(1, np.maximum.accumulate(factors * p[order]))
    rejected = int((adjusted <= level).sum())
    factors[rejected:] = factors[min(rejected, len(p) - 1)] if len(p) else 1
    back = np.argsort(order)
    return Holm(adjusted[back], level / factors[back])
