"""What a plan can be asked about: the layer of every op, every decision with what else it could have been, the peak.

Made once with the plan, saved with it. Nothing here is needed to run one.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..signature import Signature

PHASES = ("forward", "backward", "update")


@dataclass(frozen=True, slots=True)
class Spot:
    """A part of a step: a layer by name, and "forward", "backward" or "update"."""

    layer: str
    phase: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another strategy of one decision, everything else as it is: what it makes and reads, what it adds a step.

    ``signature`` is the result's (of an output: the operand's), ``reads`` the operands'. Seconds a step, and bytes of
    a device at the step's peak, both more than the plan's (less, where negative).
    """

    signature: Signature
    reads: tuple[Signature, ...]
    compute_seconds: float
    boxing_seconds: float
    peak_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds a step more than the plan's choice."""
        return self.compute_seconds + self.boxing_seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """Ops that share one strategy: repeated layers and donated results together.

    ``op`` names the primitives, ``name`` the argument or result (the first of several); ``source`` is the user's line;
    ``spots`` are (index of a spot, ops there); ``made_by`` the decisions whose values it reads. ``shape`` and ``dtype``
    are those of what it makes (of an output: reads), as is ``signature``. ``compute_seconds`` are a step's, all of
    its ops together; ``alternatives`` the cheapest other signatures, best first.
    """

    op: str
    name: str
    source: str
    shape: tuple[int, ...]
    dtype: str
    signature: Signature
    reads: tuple[Signature, ...]
    spots: tuple[tuple[int, int], ...]
    made_by: tuple[int, ...]
    compute_seconds: float
    alternatives: tuple[Alternative, ...] = ()

    @property
    def count(self) -> int:
        """How many ops (chains of ops) share it."""
        return sum(n for _, n in self.spots)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of a device at the peak: what kind of values ("parameters", "activations", ...), of which layer."""

    kind: str
    layer: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """Of one boxing: the decisions that make and need the value, and the spots of both."""

    maker: int
    user: int
    made_in: int
    used_in: int


@dataclass(frozen=True, slots=True)
class Insight:
    """``node_spots`` is a spot for each node of the program; ``argument_kinds``, ``argument_layers`` and
    ``argument_decisions`` are by argument, ``crossings`` by boxing."""

    spots: tuple[Spot, ...] = ()
    node_spots: tuple[int, ...] = ()
    decisions: tuple[Decision, ...] = ()
    argument_kinds: tuple[str, ...] = ()
    argument_layers: tuple[str, ...] = ()
    argument_decisions: tuple[int, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    at_peak: tuple[Held, ...] = ()
    peak_node: int = -1
    # The first node of every op that shares a decision: known to the process that planned only.
    members: tuple[tuple[int, ...], ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data: strings, signatures, and what alike decisions could have been once each; runs as such."""
        texts: dict[str, int] = {}

        def n(text: object) -> int:
            return texts.setdefault(str(text), len(texts))

        def many(items: Sequence[object]) -> list[int]:
            return [n(x) for x in items]

        ways: dict[tuple[Signature, tuple[Signature, ...]], int] = {}
        looks: dict[object, int] = {}

        def way(signature: Signature, reads: tuple[Signature, ...]) -> int:
            return ways.setdefault((signature, reads), len(ways))

        def alternatives(d: Decision) -> int:
            rows = tuple(
                (way(a.signature, a.reads), _plain(a.compute_seconds), _plain(a.boxing_seconds), _plain(a.peak_bytes))
                for a in d.alternatives
            )
            return looks.setdefault(rows, len(looks))

        decisions = [
            [n(d.op), n(d.name), n(d.source), list(d.shape), n(d.dtype), way(d.signature, d.reads),
             [x for s in d.spots for x in s], list(d.made_by), d.compute_seconds, alternatives(d)]
            for d in self.decisions
        ]  # fmt: skip
        return {
            "spots": [[n(s.layer), PHASES.index(s.phase)] for s in self.spots],
            "node_spots": _runs(self.node_spots),
            "decisions": decisions,
            "ways": [[n(signature), *many(reads)] for signature, reads in ways],
            "alternatives": [[x for row in rows for x in row] for rows in looks],  # pyright: ignore
            "argument_kinds": _runs(many(self.argument_kinds)),
            "argument_layers": _runs(many(self.argument_layers)),
            "argument_decisions": list(self.argument_decisions),
            "crossings": [x for c in self.crossings for x in (c.maker, c.user, c.made_in, c.used_in)],
            "at_peak": [[n(h.kind), n(h.layer), h.bytes] for h in self.at_peak],
            "peak_node": self.peak_node,
            "texts": list(texts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Insight":
        """What ``to_json`` wrote. Missing or misshapen parts raise ``KeyError``, ``TypeError``, ``IndexError`` or
        ``ValueError``."""
        texts: list[str] = data["texts"]
        signatures: dict[int, Signature] = {}

        def s(k: int) -> Signature:
            if k not in signatures:
                signatures[k] = Signature.parse(texts[k])
            return signatures[k]

        ways: list[tuple[Signature, tuple[Signature, ...]]] = [
            (s(made), tuple(map(s, reads))) for made, *reads in data["ways"]
        ]

        def alternatives(row: Sequence[Any]) -> tuple[Alternative, ...]:
            fours = zip(row[::4], row[1::4], row[2::4], row[3::4], strict=True)
            return tuple(Alternative(ways[w][0], ways[w][1], x, y, z) for w, x, y, z in fours)

        looks = [alternatives(row) for row in data["alternatives"]]
        decisions = tuple(
            Decision(
                texts[op], texts[name], texts[source], tuple(shape), texts[dtype], ways[way][0], ways[way][1],
                tuple(zip(spots[::2], spots[1::2], strict=True)), tuple(made_by), seconds, looks[look],
            )
            for op, name, source, shape, dtype, way, spots, made_by, seconds, look in data["decisions"]
        )  # fmt: skip
        return cls(
            tuple(Spot(texts[layer], PHASES[phase]) for layer, phase in data["spots"]),
            _unrolled(data["node_spots"]),
            decisions,
            tuple(texts[k] for k in _unrolled(data["argument_kinds"])),
            tuple(texts[k] for k in _unrolled(data["argument_layers"])),
            tuple(data["argument_decisions"]),
            tuple(Crossing(*x) for x in zip(*[iter(data["crossings"])] * 4, strict=True)),
            tuple(Held(texts[kind], texts[layer], held) for kind, layer, held in data["at_peak"]),
            data["peak_node"],
        )


def _runs(numbers: Sequence[int]) -> list[int]:
    """Numbers as number, times, number, times, ..."""
    return [x for number, group in itertools.groupby(numbers) for x in (number, sum(1 for _ in group))]


def _unrolled(runs: Sequence[int]) -> tuple[int, ...]:
    return tuple(x for number, times in zip(runs[::2], runs[1::2], strict=True) for x in (number,) * times)


def _plain(x: float) -> float | int:
    """A whole number without its point: shorter, and equal."""
    return int(x) if x == int(x) else x
