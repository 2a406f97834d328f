"""Work as a graph of actors: who reads whose results, how many results are alive at once, what runs on which lane.

After OneFlow (arXiv 2110.15032, sections 4 and 5): an actor fires when its inputs are there and one of its own
registers is free. Nothing runs here; ``runtime`` and ``stream`` run a graph, ``check`` proves that it completes.
"""

import difflib
import graphlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ActorError

KINDS = ("compute", "receive", "send", "load", "host")
# So many faults are named, the rest counted.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Actor:
    """A stage of work that fires once for each index: a micro-batch, a step, a batch of data.

    A *source* has no inputs. Its ``act`` is called with the index alone. Without ``count`` and ``indices`` it fires
    for 0, 1, 2, ... until it raises StopIteration; all that reads it then ends after the results given so far.

    Attributes:
        name: what it is called.
        act: ``act(k, *payloads) -> payload``: ``k`` is the index, ``payloads`` are the inputs' results of index k.
            It is called by one thread only, the lane's.
        inputs: the names of the actors whose results it reads. It fires for the indices that they fire for, in the
            order of its first input.
        registers: how many of its results can be alive at once. A register is taken when ``act`` begins, and free
            again when every actor that reads the result has finished doing so; at once where none reads it.
            Collected results (see ``run``) leave their register: they are the caller's.
        lane: actors of one lane run one at a time, on one thread; None: a lane of its own, named as the actor.
        kind: one of ``KINDS``, for pictures and traces.
        count: it fires for 0 to count - 1.
        indices: it fires for these, in this order. With inputs, each of them must fire for them all; results of other
            indices are not read.
    """

    name: str
    act: Callable[..., Any]
    inputs: tuple[str, ...] = ()
    registers: int = 1
    lane: str | None = None
    kind: str = "compute"
    count: int | None = None
    indices: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.inputs, str):
            raise ActorError(f"actor {self.name!r}: inputs={self.inputs!r} is one name; write ({self.inputs!r},)")
        object.__setattr__(self, "inputs", tuple(self.inputs))
        if self.indices is not None:
            object.__setattr__(self, "indices", tuple(self.indices))


Firing = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ActorGraph:
    """Actors, and for lanes that have one the order of their firings.

    A lane with an order runs exactly these firings in this order and waits for each: that is how a pipeline's schedule
    is executed. A lane without one runs what is ready, of several the actor that was declared first. Every actor fires
    for its indices in one fixed order, whatever the times are: the order of its lane, or else of its own indices, or
    else of its first input.

    Attributes:
        actors: in the order in which pictures show their lanes.
        orders: by lane, its firings as (actor's name, index).

    Raises:
        ActorError: names that are unknown (with the nearest) or there twice, inputs that form a circle, inputs that do
            not fire for the same indices, orders that miss or double firings or have another lane's. All faults of
            one sort are named at once.
    """

    actors: tuple[Actor, ...]
    orders: Mapping[str, tuple[Firing, ...]] = field(default_factory=dict)
    _by_name: dict[str, Actor] = field(init=False, repr=False, compare=False)
    _sequences: dict[str, tuple[int, ...] | None] = field(init=False, repr=False, compare=False)
    _consumers: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _lanes: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("actors", tuple(self.actors))
        put("orders", {lane: tuple(order) for lane, order in dict(self.orders).items()})
        put("_by_name", {a.name: a for a in self.actors})
        _refuse(_actor_faults(self.actors, self._by_name))
        upstream_first = _upstream_first(self.actors)
        lanes: dict[str, tuple[str, ...]] = {}
        for a in self.actors:
            lane = self.lane_of(a.name)
            lanes[lane] = (*lanes.get(lane, ()), a.name)
        put("_lanes", lanes)
        consumers: dict[str, list[str]] = {a.name: [] for a in self.actors}
        for a in self.actors:
            for name in a.inputs:
                consumers[name].append(a.name)
        put("_consumers", {name: tuple(readers) for name, readers in consumers.items()})
        put("_sequences", _indices(self, upstream_first))
        _refuse(_order_faults(self))
        # What is derived from the order of inputs is made again now that the lanes' orders are known to be whole.
        put("_sequences", _sequences(self, upstream_first))

    def actor(self, name: str) -> Actor:
        """The actor of this name. Raises ActorError where there is none."""
        if name not in self._by_name:
            raise ActorError(f"there is no actor {name!r}{_near(name, self._by_name)}")
        return self._by_name[name]

    def lane_of(self, name: str) -> str:
        """The lane that an actor runs on."""
        lane = self.actor(name).lane
        return name if lane is None else lane

    @property
    def lanes(self) -> dict[str, tuple[str, ...]]:
        """By lane, the names of its actors; both in the order in which they are declared."""
        return dict(self._lanes)

    def consumers(self, name: str) -> tuple[str, ...]:
        """The actors that read this one's results; one that reads them twice is there twice."""
        return self._consumers[name]

    def sequence(self, name: str) -> tuple[int, ...] | None:
        """The indices that an actor fires for, in its order; None where its source decides when it ends."""
        return self._sequences[name]

    def reads_some(self, consumer: str, producer: str) -> frozenset[int] | None:
        """The indices of ``producer`` that ``consumer`` reads, or None where it reads every one."""
        mine, its = self._sequences[consumer], self._sequences[producer]
        return None if mine is None or its is None or len(mine) == len(its) else frozenset(mine)


def firing_name(name: str, index: int) -> str:
    """A firing in words: ``load[3]``."""
    return f"{name}[{index}]"


def some(faults: Sequence[str]) -> str:
    """Some of many faults, the rest counted."""
    more = len(faults) - _MOST_NAMED
    return "; ".join(faults[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise ActorError(f"this graph of actors cannot be: {some(faults)}")


def _near(name: object, possible: Iterable[str]) -> str:
    known = list(possible)
    near = difflib.get_close_matches(str(name), known, n=3)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; there are {', '.join(map(repr, known[:10]))}{', ...' if len(known) > 10 else ''}"


def _actor_faults(actors: Sequence[Actor], by_name: Mapping[str, Actor]) -> list[str]:
    """What is wrong with single actors, and with the names in them."""
    faults = [f"{n} actors are named {name!r}" for name, n in Counter(a.name for a in actors).items() if n > 1]
    alone = {a.name for a in actors if a.lane is None}
    for a in actors:
        who = f"actor {a.name!r}"
        if not callable(a.act):
            faults.append(f"{who}: act is {a.act!r}, which cannot be called")
        if not _is_number(a.registers) or a.registers < 1:
            faults.append(f"{who}: registers={a.registers!r}; it needs at least 1 to give a result")
        if a.kind not in KINDS:
            faults.append(f"{who}: kind={a.kind!r}; possible: {', '.join(KINDS)}")
        if a.lane in alone:
            faults.append(
                f"{who}: lane={a.lane!r}, but actor {a.lane!r} has a lane of its own of that name; "
                f"give lane={a.lane!r} to both, or another name"
            )
        if a.count is not None and a.indices is not None:
            faults.append(f"{who}: count={a.count} and indices are both given; give one of them")
        elif a.count is not None and (not _is_number(a.count) or a.count < 0):
            faults.append(f"{who}: count={a.count!r}; it is how often the actor fires, 0 or more")
        elif a.indices is not None and not all(map(_is_number, a.indices)):
            faults.append(f"{who}: indices={a.indices!r}; they are integers")
        elif a.indices is not None and len(set(a.indices)) < len(a.indices):
            twice = [k for k, n in Counter(a.indices).items() if n > 1]
            faults.append(f"{who}: indices has {', '.join(map(str, twice))} more than once; it fires once for each")
        faults += [f"{who} reads {i!r}, which is no actor{_near(i, by_name)}" for i in a.inputs if i not in by_name]
    return faults


def _is_number(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _upstream_first(actors: Sequence[Actor]) -> tuple[str, ...]:
    """The actors' names, each after its inputs."""
    try:
        return tuple(graphlib.TopologicalSorter({a.name: a.inputs for a in actors}).static_order())
    except graphlib.CycleError as error:
        circle = list(error.args[1])
        raise ActorError(
            f"these actors read each other in a circle, so none could begin: {' -> '.join(circle)}. "
            "Take one of these inputs away"
        ) from None


def _own(actor: Actor) -> tuple[int, ...] | None:
    """The indices that an actor itself says."""
    return tuple(range(actor.count)) if actor.count is not None else actor.indices


def _indices(graph: ActorGraph, upstream_first: Sequence[str]) -> dict[str, tuple[int, ...] | None]:
    """By actor, its indices; None where they go on until the source ends."""
    found: dict[str, tuple[int, ...] | None] = {}
    faults: list[str] = []
    for name in upstream_first:
        actor = graph.actor(name)
        own = _own(actor)
        found[name] = own if own is not None or not actor.inputs else found[actor.inputs[0]]
        faults += _index_faults(actor, own, found)
    _refuse(faults)
    return found


def _index_faults(
    actor: Actor, own: tuple[int, ...] | None, found: Mapping[str, tuple[int, ...] | None]
) -> Iterator[str]:  # fmt: skip
    """What keeps an actor from firing for one set of indices."""
    for name in actor.inputs:
        its, first = found[name], found[actor.inputs[0]]
        if own is not None and its is None:
            yield (
                f"actor {actor.name!r} fires for {_words(own)}, but its input {name!r} goes on until its source ends; "
                "give the source the count, or this actor none"
            )
        elif own is not None and its is not None and not set(own) <= set(its):
            yield (
                f"actor {actor.name!r} fires for {_words(own)}, but its input {name!r} only for {_words(its)}: "
                f"{_words(tuple(k for k in own if k not in set(its)))} would never come"
            )
        elif own is None and (its is None) != (first is None):
            yield (
                f"actor {actor.name!r} reads {actor.inputs[0]!r}, which fires for {_words(first)}, and {name!r}, which "
                f"fires for {_words(its)}; give both a count, or neither"
            )
        elif own is None and its is not None and first is not None and set(its) != set(first):
            yield (
                f"actor {actor.name!r} reads {actor.inputs[0]!r}, which fires for {_words(first)}, and {name!r}, which "
                f"fires for {_words(its)}; they must be the same, or give it the indices that it reads of both"
            )


def _words(indices: tuple[int, ...] | None) -> str:
    """Indices in few words."""
    if indices is None:
        return "as many indices as there are"
    if not indices:
        return "no index"
    if len(indices) > 1 and indices == tuple(range(indices[0], indices[0] + len(indices))):
        return f"{indices[0]} to {indices[-1]}"
    return ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")


def _order_faults(graph: ActorGraph) -> list[str]:
    """What is wrong with the lanes' orders: each has every firing of its lane's actors once."""
    faults: list[str] = []
    for lane, order in graph.orders.items():
        if lane not in graph._lanes:
            faults.append(f"orders has lane {lane!r}, which no actor runs on{_near(lane, graph._lanes)}")
            continue
        wanted: set[Firing] = set()
        for name in graph._lanes[lane]:
            indices = graph._sequences[name]
            if indices is None:
                faults.append(
                    f"lane {lane!r} has an order, but its actor {name!r} goes on until its source ends; "
                    "give the source a count, or the lane no order"
                )
            else:
                wanted |= {(name, k) for k in indices}
        faults += _entry_faults(graph, lane, order, wanted)
    return faults


def _entry_faults(graph: ActorGraph, lane: str, order: Sequence[Firing], wanted: set[Firing]) -> Iterator[str]:
    """What is wrong with the entries of one order."""
    where = f"the order of lane {lane!r}"
    count: Counter[Firing] = Counter()
    for entry in order:
        if not (isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) and _is_number(entry[1])):
            yield f"{where} has {entry!r}; an entry is (actor's name, index)"
            continue
        count[entry] += 1
        if entry in wanted or count[entry] > 1:
            continue
        name, k = entry
        if name not in graph._by_name:
            yield f"{where} has {firing_name(name, k)}, which is no actor's{_near(name, graph._lanes[lane])}"
        elif graph.lane_of(name) != lane:
            yield f"{where} has {firing_name(name, k)}, which runs on lane {graph.lane_of(name)!r}"
        elif graph._sequences[name] is not None:
            yield (
                f"{where} has {firing_name(name, k)}, but {name!r} fires for {_words(graph._sequences[name])}"
            )  # fmt: skip
    yield from (f"{where} has {firing_name(*entry)} {n} times" for entry, n in count.items() if n > 1)
    yield from (f"{where} misses {firing_name(*entry)}" for entry in sorted(wanted - count.keys()))


def _sequences(graph: ActorGraph, upstream_first: Sequence[str]) -> dict[str, tuple[int, ...] | None]:
    """By actor, its indices in the order in which it fires."""
    found: dict[str, tuple[int, ...] | None] = {}
    for lane, order in graph.orders.items():
        own: dict[str, list[int]] = {name: [] for name in graph._lanes[lane]}
        for name, k in order:
            own[name].append(k)
        found |= {name: tuple(indices) for name, indices in own.items()}
    for name in upstream_first:
        actor = graph.actor(name)
        if name not in found:
            own_indices = _own(actor)
            found[name] = own_indices if own_indices is not None or not actor.inputs else found[actor.inputs[0]]
    return found
