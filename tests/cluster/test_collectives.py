"""The cost of collectives, against values worked out by hand; groups of a mesh in levels."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp_jax import cluster
from sbp_jax.cluster import Cluster, Level, device

CHIP = device("x", {"float32": 1e12}, 1e9, 1e12)
# Round figures: 100 bytes/s in a node of 4, an adapter of 10 for each device; steps of 1 s and 7 s; startup of 3 s.
BOXES = Cluster(
    "boxes", CHIP, (Level("node", 4, 100.0, 1.0), Level("network", None, 10.0, 7.0, startup_seconds=3.0))
)  # fmt: skip


@pytest.mark.parametrize(
    ("mesh", "axes", "level"),
    [
        ((8,), (0,), "node"),
        ((16,), (0,), "network"),
        ((4, 8), (1,), "node"),
        ((4, 8), (0,), "network"),
        ((4, 8), (0, 1), "network"),
        ((2, 2, 2), (0, 2), "node"),
        ((4, 2, 4), (1,), "node"),
        ((4, 2, 4), (0,), "network"),
        # Groups of 6 in nodes of 8: the second, ranks 6 to 11, lies across two nodes.
        ((2, 6), (1,), "network"),
        # Ranks 2, 5, 8: within 7 consecutive ranks, but not within one node.
        ((3, 3), (0,), "network"),
    ],
)
def test_the_slowest_group_chooses_the_link(mesh: tuple[int, ...], axes: tuple[int, ...], level: str) -> None:
    assert cluster.get("h100").link(mesh, axes).level == level


@pytest.mark.parametrize(
    ("mesh", "axes", "rate"),
    [
        ((4,), (0,), 100.0),  # within a node
        ((2, 4), (0,), 10.0),  # one member in each node: its own adapter
        ((2, 2, 2), (0, 1), 20.0),  # two members in each node share two adapters
        ((2, 4), (0, 1), 40.0),  # all four
        ((1, 1), (0,), 100.0),
        ((2, 6), (1,), 20.0),  # ranks 0-5: four in one node, two in the next, and the fewest make the rings
        ((4, 3), (1,), 10.0),  # ranks 3-5: one in a node, two in the next
    ],
)
def test_a_ring_uses_the_adapters_of_its_members(mesh: tuple[int, ...], axes: tuple[int, ...], rate: float) -> None:
    assert BOXES.link(mesh, axes).bytes_per_second == rate


def test_many_members_are_held_back_by_the_node() -> None:
    wide = dataclasses.replace(BOXES, levels=(Level("node", 4, 30.0, 1.0), *BOXES.levels[1:]))
    assert wide.link((2, 4), (0, 1)).bytes_per_second == 30.0


def test_shared_uplinks_and_efficiency() -> None:
    node, net = BOXES.levels
    shared = dataclasses.replace(BOXES, levels=(node, dataclasses.replace(net, uplinks=2, efficiency=0.5)))
    assert shared.link((2, 4), (0,)).bytes_per_second == 10.0 * 2 / 4 * 0.5
    assert shared.link((2, 4), (0, 1)).bytes_per_second == 4 * 10.0 * 2 / 4 * 0.5


def test_pairs_without_a_switch_have_their_own_links() -> None:
    mi300x = cluster.get("mi300x")
    assert mi300x.link((2,), (0,)).bytes_per_second == pytest.approx(64e9 * 0.7)  # 48 GB/s were measured
    assert mi300x.link((8,), (0,)).bytes_per_second == pytest.approx(448e9 * 0.7)  # 313 were
    assert mi300x.collective_seconds("permute", 1e9, (8,), (0,)) == pytest.approx(1e9 / (64e9 * 0.7), rel=0.01)


@pytest.mark.parametrize(
    ("kind", "mesh", "seconds"),
    [
        # Two nodes of four. Ring: 40 bytes/s; of 7 steps one crosses nodes; halving: 3 steps of 7 s.
        ("all_gather", (8,), 3 + 400 / 40 + min(6 * 1 + 7, 3 * 7)),
        ("reduce_scatter", (8,), 3 + 400 / 40 + 13),
        ("all_reduce", (8,), 3 + 400 / 40 + 26),
        # Of 7 peers 4 are in the other node: 4/7 of the bytes at 10 bytes/s, the rest meanwhile in the node.
        ("all_to_all", (8,), 3 + 400 * 4 / 7 / 10 + 7),
        ("permute", (8,), 3 + 400 / 10 + 7),
        ("all_gather", (4,), 400 / 100 + 2),
        ("all_to_all", (4,), 400 / 100 + 1),
        ("permute", (4,), 400 / 100 + 1),
        ("all_reduce", (1,), 0.0),
    ],
)
def test_a_collective_by_hand(kind: str, mesh: tuple[int, ...], seconds: float) -> None:
    assert BOXES.collective_seconds(kind, 400.0, mesh, (0,)) == pytest.approx(seconds)


def test_nccl_takes_the_best_of_protocols_and_of_ring_and_tree() -> None:
    h100 = cluster.get("h100")
    step, startup, rate = 3.4e-6, 8.4e-6, 450e9 * 0.822
    large, small = 1e10, 8.0
    assert h100.collective_seconds("all_reduce", large, (8,), (0,)) == pytest.approx(
        large / rate + 14 * step + startup
    ), "Simple, by ring"
    assert h100.collective_seconds("all_reduce", small, (8,), (0,)) == pytest.approx(
        14 * step * 0.19 + startup * 0.79 + small / rate / 0.5
    ), "LL, by ring"
    # 16 nodes: a ring's 2 * 15 steps between nodes against a tree's 2 * 4.
    net = 14e-6
    tree = 2 * (7 * step + 4 * net) * 0.19 + startup * 0.79
    assert h100.collective_seconds("all_reduce", small, (128,), (0,)) == pytest.approx(tree, rel=1e-3)


def test_three_levels() -> None:
    pods = dataclasses.replace(
        BOXES, levels=(Level("pair", 2, 100.0, 1.0), Level("node", 4, 30.0, 2.0), Level("net", None, 5.0, 4.0))
    )
    assert pods.link((8,), (0,)).bytes_per_second == 20.0  # four members by adapters of 5; node: two pairs of 60
    # 7 steps: four pairs make 3 crossings of pairs, two nodes 1 of nodes; 4 within pairs, 2 within nodes, 1 between.
    # Halving takes 3 steps of 4.
    assert pods.collective_seconds("all_gather", 100.0, (8,), (0,)) == pytest.approx(100 / 20 + min(4 + 2 * 2 + 4, 12))


@given(
    kind=st.sampled_from(cluster.KINDS),
    name=st.sampled_from(cluster.presets()),
    mesh=st.sampled_from([(8,), (16,), (2, 4), (4, 8), (16, 8), (2, 6), (2, 2, 2)]),
    axis=st.integers(0, 2),
    few=st.floats(1, 1e10),
    more=st.floats(0, 1e10),
)
def test_more_bytes_are_never_cheaper(
    kind: str, name: str, mesh: tuple[int, ...], axis: int, few: float, more: float
) -> None:
    c, axes = cluster.get(name), (axis % len(mesh),)
    assert 0 < c.collective_seconds(kind, few, mesh, axes) <= c.collective_seconds(kind, few + more, mesh, axes)


@pytest.mark.parametrize(
    ("name", "kind"),
    # One link between two of mi300x's devices is slower than an adapter.
    [(n, k) for n in cluster.presets() for k in cluster.KINDS
     if n not in ("cpu", "tpu-v5p") and (n, k) != ("mi300x", "permute")],
)  # fmt: skip
def test_a_group_across_nodes_is_never_faster_than_one_inside(name: str, kind: str) -> None:
    c = cluster.get(name)
    for sent in (1e3, 1e6, 1e9):
        assert c.collective_seconds(kind, sent, (8, 8), (1,)) <= c.collective_seconds(kind, sent, (8, 8), (0,))
