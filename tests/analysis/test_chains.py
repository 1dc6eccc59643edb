"""Sampled chains against the whole lattice, and where sampling has no error at all."""

import numpy as np
import pytest

from analysis.chains import chains, greedy
from analysis.lattice import all_subsets, diagnose


def numbered(subsets):
    return subsets @ (1 << np.arange(subsets.shape[1]))


@pytest.fixture(scope="module")
def lattice():
    """A function of eight members that is neither submodular nor monotone."""
    rng = np.random.default_rng(0)
    subsets = all_subsets(8)
    return np.sqrt(subsets @ rng.uniform(0, 1, 8)) + 0.1 * rng.normal(size=256)


def test_a_chain_adds_the_members_in_its_order_and_a_square_two_to_a_set():
    drawn = chains(6, permutations=4, squares=5)
    prefixes = drawn.subsets[: 5 * 7].reshape(5, 7, 6)
    for order, sets in zip(drawn.orders, prefixes, strict=True):
        assert [set(np.flatnonzero(row)) for row in sets] == [set(order[:s].tolist()) for s in range(7)]
    assert drawn.orders[0].tolist() == list(range(6))
    assert (drawn.orders[2::2] == drawn.orders[1::2, ::-1]).all()
    for (i, j), square in zip(drawn.squares, drawn.subsets[35:].reshape(5, 4, 6), strict=True):
        assert i != j
        assert square[:, [i, j]].tolist() == [[False, False], [True, False], [False, True], [True, True]]
        assert (square == square[0])[:, [k for k in range(6) if k not in (i, j)]].all()


def test_estimates_are_as_far_from_the_lattice_as_their_errors_say(lattice):
    """Over 200 draws: the mean of the squared distances, in units of the error, is 1; none is biased."""
    whole = diagnose(lattice)
    by_size = np.array([lattice[all_subsets(8).sum(1) == s].mean() for s in range(9)])
    expected = {name: getattr(whole, name) for name in ("shapley", "violation_rate", "violation_mass")}
    expected |= {"nonmonotone_rate": whole.nonmonotone_rate, "gains": np.diff(by_size)}
    distances = {name: [] for name in expected}
    for seed in range(200):
        drawn = chains(8, permutations=40, squares=300, seed=seed)
        found = drawn.read(lattice[numbered(drawn.subsets)])
        for name, truth in expected.items():
            estimate = getattr(found, name)
            distances[name].append((estimate.value - truth) / estimate.error)
    for name, z in distances.items():
        z = np.array(z)
        assert np.abs(z.mean(0)).max() < 4 / np.sqrt(200), name
        assert 0.75 < np.square(z).mean() < 1.4, name


def test_shapley_values_sum_to_the_whole_in_every_draw(lattice):
    drawn = chains(8, permutations=4, squares=2)
    found = drawn.read(lattice[numbered(drawn.subsets)])
    np.testing.assert_allclose(found.shapley.value.sum(), lattice[-1] - lattice[0], rtol=1e-12)
    np.testing.assert_allclose(found.gains.value.sum(), lattice[-1] - lattice[0], rtol=1e-12)


def test_reverse_orders_make_pairwise_interactions_exact():
    """What a pair is worth together goes to each member in one of the two orders."""
    rng = np.random.default_rng(1)
    members = 20
    own, pairs = rng.normal(size=members), np.triu(rng.normal(size=(members, members)), 1)
    drawn = chains(members, permutations=4)
    subsets = drawn.subsets.astype(float)
    found = drawn.read(subsets @ own + np.einsum("mi,ij,mj->m", subsets, pairs, subsets))
    np.testing.assert_allclose(found.shapley.value, own + (pairs + pairs.T).sum(1) / 2, rtol=1e-10)
    np.testing.assert_allclose(found.shapley.error, 0, atol=1e-12)


def test_a_modular_function_of_forty_members():
    weights = np.random.default_rng(2).normal(size=40)
    drawn = chains(40)
    found = drawn.read((drawn.subsets @ weights).astype(np.float32))
    np.testing.assert_allclose(found.shapley.value, weights, atol=1e-4)
    assert (found.violation_rate.value, found.violation_mass.value) == (0, 0)
    np.testing.assert_allclose(found.depth_values, np.append(0, weights.cumsum()), atol=1e-5)


def test_squares_find_what_their_corners_say():
    drawn = chains(30)
    found = drawn.read(drawn.subsets.sum(1) ** 2.0)
    assert (found.violation_rate.value, found.violation_mass.value) == (1, 1)
    assert (found.nonmonotone_rate.value, found.worst.value) == (0, 2)
    np.testing.assert_allclose(found.gains.value, 2 * np.arange(30) + 1)


def test_the_worst_square_is_one_of_the_function(lattice):
    drawn = chains(8)
    worst = drawn.read(lattice[numbered(drawn.subsets)]).worst
    s, i, j = sum(1 << k for k in worst.subset), 1 << worst.i, 1 << worst.j
    np.testing.assert_allclose(worst.value, lattice[s | i | j] - lattice[s | i] - lattice[s | j] + lattice[s])
    assert 0 < worst.value <= diagnose(lattice).worst.value


def test_greedy_is_that_of_the_lattice(lattice):
    order, values = greedy(lambda subsets: lattice[numbered(subsets)], 8)
    whole = diagnose(lattice)
    assert order.tolist() == whole.greedy_order.tolist()
    assert values.tolist() == whole.greedy_values[1:].tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"members": 1}, "members is 1, but must be at least 2"),
        ({"members": 3, "permutations": 5}, "permutations is 5, but must be even and at least 4"),
        ({"members": 3, "permutations": 2}, "permutations is 2, but must be even and at least 4"),
        ({"members": 3, "squares": 1}, "squares is 1, but must be at least 2"),
    ],
)
def test_draws_without_an_error_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        chains(**arguments)


@pytest.mark.parametrize("values", [np.zeros(3), np.full(4 * 5 + 4 * 2 + 5 - 1, np.nan)])
def test_values_of_other_subsets_are_refused(values):
    drawn = chains(4, permutations=4, squares=2)
    with pytest.raises(ValueError, match="must hold a finite value for each of the 33 rows of subsets"):
        drawn.read(values)
