"""The devices of a run, of one process or of several. The only file that knows `pmap` and processes.

Arrays on the devices have a leading axis of all devices of all processes; each process holds its own part.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from jaxlayers.refusal import Refusal

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


T = TypeVar("T")


def join(
    coordinator: str | None,
    processes: int | None,
    process: int | None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Makes this process one of several that train the same runs, as the arguments say or, where there are
    none, the variables of SLURM and of TPUs; otherwise it stays alone.

    Args:
        coordinator: host:port of process 0; "auto": all three are what `jax.distributed` finds.

    Raises:
        Refusal: the arguments do not say it.
    """
    given = [value is not None for value in (coordinator, processes, process)]
    place: dict[str, Any] = {}
    if not any(given) and not cluster(environment):
        return
    if any(given) and coordinator != "auto":
        if coordinator is None or processes is None or process is None:
            raise Refusal(
                "--coordinator, --processes and --process go together: give all three, as --coordinator "
                "host0:1234 --processes 4 --process 0, or --coordinator auto alone"
            )
        if not 0 <= process < processes:
            raise Refusal(f"--process {process} of --processes {processes}: count from 0 to {processes - 1}")
        place = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    try:
        jax.distributed.initialize(**place)  # and at exit waits for the others
    except ValueError as error:
        raise Refusal(
            f"the processes that train together are not found ({str(error).splitlines()[0]}): give "
            "--coordinator, --processes and --process"
        ) from None


def cluster(environment: Mapping[str, str]) -> bool:
    """Whether a cluster has started several processes together."""
    counts = ("SLURM_STEP_NUM_TASKS", "MEGASCALE_NUM_SLICES")
    hosts = environment.get("TPU_WORKER_HOSTNAMES", "")
    return "," in hosts or any(environment.get(name, "1") != "1" for name in counts)


def several() -> bool:
    """Whether other processes train the same runs; asking does not yet take the devices."""
    return jax.distributed.is_initialized()


def leads() -> bool:
    """Whether this process writes the files of the runs, for all."""
    return not several() or jax.process_index() == 0


def led(function: Callable[[], T]) -> T:
    """What the leading process's call returns, a JSON value, in every process.

    Raises:
        Refusal: the leading process's call did.
    """
    if not several():
        return function()
    said = b""
    if leads():
        try:
            said = json.dumps({"value": function()}).encode()
        except Refusal as refusal:
            said = json.dumps({"refusal": str(refusal)}).encode()
    room = np.zeros(int(spread(np.array(len(said)))), np.uint8)
    room[: len(said)] = np.frombuffer(said, np.uint8)
    found = json.loads(spread(room).tobytes())
    if "refusal" in found:
        raise Refusal(found["refusal"])
    return found["value"]


def spread(tree: Tree) -> Tree:
    """The leading process's arrays, bit for bit, in every process; of the same shapes in all."""
    if not several():
        return tree
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    # As bytes, since the broadcast is a sum: that of -0.0 and 0.0 is 0.0.
    sent = np.concatenate([np.frombuffer(leaf.tobytes(), np.uint8) for leaf in leaves])
    parts = np.split(multihost_utils.broadcast_one_to_all(sent), np.cumsum([leaf.nbytes for leaf in leaves]))
    arrays = [part.view(leaf.dtype).reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=False)]
    return jax.tree.unflatten(structure, arrays)


def greatest(number: int) -> int:
    """Of the numbers of all processes."""
    if not several():
        return number
    return int(multihost_utils.process_allgather(np.array(number)).max())


def devices() -> list[jax.Device]:
    """Those of one process side by side."""
    return sorted(jax.devices(), key=lambda device: (device.process_index, device.id))


def count() -> int:
    return len(devices())


def rows(batch: int) -> slice:
    """Of a batch, what the devices of this process compute."""
    own = batch // jax.process_count()
    return slice(jax.process_index() * own, (jax.process_index() + 1) * own)


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
    return jax.process_count() * 2 * size**3 / min(seconds)


class Compiled:
    """A function compiled ahead, once for each shape of its arguments, so that clocks leave it out."""

    def __init__(self, function: Any):
        self.function = function
        self.by_shape: dict[Any, Callable] = {}

    def at(self, *arguments: Any) -> Callable:
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(arguments))
        if shapes not in self.by_shape:
            self.by_shape[shapes] = self.function.lower(*arguments).compile()
        return self.by_shape[shapes]

    def __call__(self, *arguments: Any) -> Any:
        return self.at(*arguments)(*arguments)


def over_devices(function: Callable, donate: tuple[int, ...] = ()) -> Compiled:
    """function, on every device at once, each argument with a leading axis of devices."""
    # Compiled ahead it takes and gives arrays of all processes; called, `pmap` would give those of one.
    return Compiled(jax.pmap(function, axis_name=AXIS, devices=devices(), donate_argnums=donate))


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
    """Onto this process's devices, along the leading axis; a dispatch then needs no transfer of its own."""
    mesh = jax.sharding.Mesh(np.array(devices()), (AXIS,))
    sharding = jax.NamedSharding(mesh, jax.P(AXIS))
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, leaf), tree)


def replicate(tree: Tree) -> Tree:
    """The same on each device."""
    own = count() // jax.process_count()
    return place(jax.tree.map(lambda leaf: np.broadcast_to(leaf, (own, *leaf.shape)), tree))


def first(tree: Tree) -> Tree:
    """What is the same on each device, once, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_shards[0].data)[0], tree)


def shard(tree: Tree, axis: int) -> Tree:
    """The axis of examples, of which each process has its rows, split over the devices, which become the
    leading axis."""
    own = count() // jax.process_count()
    return place(jax.tree.map(lambda leaf: np.stack(np.split(leaf, own, axis)), tree))
