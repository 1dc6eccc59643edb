"""A planted sweep of models, for whatever reads many of them."""

import numpy as np
import pytest

from analysis.evidence import Evidence
from analysis.measurements import measure
from jaxlayers.ledger import Member


def plant(depth: int, seed: int, examples: int = 64, classes: int = 3, width: int = 8) -> Evidence:
    """Members that each point a little towards the label; the more of them, the better the model."""
    rng = np.random.default_rng((depth, seed))
    members = (
        Member("embedding", "embedding", -1),
        *(Member(f"{kind} {b}", kind, b) for b in range(depth) for kind in ("attention", "mlp")),
    )
    head = rng.normal(size=(width, classes)).astype(np.float32)
    labels = np.random.default_rng(0).integers(0, classes, examples).astype(np.int32)
    towards = head.T[labels] * 0.2 / np.sqrt(depth)
    contributions = towards + rng.normal(size=(len(members), examples, width)) * 0.5
    return Evidence(
        contributions=contributions.astype(np.float32),
        head=head,
        bias=np.zeros(classes, np.float32),
        labels=labels,
        group=(np.arange(examples) // 2).astype(np.int32),
        members=members,
        norm="none",
        task="planted",
        architecture="<b>&",  # what a page must escape
        depth=depth,
        seed=seed,
    )


@pytest.fixture(scope="session")
def planted():
    return plant


@pytest.fixture(scope="session")
def models():
    return [measure(plant(depth, seed)) for depth in (1, 2, 3, 4) for seed in (0, 1)]
