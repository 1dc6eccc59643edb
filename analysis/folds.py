"""Values on disjoint parts of the examples, and the errors of whatever is made of them."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from analysis.statistics import Estimate, jackknife


@dataclass(frozen=True, eq=False)
class Folds:
    """Values of M subsets on B parts of the examples that do not depend on each other."""

    values: Float[np.ndarray, "B M"]
    sizes: Float[np.ndarray, " B"]  # examples in each

    @classmethod
    def of_losses(
        cls, losses: Float[np.ndarray, "M B"], sizes: Float[np.ndarray, " B"], dtype: Any
    ) -> "Folds":
        """Minus the mean losses, from their sums over each fold. `dtype` tells the rounding of the losses."""
        if not sizes.all():
            raise ValueError(
                f"folds is {len(sizes)}, but no example of fold {sizes.argmin()} counts: ask for fewer"
            )
        return cls((-losses / sizes).T.astype(dtype), sizes)

    @property
    def mean(self) -> Float[np.ndarray, " M"]:
        """The values on all examples."""
        return np.average(self.values, 0, self.sizes).astype(self.values.dtype)

    def estimates(self, statistic: Callable[[Float[np.ndarray, " M"]], Any]) -> dict[str, Estimate]:
        """The real numbers in what `statistic` makes of the values, with errors.

        `statistic` is `diagnose`, or `Chains.read`. One fold at a time is left out (Tukey 1958). The errors
        of smooth numbers (rates, gains, Shapley values) are honest; those of extremes (γ, curvature) only
        tell how much one fold matters. An error that `statistic` itself reports is added in.
        """
        folds = len(self.sizes)
        if folds < 2:
            raise ValueError("there is 1 fold, but an error needs at least 2: ask for more folds")
        total, size = self.sizes @ self.values, self.sizes.sum()
        without = [
            _numbers(statistic(((total - n * v) / (size - n)).astype(v.dtype)))
            for n, v in zip(self.sizes, self.values, strict=True)
        ]
        found = {}
        for name, own in _numbers(statistic(self.mean)).items():
            spread = jackknife(own.value, np.array([part[name].value for part in without]), folds - 1)
            error = np.hypot(own.error, spread.error)
            found[name] = Estimate(own.value, error, min(own.freedom, folds - 1))
        return found


def in_turn(groups: Int[np.ndarray, " N"], folds: int) -> Float[np.ndarray, "N B"]:
    """1 where an example is in the fold: group g, numbered from 0, is in fold g modulo B."""
    number = int(groups.max()) + 1
    if not 1 <= folds <= number:
        raise ValueError(f"folds is {folds}, but must be 1 to {number}, the number of groups of examples")
    return (groups[:, None] % folds == np.arange(folds)).astype(float)


def _numbers(result: Any) -> dict[str, Estimate]:
    """Its fields that are real numbers, or arrays of them; a plain one has no error of its own."""
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    return {
        name: value if isinstance(value, Estimate) else Estimate(value, 0.0, np.inf)
        for name, value in values.items()
        if isinstance(value, float | Estimate) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")
    }
