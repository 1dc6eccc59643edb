"""One compilation serves all models of a shape: what is measured is data, not a constant of the program."""

from contextlib import contextmanager

import jax

from analysis.measurements import measure

COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations():
    """The programs that are compiled meanwhile."""
    found = []

    def heard(event, duration, **of):
        if event == COMPILED:
            found.append(of)

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield found
    jax.monitoring.unregister_event_duration_listener(heard)


def test_a_second_model_of_the_same_shape_compiles_nothing(planted):
    with compilations() as first:
        measure(planted(2, 0, examples=50))
    with compilations() as second:
        measure(planted(2, 1, examples=50))
    assert len(first) > 10
    assert second == []
