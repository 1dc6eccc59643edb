"""The devices of this process. The only file that knows `pmap`."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

AXIS = "devices"
Tree = Any
PEAK = {  # operations a second of a device with dense bfloat16 products, as its maker states them
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v6 lite": 918e12,
}


def devices() -> list[jax.Device]:
    return jax.local_devices()


def count() -> int:
    return len(devices())


@cache
def peak() -> float | None:
    """Operations a second that all devices together could make: of an accelerator what its maker states, of a
    CPU what a product of two float32 matrices reaches here and now; None where neither is known."""
    if jax.default_backend() != "cpu":
        stated = PEAK.get(devices()[0].device_kind)
        return stated and stated * count()
    size = 1024
    a = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(a, a).block_until_ready()
    seconds = []
    for _ in range(8):
        begun = time.perf_counter()
        product(a, a).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    return 2 * size**3 / min(seconds)


def over_devices(function: Callable, donate: tuple[int, ...] = ()) -> Callable:
    """function, on every device at once, each argument with a leading axis of devices."""
    return jax.pmap(function, axis_name=AXIS, devices=devices(), donate_argnums=donate)


def over_seeds(function: Callable) -> Callable:
    """function, for every seed, each argument with a leading axis of seeds.

    On CPU one after another, since one seed already fills the cores and together they would outgrow the
    caches; on an accelerator all at once.
    """
    if jax.default_backend() != "cpu":
        return jax.vmap(function)
    return lambda *arguments: jax.lax.map(lambda each: function(*each), arguments)


def total(tree: Tree) -> Tree:
    """The sum over devices."""
    return jax.lax.psum(tree, AXIS)


def place(tree: Tree) -> Tree:
    """Onto the devices, along the leading axis; a dispatch then needs no transfer of its own."""
    mesh = jax.sharding.Mesh(np.array(devices()), (AXIS,))
    return jax.device_put(tree, jax.NamedSharding(mesh, jax.P(AXIS)))


def replicate(tree: Tree) -> Tree:
    """The same on each device."""
    return place(jax.tree.map(lambda leaf: np.broadcast_to(leaf, (count(), *leaf.shape)), tree))


def first(tree: Tree) -> Tree:
    """What is the same on each device, once, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_shards[0].data)[0], tree)


def shard(tree: Tree, axis: int) -> Tree:
    """The axis of examples split over the devices, which become the leading axis."""
    return place(jax.tree.map(lambda leaf: np.stack(np.split(leaf, count(), axis)), tree))
