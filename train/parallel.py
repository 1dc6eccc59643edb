"""The devices of this process. The only file that knows `pmap`."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

AXIS = "devices"
Tree = Any


def devices() -> list[jax.Device]:
    return jax.local_devices()


def count() -> int:
    return len(devices())


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
