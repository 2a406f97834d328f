"""The results of one actor as an iterator, computed ahead in threads as far as registers go."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from .check import check
from .graph import ActorGraph
from .lane import Done, Failed, Item, LaneRun
from .wiring import LaneThreads, begin, receive, stop, tell, wire


class Stream(Iterator[Any]):
    """See ``stream``. An iterator that holds threads: use it to its end, or ``close()`` it, or use it with ``with``."""

    def __init__(self, graph: ActorGraph, sink: str, wait: Callable[[Any], object] | None = None) -> None:
        self._threads: LaneThreads | None = None
        self._runs: list[LaneRun] = []
        # What the caller has now: its register is released when it asks for the next.
        self._held: int | None = None
        graph.actor(sink)
        check(graph)
        self._caller: SimpleQueue[Any] = SimpleQueue()
        self._threads = LaneThreads(list(graph.lanes))
        self._runs = wire(graph, self._threads.boxes, self._caller, wait, outlet=sink, is_recorded=False)
        self._left = len(self._runs)
        self._sink = next(state for run in self._runs for state in run.states if state.name == sink)
        begin(self._runs, perf_counter())

    def __next__(self) -> Any:
        if self._threads is None:
            raise StopIteration
        if self._held is not None:
            self._sink.lane.box.put((self._sink.released, 0, self._held, None))
            self._held = None
        failures: list[Failed] = []
        try:
            while self._left and not failures:
                message = receive(self._caller)
                if isinstance(message, Item):
                    self._held = message.index
                    return message.payload
                if isinstance(message, Failed):
                    failures.append(message)
                self._left -= isinstance(message, Done)
        except BaseException:  # the user interrupts
            self.close()
            raise
        self.close()
        if not failures:
            raise StopIteration
        # The threads have ended: all that they had to say is there.
        while not self._caller.empty():
            message = receive(self._caller)
            if isinstance(message, Failed):
                failures.append(message)
        message = None
        try:
            raise tell(failures)
        finally:
            # Its traceback holds this frame, which must not hold it in turn.
            failures.clear()

    def close(self) -> None:
        """End all threads, and wait for them: each ends what it computes now. Then there are no more results."""
        threads = self._threads
        self._dismiss()
        if threads is not None:
            threads.join()

    def _dismiss(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            stop(self._runs)
            threads.dismiss()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not waited for: this may run in any thread, at any place.
        self._dismiss()


def stream(graph: ActorGraph, sink: str, wait: Callable[[Any], object] | None = None) -> Stream:
    """An iterator over the results of the actor ``sink``, in the order of its indices.

    The graph begins to run at once. The registers of ``sink`` bound how far it runs ahead: the result that the caller
    has takes one of them until the next is asked for, so that with 1 nothing of ``sink`` is computed meanwhile, with
    2 one result is. Sources may go on for ever. The iteration ends when all actors have ended.

    Args:
        graph: what runs.
        sink: the actor whose results are wanted; others may read it too.
        wait: called with each result in the thread of its lane, before it counts as produced.

    Raises:
        ActorError: no such actor, or the graph would never complete (see ``check``). What an actor raises comes out
            of ``next()``, with a note of where; results that were not asked for by then may be lost.
    """
    return Stream(graph, sink, wait)
