"""Whether a graph of actors completes, before anything of it runs.

Every actor fires in one fixed order, so a firing that can begin stays possible until it does: the graph is free of
choice, and times decide only when things happen, not what. Hence one simulated run, with tokens instead of threads,
says of all runs whether they complete.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ActorError
from .graph import ActorGraph, Firing, firing_name


def check(graph: ActorGraph) -> None:
    """Refuse a graph that would stop before its end: firings that wait for each other, too few registers.

    A graph without orders, whose actors all fire for their indices in the same order, always completes, however few
    registers there are (at least 1 each). Of the indices that some actor has yet to fire for, take the earliest, and
    of those actors one whose inputs have all fired for it. The register that it needs can only hold a result of an
    earlier index, which all its readers have read: so it can fire. This is the theorem on marked graphs (Commoner,
    Holt, Even, Pnueli 1971: one is live exactly if every directed circle has a token): a circle of edges of data and
    of registers passes at least one register, whose edge begins with a token for each. Orders of lanes add edges,
    and circles with them; these are what is simulated here.

    A source that decides itself when it ends is outside of every order, so what reads it completes by the theorem.

    Raises:
        ActorError: who waits for what, as a circle; and how many registers each actor needs where more would help.
    """
    if _is_certain(graph):
        return
    given = {a.name: a.registers for a in graph.actors}
    tokens = _Tokens(graph, given)
    tokens.run()
    if tokens.is_done:
        return
    if not (needed := _enough(graph)):
        limitless = _Tokens(graph, None)
        limitless.run()
        circle = limitless.circle()
        raise ActorError(
            f"this graph of actors would never complete, however many registers there are: {circle.words}. "
            f"To run it, {_reorder(graph, circle)}"
        )
    more = ", ".join(f"{name!r} {n} (it has {given[name]})" for name, n in needed.items())
    circle = tokens.circle()
    raise ActorError(
        f"this graph of actors would never complete: {circle.words}. It does with these registers: {more}. "
        f"Or {_reorder(graph, circle)}"
    )


def _reorder(graph: ActorGraph, circle: "_Circle") -> str:
    """What to do about a deadlock but for registers."""
    what, plural = ("the order of", "lanes") if graph.orders else ("the indices of", "actors")
    if len(circle.lines) == 1:
        return f"change {what} {circle.lines[0]} so that what it waits for comes first"
    return f"change {what} one of these {plural} so that what another waits for comes first"


def registers_needed(graph: ActorGraph) -> dict[str, int]:
    """By actor, the registers with which the graph completes: those that it has, or more where it needs more.

    Found by a simple search: while the graph is stuck, an actor of the circle that waits gets one more; then each is
    given back what it can do without. No actor can do with fewer while the others stay, which does not mean that no
    other choice has a smaller sum.

    Raises:
        ActorError: no number of registers is enough.
    """
    found = {a.name: a.registers for a in graph.actors}
    if not _is_certain(graph):
        tokens = _Tokens(graph, found)
        tokens.run()
        if not tokens.is_done:
            more = _enough(graph)
            if not more:
                check(graph)
            found |= more
    return found


def _is_certain(graph: ActorGraph) -> bool:
    """Whether the theorem already says that the graph completes."""
    return not graph.orders and all(a.indices is None or list(a.indices) == sorted(a.indices) for a in graph.actors)


def _enough(graph: ActorGraph) -> dict[str, int]:
    """The actors that need more registers than they have, with the number; empty where no number is enough."""
    limitless = _Tokens(graph, None)
    limitless.run()
    if not limitless.is_done:
        return {}
    given = {a.name: a.registers for a in graph.actors}
    found = dict(given)
    tokens = _Tokens(graph, found)
    tokens.run()
    while not tokens.is_done:
        # With registers without end it completes, so every circle holds an actor that waits for one.
        name = tokens.circle().actors[0]
        found[name] += 1
        tokens.add_register(name)
        tokens.run()
    for name in [n for n in found if found[n] > given[n]]:
        low, high = given[name], found[name]
        while low < high:
            middle = (low + high) // 2
            trial = _Tokens(graph, found | {name: middle})
            trial.run()
            low, high = (low, middle) if trial.is_done else (middle + 1, high)
        found[name] = high
    return {name: n for name, n in found.items() if n > given[name]}


@dataclass(frozen=True, slots=True)
class _Circle:
    """Lines that wait for each other, by name; that in words; the actors that wait for a register."""

    lines: list[str]
    words: str
    actors: list[str]


@dataclass(slots=True)
class _Line:
    """Firings that happen one after the other: those of a lane with an order, or of one actor of a lane without."""

    name: str
    firings: tuple[Firing, ...]
    at: int = 0


class _Tokens:
    """A run of a graph in which firings take no time. ``registers`` None: as many as anyone likes."""

    def __init__(self, graph: ActorGraph, registers: Mapping[str, int] | None) -> None:
        self.graph = graph
        self.free = {a.name: registers[a.name] if registers else float("inf") for a in graph.actors}
        self.line_of: dict[str, _Line] = {}
        for lane, names in graph.lanes.items():
            if lane in graph.orders:
                line = _Line(f"lane {lane!r}", graph.orders[lane])
                self.line_of |= dict.fromkeys(names, line)
                continue
            for name in names:
                sequence = graph.sequence(name)
                if sequence is not None:
                    self.line_of[name] = _Line(f"actor {name!r}", tuple((name, k) for k in sequence))
        self.fired: dict[str, set[int]] = {name: set() for name in self.line_of}
        # By actor and index, how many readings of the result are to come; the oldest result first.
        self.unread: dict[str, dict[int, int]] = {name: {} for name in self.line_of}
        self.reads = {
            name: [(reader, graph.reads_some(reader, name)) for reader in graph.consumers(name)]
            for name in self.line_of
        }
        self.lines = list({id(line): line for line in self.line_of.values()}.values())
        self.can_go = deque(self.lines)

    @property
    def is_done(self) -> bool:
        return all(line.at == len(line.firings) for line in self.lines)

    def add_register(self, name: str) -> None:
        self.free[name] += 1
        self.can_go.append(self.line_of[name])

    def run(self) -> None:
        """Fire what can be fired until nothing can."""
        while self.can_go:
            line = self.can_go.popleft()
            while line.at < len(line.firings) and self._lacks(*line.firings[line.at]) is None:
                self._fire(*line.firings[line.at])
                line.at += 1

    def _lacks(self, name: str, k: int) -> str | None:
        """An input whose result is missing; the actor's own name where it is a register; None: it can fire."""
        for source in self.graph.actor(name).inputs:
            if k not in self.fired[source]:
                return source
        return name if self.free[name] < 1 else None

    def _fire(self, name: str, k: int) -> None:
        self.fired[name].add(k)
        readers = [reader for reader, only in self.reads[name] if only is None or k in only]
        if readers:
            self.free[name] -= 1
            self.unread[name][k] = len(readers)
            self.can_go += (self.line_of[reader] for reader in readers)
        for source in self.graph.actor(name).inputs:
            unread = self.unread[source]
            unread[k] -= 1
            if not unread[k]:
                del unread[k]
                self.add_register(source)

    def circle(self) -> _Circle:
        """Of a run that is stuck, lines that wait for each other."""
        line = next(line for line in self.lines if line.at < len(line.firings))
        path: list[tuple[_Line, str, str]] = []
        while all(line is not other for other, _, _ in path):
            name, k = line.firings[line.at]
            lacks = self._lacks(name, k)
            if lacks == name:
                held = next(iter(self.unread[name]))
                wanted = next(
                    (r, held) for r, only in self.reads[name]
                    if (only is None or held in only) and held not in self.fired[r]
                )  # fmt: skip
                n = len(self.unread[name])
                what = f"a free register of {name!r}: {_taken(n)} {firing_name(name, held)} until "
                what += f"{firing_name(*wanted)} has run"
            else:
                wanted = (lacks or name, k)
                what = firing_name(*wanted)
            other = self.line_of[wanted[0]]
            words = f"{line.name} waits at {firing_name(name, k)} for {what}{_later(line, other, wanted)}"
            path.append((line, words, name if lacks == name else ""))
            line = other
        start = next(i for i, (other, _, _) in enumerate(path) if other is line)
        circle = path[start:]
        return _Circle(
            [line.name for line, _, _ in circle], "; ".join(words for _, words, _ in circle),
            [name for _, _, name in circle if name],
        )  # fmt: skip


def _taken(registers: int) -> str:
    """That no register is free; the first result that took one is to follow."""
    return "its only one is taken by" if registers == 1 else f"its {registers} are taken, the first by"


def _later(line: _Line, other: _Line, wanted: Firing) -> str:
    """Why a firing has not happened, where it is not the very next of its line."""
    behind = other.firings[other.at]
    if other is line:
        return f", which this {line.name.partition(' ')[0]} runs after {firing_name(*behind)}"
    return "" if behind == wanted else f", which {other.name} runs after {firing_name(*behind)}"
