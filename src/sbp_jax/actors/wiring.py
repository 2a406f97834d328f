"""A graph as the states of one run, joined by mailboxes, and the threads that own them."""

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from .graph import ActorGraph
from .lane import ActorState, Back, Edge, Failed, LaneRun, Mailbox, serve

# Python notices an interrupt before it waits or while it does, but not one that comes between the two. So nothing is
# waited for longer than this at a time.
_MOST_WAIT_SECONDS = 0.5


class LaneThreads:
    """A thread and a mailbox for each lane of a graph. Threads know only their mailbox: nothing keeps them alive but
    themselves, and a last message ends them.
    """

    def __init__(self, lanes: Sequence[str]) -> None:
        self.boxes: dict[str, Mailbox] = {lane: SimpleQueue() for lane in lanes}
        self.threads = [
            threading.Thread(target=serve, args=(box,), name=f"actors of lane {lane}", daemon=True)
            for lane, box in self.boxes.items()
        ]
        started = []
        try:
            for thread in self.threads:
                thread.start()
                started.append(thread)
        except BaseException:  # no thread could be had, or the user interrupts
            self.threads = started
            self.dismiss()
            raise

    def dismiss(self) -> None:
        """End the threads after what they are doing, without waiting for them."""
        for box in self.boxes.values():
            box.put(None)

    def join(self) -> None:
        """Wait until they have ended."""
        for thread in self.threads:
            thread.join()


def begin(runs: Sequence[LaneRun], now: float) -> None:
    """Let all lanes begin."""
    for run in runs:
        run.box.put((run.start, 0, 0, now))


def stop(runs: Sequence[LaneRun]) -> None:
    """Let all lanes end as soon as what they compute now is done."""
    for run in runs:
        run.box.put((run.stop, 0, 0, None))


def receive(caller: SimpleQueue[Any]) -> Any:
    """What lanes say to their caller next; waits for it, and can be interrupted."""
    while True:
        try:
            return caller.get(timeout=_MOST_WAIT_SECONDS)
        except Empty:
            continue


def wire(
    graph: ActorGraph,
    boxes: dict[str, Mailbox],
    caller: SimpleQueue[Any],
    wait: Callable[[Any], object] | None,
    collect: Sequence[str] = (),
    outlet: str | None = None,
    is_recorded: bool = True,
) -> list[LaneRun]:
    """The lanes of one run, ready to begin.

    ``collect``: the actors whose results are kept. ``outlet``: the actor whose results go to ``caller``, which releases
    them. ``wait``: see ``run``.
    """
    runs, states = [], {}
    for lane, names in graph.lanes.items():
        run = LaneRun(lane, boxes[lane], caller, wait, is_recorded)
        for name in names:
            actor = graph.actor(name)
            state = ActorState(name, actor.act, actor.registers, graph.sequence(name), run)
            state.keep = {} if name in collect else None
            state.outlet = caller if name == outlet else None
            states[name] = state
            run.states.append(state)
        if lane in graph.orders:
            run.order = [(states[name], k) for name, k in graph.orders[lane]]
        runs.append(run)
    for run in runs:
        run.others = [other for other in runs if other is not run]
    for actor in graph.actors:
        _join(graph, states, actor.name)
    return runs


def _join(graph: ActorGraph, states: dict[str, ActorState], name: str) -> None:
    """The edges between an actor and its inputs, in both directions."""
    reader = states[name]
    back = []
    for slot, source in enumerate(graph.actor(name).inputs):
        producer = states[source]
        is_near = producer.lane is reader.lane
        edge = len(producer.edges)
        producer.edges[edge] = Edge(
            reader, slot, None if is_near else reader.lane.box, graph.reads_some(name, source)
        )  # fmt: skip
        back.append(Back(producer, None if is_near else producer.lane.box, edge))
    reader.back = tuple(back)


def tell(failures: Sequence[Failed]) -> BaseException:
    """The error to raise for a run that failed: the first, with a note of where, and of what else went wrong."""
    first = failures[0]
    if first.actor:
        _note(first.error, f"in actor {first.actor!r}, firing {first.index}")
    for other in failures[1:]:
        if other.error is not first.error:
            _note(first.error, f"actor {other.actor!r} failed too, at firing {other.index}: {other.error!r}")
    return first.error


def _note(error: BaseException, words: str) -> None:
    if words not in getattr(error, "__notes__", ()):
        error.add_note(words)
