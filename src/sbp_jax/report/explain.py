"""Why a value has its signature: the ops that make and use it, the boxings around it, what else it could have been."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import PlanError
from ..paths import is_pattern, matcher, spellings, starred, without_holder
from ..plan import PlanData
from ..plan.insight import Alternative, Decision
from . import html, svg
from . import kinds as by_kind
from .layers import shown_names
from .summary import Group, folded, grouped, shown_arguments
from .text import plain_text
from .units import brief_bytes, human_seconds, shape_text, short_line, signed

_MOST = 10
_FEW = 3
_NEIGHBOURS = 5
_LINE = re.compile(r"^\S+:\d+$")


@dataclass(frozen=True, slots=True)
class Explained:
    """One decision: where it is, who makes what it reads, who reads what it makes, the boxings on both sides."""

    decision: Decision
    where: tuple[str, ...]
    made_by: tuple[str, ...]
    used_by: tuple[str, ...]
    boxings: tuple[Group, ...]
    name: str

    @property
    def title(self) -> str:
        """What it is."""
        d = self.decision
        return f"{self.name} {shape_text(d.shape, d.dtype)}{f' x{d.count}' if d.count > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Replanned:
    """What planning anew came to, with one signature given and all else decided again: differences to the plan."""

    signature: str
    step_seconds: float
    compute_seconds: float
    boxing_seconds: float
    memory_bytes: float
    optimality_gap: float
    plan: PlanData = field(repr=False, compare=False)

    def __str__(self) -> str:
        gap = f", its plan within {self.optimality_gap:.2%} of the best" if self.optimality_gap else ", proven"

        def seconds(x: float) -> str:
            return signed(human_seconds(x), x)

        return (
            f"planned again with ({self.signature}): {seconds(self.step_seconds)} a step (compute "
            f"{seconds(self.compute_seconds)}, boxing {seconds(self.boxing_seconds)}), memory "
            f"{signed(brief_bytes(self.memory_bytes), self.memory_bytes)}{gap}"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ``plan.explain`` returns: ``print`` it, or let Jupyter show it.

    ``kind`` says what was asked for: "argument", "layer", "line" or "value"; ``why`` is the answer in one sentence.
    ``items`` are the decisions, those that weigh most first, alike ones of repeated blocks once; ``left_out`` is how
    many more there are. ``kinds``: where they are many, what they come to for each kind of op.
    """

    asked: str
    kind: str
    items: tuple[Explained, ...]
    why: str
    kinds: tuple[by_kind.Kind, ...] = ()
    left_out: int = 0
    limit_binds: bool = False
    replanned: Replanned | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "asked": self.asked,
            "kind": self.kind,
            "why": self.why,
            "left_out": self.left_out,
            "decisions": [_item(x) for x in self.items],
            "replanned": None if self.replanned is None else {
                "signature": self.replanned.signature, "step_seconds": self.replanned.step_seconds,
                "compute_seconds": self.replanned.compute_seconds, "boxing_seconds": self.replanned.boxing_seconds,
                "memory_bytes": self.replanned.memory_bytes, "optimality_gap": self.replanned.optimality_gap,
            },
        }  # fmt: skip

    def __str__(self) -> str:
        parts: list[Any] = [f"{self.kind} {self.asked}: {self.why}"]
        if self.kinds:
            parts += ["", by_kind.table(self.kinds), self._hint()]
        else:
            parts += [line for x in self.items for line in _lines(x, self.limit_binds)]
        if self.replanned is not None:
            parts.append(str(self.replanned))
        return plain_text(parts)

    __repr__ = __str__

    def _hint(self) -> str:
        first = next((x for x in self.items if x.decision.source), None)
        ask = f"plan.explain({short_line(first.decision.source)!r})" if first else "plan.explain of a line"
        return f"Alternatives, who makes and who reads each value: {ask}, an argument's path, or .items"

    def _repr_html_(self) -> str:
        parts = [f"<h2>{html.escape(self.kind)} {html.escape(self.asked)}</h2><p>{html.escape(self.why)}</p>"]
        if self.kinds:
            names = ["op", "ops#", "makes up to!", "as!", "compute#", "boxing#", "nearest other!", "line!"]
            cells = [[html.escape(c).replace("\n", "<br>") for c in row] for row in by_kind.rows(self.kinds)]
            parts.append(html.table("", names, cells))
            inner = "".join(map(_section, self.items))
            more = f"<p class=sub>{self.left_out} more decisions that weigh less</p>" if self.left_out else ""
            parts.append(
                f"<details><summary>{len(self.items)} decisions that weigh most</summary>{inner}{more}</details>"
            )
        else:
            parts += map(_section, self.items)
        if self.replanned is not None:
            parts.append(f"<p><b>{html.escape(self.replanned)}</b></p>")
        return svg.fragment("".join(parts))


def explain(plan: PlanData, what: str, arguments_first: bool = False) -> Explanation:
    """Why something has its signature. ``what``, ``arguments_first``: see ``find``."""
    kind, numbers, within = _find(plan, what, arguments_first)
    insight = plan.insight
    around: dict[int, list[Any]] = {k: [] for k in numbers}
    for b, c in zip(plan.boxing_list, insight.crossings, strict=True):
        for k in {c.maker, c.user} & around.keys():
            around[k].append(b)
    users: dict[int, list[int]] = {k: [] for k in numbers}
    for j, d in enumerate(insight.decisions):
        for k in set(d.made_by) & users.keys():
            users[k].append(j)

    def weight(k: int) -> float:
        d = insight.decisions[k]
        boxing = sum(b.seconds * b.times for b in around[k])
        return d.compute_seconds + boxing + (abs(d.alternatives[0].seconds) if d.alternatives else 0.0)

    ordered = sorted(numbers, key=weight, reverse=True)
    shown = ordered if kind == "argument" else _different(plan, ordered)[:_MOST]
    layers, names = shown_names(plan), _names(plan)
    items = tuple(
        Explained(
            d := insight.decisions[k], tuple(dict.fromkeys(_place(plan, layers, s) for s, _ in d.spots)),
            _neighbours(plan, names, d.made_by), _neighbours(plan, names, users[k]), tuple(grouped(plan, around[k])),
            names[k],
        )
        for k in shown
    )  # fmt: skip
    free = plan.statistics.get("free_seconds")
    binds = free is not None and plan.objective - free > 1e-3 * plan.objective
    left_out = len(ordered) - len(shown)
    if len(items) == 1 and not left_out:
        sentence = by_kind.why_one("it" if kind == "argument" else names[shown[0]], items[0].decision, binds,
                                 plan.optimality_gap)  # fmt: skip
        return Explanation(what, kind, items, sentence, (), 0, binds)
    found = by_kind.kinds(plan, ordered, names, within)
    sentence = by_kind.why(found, len(ordered), binds, plan.optimality_gap)
    is_short = kind == "argument" and len(items) <= _FEW
    return Explanation(what, kind, items, sentence, () if is_short else found, left_out, binds)


def _different(plan: PlanData, numbers: Sequence[int]) -> list[int]:
    """Decisions without those that look like an earlier one: repeated blocks once."""
    found: dict[object, int] = {}
    for k in numbers:
        d = plan.insight.decisions[k]
        found.setdefault((d.op, starred(d.name), d.source, d.shape, d.dtype, d.signature, d.reads), k)
    return list(found.values())


def find(plan: PlanData, what: str, arguments_first: bool = False) -> tuple[str, list[int]]:
    """The kind of thing that a name means ("argument", "layer", "line", "value"), and its decisions. See ``_find``.

    ``arguments_first``: what a layer and an argument are called (a bare array is a layer of its own) is the argument.
    """
    return _find(plan, what, arguments_first)[:2]


def _find(plan: PlanData, what: str, arguments_first: bool) -> tuple[str, list[int], set[str] | None]:
    """The decisions meant by a name: any that reports print, and what the user calls it; and, of layers, which.

    An argument's path, its argument and ``params`` left out or not; a layer, a module that has layers below it, or a
    path to either; both with ``*``, ``**`` and ranges (``blocks/0..11``); a source line "file.py:51"; a value's name;
    what none of these is, by the end of an argument's path or any part of a layer's.
    ``PlanError`` with the nearest names where there is none.
    """
    insight = plan.insight
    if not insight.decisions:
        raise PlanError(
            f"the plan of {plan.function} does not say what else its decisions could have been: it is the trivial plan "
            "of a program in which nothing is to be decided, or was made without them"
        )
    shown = shown_arguments(plan)
    names = {path: _called(path, shown[path]) for path in shown}
    arguments = dict(zip([x.path for x in plan.inputs], insight.argument_decisions, strict=True))
    layers = list(dict.fromkeys(s.layer for s in insight.spots))
    what = what.strip().removesuffix("/") or what
    exact = [p for p in names if what in (p, shown[p])] or [p for p in names if what in names[p]]
    if what in layers and not (exact and arguments_first):
        own = {x for x in layers if x == what or x.startswith(f"{what}/")}
        return "layer", _in_layers(plan, own), own
    if exact:
        return "argument", _distinct(arguments[p] for p in exact), None
    if _LINE.match(what):
        found = [k for k, d in enumerate(insight.decisions) if short_line(d.source) == what]
        if found:
            return "line", found, None
    some = _layers_meant(plan, what, names, layers)
    if is_pattern(what):
        ways = [matcher(what), lambda name: fnmatch.fnmatchcase(name, what)]
        for matches in ways:
            found = _distinct(arguments[p] for p in names if any(map(matches, names[p])))
            if found:
                return "argument", found, None
            some = some or {name for name in layers if matches(name)}
            if some:
                return "layer", _in_layers(plan, some), some
    if some:
        return "layer", _in_layers(plan, some), some
    made = {b.value: c.maker for b, c in zip(plan.boxing_list, insight.crossings, strict=True)}
    found = [k for k, d in enumerate(insight.decisions) if what in (d.name, d.op, *d.op.split("+"))]
    if found or what in made:
        return "value", found or [made[what]], None
    tails = [k for p, k in arguments.items() if p.endswith(f"/{what}") or shown[p].endswith(f"/{what}")]
    if tails:
        return "argument", _distinct(tails), None
    if some := {name for name in layers if f"/{what}/" in f"/{name}/"}:
        return "layer", _in_layers(plan, some), some
    lines = [short_line(d.source) for d in insight.decisions if d.source]
    every = list(
        dict.fromkeys(
            [*(n for some in names.values() for n in some), *layers, *shown_names(plan).values(), *lines, *made,
             *(d.op for d in insight.decisions)]
        )
    )  # fmt: skip
    near = difflib.get_close_matches(what, every, n=4, cutoff=0.4)
    first = next(iter(shown.values()), "")
    raise PlanError(
        f"nothing in the plan of {plan.function} is called {what!r}"
        f"{'; did you mean ' + ', '.join(map(repr, near)) + '?' if near else '.'} Possible are paths of arguments "
        f"({first!r}), layers ({', '.join(map(repr, layers[:3]))} ...), lines ('file.py:51') and names of values"
    )


def _called(path: str, shown: str) -> tuple[str, ...]:
    """All that an argument goes by: its path by number and by name, and the path with parts left out."""
    return tuple(dict.fromkeys((path, shown, *spellings(path), *spellings(without_holder(path)))))


def _layers_meant(plan: PlanData, what: str, names: Mapping[str, Sequence[str]], layers: Sequence[str]) -> set[str]:
    """The layers that a module's name, or a pattern of layers or modules, means: itself and all below it."""
    matches = matcher(what)

    def below(name: str) -> bool:
        """Whether it, or a folder of it, is meant."""
        parts = name.split("/")
        return any(matches("/".join(parts[:k])) for k in range(1, len(parts) + 1))

    found = {name for name in layers if not name.startswith("(") and below(name)}
    if not found:  # by the path of what lies in it: "0/params/blocks/3"
        of = dict(zip(names, plan.insight.argument_layers, strict=True))
        meant = {of[p] for p in names if any(below(n.rpartition("/")[0]) for n in names[p] if "/" in n)}
        found = {x for x in layers if x in meant or any(x.startswith(f"{m}/") for m in meant)}
    return found


def _distinct(numbers: Iterable[int]) -> list[int]:
    return [k for k in dict.fromkeys(numbers) if k >= 0]


def _in_layers(plan: PlanData, names: set[str]) -> list[int]:
    spots = {k for k, s in enumerate(plan.insight.spots) if s.layer in names}
    return [k for k, d in enumerate(plan.insight.decisions) if any(s in spots for s, _ in d.spots)]


def _place(plan: PlanData, names: dict[str, str], spot: int) -> str:
    s = plan.insight.spots[spot]
    return f"{names.get(s.layer, s.layer)}, {s.phase}"


def _neighbours(plan: PlanData, names: Mapping[int, str], numbers: Sequence[int]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for k in numbers:
        d = plan.insight.decisions[k]
        line = short_line(d.source)
        found[f"{names[k]}{f' [{line}]' if line else ''} as ({d.signature})"] = None
    texts = list(found)
    return tuple(texts if len(texts) <= _NEIGHBOURS else [*texts[:_NEIGHBOURS], f"{len(texts) - _NEIGHBOURS} more"])


def _names(plan: PlanData) -> dict[int, str]:
    """By decision its name: the paths of the arguments that share it; else the primitives."""
    shown = shown_arguments(plan)
    paths: dict[int, list[str]] = {}
    for leaf, k in zip(plan.inputs, plan.insight.argument_decisions, strict=True):
        paths.setdefault(k, []).append(shown[leaf.path])
    return {k: folded(paths[k]) if k in paths and d.name else d.name or d.op
            for k, d in enumerate(plan.insight.decisions)}  # fmt: skip


def _difference(a: Alternative) -> str:
    parts = []
    if a.compute_seconds:
        parts.append(f"compute {signed(human_seconds(a.compute_seconds), a.compute_seconds)}")
    if a.boxing_seconds:
        parts.append(f"boxing {signed(human_seconds(a.boxing_seconds), a.boxing_seconds)}")
    return ", ".join(parts)


def _lines(x: Explained, limit_binds: bool) -> list[str]:
    d = x.decision
    line = f" [{d.source}]" if d.source else ""
    lines = [
        "",
        f"{x.title} is ({d.signature}){line}",
        f"  in {'; '.join(x.where[:3])}{' ...' if len(x.where) > 3 else ''}"
        + ("" if d.name else f"; computes {human_seconds(d.compute_seconds)} a step"),
    ]
    if d.reads and not d.name:
        lines.append(f"  reads its operands as {', '.join(f'({s})' for s in d.reads)}")
    if x.made_by:
        lines.append(f"  made from {'; '.join(x.made_by)}")
    if x.used_by:
        lines.append(f"  used by {'; '.join(x.used_by)}")
    for g in x.boxings[:_NEIGHBOURS]:
        lines.append(
            f"  boxing of {g.value}: {g.change}, {g.first.collective}, {g.times:.0f} times, "
            f"{human_seconds(g.seconds)}, {brief_bytes(g.bytes)} [{g.lines}]"
        )
    if len(x.boxings) > _NEIGHBOURS:
        lines.append(f"  ... {len(x.boxings) - _NEIGHBOURS} more kinds of boxings")
    if d.alternatives:
        lines.append("  instead, all other decisions as they are:")
        for a in d.alternatives:
            held = f", {signed(brief_bytes(a.peak_bytes), a.peak_bytes)} at the peak" if a.peak_bytes else ""
            why = f" ({_difference(a)})" if _difference(a) else ""
            lines.append(f"    ({a.signature}): {signed(human_seconds(a.seconds), a.seconds)} a step{why}{held}")
        if limit_binds and any(a.seconds < 0 for a in d.alternatives):
            lines.append("    what is cheaper holds more than the memory limit, here or together with the rest")
    else:
        lines.append("  nothing else is possible")
    return lines


def _item(x: Explained) -> dict[str, Any]:
    d = x.decision
    return {
        "what": x.title, "op": d.op, "name": d.name, "source": d.source, "shape": list(d.shape), "dtype": d.dtype,
        "signature": str(d.signature), "reads": [str(s) for s in d.reads], "where": list(x.where), "count": d.count,
        "compute_seconds": d.compute_seconds, "made_by": list(x.made_by), "used_by": list(x.used_by),
        "boxings": [
            {"value": g.value, "from": str(g.first.src), "to": str(g.first.dst), "collective": g.first.collective,
             "axes": list(g.first.axes), "times": g.times, "bytes": g.bytes, "seconds": g.seconds,
             "source": g.first.source, "user": g.first.user}
            for g in x.boxings
        ],
        "alternatives": [
            {"signature": str(a.signature), "reads": [str(s) for s in a.reads], "seconds": a.seconds,
             "compute_seconds": a.compute_seconds, "boxing_seconds": a.boxing_seconds, "peak_bytes": a.peak_bytes}
            for a in d.alternatives
        ],
    }  # fmt: skip


def _section(x: Explained) -> str:
    d = x.decision
    e = html.escape
    parts = [f"<h3>{e(x.title)} {html.chips(d.signature)} <code>{e(d.source)}</code></h3>"]
    parts.append(f"<p class=sub>in {e('; '.join(x.where[:4]))}; computes {human_seconds(d.compute_seconds)} a step</p>")
    for words, some in (("made from", x.made_by), ("used by", x.used_by)):
        if some:
            parts.append(f"<p>{words} {e('; '.join(some))}</p>")
    if x.boxings:
        parts.append(html.boxings("Boxings around it", x.boxings[:_MOST]))
    if d.alternatives:
        rows = [
            [html.chips(a.signature), e(signed(human_seconds(a.seconds), a.seconds)), e(_difference(a)),
             e(signed(brief_bytes(a.peak_bytes), a.peak_bytes))] for a in d.alternatives
        ]  # fmt: skip
        columns = ["instead", "a step#", "of it", "at the peak#"]
        parts.append(html.table("Alternatives, all other decisions as they are", columns, rows))
    return "".join(parts)
