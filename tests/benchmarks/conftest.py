"""Speed as a ratio: two workloads in turns in one process, each after a first run that compiles it."""

import time

import jax
import numpy as np
import pytest


@pytest.fixture
def interleaved(benchmark):
    """What the first workload takes in units of the second: medians, kept beside the benchmark's own."""

    def seconds(work):
        start = time.perf_counter()
        jax.block_until_ready(work())
        return time.perf_counter() - start

    def run(ours, other, turns=7):
        compiling = seconds(ours)
        seconds(other)
        found = np.median([(seconds(ours), seconds(other)) for _ in range(turns)], 0)
        ratio = float(found[0] / found[1])
        benchmark.extra_info |= {"first_s": compiling, "s": found[0], "other_s": found[1], "ratio": ratio}
        benchmark.pedantic(lambda: jax.block_until_ready(ours()), rounds=1)
        return ratio

    return run
