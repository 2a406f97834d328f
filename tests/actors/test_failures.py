"""Runs that end early: actors that raise, several at once, an interrupted caller. No thread may be left."""

import signal
import threading
from collections.abc import Callable

import pytest

from actors.random_graphs import in_time, lanes_alive, until
from sbp_jax.actors import Actor, ActorGraph, Runtime, run


def act(k: int, *payloads: object) -> int:
    return k


def fail_at(k: int, error: BaseException) -> Callable[..., int]:
    def act(i: int, *payloads: object) -> int:
        if i == k:
            raise error
        return i

    return act


@pytest.mark.parametrize("where", ["source", "middle", "sink"])
@pytest.mark.parametrize("lanes", [None, "one"])
def test_a_failing_actor_ends_the_run_with_its_exception(where: str, lanes: str | None) -> None:
    error = KeyError("disk")
    acts = {name: fail_at(7, error) if name == where else act for name in ("source", "middle", "sink")}
    graph = ActorGraph(
        (
            Actor("source", acts["source"], lane=lanes, registers=2),
            Actor("middle", acts["middle"], ("source",), lane=lanes),
            Actor("sink", acts["sink"], ("middle",), lane=lanes),
            Actor("other", act),  # for ever, were it not stopped
        )
    )
    with pytest.raises(KeyError) as raised:
        in_time(lambda: run(graph))
    assert raised.value is error
    assert error.__notes__ == [f"in actor '{where}', firing 7"]
    assert lanes_alive() == []


def test_two_failures_at_once_are_both_told() -> None:
    meet = threading.Barrier(2, timeout=30)

    def fail(name: str) -> Callable[[int], int]:
        def act(k: int) -> int:
            meet.wait()
            raise ValueError(name)

        return act

    graph = ActorGraph((Actor("a", fail("a"), count=1), Actor("b", fail("b"), count=1)))
    with pytest.raises(ValueError) as raised:
        in_time(lambda: run(graph))
    first, second = ("a", "b") if str(raised.value) == "a" else ("b", "a")
    assert raised.value.__notes__ == [
        f"in actor {first!r}, firing 0",
        f"actor {second!r} failed too, at firing 0: ValueError({second!r})",
    ]
    assert lanes_alive() == []


def test_a_failing_lane_with_an_order_ends_the_others() -> None:
    graph = ActorGraph(
        (
            Actor("f", act, count=3, lane="r0"),
            Actor("g", fail_at(1, OSError("link")), ("f",), lane="r1"),
            Actor("b", act, ("g",), lane="r0"),
        ),
        {"r0": (("f", 0), ("b", 0), ("f", 1), ("b", 1), ("f", 2), ("b", 2))},
    )
    with pytest.raises(OSError, match="link"):
        in_time(lambda: run(graph))
    assert lanes_alive() == []


def test_a_wait_that_fails_is_the_actors_failure() -> None:
    def wait(x: int) -> None:
        if x == 2:
            raise RuntimeError("device")

    with pytest.raises(RuntimeError, match="device") as raised:
        in_time(lambda: run(ActorGraph((Actor("a", act, count=5),)), wait=wait))
    assert raised.value.__notes__ == ["in actor 'a', firing 2"]


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="interrupts reach the main thread"
)
def test_an_interrupt_of_the_caller_stops_the_graph() -> None:
    main = threading.main_thread().ident
    assert main is not None

    def interrupt(k: int, x: int) -> None:
        if k == 5 and not is_second:
            signal.pthread_kill(main, signal.SIGINT)

    is_second: list[bool] = []
    # The first run has no end of its own.
    load = Actor("load", lambda k: until(10)(k) if is_second else k)
    graph = ActorGraph((load, Actor("step", interrupt, ("load",))))
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Runtime(graph) as runtime:
            with pytest.raises(KeyboardInterrupt):
                runtime.run()
            assert lanes_alive() == []
            is_second.append(True)
            assert len(runtime.run(collect=("load",)).results["load"]) == 10
    finally:
        signal.signal(signal.SIGINT, old)
    assert lanes_alive() == []
