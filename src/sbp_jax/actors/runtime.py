"""Run a graph of actors: a thread for each lane, messages between them, what happened as a ``Record``."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from ..errors import ActorError
from .check import check
from .graph import ActorGraph
from .lane import Done, Failed, LaneRun
from .record import Record, Span
from .wiring import LaneThreads, begin, receive, stop, tell, wire


class Runtime:
    """A graph with its threads, to be run many times. Use it with ``with``, or ``close()`` it.

    Threads start at the first run and stay until ``close()``. They are daemons: they keep no process alive. What is
    set for the caller's thread only (JAX's context managers, such as ``jax.default_device``) does not reach them.

    Args:
        graph: what runs.
        wait: called with each result, in the thread of its lane, before it counts as produced; for JAX
            ``jax.block_until_ready``, so that the times are those of the computation, not of its dispatch.

    Raises:
        ActorError: the graph would never complete (see ``check``).
    """

    def __init__(self, graph: ActorGraph, wait: Callable[[Any], object] | None = None) -> None:
        self._threads: LaneThreads | None = None
        self._running = threading.Lock()
        self._is_closed = False
        check(graph)
        self.graph = graph
        self._wait = wait

    def run(self, collect: Sequence[str] = ()) -> Record:
        """Let every actor fire for all its indices.

        ``collect`` names the actors whose results are in ``Record.results``. Those are kept until the end of the run,
        beside what registers hold. A source that never ends is for ``stream``: here it would run for ever.

        Raises:
            ActorError: ``collect`` has unknown names, the runtime is closed or runs already, or an actor raised
                StopIteration that cannot end so.
            BaseException: what an actor raised, the very exception, with a note of where; all lanes have ended then.
                After it, or after an interrupt, the runtime can run again.
        """
        names = _collected(self.graph, collect)
        if not self._running.acquire(blocking=False):
            raise ActorError("this Runtime is running already; wait for its run to end, or make another Runtime")
        try:
            if self._is_closed:
                raise ActorError("this Runtime is closed; make another one of the same graph")
            return self._run(names)
        finally:
            self._running.release()

    def _run(self, collect: Sequence[str]) -> Record:
        caller: SimpleQueue[Any] = SimpleQueue()
        runs: list[LaneRun] = []
        failures: list[Failed] = []
        try:
            if self._threads is None:
                self._threads = LaneThreads(list(self.graph.lanes))
            runs = wire(self.graph, self._threads.boxes, caller, self._wait, collect)
            states = [state for run in runs for state in run.states]
            began = perf_counter()
            begin(runs, began)
            left = len(runs)
            while left:
                message = receive(caller)
                left -= isinstance(message, Done)
                if isinstance(message, Failed):
                    failures.append(message)
        except BaseException:
            # The user interrupts. Whoever counts messages now may miscount: end the threads, the next run has new ones.
            threads, self._threads = self._threads, None
            stop(runs)
            if threads is not None:
                threads.dismiss()
                threads.join()
            raise
        if failures:
            for state in states:
                state.inbox.clear()
            try:
                raise tell(failures)
            finally:
                # Its traceback holds this frame, which must not hold it in turn.
                failures.clear()
        results = {state.name: state.keep for state in states if state.keep is not None}
        for state in states:
            state.keep = None
        return _record(self.graph, runs, began, {name: results[name] for name in collect})

    def close(self) -> None:
        """End the threads, and wait for them. A closed runtime runs no more; closing it again does nothing.

        Raises:
            ActorError: it is running.
        """
        if not self._running.acquire(blocking=False):
            raise ActorError("this Runtime is running; it can be closed when its run has ended")
        try:
            self._is_closed = True
            threads, self._threads = self._threads, None
            if threads is not None:
                threads.dismiss()
                threads.join()
        finally:
            self._running.release()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not waited for: this may run in any thread, at any place.
        if self._threads is not None:
            self._threads.dismiss()


def run(graph: ActorGraph, wait: Callable[[Any], object] | None = None, collect: Sequence[str] = ()) -> Record:
    """Run a graph once; see ``Runtime`` and ``Runtime.run``. No thread is left when it returns or raises."""
    with Runtime(graph, wait) as runtime:
        return runtime.run(collect)


def _collected(graph: ActorGraph, collect: Sequence[str]) -> tuple[str, ...]:
    """The names, checked."""
    if isinstance(collect, str):
        raise ActorError(f"collect={collect!r} is one name; write ({collect!r},)")
    return tuple(graph.actor(name).name for name in dict.fromkeys(collect))


def _record(graph: ActorGraph, runs: Sequence[LaneRun], began: float, results: dict[str, dict[int, Any]]) -> Record:
    """What the lanes have noted, with times from the start of the run."""
    kinds = {a.name: a.kind for a in graph.actors}
    spans = [
        Span(
            run.name, name, kinds[name], k, start - began, end - began, input_wait, register_wait
        )
        for run in runs
        for name, k, start, end, input_wait, register_wait in run.spans or ()
    ]  # fmt: skip
    spans.sort(key=lambda span: span.start_seconds)
    inputs = {a.name: a.inputs for a in graph.actors}
    return Record(graph.lanes, inputs, tuple(spans), results)
