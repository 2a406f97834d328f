"""Streams: results in order, as far ahead as registers go, and no thread left however the iteration ends."""

import itertools
import signal
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from actors.random_graphs import graphs, in_time, lanes_alive, plain
from sbp_jax.actors import Actor, ActorGraph, Stream, stream
from sbp_jax.errors import ActorError


def act(k: int, *payloads: object) -> int:
    return k


def endless(registers: int = 2, source: Callable[[int], int] = act) -> ActorGraph:
    """A loader and what is done with its batches."""
    return ActorGraph(
        (
            Actor("load", source, registers=registers, kind="load"),
            Actor("decode", lambda k, x: 10 * x, ("load",), registers, kind="host"),
            Actor("batch", lambda k, x: x + 1, ("decode",), registers),
        )
    )


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_a_stream_gives_what_plain_python_gives(graph: ActorGraph) -> None:
    sink = graph.actors[-1].name
    assert in_time(lambda: list(stream(graph, sink))) == list(plain(graph)[sink].values())
    assert lanes_alive() == []


def test_an_endless_source_is_read_as_far_as_one_likes() -> None:
    with stream(endless(), "batch") as batches:
        assert in_time(lambda: list(itertools.islice(batches, 500))) == [10 * k + 1 for k in range(500)]
        assert len(lanes_alive()) == 3
    assert lanes_alive() == []


@pytest.mark.parametrize("registers", [1, 2, 4])
def test_it_runs_ahead_as_far_as_the_registers_of_the_sink_go(registers: int) -> None:
    asked, made, ahead = [0], [0], []
    is_full = threading.Event()

    def make(k: int) -> int:
        made[0] += 1
        ahead.append(made[0] - asked[0])
        if made[0] == registers:
            is_full.set()
        return k

    def use() -> None:
        # The first result is there before it is asked for.
        assert is_full.wait(30)
        for i in range(100):
            # What the caller asks for is made while it waits, so it counts as asked for.
            asked[0] = i
            assert next(batches) == i

    with stream(ActorGraph((Actor("make", make, registers=registers),)), "make") as batches:
        in_time(use)
    assert max(ahead) == registers


@pytest.mark.parametrize("n", [0, 1, 9])
def test_a_source_that_ends_ends_the_iteration(n: int) -> None:
    def source(k: int) -> int:
        if k == n:
            raise StopIteration
        return k

    batches = stream(endless(source=source), "batch")
    assert in_time(lambda: list(batches)) == [10 * k + 1 for k in range(n)]
    assert lanes_alive() == [] and list(batches) == [] and next(batches, "end") == "end"


def test_branches_beside_the_sink_run_to_their_end() -> None:
    logged: list[int] = []
    graph = ActorGraph(
        (
            Actor("load", act, count=20, registers=20),
            Actor("step", act, ("load",)),
            Actor("log", lambda k, x: logged.append(k), ("step",)),
        )
    )
    assert in_time(lambda: list(stream(graph, "step"))) == list(range(20))
    assert logged == list(range(20))


@pytest.mark.parametrize("name", ["load", "decode", "batch"])
def test_an_exception_of_an_actor_comes_out_of_next(name: str) -> None:
    error = OSError("disk")

    def fail(k: int, *payloads: int) -> int:
        if k == 4:
            raise error
        return k

    graph = endless()
    graph = ActorGraph(tuple(Actor(a.name, fail if a.name == name else act, a.inputs) for a in graph.actors))
    batches = stream(graph, "batch")
    with pytest.raises(OSError) as raised:
        in_time(lambda: [next(batches) for _ in range(100)])
    assert raised.value is error and error.__notes__ == [f"in actor {name!r}, firing 4"]
    assert lanes_alive() == [] and list(batches) == []


@pytest.mark.parametrize("asked", [0, 1, 7])
def test_closing_early_ends_all_threads(asked: int) -> None:
    batches = stream(endless(), "batch")
    assert list(itertools.islice(batches, asked)) == [10 * k + 1 for k in range(asked)]
    in_time(batches.close)
    assert lanes_alive() == [] and list(batches) == []
    batches.close()


@pytest.mark.parametrize("asked", [0, 3])
def test_a_stream_that_is_dropped_ends_its_threads(asked: int) -> None:
    batches: Stream | None = stream(endless(), "batch")
    assert batches is not None and len(list(itertools.islice(batches, asked))) == asked
    threads = [t for t in threading.enumerate() if t.name.startswith("actors of lane")]
    assert len(threads) == 3
    batches = None
    for thread in threads:
        thread.join(30)
    assert lanes_alive() == []


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="interrupts reach the main thread"
)
def test_an_interrupt_while_waiting_ends_all_threads() -> None:
    main = threading.main_thread().ident
    assert main is not None
    never = threading.Event()

    def interrupt(k: int) -> int:
        if k == 2:
            signal.pthread_kill(main, signal.SIGINT)
        if k == 3:
            assert never.wait(30)
        return k

    # What the interrupt finds waiting must end by itself: the third result is held back until it has come.
    old = signal.signal(signal.SIGINT, lambda *_: (never.set(), signal.default_int_handler(signal.SIGINT, None)))
    try:
        batches = stream(ActorGraph((Actor("load", interrupt),)), "load")
        with pytest.raises(KeyboardInterrupt):
            for _ in range(10):
                next(batches)
        batches.close()
    finally:
        signal.signal(signal.SIGINT, old)
    assert lanes_alive() == []


def test_what_is_streamed_must_exist() -> None:
    with pytest.raises(ActorError, match=r"there is no actor 'bach'; did you mean 'batch'\?"):
        stream(endless(), "bach")
    assert lanes_alive() == []


def test_the_order_of_a_stream_is_that_of_the_sinks_firings() -> None:
    graph = ActorGraph((Actor("load", act, indices=(3, 1, 2)), Actor("step", lambda k, x: (k, x), ("load",))))
    assert in_time(lambda: list(stream(graph, "step"))) == [(3, 3), (1, 1), (2, 2)]
