"""The decoder's bound: labels read from the members' predictions, on examples the reader has not seen.

Whatever distribution q(y | o) a reader gives, E[-ln q(Y | O)] ≥ H(Y | O); so H(Y) less its held-out loss is a
lower bound of I(O; Y), for any number of members (McAllester & Stratos 2020). The reader is a logistic
regression on the predictions, one-hot, with a standard normal prior on its weights around the frequencies of
the labels. Cross-fitting: it is fitted on each half of the examples and read on the other half.
"""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

STEPS = 60  # of L-BFGS; the objective is strictly convex


def held_out_surprises(
    predictions: Int[Array, "K N"], labels: Int[Array, "N"], half: Int[Array, "N"], classes: int
) -> Float[Array, "N C"]:
    """-ln q(y | o) in nats, for each example and class; q is fitted on the half (0, 1) it is not in."""
    inputs = jax.nn.one_hot(predictions.T, classes).reshape(labels.size, -1)

    def read(fitted_on):
        return -_fit(inputs, labels, (half == fitted_on).astype(float), classes)

    on_zero, on_one = jax.vmap(read)(jnp.arange(2))
    return jnp.where(half[:, None] == 0, on_one, on_zero)


def _fit(
    inputs: Float[Array, "N R"], labels: Int[Array, "N"], weights: Float[Array, "N"], classes: int
) -> Float[Array, "N C"]:
    """The log-probabilities that a reader fitted on the weighted examples gives to all of them."""
    frequency = (jnp.zeros(classes).at[labels].add(weights) + 1) / (weights.sum() + classes)

    def scores(reader):
        return jnp.matmul(inputs, reader, precision="highest") + jnp.log(frequency)

    def objective(reader):
        losses = optax.softmax_cross_entropy_with_integer_labels(scores(reader), labels)
        return (weights @ losses + (reader**2).sum() / 2) / weights.sum()

    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def step(carry, _):
        reader, state = carry
        value, grad = value_and_grad(reader, state=state)
        update, state = solver.update(grad, state, reader, value=value, grad=grad, value_fn=objective)
        return (optax.apply_updates(reader, update), state), None

    start = jnp.zeros((inputs.shape[1], classes))
    (reader, _), _ = jax.lax.scan(step, (start, solver.init(start)), length=STEPS)
    return jax.nn.log_softmax(scores(reader))
