"""That graphs which would stop are refused with the reason, and those which would not are not."""

import dataclasses

import pytest
from hypothesis import given, settings

from actors.random_graphs import graphs
from sbp_jax.actors import Actor, ActorGraph, check, registers_needed, run
from sbp_jax.actors.check import _Tokens
from sbp_jax.errors import ActorError


def act(k: int, *payloads: object) -> int:
    return k


def refused(graph: ActorGraph) -> str:
    with pytest.raises(ActorError) as error:
        check(graph)
    return str(error.value)


def pipeline(order0: str, order1: str, registers: int = 1) -> ActorGraph:
    """Two stages forward and backward; an order is written as "f0 f1 b0 b1"."""
    actors = (
        Actor("f", act, registers=registers, lane="rank 0", count=3),
        Actor("g", act, ("f",), lane="rank 1"),
        Actor("h", act, ("g",), lane="rank 1"),
        Actor("b", act, ("f", "h"), lane="rank 0"),
    )
    orders = {
        f"rank {i}": tuple((entry[0], int(entry[1:])) for entry in order.split())
        for i, order in enumerate((order0, order1))
    }
    return ActorGraph(actors, orders)


def test_one_forward_one_backward_needs_what_it_holds() -> None:
    order1 = "g0 h0 g1 h1 g2 h2"
    check(pipeline("f0 b0 f1 b1 f2 b2", order1))
    check(pipeline("f0 f1 b0 f2 b1 b2", order1, registers=2))
    assert refused(pipeline("f0 f1 b0 f2 b1 b2", order1)) == (
        "this graph of actors would never complete: lane 'rank 0' waits at f[1] for a free register of 'f': its only "
        "one is taken by f[0] until b[0] has run, which this lane runs after f[1]. It does with these registers: 'f' 2 "
        "(it has 1). Or change the order of lane 'rank 0' so that what it waits for comes first"
    )


def test_a_lane_that_runs_a_result_before_what_it_is_made_of() -> None:
    actors = (Actor("f", act, lane="device", count=2), Actor("b", act, ("f",), lane="device"))
    order = (("b", 1), ("f", 1), ("b", 0), ("f", 0))
    assert refused(ActorGraph(actors, {"device": order})) == (
        "this graph of actors would never complete, however many registers there are: lane 'device' waits at b[1] for "
        "f[1], which this lane runs after b[1]. To run it, change the order of lane 'device' so that what it waits for "
        "comes first"
    )


def test_of_several_registers_the_first_that_was_taken_is_named() -> None:
    message = refused(pipeline("f0 f1 f2 b0 b1 b2", "g0 h0 g1 h1 g2 h2", registers=2))
    assert "for a free register of 'f': its 2 are taken, the first by f[0] until b[0] has run" in message


def test_registers_needed_are_named_for_all_and_are_enough() -> None:
    graph = pipeline("f0 f1 f2 b0 b1 b2", "g0 g1 g2 h0 h1 h2")
    assert "It does with these registers: 'f' 3 (it has 1), 'g' 3 (it has 1)." in refused(graph)
    assert registers_needed(graph) == {"f": 3, "g": 3, "h": 1, "b": 1}
    check(with_registers(graph, registers_needed(graph)))


def test_registers_that_turn_out_not_to_be_needed_are_given_back() -> None:
    orders = {
        "x": tuple((n, k) for n, k in zip("aaaccc", (0, 2, 1, 1, 0, 2), strict=True)),
        "y": (("b", 0), ("b", 2), ("b", 1)),
    }
    actors = (Actor("a", act, lane="x", count=3), Actor("b", act, ("a",), lane="y"), Actor("c", act, ("b",), lane="x"))
    # Raising what waits first gives a 2, too; with 3 for b one is enough.
    assert registers_needed(ActorGraph(actors, orders)) == {"a": 1, "b": 3, "c": 1}


def test_orders_that_no_register_helps() -> None:
    message = refused(pipeline("f0 b0 f1 b1 f2 b2", "g0 g1 h0 h1 g2 h2"))
    assert message == (
        "this graph of actors would never complete, however many registers there are: "
        "lane 'rank 0' waits at b[0] for h[0], which lane 'rank 1' runs after g[1]; "
        "lane 'rank 1' waits at g[1] for f[1], which lane 'rank 0' runs after b[0]. "
        "To run it, change the order of one of these lanes so that what another waits for comes first"
    )
    with pytest.raises(ActorError, match="however many registers there are"):
        registers_needed(pipeline("f0 b0 f1 b1 f2 b2", "g0 g1 h0 h1 g2 h2"))


def test_actors_that_fire_in_different_orders() -> None:
    def crossed(registers: int) -> ActorGraph:
        return ActorGraph(
            (
                Actor("a", act, indices=(0, 1), registers=registers),
                Actor("b", act, indices=(1, 0), registers=registers),
                Actor("c", act, ("a", "b")),
            )
        )

    assert refused(crossed(1)) == (
        "this graph of actors would never complete: actor 'c' waits at c[0] for b[0]; actor 'b' waits at b[0] for a "
        "free register of 'b': its only one is taken by b[1] until c[1] has run, which actor 'c' runs after c[0]. "
        "It does with these registers: 'b' 2 (it has 1). Or change the indices of one of these actors so that what "
        "another waits for comes first"
    )
    check(crossed(2))


def test_two_streams_that_share_memory_as_in_oneflows_figure_2() -> None:
    """Copies fill the memory that a computation needs for its result (arXiv 2110.15032, figure 2).

    Two queues, one of copies and one of computations that read them, share the memory for four results. A scheduler
    that lets an op take memory as soon as its inputs are there lets copies take all of it. The same memory planned as
    one register for each op is enough, whatever happens first.
    """
    rounds, memory = 50, 4
    assert not greedy_scheduler_completes(memory, rounds)
    assert greedy_scheduler_completes(memory, rounds=1)
    graph = ActorGraph(
        (
            Actor("copy 1", act, kind="receive", lane="copies", count=rounds),
            Actor("copy 2", act, kind="receive", lane="copies", count=rounds),
            Actor("compute 1", act, ("copy 1",), lane="computations"),
            Actor("compute 2", act, ("copy 2", "compute 1"), lane="computations"),
        )
    )
    assert sum(a.registers for a in graph.actors) == memory
    check(graph)
    record = run(graph, collect=("compute 2",))
    assert list(record.results["compute 2"]) == list(range(rounds))
    assert set(record.peak_registers.values()) == {1}


def greedy_scheduler_completes(memory: int, rounds: int) -> bool:
    """The four ops of each round in two queues; memory is taken when an op begins, freed when its result is read."""
    copies = computations = 0
    while computations < 2 * rounds:
        if copies < 2 * rounds and memory:
            copies, memory = copies + 1, memory - 1
        elif computations < copies and memory:
            # Compute 1 takes one and frees copy 1; compute 2 frees its own, copy 2 and the result of compute 1.
            memory += 2 * (computations % 2)
            computations += 1
        else:
            return False
    return True


def test_a_source_that_decides_itself_needs_no_check() -> None:
    check(ActorGraph((Actor("load", act), Actor("step", act, ("load",)))))
    check(ActorGraph(()))


def with_registers(graph: ActorGraph, registers: dict[str, int]) -> ActorGraph:
    return ActorGraph(
        tuple(dataclasses.replace(a, registers=registers[a.name]) for a in graph.actors), graph.orders
    )  # fmt: skip


def runs_slowly(graph: ActorGraph) -> bool:
    """Whether all firings can happen: what can is done, one round after the other; the plain way."""
    done: set[tuple[str, int]] = set()
    lines = [graph.orders[lane] for lane in graph.lanes if lane in graph.orders]
    lines += [
        tuple((name, k) for k in graph.sequence(name) or ())
        for lane, names in graph.lanes.items()
        if lane not in graph.orders
        for name in names
    ]
    left = [list(line) for line in lines]

    def held(name: str) -> int:
        return sum(
            any((r, k) not in done and k in (graph.sequence(r) or ()) for r in graph.consumers(name))
            for n, k in done
            if n == name
        )

    while any(left):
        ready = [
            line
            for line in left
            if line
            and all((i, line[0][1]) in done for i in graph.actor(line[0][0]).inputs)
            and held(line[0][0]) < graph.actor(line[0][0]).registers
        ]
        if not ready:
            return False
        done.add(ready[-1].pop(0))
    return True


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_without_orders_every_graph_completes(graph: ActorGraph) -> None:
    check(graph)
    tokens = _Tokens(graph, {a.name: a.registers for a in graph.actors})
    tokens.run()
    assert tokens.is_done and runs_slowly(graph)


@given(graphs(has_orders=True))
@settings(max_examples=300, deadline=None)
def test_orders_are_refused_exactly_if_they_cannot_run(graph: ActorGraph) -> None:
    if runs_slowly(graph):
        check(graph)
        assert registers_needed(graph) == {a.name: a.registers for a in graph.actors}
        return
    message = refused(graph)
    if "however many" in message:
        assert not runs_slowly(with_registers(graph, {a.name: 10 for a in graph.actors}))
        return
    needed = registers_needed(graph)
    assert runs_slowly(with_registers(graph, needed))
    for actor in graph.actors:
        if needed[actor.name] > actor.registers:
            assert f"'{actor.name}' {needed[actor.name]} (it has {actor.registers})" in message
            assert not runs_slowly(with_registers(graph, needed | {actor.name: needed[actor.name] - 1}))
