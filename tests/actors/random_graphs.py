"""Random graphs of actors, their results worked out in plain Python, and runs that must come to an end."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

from sbp_jax.actors import Actor, ActorGraph

T = TypeVar("T")


def act_of(name: str) -> Callable[..., Any]:
    """What depends on the actor, the index and every input."""
    return lambda k, *payloads: (name, k, *payloads)


@st.composite
def graphs(draw: st.DrawFn, most_actors: int = 7, has_orders: bool = False) -> ActorGraph:
    """Actors with shared lanes, any number of registers, some that read a part of the indices only.

    ``has_orders``: some lanes run in a random order of firings, which may well be a deadlock.
    """
    indices = tuple(range(draw(st.integers(0, 6))))
    actors: list[Actor] = []
    fires: dict[str, tuple[int, ...]] = {}
    for i in range(draw(st.integers(1, most_actors))):
        inputs = tuple(draw(st.lists(st.sampled_from(sorted(fires)), max_size=3))) if fires else ()
        common = set(indices).intersection(*(fires[name] for name in inputs))
        reads_all = bool(inputs) and all(set(fires[name]) == common for name in inputs)
        own = None if reads_all and draw(st.booleans()) else tuple(
            k for k in indices if k in common and draw(st.integers(0, 3))
        )  # fmt: skip
        lane = draw(st.sampled_from([None, "x", "y"]))
        name = f"n{i}"
        actors.append(Actor(name, act_of(name), inputs, draw(st.integers(1, 3)), lane, indices=own))
        fires[name] = own if own is not None else tuple(sorted(common))
    graph = ActorGraph(tuple(actors))
    if not has_orders:
        return graph
    orders = {}
    for lane, names in graph.lanes.items():
        if draw(st.booleans()):
            # Sorted by index and depth it mostly can run; some entries then change places.
            order = sorted(((n, k) for n in names for k in graph.sequence(n) or ()), key=lambda f: (f[1], f[0]))
            for _ in range(draw(st.integers(0, 2)) if order else 0):
                a, b = (draw(st.integers(0, len(order) - 1)) for _ in range(2))
                order[a], order[b] = order[b], order[a]
            orders[lane] = tuple(order)
    return ActorGraph(tuple(actors), orders)


def plain(graph: ActorGraph) -> dict[str, dict[int, Any]]:
    """The results of all actors, computed one after the other."""
    found: dict[str, dict[int, Any]] = {}
    for actor in graph.actors:
        found[actor.name] = {
            k: actor.act(k, *(found[name][k] for name in actor.inputs)) for k in graph.sequence(actor.name) or ()
        }
    return found


def in_time(work: Callable[[], T], seconds: float = 60.0) -> T:
    """What ``work`` returns or raises. A run that hangs fails the test instead of the whole suite."""
    found: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="a test", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"a run has not ended within {seconds} s")
    if errors:
        raise errors[0]
    return found[0]


# Threads that were there before the test: of pipelines that tests of other folders have left open.
OTHERS: set[threading.Thread] = set()


def lanes_alive() -> list[str]:
    """The threads of lanes that the test has started and that are there now."""
    return [t.name for t in threading.enumerate() if t.name.startswith("actors of lane") and t not in OTHERS]


def until(n: int) -> Callable[[int], int]:
    """A source of n items, which decides itself when it ends."""

    def source(k: int) -> int:
        if k >= n:
            raise StopIteration
        return k

    return source
