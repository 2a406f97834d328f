"""The simulation of toy plans, checked by hand: what waits for what."""

import dataclasses

import pytest

import sbp_jax as sbp
from sbp_jax.cluster import Cluster, Level, device
from sbp_jax.plan import Boxing, Move, PlanData
from sbp_jax.plan.timeline import Cost, Loop, Timeline
from sbp_jax.signature import Signature
from sbp_jax.simulate import Simulation, simulate

P, B, S0 = (Signature.parse(f"{x}, B") for x in ("P", "B", "S(0)"))
CLUSTER = Cluster(
    "toy",
    device("toy", {"float32": 1e12}, 1e9, 1e12),
    (Level("node", 2, 1e9, 0.0), Level("network", None, 1e9, 0.0)),
    overlaps=frozenset({"all_reduce", "all_gather", "reduce_scatter"}),
)
# On a mesh of 2 x 2, axis "a" crosses nodes and "b" does not.
PLACE = sbp.placement.abstract((2, 2), axis_names=("a", "b"), cluster="a100-80")


def moved(
    id: int, made_at: int, needed_at: int, *moves: tuple[str, str, float], loop: int = -1, value: int | None = None,
    src: Signature = P, dst: Signature = B, sent: float = 1e9,
) -> Boxing:  # fmt: skip
    """A boxing of 1 GB collectives, (kind, axis, seconds)."""
    steps = tuple(Move(kind, (axis,), dst, sent, seconds) for kind, axis, seconds in moves)
    return Boxing(
        id, id if value is None else value, f"v{id}", (8,), "float32", src, dst, steps, 1.0, "", "", made_at, needed_at,
        loop,
    )  # fmt: skip


def toy(seconds: list[float], boxings: list[Boxing], loops: tuple[Loop, ...] = ()) -> PlanData:
    """A plan whose node k runs ``seconds[k]``, at 1 FLOP a second."""
    costs = tuple(Cost(f"op{k}", s, s) for k, s in enumerate(seconds))
    timeline = Timeline(costs, tuple((k, k) for k in range(len(seconds))), loops, ((0, 10.0), (1, 30.0), (2, 20.0)))
    return PlanData(
        "toy", "", PLACE, [], [], [], [], boxings, sum(seconds), sum(b.seconds for b in boxings), 30.0, 0.0, 0.0, "toy",
        "", 0.0, timeline=timeline,
    )  # fmt: skip


def run(seconds: list[float], *boxings: Boxing, loops: tuple[Loop, ...] = (), cluster: Cluster = CLUSTER) -> Simulation:
    return simulate(toy(seconds, list(boxings), loops), cluster)


def test_compute_alone() -> None:
    s = run([1.0, 2.0, 3.0])
    assert (s.step_seconds, s.compute_seconds, s.exposed_communication_seconds) == (6.0, 6.0, 0.0)
    assert s.communication_seconds == {} and s.flops == 6.0 and s.flops_per_second == 1.0
    assert s.memory == ((0.0, 10.0), (1.0, 30.0), (3.0, 20.0)) and s.peak_memory_bytes == 30.0
    assert s.devices == 4 and s.model_flops_per_second(48.0) == 2.0
    assert s.model_flops_utilization(24e12, "float32") == 1.0


def test_what_is_needed_at_once_is_exposed() -> None:
    s = run([1.0, 1.0], moved(0, 0, 1, ("all_reduce", "b", 4.0)))
    assert s.step_seconds == 6.0 and s.exposed_communication_seconds == 4.0
    assert s.communication_seconds == {"node": 4.0}


@pytest.mark.parametrize(("communication", "step"), [(2.0, 7.0), (5.0, 7.0), (5.5, 7.5)])
def test_what_is_needed_later_is_hidden(communication: float, step: float) -> None:
    s = run([1.0, 5.0, 1.0], moved(0, 0, 2, ("all_reduce", "b", communication)))
    assert s.step_seconds == step and s.exposed_communication_seconds == pytest.approx(step - 7.0)


def test_one_level_is_one_queue_and_two_levels_are_two() -> None:
    far = [moved(k, 0, 2, ("all_to_all", axis, 3.0)) for k, axis in enumerate("bb")]
    both = [moved(k, 0, 2, ("all_to_all", axis, 3.0)) for k, axis in enumerate("ab")]
    free = dataclasses.replace(CLUSTER, overlaps=frozenset({"all_to_all"}))
    assert run([1.0, 1.0, 1.0], *far, cluster=free).step_seconds == 1 + 6 + 1
    s = run([1.0, 1.0, 1.0], *both, cluster=free)
    assert s.step_seconds == 1 + 3 + 1 and s.communication_seconds == {"network": 3.0, "node": 3.0}


def test_kinds_that_do_not_overlap_stop_compute() -> None:
    s = run([1.0, 5.0, 1.0], moved(0, 0, 2, ("all_to_all", "b", 2.0)))
    assert s.step_seconds == 9.0 and s.exposed_communication_seconds == 2.0
    assert s.communication_seconds == {"node": 2.0}


def test_copies_on_the_device_are_compute() -> None:
    s = run([1.0, 5.0, 1.0], moved(0, 0, 2, ("slice", "b", 2.0), src=B, dst=S0))
    assert (s.step_seconds, s.compute_seconds, s.exposed_communication_seconds) == (9.0, 9.0, 0.0)


def test_a_route_moves_in_sequence() -> None:
    s = run([1.0, 1.0, 1.0], moved(0, 0, 2, ("reduce_scatter", "b", 2.0), ("all_gather", "a", 3.0)))
    starts = {e.track: e.start_seconds for e in s.events if e.track != "compute"}
    assert starts == {"node": 1.0, "network": 3.0} and s.step_seconds == 7.0


def test_what_is_boxed_from_a_boxing_waits_for_it() -> None:
    first = moved(7, 0, 2, ("reduce_scatter", "b", 2.0), value=1, dst=S0)
    second = moved(3, 0, 2, ("all_gather", "a", 3.0), value=1, src=S0, dst=B)
    assert run([1.0, 1.0, 1.0], second, first).step_seconds == 1 + 2 + 3 + 1


def test_nothing_is_left_running() -> None:
    s = run([1.0], moved(0, 0, 99, ("all_reduce", "b", 4.0)))
    assert s.step_seconds == 5.0


def test_small_collectives_are_combined_and_pay_latency_once() -> None:
    slow = dataclasses.replace(CLUSTER, levels=(Level("node", 2, 1e9, 1.0), Level("network", None, 1e9, 1.0)))
    sent = 1e6
    seconds = slow.collective_seconds("all_reduce", sent, PLACE.shape, [1])
    parts = [moved(k, k, 3, ("all_reduce", "b", seconds), sent=sent) for k in range(3)]
    s = run([1.0] * 4, *parts, cluster=slow)
    together = slow.collective_seconds("all_reduce", 3 * sent, PLACE.shape, [1])
    assert s.communication_seconds["node"] == pytest.approx(together) and together < 2 * seconds
    assert [e.name for e in s.events if e.track == "node"] == ["all_reduce of 3 values"]
    # One that may depend on another's result is not merged with it, nor are large ones.
    chain = [moved(k, k, k + 1, ("all_reduce", "b", seconds), sent=sent) for k in range(3)]
    assert run([1.0] * 4, *chain, cluster=slow).communication_seconds["node"] == pytest.approx(3 * seconds)
    large = [moved(k, k, 3, ("all_reduce", "b", 1.0)) for k in range(3)]
    assert run([1.0] * 4, *large, cluster=slow).communication_seconds["node"] == pytest.approx(3.0)


def test_compute_beside_a_collective_is_slower() -> None:
    slow = dataclasses.replace(CLUSTER, overlap_slowdown=0.25)
    s = run([1.0, 8.0, 1.0], moved(0, 0, 2, ("all_reduce", "b", 5.0)), cluster=slow)
    # In the 5 seconds beside it 4 of the 8 are done; the other 4 run alone.
    assert s.step_seconds == pytest.approx(1 + 5 + 4 + 1)


LOOP = (Loop(1, 2, 3.0, "scan"),)


def test_a_loop_runs_its_body_and_waits_in_it() -> None:
    """Nodes 1 and 2 three times, a collective between them: nothing of it reaches the next iteration."""
    s = run([1.0, 2.0, 3.0, 1.0], moved(0, 1, 2, ("all_reduce", "b", 4.0), loop=0), loops=LOOP)
    assert s.step_seconds == 1 + 3 * (2 + 4 + 3) + 1 and s.compute_seconds == 1 + 3 * 5 + 1
    assert s.communication_seconds == {"node": 12.0} and s.exposed_communication_seconds == 12.0
    assert s.flops == 1 + 3 * 5 + 1
    end = run([1.0, 2.0, 3.0, 1.0], moved(0, 1, 3, ("all_reduce", "b", 4.0), loop=0), loops=LOOP)
    assert end.step_seconds == 1 + 3 * (2 + max(3, 4)) + 1


def test_a_transfer_runs_on_through_a_loop_that_leaves_its_links_alone() -> None:
    before = moved(0, 0, 3, ("all_reduce", "b", 10.0))
    s = run([1.0, 2.0, 3.0, 1.0], before, loops=LOOP)
    assert s.step_seconds == 1 + 15 + 1
    inside = moved(1, 1, 2, ("all_reduce", "b", 1.0), loop=0)
    s = run([1.0, 2.0, 3.0, 1.0], before, inside, loops=LOOP)
    assert s.step_seconds == 1 + 10 + 3 * 6 + 1


def test_loops_in_loops() -> None:
    loops = (Loop(0, 3, 4.0, "outer"), Loop(1, 2, 5.0, "inner", 0))
    s = run([1.0, 2.0, 3.0, 1.0], moved(0, 2, 3, ("all_reduce", "b", 0.5), loop=0), loops=loops)
    assert s.step_seconds == 4 * (1 + 5 * 5 + 0.5 + 1) and s.compute_seconds == 4 * (1 + 25 + 1)
    drawn = [e for e in s.events if e.track == "compute"]
    assert {e.count for e in drawn} == {1.0, 2.0, 3.0}
    assert sum(e.flops for e in drawn) == pytest.approx(s.flops)
    assert max(e.start_seconds + e.seconds for e in drawn) == s.step_seconds


def test_an_unknown_cluster_is_asked_for() -> None:
    with pytest.raises(sbp.PlanError, match=r"cluster 'toy'.*not a preset.*cluster=\.\.\."):
        simulate(toy([1.0], []))
    with pytest.raises(sbp.SbpError, match="did you mean h100"):
        simulate(toy([1.0], []), "h10")


def test_a_plan_without_a_timeline() -> None:
    plan = dataclasses.replace(toy([1.0], []), timeline=Timeline())
    with pytest.raises(sbp.PlanError, match="has no timeline"):
        simulate(plan, CLUSTER)


def test_the_table() -> None:
    text = str(run([1.0, 1.0], moved(0, 0, 1, ("all_reduce", "b", 2.0))))
    assert "step                       4000.000 ms  100.0%" in text
    assert "on node links              2000.000 ms   50.0%" in text and "exposed communication" in text
