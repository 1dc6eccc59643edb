"""K predictions held against a reference, a block of examples and classes at a time.

A convex potential A gives a loss and, by the same A, how far one prediction is from another:

    ℓ(y, f) = A(f) - ⟨y, f⟩ + const(y)            B(f ‖ z) = A(f) - A(z) - ⟨∇A(z), f - z⟩  ≥ 0

| loss          | A                | const(y)         | B(f ‖ z)                      |
|---------------|------------------|------------------|-------------------------------|
| cross-entropy | log Σ exp f      | 0                | KL(softmax z ‖ softmax f)     |
| squared       | mean over C of f²| mean over C of t²| mean over C of (f - z)²       |

(for the squared loss y is 2t/C, t the target). What ℓ and B need of the classes are sums. So a row of
the table is implemented as the sums over one block of classes, how those of two blocks make those of
both, and what they come to in the end; nothing holds all members, examples and classes at once. The
zero-one loss has no potential: all it needs of the classes is the largest, a third row.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

Loss: TypeAlias = Literal["cross_entropy", "squared", "zero_one", "majority_vote"]
Potential: TypeAlias = Literal["cross_entropy", "squared"]
ReadOut: TypeAlias = tuple[Float[Array, "D C"], Float[Array, " C"]] | None  # head and bias
CACHE = 1 << 19  # elements of a block on a CPU: its cache holds them; larger blocks are slower
WIDE = 512  # classes in a block, where there are so many


class Sums(NamedTuple):
    """A row of the table."""

    block: Callable[..., Any]  # f [K,n,c], z [R,n,c], t [n,c], the number of the block's first class
    merge: Callable[[Any, Any], Any]  # the earlier classes first
    finish: Callable[[Any, int], Any]  # with the number of all classes


class Comparison(NamedTuple):
    """K predictions f and their references z: one each (R = K), or one for all (R = 1)."""

    loss: Float[Array, "K N"]
    divergence: Float[Array, "K N"]
    reference_loss: Float[Array, "R N"]


class Choice(NamedTuple):
    """The class of the largest logit (the lowest one where several are) and that logit."""

    label: Int[Array, "K N"]
    logit: Float[Array, "K N"]


def stream(
    sums: Sums,
    f: Float[Array, "K N D"],
    z: Float[Array, "R N D"],
    read_out: ReadOut,
    targets: Int[Array, " N"] | Float[Array, "N C"],
    block: tuple[int, int],
) -> Any:
    """What the row's sums come to for f @ head + bias and z @ head + bias, or for f and z themselves.

    `block` is its size in examples and classes. Matrix products are of `highest` precision.
    """
    examples = f.shape[1]
    classes = f.shape[2] if read_out is None else read_out[0].shape[1]
    n, c = min(block[0], examples), min(block[1], classes)

    def logits(stream: Array, first: Array | int, size: int) -> Array:
        if read_out is None:
            return lax.dynamic_slice_in_dim(stream, first, size, 2)
        head, bias = (lax.dynamic_slice_in_dim(x, first, size, x.ndim - 1) for x in read_out)
        product = jnp.matmul(stream.reshape(-1, stream.shape[2]), head, precision="highest")
        return product.reshape(*stream.shape[:2], size) + bias

    def of_examples(start: Array | int) -> Any:
        f_n, z_n = (lax.dynamic_slice_in_dim(x, start, n, 1) for x in (f, z))
        t_n = lax.dynamic_slice_in_dim(targets, start, n, 0)

        def of_classes(first: Array | int, size: int) -> Any:
            if targets.ndim == 1:
                t = (t_n[:, None] == first + jnp.arange(size)).astype(f.dtype)
            else:
                t = lax.dynamic_slice_in_dim(t_n, first, size, 1)
            return sums.block(logits(f_n, first, size), logits(z_n, first, size), t, first)

        whole, rest = divmod(classes - 1, c)  # a first block of rest + 1 classes, then whole ones
        state, _ = lax.scan(
            lambda state, j: (sums.merge(state, of_classes(rest + 1 + j * c, c)), None),
            of_classes(0, rest + 1),
            jnp.arange(whole),
        )
        return sums.finish(state, classes)

    def write(i: Array, done: Any) -> Any:
        start = jnp.minimum(i * n, examples - n)  # the last block overlaps the one before
        return jax.tree.map(
            lambda whole, part: lax.dynamic_update_slice_in_dim(whole, part, start, 1),
            done,
            of_examples(start),
        )

    empty = jax.tree.map(
        lambda part: jnp.zeros((part.shape[0], examples), part.dtype), jax.eval_shape(of_examples, 0)
    )
    return lax.fori_loop(0, -(-examples // n), write, empty)


def block_size(predictions: int, classes: int, budget: int) -> tuple[int, int]:
    """Examples and classes of a block of that many predictions whose work fits the budget in bytes."""
    elements = budget // (8 * jnp.zeros(0).dtype.itemsize)  # logits, their copies, exponentials
    if jax.default_backend() == "cpu":
        elements = min(elements, CACHE)
    c = max(1, min(classes, WIDE, elements // predictions))
    return max(1, elements // (predictions * c)), c


class _Scaled(NamedTuple):
    """Sums of exponentials and of multiples of them, all divided by exp(top)."""

    top: Array
    sums: tuple[Array, ...]


def _largest_of(x: Float[Array, "R n c"]) -> Float[Array, "R n"]:
    """As `max`, which a CPU takes in windows, four times as slowly. A NaN may be lost, but not from sums."""
    least = jnp.asarray(-jnp.inf, x.dtype)
    return lax.reduce(x, least, lambda a, b: jnp.where(a > b, a, b), (x.ndim - 1,))


def _total(x: Float[Array, "R n c"]) -> Float[Array, "R n"]:
    """As `sum`, which a CPU takes in windows too."""
    return jnp.matmul(x, jnp.ones(x.shape[-1], x.dtype), precision="highest")


def _exponentials(f: Array, z: Array, t: Array, first: Array | int) -> tuple[_Scaled, _Scaled, Array, Array]:
    f_top, z_top = _largest_of(f), _largest_of(z)
    f_exp, z_exp = jnp.exp(f - f_top[..., None]), jnp.exp(z - z_top[..., None])
    shift = _total(z_exp * (f - z))  # ⟨softmax z, f - z⟩, but for the denominator
    return (
        _Scaled(f_top, (_total(f_exp),)),
        _Scaled(z_top, (_total(z_exp), shift)),
        _total(t * f),
        _total(t * z),
    )


def _merge_exponentials(a: Any, b: Any) -> Any:
    def merge(a: _Scaled, b: _Scaled) -> _Scaled:
        top = jnp.maximum(a.top, b.top)
        before, after = jnp.exp(a.top - top), jnp.exp(b.top - top)
        return _Scaled(top, tuple(before * x + after * y for x, y in zip(a.sums, b.sums, strict=True)))

    return merge(a[0], b[0]), merge(a[1], b[1]), a[2] + b[2], a[3] + b[3]


def _finish_exponentials(state: Any, classes: int) -> Comparison:
    """Maxima are subtracted from maxima: what is lost is the rounding of f - z, not that of f."""
    (f_top, (f_sum,)), (z_top, (z_sum, shift)), f_target, z_target = state
    divergence = (f_top - z_top - shift / z_sum) + jnp.log(f_sum / z_sum)
    return Comparison(
        (f_top - f_target) + jnp.log(f_sum),
        jnp.maximum(divergence, 0),
        (z_top - z_target) + jnp.log(z_sum),
    )


def _squares(f: Array, z: Array, t: Array, first: Array | int) -> Comparison:
    return Comparison(*(_total((x - y) ** 2) for x, y in ((f, t), (f, z), (z, t))))


def _largest(f: Array, z: Array, t: Array, first: Array | int) -> tuple[Choice, Choice]:
    of_f, of_z = (Choice((x.argmax(-1) + first).astype(jnp.int32), x.max(-1)) for x in (f, z))
    return of_f, of_z


def _merge_largest(a: tuple[Choice, Choice], b: tuple[Choice, Choice]) -> tuple[Choice, Choice]:
    of_f, of_z = (
        Choice(jnp.where(y.logit > x.logit, y.label, x.label), jnp.maximum(x.logit, y.logit))
        for x, y in zip(a, b, strict=True)
    )
    return of_f, of_z


POTENTIALS = {
    "cross_entropy": Sums(_exponentials, _merge_exponentials, _finish_exponentials),
    "squared": Sums(
        _squares,
        lambda a, b: jax.tree.map(jnp.add, a, b),
        lambda sums, classes: jax.tree.map(lambda total: total / classes, sums),
    ),
}
LARGEST = Sums(_largest, _merge_largest, lambda state, classes: state)
