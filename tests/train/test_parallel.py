"""What this process knows of its devices."""

from types import SimpleNamespace

import jax
import pytest

from train import parallel


@pytest.mark.parametrize(("kind", "peak"), [("NVIDIA H200", 2 * 989e12), ("a chip of tomorrow", None)])
def test_the_peak_of_accelerators_is_stated_or_unknown(kind, peak, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(parallel, "devices", lambda: [SimpleNamespace(device_kind=kind)] * 2)
    assert parallel.peak.__wrapped__() == peak


def test_the_peak_of_a_cpu_is_measured():
    """A core makes 10^9 to 10^12 operations a second, and there are not 1000 of them."""
    assert 1e9 < parallel.peak() < 1e15
