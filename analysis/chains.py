"""Sampled chains: what can be said of a set function of too many members for all their subsets.

A chain adds the members one by one in a random order; each order comes with its reverse, so that what one
counts early the other counts late (antithetic pairs; Mitchell et al. 2022, arXiv 2104.12199). The mean gain
of a member over orders is its Shapley value. Second differences are sampled by themselves, each with two
members and a set of the others drawn uniformly, so that their rates estimate those of the whole lattice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from analysis.lattice import AnyArray, Square, tolerance
from analysis.statistics import Estimate


@dataclass(frozen=True, eq=False)
class Sampled:
    """Estimates of what `Submodularity` holds. Their errors are those of sampling subsets alone."""

    shapley: Estimate  # [K]; the values sum to F(all) - F(∅), exactly
    gains: Estimate  # [K] mean gain of one more member on a set of 0..K-1
    violation_rate: Estimate
    violation_mass: Estimate
    nonmonotone_rate: Estimate
    worst: Square  # of the second differences sampled
    depth_values: Float[np.ndarray, " sizes"]  # F of the first 0..K members
    tolerance: float


@dataclass(frozen=True, eq=False)
class Chains:
    """Which subsets to give values to (`subsets`), and what to make of the values (`read`)."""

    subsets: Bool[np.ndarray, "M K"]  # of each order, K+1; of each square, 4
    orders: Int[np.ndarray, "P K"]  # by depth; then random ones, each followed by its reverse
    squares: Int[np.ndarray, "Q 2"]  # i and j

    def read(self, values: Float[AnyArray, " M"]) -> Sampled:
        """The estimates from the values of `subsets`, in their order. `ValueError` unless M and finite."""
        given = np.asarray(values)
        if given.shape != (len(self.subsets),) or not np.isfinite(given).all():
            raise ValueError(
                f"values has shape {given.shape}, but must hold a finite value for each of the "
                f"{len(self.subsets)} rows of subsets"
            )
        rounding, f = tolerance(given), given.astype(np.float64)
        along = f[: self.orders.size + len(self.orders)].reshape(len(self.orders), -1)
        steps = np.diff(along[1:])  # [P - 1, K] by size
        by_member = np.empty_like(steps)
        np.put_along_axis(by_member, self.orders[1:], steps, 1)
        low, plus_i, plus_j, high = f[along.size :].reshape(-1, 4).T
        difference = high - plus_i - plus_j + low
        counted = np.where(np.abs(difference) > rounding, difference, 0)
        gains = np.stack([plus_i - low, plus_j - low, high - plus_j, high - plus_i])
        positive, total = np.maximum(counted, 0), np.abs(counted)
        mass = positive.sum() / (total.sum() or 1)
        worst = int(difference.argmax())
        at = self.subsets[along.size :: 4][worst]
        i, j = self.squares[worst].tolist()
        return Sampled(
            shapley=_mean(_pairs(by_member)),
            gains=_mean(_pairs(steps)),
            violation_rate=_mean((counted > 0).astype(float)),
            violation_mass=Estimate(
                mass, _mean(positive - mass * total).error / (total.mean() or 1), len(total) - 1
            ),
            nonmonotone_rate=_mean((gains < -rounding).mean(0)),
            worst=Square(tuple(np.flatnonzero(at).tolist()), i, j, float(difference[worst])),
            depth_values=along[0],
            tolerance=rounding,
        )


def chains(members: int, permutations: int = 64, squares: int = 1024, seed: int = 0) -> Chains:
    """Draws the subsets: `permutations` orders (half of them reverses), and as many `squares`.

    `ValueError` for fewer than 2 members or squares, or a number of permutations that is odd or below 4.
    """
    if members < 2:
        raise ValueError(f"members is {members}, but must be at least 2 to have an order")
    if permutations < 4 or permutations % 2:
        raise ValueError(
            f"permutations is {permutations}, but must be even and at least 4: pairs with an error"
        )
    if squares < 2:
        raise ValueError(f"squares is {squares}, but must be at least 2 for an error")
    random = np.random.default_rng(seed)
    half = random.permuted(np.tile(np.arange(members), (permutations // 2, 1)), axis=1)
    drawn = np.stack([half, half[:, ::-1]], 1).reshape(-1, members)
    orders = np.concatenate([np.arange(members)[None], drawn])
    rank = np.argsort(orders, 1)  # of each member
    prefixes = rank[:, None] < np.arange(members + 1)[:, None]
    pairs = random.permuted(np.tile(np.arange(members), (squares, 1)), axis=1)[:, :2]
    corners = np.tile(random.random((squares, 1, members)) < 0.5, (1, 4, 1))
    for n, present in enumerate([(0, 0), (1, 0), (0, 1), (1, 1)]):
        np.put_along_axis(corners[:, n], pairs, np.array([present], bool), 1)
    subsets = np.concatenate([prefixes.reshape(-1, members), corners.reshape(-1, members)])
    return Chains(subsets, orders, pairs)


def greedy(
    value: Callable[[Bool[np.ndarray, "K K"]], Float[AnyArray, " K"]], members: int
) -> tuple[Int[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """The member that gains most, again and again (the lowest of equals), and the value after each.

    `value` gives K subsets their values at a time; it is called K times.
    """
    chosen, order, values = np.zeros(members, bool), [], []
    for _ in range(members):
        found = np.asarray(value(chosen | np.eye(members, dtype=bool)))
        best = int(np.where(chosen, -np.inf, found).argmax())
        chosen[best] = True
        order.append(best)
        values.append(found[best])
    return np.array(order), np.array(values)


def _pairs(of_orders: Float[np.ndarray, "P K"]) -> Float[np.ndarray, "P/2 K"]:
    """The mean of an order and its reverse: pairs are independent, their two orders are not."""
    return of_orders.reshape(len(of_orders) // 2, 2, -1).mean(1)


def _mean(draws: Float[np.ndarray, "Q *B"]) -> Estimate:
    return Estimate(draws.mean(0), draws.std(0, ddof=1) / np.sqrt(len(draws)), len(draws) - 1)
