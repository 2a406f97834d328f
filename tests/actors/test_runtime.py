"""Runs: results as in plain Python, never more results alive than registers."""

import gc
import itertools
import threading
import weakref
from typing import Any

import pytest
from hypothesis import given, settings

from actors.random_graphs import graphs, in_time, lanes_alive, plain, until
from sbp_jax.actors import Actor, ActorGraph, Runtime, check, run
from sbp_jax.actors.lane import ActorState
from sbp_jax.errors import ActorError


def act(k: int, *payloads: object) -> int:
    return k


def chain(length: int, count: int, lanes: int = 3, registers: int = 2) -> ActorGraph:
    """Actors one after the other, each adding one, dealt out to lanes."""
    first = Actor("a0", lambda k: k, registers=registers, lane="0", count=count)
    rest = (
        Actor(f"a{i}", lambda k, x: x + 1, (f"a{i - 1}",), registers, str(i % lanes)) for i in range(1, length)
    )  # fmt: skip
    return ActorGraph((first, *rest))


def test_results_are_those_of_their_index_under_load() -> None:
    record = in_time(lambda: run(chain(9, 400), collect=("a8",)))
    assert record.results == {"a8": {k: k + 8 for k in range(400)}}
    assert list(record.results["a8"]) == list(range(400))
    assert len(record.spans) == 9 * 400
    assert max(record.peak_registers.values()) <= 2
    assert lanes_alive() == []


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_random_graphs_give_what_plain_python_gives(graph: ActorGraph) -> None:
    names = [a.name for a in graph.actors]
    record = in_time(lambda: run(graph, collect=names))
    assert record.results == plain(graph)
    for actor in graph.actors:
        mine = sorted((s.start_seconds, s.index) for s in record.spans if s.actor == actor.name)
        assert tuple(k for _, k in mine) == graph.sequence(actor.name)
        assert record.peak_registers[actor.name] <= actor.registers
    for lane in graph.lanes:
        spans = record.lane_spans(lane)
        assert all(a.end_seconds <= b.start_seconds for a, b in itertools.pairwise(spans))


@given(graphs(has_orders=True))
@settings(max_examples=100, deadline=None)
def test_random_orders_that_are_not_refused_run_as_they_say(graph: ActorGraph) -> None:
    try:
        check(graph)
    except ActorError:
        with pytest.raises(ActorError, match="would never complete"):
            run(graph)
        return
    record = in_time(lambda: run(graph, collect=[a.name for a in graph.actors]))
    assert record.results == plain(graph)
    for lane, order in graph.orders.items():
        assert tuple((s.actor, s.index) for s in record.lane_spans(lane)) == order
    assert all(record.peak_registers[a.name] <= a.registers for a in graph.actors)


@pytest.mark.parametrize("registers", [1, 2, 5])
def test_a_fast_producer_is_never_more_ahead_than_registers(registers: int) -> None:
    made, read, ahead = [0], [0], []
    is_full = threading.Event()

    def produce(k: int) -> int:
        made[0] += 1
        ahead.append(made[0] - read[0])
        if made[0] == registers:
            is_full.set()
        return k

    def consume(k: int, x: int) -> None:
        # Not before the producer has filled all registers: it does get that far ahead.
        assert is_full.wait(30)
        read[0] += 1

    graph = ActorGraph((Actor("fast", produce, registers=registers, count=200), Actor("slow", consume, ("fast",))))
    record = in_time(lambda: run(graph))
    assert max(ahead) == registers and record.peak_registers == {"fast": registers, "slow": 1}


def test_a_register_is_free_when_the_slowest_reader_has_finished() -> None:
    quick_is_far = threading.Event()
    seen: list[int] = []

    def slow(k: int, x: int) -> None:
        assert quick_is_far.wait(30)
        seen.append(last[0])

    last = [0]

    def quick(k: int, x: int) -> None:
        last[0] = k
        if k == 2:
            quick_is_far.set()

    graph = ActorGraph(
        (Actor("load", act, registers=3, count=30), Actor("slow", slow, ("load",)), Actor("quick", quick, ("load",)))
    )
    record = in_time(lambda: run(graph))
    assert record.peak_registers["load"] == 3
    assert all(far <= k + 2 for k, far in enumerate(seen))


def test_lanes_run_at_the_same_time_and_one_lane_does_not() -> None:
    meet = threading.Barrier(3, timeout=30)
    graph = ActorGraph(tuple(Actor(n, lambda k: meet.wait() and None, count=5) for n in "abc"))
    in_time(lambda: run(graph))
    threads: set[int] = set()
    graph = ActorGraph(
        tuple(Actor(n, lambda k: threads.add(threading.get_ident()), lane="one", count=5) for n in "abc")
    )
    record = in_time(lambda: run(graph))
    assert len(threads) == 1
    # Of what is ready, the actor that was declared first.
    assert [s.actor for s in record.lane_spans("one")] == ["a"] * 5 + ["b"] * 5 + ["c"] * 5


def test_the_caller_can_wait_for_results_in_the_lanes_thread() -> None:
    waited: list[tuple[str, int]] = []
    graph = ActorGraph((Actor("a", act, count=3), Actor("b", act, ("a",))))
    in_time(lambda: run(graph, wait=lambda x: waited.append((threading.current_thread().name, x))))
    assert sorted(waited) == [(f"actors of lane {n}", k) for n in "ab" for k in range(3)]


def test_only_what_is_read_is_kept_and_the_rest_freed() -> None:
    class Big:
        pass

    alive: weakref.WeakSet[Big] = weakref.WeakSet()
    most = [0]

    def make(k: int) -> Big:
        big = Big()
        alive.add(big)
        most[0] = max(most[0], len(alive))
        return big

    graph = ActorGraph(
        (
            Actor("make", make, registers=2, count=100),
            Actor("evens", act, ("make",), indices=tuple(range(0, 100, 2))),
            Actor("all", lambda k, x: None, ("make",)),
        )
    )
    gc.disable()  # what is freed is freed at once, not when Python looks for circles
    try:
        in_time(lambda: run(graph))
        assert most[0] <= 2 and len(alive) == 0
    finally:
        gc.enable()


def test_what_was_read_is_gone_when_its_register_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    left: list[bool] = []
    released = ActorState.released

    def note(self: ActorState, slot: int, k: int, payload: object) -> None:
        left.append(k in alive)
        released(self, slot, k, payload)

    def make(k: int) -> object:
        alive[k] = thing = threading.Event()
        return thing

    monkeypatch.setattr(ActorState, "released", note)
    # On one lane the message is a call from within the firing that has read: the moment that matters.
    graph = ActorGraph((Actor("make", make, lane="x", count=5), Actor("read", act, ("make",), lane="x")))
    in_time(lambda: run(graph))
    assert left == [False] * 5


@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize("lane", [None, "one"])
def test_a_source_may_end_when_it_likes(n: int, lane: str | None) -> None:
    graph = ActorGraph(
        (
            Actor("source", until(n), registers=2, lane=lane),
            Actor("a", lambda k, x: x + 1, ("source",), lane=lane),
            Actor("b", lambda k, x, y: (x, y), ("source", "a"), registers=3),
        )
    )
    record = in_time(lambda: run(graph, collect=("a", "b")))
    assert record.results == {"a": {k: k + 1 for k in range(n)}, "b": {k: (k, k + 1) for k in range(n)}}
    assert lanes_alive() == []


@pytest.mark.parametrize("lane", [None, "one"])
def test_the_shortest_source_ends_what_reads_several(lane: str | None) -> None:
    graph = ActorGraph(
        (
            Actor("short", until(5), lane=lane),
            Actor("endless", act, registers=2, lane=lane),
            Actor("copy", lambda k, x: x, ("endless",)),
            Actor("longer", until(9), lane=lane),
            Actor("both", lambda k, x, y: (x, y), ("short", "copy")),
            Actor("rest", act, ("longer",)),
            Actor("three", act, ("both", "longer"), lane=lane),
        )
    )
    record = in_time(lambda: run(graph, collect=("both", "rest", "three")))
    assert record.results["both"] == {k: (k, k) for k in range(5)}
    assert list(record.results["rest"]) == list(range(9))
    assert list(record.results["three"]) == list(range(5))


@pytest.mark.parametrize("names", [("short", "long"), ("long", "short")])
def test_an_input_that_ends_later_does_not_undo_the_end(names: tuple[str, str]) -> None:
    have_ended = threading.Event()

    def read(k: int, x: int, y: int) -> int:
        assert have_ended.wait(30)  # all that the inputs have to say is in the mailbox
        return x + y

    sources = {"short": until(5), "long": until(9)}
    graph = ActorGraph(
        (
            *(Actor(name, sources[name], registers=10, lane="sources") for name in names),
            Actor("after", lambda k: have_ended.set(), lane="sources", count=1),
            Actor("read", read, ("short", "long")),
        )
    )
    assert in_time(lambda: run(graph, collect=("read",))).results == {"read": {k: 2 * k for k in range(5)}}


def test_what_may_not_end_by_itself() -> None:
    with pytest.raises(
        ActorError, match=r"actor 'a' raised StopIteration at a\[1\], but it is to fire 3 times; without"
    ):
        in_time(lambda: run(ActorGraph((Actor("a", until(1), count=3),))))
    graph = ActorGraph((Actor("a", act, count=3), Actor("b", lambda k, x: until(1)(k), ("a",))))
    with pytest.raises(ActorError, match=r"actor 'b' raised StopIteration at b\[1\]: only an actor without inputs can"):
        in_time(lambda: run(graph))


def test_one_runtime_runs_many_times_also_after_a_failure() -> None:
    fails: list[bool] = []

    def step(k: int, x: int) -> int:
        if fails and k == 3:
            raise ValueError("now")
        return x

    before = threading.active_count()
    with Runtime(ActorGraph((Actor("a", act, registers=3, count=20), Actor("b", step, ("a",))))) as runtime:
        threads: set[Any] = set()
        for i in range(60):
            fails[:] = [True] * (i % 3 == 1)
            if fails:
                with pytest.raises(ValueError, match="now"):
                    runtime.run()
            else:
                assert runtime.run(collect=("b",)).results == {"b": {k: k for k in range(20)}}
            threads |= {t for t in threading.enumerate() if t.name.startswith("actors of lane")}
        assert len(threads) == 2
    assert threading.active_count() == before
    with pytest.raises(ActorError, match="this Runtime is closed; make another one"):
        runtime.run()
    runtime.close()


def test_a_runtime_that_is_dropped_lets_its_threads_go() -> None:
    runtime = Runtime(chain(4, 3))
    runtime.run()
    threads = [t for t in threading.enumerate() if t.name.startswith("actors of lane")]
    assert len(threads) == 3
    del runtime
    for thread in threads:
        thread.join(30)
    assert lanes_alive() == []


def test_a_runtime_runs_one_run_at_a_time() -> None:
    messages: list[str] = []

    def again(k: int) -> None:
        for call in (runtime.run, runtime.close):
            with pytest.raises(ActorError) as error:
                call()
            messages.append(str(error.value))

    with Runtime(ActorGraph((Actor("a", again, count=1),))) as runtime:
        in_time(runtime.run)
    assert messages == [
        "this Runtime is running already; wait for its run to end, or make another Runtime",
        "this Runtime is running; it can be closed when its run has ended",
    ]


def test_what_is_collected_must_exist() -> None:
    with pytest.raises(ActorError, match=r"there is no actor 'a9'; there are 'a0', 'a1', 'a2'"):
        run(chain(3, 2), collect=("a9",))
    with pytest.raises(ActorError, match=r"collect='a1' is one name; write \('a1',\)"):
        run(chain(3, 2), collect="a1")
    assert lanes_alive() == []


def test_an_empty_graph_and_an_actor_that_never_fires() -> None:
    assert run(ActorGraph(())).makespan_seconds == 0.0
    graph = ActorGraph((Actor("a", act, count=0), Actor("b", act, ("a",))))
    record = in_time(lambda: run(graph, collect=("b",)))
    assert record.results == {"b": {}} and record.spans == ()
