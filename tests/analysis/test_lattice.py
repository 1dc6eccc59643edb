"""Every number of the diagnosis from its definition, by loops over sets, and where theory knows it."""

from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.lattice import all_subsets, diagnose, tolerance


def index(members):
    return sum(2**k for k in members)


def second_differences(f, members):
    """(S, i, j): value, straight from the definition."""
    return {
        (chosen, i, j): f[index((*chosen, i, j))]
        - f[index((*chosen, i))]
        - f[index((*chosen, j))]
        + f[index(chosen)]
        for i, j in combinations(range(members), 2)
        for size in range(members - 1)
        for chosen in combinations([k for k in range(members) if k not in (i, j)], size)
    }


def das_kempe(f, members):
    ratios = [1.0]
    for digits in product(range(3), repeat=members):
        base = [k for k in range(members) if digits[k] == 2]
        added = [k for k in range(members) if digits[k] == 1]
        rise = f[index(base + added)] - f[index(base)]
        if rise > 0:
            ratios.append(sum(f[index([*base, k])] - f[index(base)] for k in added) / rise)
    return min(ratios)


def sums(weights):
    """The modular function of these weights, on the lattice."""
    return all_subsets(len(weights)) @ weights


def coverage(rng, members, elements=12):
    """The weight of what the sets of the members cover together: submodular and monotone."""
    covers, weight = rng.random((members, elements)) < 0.3, rng.random(elements)
    return (all_subsets(members).astype(int) @ covers > 0) @ weight


lattices = st.tuples(st.integers(1, 4), st.integers(0, 2**32 - 1)).map(
    lambda drawn: np.random.default_rng(drawn[1]).normal(size=2 ** drawn[0])
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(lattices)
def test_violations_are_those_of_the_definition(f):
    members = len(f).bit_length() - 1
    found, differences = diagnose(f), second_differences(f, members)
    if members == 1:
        assert (found.violation_rate, found.violation_mass, found.worst) == (0, 0, None)
        return
    values = np.array(list(differences.values()))
    np.testing.assert_allclose(found.violation_rate, (values > 0).mean(), rtol=1e-12)
    np.testing.assert_allclose(
        found.violation_mass, values[values > 0].sum() / np.abs(values).sum(), rtol=1e-12
    )
    (subset, i, j), worst = max(differences.items(), key=lambda item: item[1])
    assert (found.worst.subset, found.worst.i, found.worst.j) == (subset, i, j)
    np.testing.assert_allclose(found.worst.value, worst, rtol=1e-12)
    for i, j in combinations(range(members), 2):
        of_pair = [v > 0 for (_, *pair), v in differences.items() if pair == [i, j]]
        assert found.pair_violations[i, j] == found.pair_violations[j, i] == np.mean(of_pair)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(lattices)
def test_ratio_curvature_and_falling_steps_are_those_of_the_definitions(f):
    members = len(f).bit_length() - 1
    everyone, found = range(members), diagnose(f)
    np.testing.assert_allclose(found.ratio, das_kempe(f, members), rtol=1e-9)
    gains = [f[s | 1 << k] - f[s] for s in range(2**members) for k in everyone if not s >> k & 1]
    np.testing.assert_allclose(found.nonmonotone_rate, np.mean(np.array(gains) < 0), rtol=1e-12)
    kept = [(f[-1] - f[-1 - (1 << k)]) / (f[1 << k] - f[0]) for k in everyone if f[1 << k] > f[0]]
    np.testing.assert_allclose(found.curvature, 1 - min(kept, default=1), rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(lattices)
def test_shapley_values_are_mean_gains_over_all_orders(f):
    members = len(f).bit_length() - 1
    gains = np.zeros(members)
    orders = list(permutations(range(members)))
    for order in orders:
        for place, k in enumerate(order):
            gains[k] += f[index(order[: place + 1])] - f[index(order[:place])]
    np.testing.assert_allclose(diagnose(f).shapley, gains / len(orders), rtol=1e-10, atol=1e-12)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(lattices)
def test_greedy_depth_and_best_sets(f):
    members = len(f).bit_length() - 1
    found, chosen = diagnose(f), []
    for size in range(1, members + 1):
        chosen.append(max(set(range(members)) - set(chosen), key=lambda k: f[index([*chosen, k])]))
        assert found.greedy_values[size] == f[index(chosen)]
        assert found.depth_values[size] == f[index(range(size))]
        best = max(combinations(range(members), size), key=lambda s: f[index(s)])
        assert found.best_sets[size] == index(best)
        assert found.best_values[size] == f[index(best)]
    assert found.greedy_order.tolist() == chosen
    assert found.greedy_values[0] == found.depth_values[0] == found.best_values[0] == f[0]


def test_shapley_values_sum_to_the_whole_and_ignore_what_does_nothing():
    f = np.random.default_rng(0).normal(size=2**6)
    np.testing.assert_allclose(diagnose(f).shapley.sum(), f[-1] - f[0], rtol=1e-12)
    with_idle_member = diagnose(np.concatenate([f, f]))  # the seventh changes nothing
    np.testing.assert_allclose(with_idle_member.shapley[:6], diagnose(f).shapley, rtol=1e-12)
    assert with_idle_member.shapley[6] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_over_members_is_modular_whatever_the_rounding(dtype):
    weights = np.random.default_rng(0).normal(size=9)
    found = diagnose((sums(weights) + 3).astype(dtype))
    assert (found.violation_rate, found.violation_mass, found.ratio) == (0, 0, 1)
    np.testing.assert_allclose(found.shapley, weights, atol=100 * np.finfo(dtype).eps)
    np.testing.assert_allclose(found.curvature, 0, atol=1000 * np.finfo(dtype).eps)
    np.testing.assert_allclose(found.nonmonotone_rate, (weights < 0).mean(), atol=1e-12)


def test_a_difference_counts_only_above_rounding():
    f = sums(np.ones(4)).astype(np.float32)
    step = tolerance(f)
    f[-1] += 0.9 * step  # in the second differences of all six pairs
    assert diagnose(f).violation_rate == 0
    f[-1] += 0.6 * step
    assert diagnose(f).violation_rate == 6 / 24


@pytest.mark.parametrize("seed", range(5))
def test_coverage_is_submodular(seed):
    f = coverage(np.random.default_rng(seed), 7)
    found = diagnose(f)
    assert (found.violation_rate, found.nonmonotone_rate, found.ratio) == (0, 0, 1)
    assert found.worst.value <= found.tolerance
    assert 0 < found.curvature <= 1
    guarantee = 1 - (1 - 1 / np.arange(1, 8)) ** np.arange(1, 8)  # of greedy (Nemhauser et al. 1978)
    assert (found.greedy_values[1:] >= guarantee * found.best_values[1:]).all()


@pytest.mark.parametrize("members", [2, 5, 8])
def test_the_square_of_the_size_is_supermodular(members):
    found = diagnose(all_subsets(members).sum(1) ** 2.0)
    assert (found.violation_rate, found.violation_mass, found.worst.value) == (1, 1, 2)
    np.testing.assert_allclose(found.ratio, 1 / members, rtol=1e-12)  # L empty, S all: K · 1 against K²
    np.testing.assert_allclose(found.curvature, 2 - 2 * members, rtol=1e-12)  # the last gains 2K - 1
    np.testing.assert_allclose(found.shapley, members, rtol=1e-12)


def test_a_copy_of_a_member_adds_nothing():
    half = coverage(np.random.default_rng(1), 4)
    twice = np.array([half[s & 15 | s >> 4] for s in range(2**8)])  # members 4..7 are copies of 0..3
    found = diagnose(twice)
    assert (found.violation_rate, found.ratio, found.curvature) == (0, 1, 1)
    np.testing.assert_allclose(found.shapley[:4], found.shapley[4:], rtol=1e-12)
    np.testing.assert_allclose(found.best_values[4:], half[-1], rtol=1e-12)


def test_a_constant_has_nothing_to_diagnose():
    found = diagnose(np.full(8, -2.0))
    assert (found.violation_rate, found.violation_mass, found.nonmonotone_rate) == (0, 0, 0)
    assert (found.ratio, found.curvature) == (1, 0)
    assert not found.shapley.any()


def test_subsets_are_the_bits_of_their_number():
    assert [index(np.flatnonzero(row)) for row in all_subsets(5)] == list(range(32))


@pytest.mark.parametrize("members", [0, 17])
def test_all_subsets_are_taken_of_1_to_16_members(members):
    with pytest.raises(ValueError, match=f"1 to 16 members, but there are {members}: use sampled chains"):
        all_subsets(members)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(3), r"shape \(3,\), but must hold one value for each of the 2\^K subsets"),
        (np.zeros(1), r"K = 1 to 16 members"),
        (np.zeros(2**17), "for more use sampled chains"),
        (np.array([0, 1, np.nan, 1]), "holds nan at subset 2"),
        (np.array([0, -np.inf]), "holds -inf at subset 1"),
    ],
)
def test_values_that_are_no_lattice_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        diagnose(values)
