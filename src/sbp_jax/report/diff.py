"""What two plans do differently: signatures, boxings, seconds, bytes, memory, what they were made for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cluster import is_same
from ..paths import fold_layers, starred
from ..plan import PlanData
from . import html, svg
from .grid import Column, Grid
from .summary import Group, folded, grouped, shown_arguments
from .text import plain_text
from .units import brief_bytes, human_seconds, percent, shape_text, short_line, signed

_MOST = 20


@dataclass(frozen=True, slots=True)
class Number:
    """One number of both plans; ``unit`` "seconds", "bytes" or "" (a part)."""

    name: str
    a: float
    b: float
    unit: str

    def text(self, x: float) -> str:
        """A number with its unit."""
        return human_seconds(x) if self.unit == "seconds" else brief_bytes(x) if self.unit == "bytes" else f"{x:.2%}"

    @property
    def change(self) -> str:
        """The difference, and as a part of the first."""
        if self.a == self.b:
            return "same"
        part = f" ({signed(percent(self.b - self.a, self.a), self.b - self.a)})" if self.a and self.unit else ""
        return f"{signed(self.text(self.b - self.a), self.b - self.a)}{part}"


@dataclass(frozen=True, slots=True)
class Change:
    """Signatures of the same thing in both plans; "" where one plan has no such thing. ``where`` is its layer."""

    what: str
    where: str
    source: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Moved:
    """Boxings of the same value at the same lines: "added", "removed" or "changed". Seconds and bytes a step."""

    how: str
    value: str
    lines: str
    a: str
    b: str
    seconds: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Diff:
    """What ``sbp.diff(a, b)`` returns. True where the plans differ; ``same`` is the opposite. ``remarks`` say what the
    plans were made for differently, and how far that lets them be compared."""

    remarks: tuple[str, ...]
    numbers: tuple[Number, ...]
    arguments: tuple[Change, ...]
    ops: tuple[Change, ...]
    boxings: tuple[Moved, ...]

    @property
    def same(self) -> bool:
        """Whether nothing that a step does or costs is different."""
        return not (self.remarks or self.arguments or self.ops or self.boxings) and all(
            n.a == n.b for n in self.numbers if n.name not in ("bound", "optimality gap")
        )

    def __bool__(self) -> bool:
        return not self.same

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "same": self.same,
            "remarks": list(self.remarks),
            "numbers": {n.name: {"a": n.a, "b": n.b, "unit": n.unit} for n in self.numbers},
            "arguments": [_plain(c) for c in self.arguments],
            "ops": [_plain(c) for c in self.ops],
            "boxings": [{"how": m.how, "value": m.value, "lines": m.lines, "a": m.a, "b": m.b, "seconds": m.seconds,
                         "bytes": m.bytes} for m in self.boxings],
        }  # fmt: skip

    def __str__(self) -> str:
        if self.same:
            return "the plans do the same"
        tables = [Grid("", Column(""), Column("a", "right"), Column("b", "right"), Column("change"))]
        for n in self.numbers:
            tables[0].add_row(n.name, n.text(n.a), n.text(n.b), n.change)
        for title, changes in (("Arguments", self.arguments), ("Ops", self.ops)):
            if changes:
                made = Grid(
                    f"{title}: {len(changes)} differ", Column("what", wrap=20), Column("layer", drop=1, wrap=16),
                    Column("a"), Column("b"), Column("line", wrap=14),
                )  # fmt: skip
                for c in changes[:_MOST]:
                    made.add_row(c.what, c.where, c.a or "-", c.b or "-", c.source)
                if len(changes) > _MOST:
                    made.add_row(f"... {len(changes) - _MOST} more", "", "", "", "")
                tables.append(made)
        if self.boxings:
            made = Grid(
                f"Boxings: {len(self.boxings)} differ", Column(""), Column("value", drop=1, wrap=18),
                Column("a", wrap=22), Column("b", wrap=22), Column("time", "right"), Column("sent", "right", 2),
                Column("line", wrap=12),
            )  # fmt: skip
            for m in self.boxings[:_MOST]:
                made.add_row(m.how, m.value, m.a or "-", m.b or "-", signed(human_seconds(m.seconds), m.seconds),
                             signed(brief_bytes(m.bytes), m.bytes), m.lines)  # fmt: skip
            if len(self.boxings) > _MOST:
                made.add_row(f"... {len(self.boxings) - _MOST} more", "", "", "", "", "", "")
            tables.append(made)
        return "\n".join([*(f"note: {r}" for r in self.remarks), plain_text(tables)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if self.same:
            return svg.fragment("<p>The plans do the same.</p>")
        e = html.escape
        parts = ["<h2>Two plans compared</h2>"]
        parts += [f"<p>{e(r)}</p>" for r in self.remarks]
        rows = [[e(n.name), n.text(n.a), n.text(n.b), e(n.change)] for n in self.numbers]
        parts.append(html.table("", ["", "a#", "b#", "change#"], rows))
        for title, changes in (("Arguments", self.arguments), ("Ops", self.ops)):
            if changes:
                rows = [[e(c.what), e(c.where), e(c.a or "-"), e(c.b or "-"), e(c.source)] for c in changes]
                parts.append(_folded(f"{title}: {len(changes)} differ", ["what", "layer", "a", "b", "line!"], rows))
        if self.boxings:
            rows = [
                [e(m.how), e(m.value), e(m.a or "-"), e(m.b or "-"), e(signed(human_seconds(m.seconds), m.seconds)),
                 e(signed(brief_bytes(m.bytes), m.bytes)), e(m.lines)] for m in self.boxings
            ]  # fmt: skip
            columns = ["", "value", "a", "b", "time#", "sent#", "line!"]
            parts.append(_folded(f"Boxings: {len(rows)} differ", columns, rows))
        return svg.fragment("".join(parts))


def diff(a: PlanData, b: PlanData) -> Diff:
    """What plan ``b`` does differently from plan ``a``.

    Signatures by argument and op, boxings added, removed and changed, predicted seconds, bytes and memory, the proven
    bound, the mesh and the cluster. Plans of different functions or meshes are compared by the names, lines and shapes
    that they share, and ``remarks`` say so. Differences of repeated layers are one entry.
    """
    return Diff(
        tuple(_remarks(a, b)), tuple(_numbers(a, b)),
        tuple(_changes(_arguments(a), _arguments(b))),
        tuple(_changes(_ops(a), _ops(b))), tuple(_moved(a, b)),
    )  # fmt: skip


def _remarks(a: PlanData, b: PlanData) -> list[str]:
    found = []
    if a.fingerprint != b.fingerprint:
        found.append(
            f"the plans are for different functions or shapes, {a.function!r} ({a.fingerprint or 'unknown'}) and "
            f"{b.function!r} ({b.fingerprint or 'unknown'}): compared is what has the same name, line and shape"
        )
    if (a.placement.shape, a.placement.axis_names) != (b.placement.shape, b.placement.axis_names):
        found.append(f"the meshes differ, {a.placement} and {b.placement}: signatures mean different pieces")
    if a.cluster != b.cluster or not is_same(a.hardware, b.hardware):
        same = " of that name, described differently" if a.cluster == b.cluster else ""
        found.append(
            f"the costs are of different clusters{same}, {a.cluster} and {b.cluster}: seconds are not comparable"
        )
    if a.recomputed != b.recomputed:
        found.append("the plans compute different values again in the backward part")
    if a.rewritten != b.rewritten:
        found.append("the plans are of different programs, of which at least one was rewritten")
    return found


def _numbers(a: PlanData, b: PlanData) -> list[Number]:
    names = {
        "step_seconds": "seconds", "compute_seconds": "seconds", "boxing_seconds": "seconds", "bytes_on_wire": "bytes",
        "memory_per_device": "bytes", "bound": "seconds", "optimality_gap": "",
    }  # fmt: skip
    return [Number(n.replace("_", " "), getattr(a, n), getattr(b, n), unit) for n, unit in names.items()]


# By what identifies it across plans: what, layer, phase, line, signature.
_Named = Mapping[Any, tuple[str, str, str, str, str]]


def _changes(a: _Named, b: _Named) -> list[Change]:
    """What both have, or one alone, with another signature. Alike ones once, numbers as ranges."""
    found: dict[Any, list[tuple[str, str]]] = {}
    for key in dict.fromkeys([*a, *b]):
        first, second = a.get(key), b.get(key)
        what, layer, phase, source, _ = first or second or ("", "", "", "", "")
        mine, others = first[4] if first else "", second[4] if second else ""
        if mine != others:
            look = (starred(what), starred(f"{layer}/"), phase, source, mine, others)
            found.setdefault(look, []).append((what, layer))
    changes = []
    for (_, _, phase, source, mine, others), some in found.items():
        what = folded(what for what, _ in some) + (f" x{len(some)}" if len(some) > 1 else "")
        layers = ", ".join(fold_layers(layer for _, layer in some if layer))
        changes.append(Change(what, f"{layers}, {phase}" if layers else "", source, mine, others))
    return changes


def _arguments(plan: PlanData) -> _Named:
    names = shown_arguments(plan)
    return {p.path: (names[p.path], "", "", "", str(p.signature)) for p in plan.inputs}


def _ops(plan: PlanData) -> _Named:
    """Decisions that are no arguments, by what identifies them across plans: layer, op, line, shape, phase, a count."""
    found: dict[Any, tuple[str, str, str, str, str]] = {}
    for d in plan.insight.decisions:
        if d.name or not d.shape:
            continue
        for layer, phase in dict.fromkeys((s.layer, s.phase) for s in (plan.insight.spots[k] for k, _ in d.spots)):
            line = short_line(d.source)
            key = (layer, phase, d.op, line, d.shape)
            k = 0
            while (*key, k) in found:
                k += 1
            found[(*key, k)] = (f"{d.op} {shape_text(d.shape, d.dtype)}", layer, phase, line, str(d.signature))
    return found


def _moved(a: PlanData, b: PlanData) -> list[Moved]:
    """Boxings by value and lines, with the changes of signature there."""

    def by_value(plan: PlanData) -> dict[Any, list[Group]]:
        found: dict[Any, list[Group]] = {}
        for g in grouped(plan):
            found.setdefault((starred(g.first.value), g.lines, g.first.shape), []).append(g)
        return found

    def words(groups: list[Group]) -> str:
        return "; ".join(sorted(f"{g.change} {g.first.collective} x{g.times:.0f}" for g in groups))

    first, second = by_value(a), by_value(b)
    found: list[Moved] = []
    for key in dict.fromkeys([*first, *second]):
        x, y = first.get(key, []), second.get(key, [])
        if words(x) == words(y):
            continue
        how = "changed" if x and y else "removed" if x else "added"
        seconds = sum(g.seconds for g in y) - sum(g.seconds for g in x)
        sent = sum(g.bytes for g in y) - sum(g.bytes for g in x)
        value = folded(dict.fromkeys(v for g in (*x, *y) for v in g.values))
        found.append(Moved(how, f"{value} {shape_text(key[2])}", key[1], words(x), words(y), seconds, sent))
    return sorted(found, key=lambda m: -abs(m.seconds))


def _plain(c: Change) -> dict[str, str]:
    return {"what": c.what, "where": c.where, "source": c.source, "a": c.a, "b": c.b}


def _folded(caption: str, columns: list[str], rows: list[list[str]]) -> str:
    shown = html.table(caption, columns, rows[:_MOST])
    if len(rows) <= _MOST:
        return shown
    rest = html.table("", columns, rows[_MOST:])
    return f"{shown}<details><summary>{len(rows) - _MOST} more</summary>{rest}</details>"
