"""All routes at once cost what they cost one at a time."""

import itertools

import numpy as np
import pytest

from sbp_jax import cluster
from sbp_jax.boxing.routes import cost_matrix, seconds_matrix
from sbp_jax.rules.widen import signature_of


@pytest.mark.parametrize("name", ["h100", "a100-80", "cpu"])
@pytest.mark.parametrize(
    ("shape", "mesh"),
    [
        ((64, 16), (2, 4)), ((8, 12, 10), (2, 4)), ((64, 64), (4, 2, 2)), ((24, 40, 6), (4, 2, 2)), ((48,), (16, 8, 8)),
        ((6, 36), (3, 6)), ((64, 16), (1, 8)), ((16, 16), (4, 1, 4)), ((5, 7), (2, 4)), ((0, 8), (2, 4)),
    ],
)  # fmt: skip
def test_seconds_are_those_of_the_routes(shape: tuple[int, ...], mesh: tuple[int, ...], name: str) -> None:
    hardware = cluster.resolve(name, "cpu", True)
    random = np.random.default_rng(0)
    codes = list(itertools.product(range(-3, len(shape)), repeat=len(mesh)))
    states = [signature_of(c) for c in codes]

    def divides(code: tuple[int, ...]) -> bool:
        cuts = [int(np.prod([n for n, c in zip(mesh, code, strict=True) if c == d])) for d in range(len(shape))]
        return all(n % k == 0 for n, k in zip(shape, cuts, strict=True))

    states = [s for s, c in zip(states, codes, strict=True) if divides(c)]
    chosen = [states[k] for k in random.permutation(len(states))[:25]]
    for itemsize in (2, 4):
        expected = cost_matrix(chosen, shape, itemsize, mesh, hardware)[0]
        np.testing.assert_array_equal(seconds_matrix(chosen, shape, itemsize, mesh, hardware), expected)


@pytest.mark.parametrize("name", ["h100", "a100-80", "cpu"])
@pytest.mark.parametrize(
    ("shape", "mesh"),
    [
        ((30, 12), (8,)), ((50257, 16), (2, 4)), ((9, 12, 10), (2, 4)), ((7, 30), (3, 6)), ((13, 17), (2, 2, 2)),
        ((5, 7), (1, 4)), ((3, 8), (2, 2)), ((0, 30), (2, 4)),
    ],
)  # fmt: skip
def test_seconds_of_padded_pieces_are_those_of_the_routes(
    shape: tuple[int, ...], mesh: tuple[int, ...], name: str
) -> None:
    hardware = cluster.resolve(name, "cpu", True)
    codes = itertools.product(range(-3, len(shape)), repeat=len(mesh))

    def fills(code: tuple[int, ...]) -> bool:
        cuts = [int(np.prod([n for n, c in zip(mesh, code, strict=True) if c == d])) for d in range(len(shape))]
        return all(n >= k or n == 0 for n, k in zip(shape, cuts, strict=True))

    states = [signature_of(c) for c in codes if fills(c)]
    random = np.random.default_rng(0)
    chosen = [states[k] for k in random.permutation(len(states))[:20]]
    for itemsize in (2, 4):
        expected = cost_matrix(chosen, shape, itemsize, mesh, hardware)[0]
        assert np.isfinite(expected).any()
        found = seconds_matrix(chosen, shape, itemsize, mesh, hardware)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
