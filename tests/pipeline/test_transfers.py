"""What stages send each other: who sends whom what, over which links, and that tables and plans say the same of it."""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import sbp_jax as sbp
import zoo
from sbp_jax.cluster import PRESETS
from sbp_jax.pipeline.choose import search
from sbp_jax.pipeline.plans.transfers import exchange_seconds, neighbour_seconds, sent_elements, transfer_seconds
from sbp_jax.pipeline.stages import Stages
from sbp_jax.schedules import by_name
from sbp_jax.signature import signature_for

GIB = 2.0**30
CASES = (((1,), "B"), ((2,), "S(0)"), ((3,), "S(1)"), ((4,), "B"), ((2, 2), "S(1) B"), ((2, 3), "S(0) S(0)"))


def piece(shape: Sequence[int], mesh: tuple[int, ...], text: str, device: int) -> np.ndarray:
    """1 where a device has an element."""
    found, at = np.ones(shape), np.unravel_index(device, mesh)
    spans = [np.arange(n) for n in shape]
    for axis, component in enumerate(text.split()):
        if component.startswith("S"):
            d = int(component[2:-1])
            spans[d] = np.array_split(spans[d], mesh[axis])[int(at[axis])]
    found[...] = 0
    found[np.ix_(*spans)] = 1
    return found


@pytest.mark.parametrize(("given", "taken"), list(itertools.product(CASES, CASES)))
def test_everyone_gets_just_what_it_needs_from_those_that_have_it(given: Any, taken: Any) -> None:
    shape = (7, 12)
    signatures = [signature_for(text.split(), 2, mesh) for mesh, text in (given, taken)]
    sent = sent_elements(shape, (signatures[0], given[0]), (signatures[1], taken[0]))
    assert sent.shape == (np.prod(given[0]), np.prod(taken[0]))
    have = [piece(shape, *given, device=k) for k in range(sent.shape[0])]
    need = [piece(shape, *taken, device=k) for k in range(sent.shape[1])]
    np.testing.assert_array_equal(sent.sum(axis=0), [n.sum() for n in need])
    for k, j in np.ndindex(*sent.shape):
        assert sent[k, j] in (0, (have[k] * need[j]).sum())
    if given[1] == "B" and given[0] == taken[0]:
        np.testing.assert_array_equal(sent, np.diag([84] * sent.shape[0]))


def test_groups_in_one_node_use_its_links_whatever_their_sizes() -> None:
    """V100: 30 GB/s between a pair, and a device has one such link to each; 5.9 GB/s to another node."""
    v100 = PRESETS["v100"]
    pair, network = (v100.collective_seconds("permute", GIB, mesh, (0,)) for mesh in ((2,), (2, 8)))
    assert network > 4 * pair
    whole = np.array([[GIB]])
    assert exchange_seconds(whole, [0], [7], v100) == pytest.approx(pair)
    assert exchange_seconds(whole, [7], [8], v100) == pytest.approx(network)
    # To two devices, half to each, over two links; and from two.
    assert exchange_seconds(whole.repeat(2, 1) / 2, [0], [1, 2], v100) == pytest.approx(pair / 2, rel=1e-3)
    assert exchange_seconds(whole.repeat(2, 0) / 2, [1, 2], [0], v100) == pytest.approx(pair / 2, rel=1e-3)
    # Of an A100, with a switch, one link sends to all.
    a100 = PRESETS["a100-80"]
    alone = exchange_seconds(whole, [0], [7], a100)
    assert exchange_seconds(whole.repeat(2, 1) / 2, [0], [1, 2], a100) == pytest.approx(alone, rel=1e-3)
    assert exchange_seconds(whole.repeat(2, 1), [0], [1, 2], a100) == pytest.approx(2 * alone, rel=0.01)
    assert exchange_seconds(whole, [3], [3], a100) == 0.0


def test_neighbours_of_a_placement_are_in_one_node_or_in_several() -> None:
    v100 = PRESETS["v100"]
    pair, network = (v100.collective_seconds("permute", GIB, mesh, (0,)) for mesh in ((2,), (2, 8)))
    for size in (1, 2, 4):
        assert neighbour_seconds(range(8), size, v100, [GIB, 0.0]) == pytest.approx([pair, 0.0])
        assert neighbour_seconds(range(16), size, v100, [GIB]) == pytest.approx([network])
    assert neighbour_seconds(range(8), 8, v100, [GIB]) == [0.0]


def test_what_a_smaller_group_takes_whole_arrives_whole() -> None:
    where, a100 = sbp.placement.abstract((4,), cluster="a100-80"), PRESETS["a100-80"]
    groups = [dataclasses.replace(where, shape=(n,), flat_ranks=ranks) for n, ranks in ((2, (0, 1)), (1, (2,)))]
    split, whole = (signature_for([text], 2, (2,)) for text in ("S(0)", "B"))
    link = a100.collective_seconds("permute", 4 * 2**20, (2,), (0,))
    handed = [((1024, 1024), 4.0, split, whole)]
    assert transfer_seconds(handed, groups[0], groups[1], a100) == pytest.approx(link, rel=0.01)
    assert transfer_seconds([], groups[0], groups[1], a100) == 0.0


def pace_of(plan: Any) -> float:
    """Seconds from one micro-batch to the next, as the schedule runs."""

    def whole(microbatches: int) -> float:
        longer = by_name(plan.schedule.name, plan.schedule.ranks, microbatches)
        return dataclasses.replace(plan, schedule=longer).timing.makespan_seconds

    first = 3 * plan.schedule.ranks
    return (whole(first + 16) - whole(first)) / 16


@pytest.mark.parametrize("name", ["piper", "alpa_inter"])
def test_the_pace_that_tables_say_is_that_of_the_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Piper's groups are of unlike sizes here."""
    found: list[Stages] = []

    def kept(*args: Any, **more: Any) -> Stages:
        found.append(real(*args, **more))
        return found[-1]

    real = search.search_stages
    monkeypatch.setattr(search, "search_stages", kept)
    warnings.simplefilter("ignore", UserWarning)
    case = zoo.build("gpt", batch=64, hidden=512, seq=128, layers=2, dropout=0.0)
    where = sbp.placement.abstract((2, 4), cluster="v100")
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(microbatches=4, search=name))
    plan: Any = sbp.plan(
        case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0, config=config
    )
    assert name != "piper" or len(set(found[0].devices)) == 2
    assert pace_of(plan) == pytest.approx(found[0].slowest_seconds, rel=0.15)
    assert plan.step_seconds == pytest.approx(found[0].total_seconds, rel=0.15)
