"""A set function diagnosed from its whole lattice: all 2^K values, member k being bit k of the index.

The marginal gain of member i on a set S is Δ(i | S) = F(S + i) - F(S). F is submodular if and only if gains
never rise as the set grows: for all S and all i ≠ j outside S, the second difference

    Δ(i | S + j) - Δ(i | S)  =  F(S + i + j) - F(S + i) - F(S + j) + F(S)   ≤   0.

Every number below is a count, a sum or an extreme of gains and second differences, taken in float64.
"""

from dataclasses import dataclass
from functools import partial
from math import comb
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

AnyArray: TypeAlias = Array | np.ndarray

EXHAUSTIVE = 16
"""Members of which all subsets are taken: 65,536. Beyond, `analysis.chains` samples."""


def all_subsets(members: int) -> Bool[np.ndarray, "M K"]:
    """All 2^K subsets; member k is bit k of the row's number. `ValueError` for more than 16 members."""
    if not 1 <= members <= EXHAUSTIVE:
        raise ValueError(
            f"all 2^K subsets are taken of K = 1 to {EXHAUSTIVE} members, but there are {members}: use "
            "sampled chains (analysis.setfunctions.chains), or a coarser granularity"
        )
    return (np.arange(2**members)[:, None] >> np.arange(members) & 1).astype(bool)


def checked_subsets(subsets: AnyArray, members: int) -> Bool[np.ndarray, "M K"]:
    """As a NumPy array. `ValueError` unless there are some, and each has a boolean for every member."""
    subsets = np.asarray(subsets)
    if subsets.ndim != 2 or subsets.shape[1] != members or not len(subsets) or subsets.dtype != bool:
        raise ValueError(
            f"subsets is {subsets.dtype} of shape {subsets.shape}, but must be booleans of shape "
            f"[M, {members}], a row for each subset"
        )
    return subsets


class Square(NamedTuple):
    """A second difference: of the set S, as its members, and of i and j outside it."""

    subset: tuple[int, ...]
    i: int
    j: int
    value: float


@dataclass(frozen=True, eq=False)
class Submodularity:
    """Of K members. What has the unit of F is in it; the rest are shares.

    A difference counts as positive or negative only where it exceeds `tolerance`, the rounding of values.
    """

    violation_rate: float  # share of the positive among all second differences
    violation_mass: float  # the sum of the positive ones over the sum of all without their signs
    pair_violations: Float[np.ndarray, "K K"]  # the rate for each pair; 0 on the diagonal
    worst: Square | None  # the largest second difference, be it positive or not; none for K = 1
    nonmonotone_rate: float  # share of negative gains
    ratio: float  # Das and Kempe's γ: 1 if submodular
    curvature: float  # total curvature: 0 if modular, 1 if some member adds nothing in the end
    shapley: Float[np.ndarray, " K"]  # sums to F(all) - F(∅)
    greedy_order: Int[np.ndarray, " K"]  # the member that gains most, again and again; the lowest of equals
    greedy_values: Float[np.ndarray, " K+1"]  # F of the greedy sets, from ∅
    depth_values: Float[np.ndarray, " K+1"]  # F of the first 0..K members
    best_values: Float[np.ndarray, " K+1"]  # the largest F of each size ...
    best_sets: Int[np.ndarray, " K+1"]  # ... and where it is, an index of the lattice
    tolerance: float


def diagnose(values: Float[AnyArray, " M"]) -> Submodularity:
    """Measures how far F, given by its values on all M = 2^K subsets, is from submodular.

    γ is the largest number up to 1 with Σ_{i∈S} Δ(i | L) ≥ γ · (F(L ∪ S) - F(L)) for all disjoint L and S
    that make F rise (Das & Kempe 2011; Bian et al. 2017 for this form); 3^K pairs are tried.
    Curvature is 1 - min_j Δ(j | all others) / Δ(j | ∅) over the j that gain on their own (Conforti &
    Cornuéjols 1984); 0 if none does. Both are extremes: noise in the values lowers γ and raises curvature.

    `ValueError` unless M is 2, 4, .. 2^16 and all values are finite.
    """
    given = np.asarray(values)
    members = given.size.bit_length() - 1
    if given.ndim != 1 or given.size != 2**members or not 1 <= members <= EXHAUSTIVE:
        raise ValueError(
            f"values has shape {given.shape}, but must hold one value for each of the 2^K subsets of K = 1 "
            f"to {EXHAUSTIVE} members; for more use sampled chains (analysis.setfunctions.chains)"
        )
    if not np.isfinite(given).all():
        raise ValueError(
            f"values holds {given[~np.isfinite(given)][0]} at subset {np.argmin(np.isfinite(given))}"
        )
    rounding = tolerance(given)
    with jax.enable_x64(True):
        found = _diagnose(jnp.asarray(given, float), jnp.asarray(rounding), members)
    numbers = jax.tree.map(lambda x: np.asarray(x) if x.ndim else x.item(), found)
    subset, pair, value = numbers.pop("worst")
    pairs = _pairs(members)
    worst = None
    if len(pairs):
        i, j = pairs[pair].tolist()
        worst = Square(tuple(k for k in range(members) if subset >> k & 1), i, j, value)
    return Submodularity(**numbers, worst=worst, tolerance=rounding)


def tolerance(values: Float[np.ndarray, " M"]) -> float:
    """What rounding makes of a second difference: of 4 values, each right to 4 ulps of the largest."""
    unit = np.finfo(np.result_type(values, np.float32)).eps
    return 4 * 4 * float(unit * np.abs(values).max())


@partial(jax.jit, static_argnames="members")
def _diagnose(values: Float[Array, " M"], tolerance: Float[Array, ""], members: int) -> dict:
    index, bit = jnp.arange(2**members), 2 ** jnp.arange(members)
    size = jnp.bitwise_count(index)
    outside = (index & bit[:, None]) == 0
    gains = jnp.where(outside, values[index | bit[:, None]] - values, 0)  # [K, M]; 0 for a member of the set
    orders = [comb(members - 1, s) * members for s in range(members)] + [1]  # 1 / the weight of a gain
    alone, last = gains[:, 0], values[-1] - values[-1 - bit]
    gaining = alone > tolerance
    kept = jnp.where(gaining, last / jnp.where(gaining, alone, 1), jnp.inf).min()
    greedy_order, greedy_sets = _greedy(gains, bit)
    by_size = jnp.where(size == jnp.arange(members + 1)[:, None], values, -jnp.inf)
    return {
        **_second_differences(gains, tolerance),
        "nonmonotone_rate": (gains < -tolerance).sum() / outside.sum(),
        "ratio": _ratio(values, gains, tolerance),
        "curvature": jnp.where(gaining.any(), 1 - kept, 0),
        "shapley": gains @ (1 / jnp.array(orders, float))[size],
        "greedy_order": greedy_order,
        "greedy_values": values[jnp.append(0, greedy_sets)],
        "depth_values": values[2 ** jnp.arange(members + 1) - 1],
        "best_values": by_size.max(1),
        "best_sets": by_size.argmax(1),
    }


def _pairs(members: int) -> Int[np.ndarray, "Q 2"]:
    return np.stack(np.triu_indices(members, 1), -1)


def _second_differences(gains: Float[Array, "K M"], tolerance: Float[Array, ""]) -> dict:
    """Of all pairs, a pair at a time: [M] differences, a quarter of them at sets without i and j."""
    members, index = len(gains), jnp.arange(gains.shape[1])
    if members == 1:
        nothing = jnp.zeros(())
        return {
            "violation_rate": nothing,
            "violation_mass": nothing,
            "pair_violations": jnp.zeros((1, 1)),
            "worst": (nothing,) * 3,
        }

    def of_pair(pair):
        i, j = pair
        apart = (index & (2**i | 2**j)) == 0
        difference = jnp.where(apart, gains[i][index | 2**j] - gains[i], -jnp.inf)
        counted = jnp.where(apart & (jnp.abs(difference) > tolerance), difference, 0)
        worst = difference.argmax()
        positive = jnp.maximum(counted, 0)
        return (
            (positive > 0).sum() / apart.sum(),
            positive.sum(),
            jnp.abs(counted).sum(),
            worst,
            difference[worst],
        )

    pairs = _pairs(members)
    rate, positive, total, worst, value = jax.lax.map(of_pair, pairs)
    pair = value.argmax()
    above = jnp.zeros((members, members)).at[pairs[:, 0], pairs[:, 1]].set(rate)
    return {
        "violation_rate": rate.mean(),
        "violation_mass": positive.sum() / jnp.where(total.sum() > 0, total.sum(), 1),
        "pair_violations": above + above.T,
        "worst": (worst[pair], pair, value[pair]),
    }


def _ratio(values: Float[Array, " M"], gains: Float[Array, "K M"], tolerance: Float[Array, ""]) -> Array:
    """γ. Each pair (L, S) is one of the lower half of the members joined with one of the upper half.

    The sums of gains are given the benefit of rounding, so that a modular F has γ = 1.
    """
    half = len(gains) // 2
    lower, upper = _disjoint(half), _disjoint(len(gains) - half)
    table = gains.reshape(-1, 2**upper.members, 2**lower.members)
    lower_sums = lower.sums(
        table[:half].swapaxes(1, 2)
    )  # [upper L, lower pair] Σ of the gains in the lower S
    upper_sums = upper.sums(table[half:])  # [lower L, upper pair]
    grid = values.reshape(table.shape[1:])

    def least(pair):
        """Over all lower pairs, joined with one upper pair."""
        base, union = upper.base[pair], upper.union[pair]
        rise = grid[union][lower.union] - grid[base][lower.base]
        total = lower_sums[base] + upper_sums[lower.base, pair]
        rises = rise > tolerance
        return jnp.where(rises, (total + tolerance) / jnp.where(rises, rise, 1), 1).min()

    return jax.lax.map(least, jnp.arange(len(upper.base))).min()


class _Pairs(NamedTuple):
    """All 3^m pairs of disjoint sets L and S of m members."""

    base: Int[Array, " P"]  # L
    union: Int[Array, " P"]  # L ∪ S
    in_s: Float[Array, "m P"]
    members: int

    def sums(self, gains: Float[Array, "m M other"]) -> Float[Array, "other P"]:
        """Σ_{i∈S} gains[i, L], for each set of other members."""
        return jax.lax.map(lambda g: (g[:, self.base] * self.in_s).sum(0), jnp.moveaxis(gains, -1, 0))


def _disjoint(members: int) -> _Pairs:
    digits = np.arange(3**members) // 3 ** np.arange(members)[:, None] % 3  # 0: in neither, 1: in S, 2: in L
    bit = 2 ** np.arange(members)
    base, union = bit @ (digits == 2), bit @ (digits > 0)
    return _Pairs(jnp.asarray(base), jnp.asarray(union), jnp.asarray(digits == 1, float), members)


def _greedy(gains: Float[Array, "K M"], bit: Int[Array, " K"]) -> tuple[Int[Array, " K"], Int[Array, " K"]]:
    """The members in greedy order, and the set after each."""

    def step(chosen, _):
        member = jnp.where((chosen & bit) == 0, gains[:, chosen], -jnp.inf).argmax()
        chosen = chosen | bit[member]
        return chosen, (member, chosen)

    return jax.lax.scan(step, jnp.zeros((), bit.dtype), length=len(gains))[1]
