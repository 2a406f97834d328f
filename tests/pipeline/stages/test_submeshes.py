"""Sub-meshes: which there are, and covers of a cluster."""

import numpy as np
import pytest

from sbp_jax.errors import PlanError
from sbp_jax.pipeline.stages import Submesh, assign, submesh_options


def labels(nodes: int, per_node: int) -> str:
    return " ".join(map(str, submesh_options(nodes, per_node)))


def test_options_are_those_of_the_paper() -> None:
    assert labels(4, 8) == "1x1 1x2 1x4 1x8 2x8 3x8 4x8"
    assert labels(1, 1) == "1x1"
    assert labels(2, 12) == "1x1 1x2 1x3 1x4 1x6 1x12 2x12"
    assert [s.devices for s in submesh_options(2, 6)] == [1, 2, 3, 6, 12]


def random_choice(rng: np.random.Generator, nodes: int, per_node: int, is_full: bool) -> list[Submesh]:
    options, left, found = submesh_options(nodes, per_node), nodes * per_node, []
    while left:
        usable = [o for o in options if o.devices <= left]
        # Small ones more often: those are what has to be packed.
        found.append(usable[min(int(rng.exponential(2)), len(usable) - 1)])
        left -= found[-1].devices
        if not is_full and rng.random() < 0.05:
            break
    return [found[k] for k in rng.permutation(len(found))]


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (3, 1), (4, 8), (6, 4), (3, 16), (4, 6), (5, 12), (2, 10)])
def test_every_device_is_used_once(nodes: int, per_node: int, is_full: bool) -> None:
    rng = np.random.default_rng(nodes * 100 + per_node)
    for _ in range(60):
        chosen = random_choice(rng, nodes, per_node, is_full)
        ranks = assign(chosen, nodes, per_node)
        assert [len(r) for r in ranks] == [s.devices for s in chosen]
        used = [d for r in ranks for d in r]
        assert len(set(used)) == len(used) and set(used) <= set(range(nodes * per_node))
        if is_full:
            assert len(used) == nodes * per_node
        for submesh, devices in zip(chosen, ranks, strict=True):
            assert devices == tuple(range(devices[0], devices[0] + submesh.devices))
            assert len({d // per_node for d in devices}) == submesh.nodes
            if per_node & (per_node - 1) == 0:
                assert devices[0] % min(submesh.devices, per_node) == 0


def test_stages_in_order_lie_in_order() -> None:
    chosen = [Submesh(2, 4), Submesh(1, 2), Submesh(1, 2), Submesh(1, 4)]
    assert assign(chosen, 4, 4) == ((0, 1, 2, 3, 4, 5, 6, 7), (8, 9), (10, 11), (12, 13, 14, 15))


def nodes_of(sizes: list[int], nodes: int, per_node: int) -> list[int]:
    """The node of each stage."""
    return [r[0] // per_node for r in assign([Submesh(1, d) for d in sizes], nodes, per_node)]


def test_neighbours_share_a_node_where_they_can() -> None:
    # The first node has room for stage 3, but stage 2 is on the second.
    assert nodes_of([2, 4, 4, 2, 2, 2], 2, 8) == [0, 0, 1, 1, 1, 0]
    # Beside stage 3, stage 4 would leave one device on each node, too few for the last.
    assert nodes_of([1, 2, 4, 4, 1, 4], 2, 8) == [0, 0, 0, 1, 0, 1]


def test_a_cover_that_neither_order_finds_is_found() -> None:
    # In order, 2 and 3 come first on both nodes, and the last 2 fits on neither.
    assert nodes_of([2, 3, 2, 3, 2], 2, 6) == [0, 1, 0, 1, 0]


def test_a_stage_of_whole_nodes_between_small_ones() -> None:
    ranks = assign([Submesh(1, 1), Submesh(2, 2), Submesh(1, 1)], 3, 2)
    assert ranks == ((0,), (2, 3, 4, 5), (1,))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([Submesh(1, 3)], "sub-mesh 1x3 is none of 2 nodes with 8 devices each: possible are 1x1, 1x2, 1x4, 1x8, 2x8"),
        ([Submesh(2, 4)], "sub-mesh 2x4 is none of 2 nodes"),
        ([Submesh(2, 8), Submesh(1, 1)], "2 sub-meshes have 17 devices, 2 nodes of 8 have 16: give at most as many"),
    ],
)
def test_what_cannot_be_assigned(chosen: list[Submesh], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        assign(chosen, 2, 8)


def test_divisors_without_a_cover_are_said() -> None:
    chosen = [Submesh(1, d) for d in (30, 20, 20, 12, 12, 12, 12, 2)]
    message = (
        "stages with 1 of 30, 2 of 20, 4 of 12, 1 of 2 devices do not fit in 2 nodes of 60 devices, though there are "
        "as many: take sizes that divide each other"
    )
    with pytest.raises(PlanError, match=message):
        assign(chosen, 2, 60)
    # With a device more to spare they do.
    assert len(assign(chosen, 3, 60)) == 8


@pytest.mark.parametrize(("nodes", "per_node"), [(0, 8), (2, 0)])
def test_numbers_below_one(nodes: int, per_node: int) -> None:
    with pytest.raises(PlanError, match="=0: give at least 1"):
        submesh_options(nodes, per_node)
