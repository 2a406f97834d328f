"""Programs of collectives that sum over several axes: proven by what devices hold, run on numbers, priced as boxing."""

import itertools
import math

import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax import boxing, cluster
from sbp_jax.boxing.reductions import Collective, Reduction

MESHES = [((4, 8), (0, 1)), ((2, 2, 4), (0, 2)), ((2, 2, 2), (0, 1, 2)), ((2, 3, 4), (1, 2))]


def run(program: tuple[Collective, ...], mesh: tuple[int, ...], axes: tuple[int, ...], terms: np.ndarray) -> np.ndarray:
    """The program on numbers: ``terms`` by device, then chunk by its position along the axes; NaN is not held."""
    sizes = [mesh[a] for a in axes]
    held = {d: terms[i].reshape(sizes).astype(float) for i, d in enumerate(itertools.product(*map(range, sizes)))}
    for step in program:
        along, leaders = [axes.index(a) for a in step.axes], [axes.index(a) for a in step.leaders]
        groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for d in held:
            if all(d[a] == 0 for a in leaders):
                groups.setdefault(tuple(-1 if k in along else x for k, x in enumerate(d)), []).append(d)
        for group in groups.values():
            values = [held[d] for d in group]
            total = np.sum(values, axis=0)
            for k, d in enumerate(group):
                if step.kind == "all_reduce":
                    held[d] = total
                elif step.kind == "reduce":
                    held[d] = total if k == 0 else np.full(sizes, np.nan)
                elif step.kind == "broadcast":
                    held[d] = values[0]
                elif step.kind == "all_gather":
                    held[d] = np.where(np.isnan(values).all(axis=0), np.nan, np.nansum(values, axis=0))
                else:
                    mine = np.full(sizes, np.nan)
                    at = tuple(d[a] if a in along else slice(None) for a in range(len(sizes)))
                    mine[at] = total[at]
                    held[d] = mine
    return np.stack([x.ravel() for x in held.values()])


@pytest.mark.parametrize("hardware", ["a100-80", "v100", "mi300x", "cpu"])
@pytest.mark.parametrize(("mesh", "axes"), MESHES)
def test_a_program_is_a_sum_no_dearer_than_one_all_reduce(
    hardware: str, mesh: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    for moved in (1e3, 1e6, 1e9):
        found = boxing.reduction(moved, mesh, axes, cluster.get(hardware))
        assert boxing.is_sum(found.steps, mesh, axes) and found.seconds <= found.plain_seconds
        n = math.prod(mesh[a] for a in axes)
        terms = np.random.default_rng(0).integers(-99, 99, size=(n, n))
        np.testing.assert_array_equal(run(found.steps, mesh, axes, terms), np.tile(terms.sum(axis=0), (n, 1)))
        assert not found.has_root, "by this cost model a chain moves more than a ring's two halves, in as many steps"


def test_a_cheaper_program_than_one_all_reduce_is_found() -> None:
    """Axes that skip neighbours share a node's adapters; within the node first, each sends a piece only."""
    found = boxing.reduction(1e9, (2, 2, 2, 4), (0, 2), cluster.get("a100-80"))
    assert found.words("abcd") == "reduce_scatter along c, all_reduce along a, all_gather along c"
    assert found.seconds < 0.9 * found.plain_seconds
    assert "one all_reduce 0.03" in str(found)


@pytest.mark.parametrize("hardware", ["a100-80", "v100", "cpu"])
def test_routes_are_programs_of_the_same_seconds(hardware: str) -> None:
    """Where all axes take part. (Devices of other axes that hold the same may help a route, which no program does.)"""
    for mesh in ((4, 8), (8, 8), (2, 2, 8), (2, 2, 2)):
        where = sbp.placement.abstract(mesh, cluster=hardware)
        for elements in (1 << 12, 1 << 22, 1 << 28):
            way = boxing.route(", ".join("P" * len(mesh)), ", ".join("B" * len(mesh)), where, (elements,))
            program, axes = boxing.of_route(way), tuple(range(len(mesh)))
            assert program is not None and boxing.is_sum(program, mesh, axes)
            found = boxing.reduction(4.0 * elements, mesh, axes, cluster.get(hardware), rooted=False)
            assert way.seconds == pytest.approx(found.seconds, rel=1e-6, abs=1e-8), (mesh, elements)


WRONG = {
    "only one axis": [("all_reduce", (0,))],
    "terms twice": [("all_reduce", (0,)), ("all_reduce", (0, 1))],
    "gathered before it is summed": [("reduce_scatter", (0,)), ("all_gather", (0,))],
    "chunks that differ are summed": [("reduce_scatter", (0,)), ("all_reduce", (0,))],
    "not sent back": [("reduce", (0, 1))],
    "sent from who has not all": [("reduce", (0,)), ("broadcast", (0,))],
    "what is whole is gathered": [("all_gather", (0, 1))],
}


@pytest.mark.parametrize("steps", WRONG.values(), ids=WRONG)
def test_what_is_no_sum_is_refused(steps: list[tuple[str, tuple[int, ...]]]) -> None:
    assert not boxing.is_sum([Collective(*s) for s in steps], (2, 4), (0, 1))


def test_programs_with_a_root_are_sums_too() -> None:
    steps = [Collective("reduce", (1,)), Collective("all_reduce", (0,), (1,)), Collective("broadcast", (1,))]
    assert boxing.is_sum(steps, (2, 4), (0, 1)) and Reduction((2, 4), (0, 1), tuple(steps), 1.0).has_root
    terms = np.arange(64).reshape(8, 8)
    np.testing.assert_array_equal(run(tuple(steps), (2, 4), (0, 1), terms), np.tile(terms.sum(axis=0), (8, 1)))
    assert not boxing.is_sum([steps[0], Collective("all_reduce", (0,)), steps[2]], (2, 4), (0, 1)), "not all hold it"
    assert steps[1].words("ab") == "all_reduce along a of the first along b"


def test_too_many_axes_are_told_in_words() -> None:
    with pytest.raises(sbp.SbpError, match=r"programs are for 1 to 4 axes of more than one device, and there are 5"):
        boxing.reduction(1e6, (2,) * 5, tuple(range(5)), cluster.get("cpu"))
    with pytest.raises(sbp.SbpError, match="there are 0"):
        boxing.reduction(1e6, (1, 4), (0,), cluster.get("cpu"))
    with pytest.raises(sbp.SbpError, match="for up to 64"):
        boxing.is_sum([], (16, 8), (0, 1))
