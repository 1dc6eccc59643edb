"""How sure a number is: standard errors, Student's intervals, the family of tests.

One calculus serves every interval and every verdict: an estimate, its standard error and the error's degrees
of freedom. With three seeds a percentile bootstrap spans no more than the three values themselves and covers
the truth three times in four; Student's t covers it at the level it states.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtr, stdtrit

from jaxlayers.refusal import Refusal

LEVEL = 0.05
"""The share of intervals that may miss."""


@dataclass(frozen=True)
class Estimate:
    """A number, or an array of them, with standard errors."""

    value: Float[np.ndarray, "*B"] | float
    error: Float[np.ndarray, "*B"] | float
    freedom: float | int  # degrees of freedom of the error

    def __getitem__(self, i: int) -> "Estimate":
        return Estimate(np.asarray(self.value)[i], np.asarray(self.error)[i], self.freedom)

    def __iter__(self) -> Iterator["Estimate"]:
        return (self[i] for i in range(len(np.asarray(self.value))))

    def __mul__(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.error * abs(factor), self.freedom)

    def interval(
        self, level: float = LEVEL
    ) -> tuple[Float[np.ndarray, "*B"] | float, Float[np.ndarray, "*B"] | float]:
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


def jackknife(
    value: Float[np.ndarray, "*B"] | float, without: Float[np.ndarray, "J *B"], freedom: int
) -> Estimate:
    """The error of a number from the same number without each of J independent parts of the data."""
    parts = len(without)
    return Estimate(value, np.sqrt((parts - 1) * without.var(0)), freedom)


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


def regression(
    outcome: Float[np.ndarray, " N"], design: Float[np.ndarray, "N P"], cluster: Int[np.ndarray, " N"]
) -> Estimate:
    """Least-squares coefficients [P]; errors from leaving out one cluster at a time.

    The cluster jackknife (CV3 of MacKinnon, Nielsen & Webb 2023) stays honest with few clusters. Raises
    `Refusal` where the clusters do not determine the coefficients.
    """
    _, numbered = np.unique(cluster, return_inverse=True)
    clusters, terms = int(numbered.max()) + 1, design.shape[1]
    if clusters <= terms:
        raise Refusal(f"{clusters} independent observations do not determine {terms} coefficients")
    products, moments = np.zeros((clusters, terms, terms)), np.zeros((clusters, terms))
    np.add.at(products, numbered, design[:, :, None] * design[:, None, :])
    np.add.at(moments, numbered, design * outcome[:, None])
    others = products.sum(0) - products
    if np.linalg.matrix_rank(others, hermitian=True).min() < terms:
        raise Refusal("without one of its observations the regression has no answer: its terms do not vary")
    value = np.linalg.solve(products.sum(0), moments.sum(0))
    without = np.linalg.solve(others, (moments.sum(0) - moments)[..., None])[..., 0]
    return jackknife(value, without, clusters - terms)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent numbers."""
    value = float(np.mean([e.value for e in estimates]))
    parts = [Estimate(0.0, e.error / len(estimates), e.freedom) for e in estimates]
    return _summed(value, parts)


def pooled(
    estimates: Sequence[Estimate],
    curve: Sequence[Hashable],
    size: Sequence[Hashable],
    seed: Sequence[Hashable],
) -> Estimate:
    """The mean over trained models, each a seed at a size of a curve and measured on examples.

    Two errors add. The seeds': a seed's deviations from the means over the seeds, summed over the sizes of
    its curve, for they may go together. And the examples': that of the single models, in full, for the
    models may share their examples. Without a second seed only the latter is left: it speaks of these models.
    """
    values = np.array([float(e.value) for e in estimates])
    cells = np.unique([f"{c!r}{x!r}" for c, x in zip(curve, size, strict=True)], return_inverse=True)[1]
    residuals = values - (np.bincount(cells, values) / np.bincount(cells))[cells]
    by_seed: dict[Hashable, dict[Hashable, float]] = {}
    for c, s, residual in zip(curve, seed, residuals, strict=True):
        seeds = by_seed.setdefault(c, {})
        seeds[s] = seeds.get(s, 0.0) + residual
    parts = [
        Estimate(0.0, float(np.sqrt(n / (n - 1) * np.square(list(sums.values())).sum())) / len(values), n - 1)
        for sums in by_seed.values()
        if (n := len(sums)) > 1
    ]
    examples = float(np.mean([e.error for e in estimates]))
    parts.append(Estimate(0.0, examples, min(e.freedom for e in estimates)))
    return _summed(float(values.mean()), parts)


def _summed(value: float, parts: Sequence[Estimate]) -> Estimate:
    """`value` with the errors of independent parts, the degrees of freedom by Satterthwaite (1946)."""
    variances = np.array([float(part.error) ** 2 for part in parts])
    freedoms = np.array([part.freedom for part in parts])
    if not variances.any():
        return Estimate(value, 0.0, float(freedoms.sum()))
    freedom = variances.sum() ** 2 / (variances**2 / freedoms).sum()
    return Estimate(value, float(np.sqrt(variances.sum())), float(freedom))
