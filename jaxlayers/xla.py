"""How XLA compiles: without a miscompilation on CPU, once, and not until the process is full. Imported first,
before anything is computed.

XLA of jaxlib 0.10 hands some fusions on CPU to YNNPACK, and of a read-out followed by a cross-entropy it then
gets every member from the 17th on wrong (by whole nats, in float32, without a word): see
tests/jaxlayers/test_xla.py, which passes on 0.8.2 and 0.9.2 and fails on 0.10.2 without this. Training steps
are as fast without these fusions (2.12 s against 2.15 s for 60 steps of four blocks).
"""

import os
from pathlib import Path

import jax

if jax.__version_info__[:2] == (0, 10):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_experimental_ynn_fusion_type="


MAPPINGS = Path("/proc/self/maps")


def keep_programs(folder: Path) -> None:
    """Compiled programs are kept there, and found again by later processes: of a small sweep (depths 2 and 6)
    a second training took 27 s instead of 47, its analysis 54 s instead of 188, on 2 busy cores.

    `JAX_COMPILATION_CACHE_DIR` names another folder; `JAX_ENABLE_COMPILATION_CACHE=false` keeps none.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(folder))


def make_room() -> None:
    """Drops the compiled programs where they are many, so that it is called where none is at work.

    Linux gives a process 65,530 mappings, and on CPU a program takes several: those of a group of runs a
    thousand together, those of a shape that is analysed two thousand. At the limit LLVM ends the process.
    """
    if MAPPINGS.exists() and MAPPINGS.read_text().count("\n") > 20_000:
        jax.clear_caches()
