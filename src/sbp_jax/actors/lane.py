"""What one lane does: it takes messages from its mailbox and fires its actors, one at a time.

Lanes share nothing but mailboxes. The state of an actor is read and written by its lane's thread only; another lane
that has something for it posts a message, which is a method of that state with its three arguments, to be called by
the thread that owns it. The messages are OneFlow's (arXiv 2110.15032, sections 4 and 5): ``produced``
(its req), ``released`` (its ack), and two for the end, ``ended`` and ``closed``.
"""

import sys
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from typing import Any, NamedTuple

from ..errors import ActorError
from .graph import firing_name

# (handler, slot, index, payload); None tells a thread to go home.
Message = tuple[Callable[[int, int, Any], None], int, int, Any]
Mailbox = SimpleQueue[Message | None]


class Raw(NamedTuple):
    """A firing as it is noted while others wait; see ``Span``. ``before``: when the lane's last firing ended."""

    actor: str
    index: int
    start: float
    end: float
    input_wait: float
    register_wait: float


class Failed(NamedTuple):
    """To the caller: an actor raised."""

    error: BaseException
    actor: str
    index: int


class Done(NamedTuple):
    """To the caller: a lane has nothing left to do in this run."""

    lane: str


class Item(NamedTuple):
    """To the caller: a result of the actor whose results are streamed."""

    index: int
    payload: Any


class Edge(NamedTuple):
    """From a producer to one of its readers, and where messages are posted: None is the same lane, called directly."""

    reader: "ActorState"
    slot: int
    box: Mailbox | None
    # The indices that are read; None: every one.
    only: frozenset[int] | None


class Back(NamedTuple):
    """From a reader to the producer of one of its inputs, and where messages are posted."""

    producer: "ActorState"
    box: Mailbox | None
    edge: int


class ActorState:
    """An actor in one run. All methods are called by the thread of its lane."""

    __slots__ = (
        "act", "back", "edges", "ended_slots", "free", "free_since", "inbox", "index", "is_open", "keep", "lane",
        "last", "name", "outlet", "position", "sequence", "unread",
    )  # fmt: skip

    def __init__(
        self, name: str, act: Callable[..., Any], registers: int, sequence: tuple[int, ...] | None, lane: "LaneRun"
    ) -> None:
        self.name, self.act, self.lane = name, act, lane
        self.sequence, self.is_open = sequence, sequence is None
        # How many firings it will have been: known, or learned from the first input that ends.
        self.last = sys.maxsize if sequence is None else len(sequence)
        self.position = 0
        self.index = sequence[0] if sequence else 0
        self.free, self.free_since = registers, 0.0
        # By index, what has come of it: [inputs to come, when the last came, *payloads].
        self.inbox: dict[int, list[Any]] = {}
        # By index, how many readers have yet to release its result.
        self.unread: dict[int, int] = {}
        self.back: tuple[Back, ...] = ()
        self.edges: dict[int, Edge] = {}
        self.ended_slots: set[int] = set()
        self.keep: dict[int, Any] | None = None
        self.outlet: SimpleQueue[Any] | None = None

    # -- messages -----------------------------------------------------------------------------------------------------

    def produced(self, slot: int, k: int, payload: Any) -> None:
        """An input has a result of index k."""
        entry = self.inbox.get(k)
        if entry is None:
            if self.position >= self.last:
                return  # it ended by another input; what comes is released by ``closed``
            entry = self.inbox[k] = [len(self.back), 0.0, *(None for _ in self.back)]
        entry[slot + 2] = payload
        entry[0] -= 1
        if not entry[0]:
            entry[1] = perf_counter()

    def released(self, slot: int, k: int, payload: Any) -> None:
        """A reader has finished with the result of index k."""
        left = self.unread[k] - 1
        if left:
            self.unread[k] = left
            return
        del self.unread[k]
        if not self.free:
            self.free_since = perf_counter()
        self.free += 1

    def ended(self, slot: int, k: int, payload: Any) -> None:
        """An input has ended: index k and all after it will not come."""
        self.ended_slots.add(slot)
        self.last = min(self.last, k)
        if self.position >= self.last:
            self.finish()

    def closed(self, slot: int, k: int, payload: Any) -> None:
        """The reader of edge ``slot`` reads neither index k nor any after it. Without a reader left, this one ends."""
        if self.edges.pop(slot, None) is None:
            return
        for index in [index for index in self.unread if index >= k]:
            self.released(slot, index, None)
        if not self.edges and self.keep is None and self.outlet is None:
            self.last = min(self.last, self.position)
            self.finish()

    # -- firing -------------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether it can fire for its next index."""
        return self.can_fire(self.index)

    def can_fire(self, k: int) -> bool:
        """Whether a register is free and all inputs of index k are there."""
        if not self.free:
            return False
        if not self.back:
            return True
        entry = self.inbox.get(k)
        return entry is not None and not entry[0]

    def fire(self, k: int) -> None:
        """Compute the result of index k, give it to those who read it, release what was read."""
        lane = self.lane
        before = lane.clock
        entry = self.inbox.pop(k) if self.back else None
        self.free -= 1
        start = perf_counter()
        try:
            payload = self.act(k) if entry is None else self.act(k, *entry[2:])
            if lane.wait is not None:
                lane.wait(payload)
        except StopIteration as error:
            if entry is None and self.is_open:
                self.last = self.position
                self.finish()
            else:
                lane.fail(_stopped(self, k, error), self.name, k)
            return
        except BaseException as error:
            lane.fail(error, self.name, k)
            return
        end = lane.clock = perf_counter()
        # The inputs are let go before their registers count as free.
        arrived = entry[1] if entry is not None else 0.0
        entry = None
        if lane.spans is not None:
            lacked = arrived if arrived > before else before
            freed = self.free_since
            lane.spans.append(Raw(self.name, k, start, end, lacked - before, freed - lacked if freed > lacked else 0.0))
        self.give(k, payload)
        payload = None
        for producer, box, edge in self.back:
            if box is None:
                producer.released(edge, k, None)
            else:
                box.put((producer.released, edge, k, None))
        self.position += 1
        if self.position >= self.last:
            self.finish()
        else:
            self.index = self.position if self.sequence is None else self.sequence[self.position]

    def give(self, k: int, payload: Any) -> None:
        """A result to all who read it; its register is free at once where nobody does."""
        readers = 0
        for reader, slot, box, only in self.edges.values():
            if only is None or k in only:
                readers += 1
                if box is None:
                    reader.produced(slot, k, payload)
                else:
                    box.put((reader.produced, slot, k, payload))
        if self.keep is not None:
            self.keep[k] = payload
        if self.outlet is not None:
            readers += 1
            self.outlet.put(Item(k, payload))
        if readers:
            self.unread[k] = readers
        else:
            if not self.free:
                self.free_since = self.lane.clock
            self.free += 1

    def finish(self) -> None:
        """Nothing more will be fired. Where only the run knows how much that was, tell both sides."""
        if not self.lane.retire(self) or not self.is_open:
            return
        n = self.position
        self.inbox.clear()
        for reader, slot, box, _ in tuple(self.edges.values()):
            if box is None:
                reader.ended(slot, n, None)
            else:
                box.put((reader.ended, slot, n, None))
        for slot, (producer, box, edge) in enumerate(self.back):
            if slot in self.ended_slots:
                continue
            if box is None:
                producer.closed(edge, n, None)
            else:
                box.put((producer.closed, edge, n, None))


class LaneRun:
    """A lane in one run: its actors' states, and when it is done. Made by the caller, then owned by the lane's thread.

    ``order``: the firings in their order; None: what is ready. ``spans``: where firings are noted, None for nowhere.
    """

    def __init__(
        self,
        name: str,
        box: Mailbox,
        caller: SimpleQueue[Any],
        wait: Callable[[Any], object] | None,
        is_recorded: bool,
    ) -> None:
        self.name, self.box, self.caller, self.wait = name, box, caller, wait
        self.states: list[ActorState] = []
        self.order: list[tuple[ActorState, int]] | None = None
        self.spans: list[Raw] | None = [] if is_recorded else None
        self.clock = 0.0
        self.is_stopped = False
        self.others: list[LaneRun] = []

    def start(self, slot: int, k: int, began: Any) -> None:
        """The message that begins the run, at the time ``began``; returns when this lane is done."""
        try:
            self.clock = began
            if self.order is None:
                self._run_what_is_ready()
            else:
                self._run_in_order(self.order)
        except BaseException as error:  # a fault of this file, which must not leave the caller waiting
            self.fail(error, "", 0)
        finally:
            self.caller.put(Done(self.name))

    def stop(self, slot: int, k: int, payload: Any) -> None:
        """The message that ends the run early."""
        self.is_stopped = True

    def fail(self, error: BaseException, actor: str, k: int) -> None:
        """Tell the caller, and end all lanes."""
        self.is_stopped = True
        self.caller.put(Failed(error, actor, k))
        for other in self.others:
            other.box.put((other.stop, 0, 0, None))

    def retire(self, state: ActorState) -> bool:
        """Take an actor that has ended out of the lane; False where it was out already."""
        if state not in self.states:
            return False
        self.states = [s for s in self.states if s is not state]
        return True

    def _run_what_is_ready(self) -> None:
        empty = self.box.empty
        for state in [s for s in self.states if s.position >= s.last]:
            state.finish()
        while self.states:
            while not (self.is_stopped or empty()):
                self._receive()
            if self.is_stopped:
                return
            for state in self.states:
                if state.is_ready():
                    state.fire(state.index)
                    break
            else:
                # An actor may have ended by the last message: then there is nothing to wait for.
                if self.states:
                    self._receive()

    def _run_in_order(self, order: list[tuple[ActorState, int]]) -> None:
        empty = self.box.empty
        for state, k in order:
            while not (self.is_stopped or empty()):
                self._receive()
            while not self.is_stopped and not state.can_fire(k):
                self._receive()
            if self.is_stopped:
                return
            state.fire(k)

    def _receive(self) -> None:
        """Handle one message; waits for it. Nothing of it stays in a variable: a payload must not outlive its use."""
        handle(self.box.get())


def handle(message: Message | None) -> bool:
    """Call what a message names; False where it is the last one."""
    if message is None:
        return False
    message[0](message[1], message[2], message[3])
    return True


def serve(box: Mailbox) -> None:
    """The whole life of a lane's thread: one run after the other, until it is told to go home."""
    while handle(box.get()):
        pass


def _stopped(state: ActorState, k: int, error: StopIteration) -> ActorError:
    """What to say when StopIteration comes from where nothing can end."""
    where = f"actor {state.name!r} raised StopIteration at {firing_name(state.name, k)}"
    if state.back:
        said = ActorError(f"{where}: only an actor without inputs can end that way, and all that reads it ends with it")
    else:
        said = ActorError(
            f"{where}, but it is to fire {state.last} times; without count and indices it may end whenever it likes"
        )
    said.__cause__ = error
    return said
