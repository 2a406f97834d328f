"""Reading a compiled program: every collective in the HLO text, with its groups, bytes and how often it runs.

Works on what ``jax.stages.Compiled.as_text()`` prints on CPU and GPU: synchronous collectives, ``-start``/``-done``
pairs, several operands combined into one instruction, groups written out or as an iota.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..errors import SbpError

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
)  # fmt: skip

_BITS = {"pred": 8, "s4": 4, "u4": 4, "f8": 8, "c64": 64, "c128": 128}


@dataclass(frozen=True, slots=True)
class Array:
    """A shape in the HLO."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> float:
        """Their bytes."""
        digits = re.search(r"\d+", self.dtype)
        bits = _BITS.get(self.dtype, _BITS.get(self.dtype[:2], int(digits.group()) if digits else 8))
        return self.elements * bits / 8


@dataclass(frozen=True, slots=True)
class Collective:
    """One tensor's share of one collective instruction.

    ``groups`` are partition numbers (places in the mesh, row-major). ``operand`` is what one device brings,
    ``times`` how often a step runs it; ``known`` is False under a loop whose trip count XLA does not state.
    ``promoted``: XLA widened a 16-bit reduction to 32 bits.
    """

    kind: str
    groups: tuple[tuple[int, ...], ...]
    operand: Array
    times: float
    known: bool
    op_name: str
    instruction: str
    promoted: bool = False
    in_conditional: bool = False

    @property
    def group_size(self) -> int:
        """How many devices take part in one group."""
        return len(self.groups[0]) if self.groups else 1

    @property
    def sent_bytes(self) -> float:
        """Bytes each device sends, once, by the table in ``boxing/table.py``."""
        p = self.group_size
        factor = {
            "all-reduce": 2 * (p - 1) / p,
            "all-gather": p - 1,
            "reduce-scatter": (p - 1) / p,
            "all-to-all": (p - 1) / p,
            "ragged-all-to-all": (p - 1) / p,
        }.get(self.kind, 1.0)
        return factor * self.operand.bytes


@dataclass(slots=True)
class _Computation:
    name: str
    lines: list[str] = field(default_factory=list)
    shapes: dict[str, str] = field(default_factory=dict)


_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*\))?\s*->.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLS = re.compile(
    r"\b(condition|body|to_apply|calls|true_computation|false_computation|branch_computations)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\s*\{\s*"n":\s*"(\d+)"')


def collectives(text: str) -> list[Collective]:
    """Every collective that a step runs, one entry for each tensor; ``times`` counts loops."""
    computations, entry = _computations(text)
    found = list(_walk(computations, entry, 1.0, True, False, frozenset())) if entry else []
    partitions = re.search(r"num_partitions=(\d+)", text)
    everyone = (tuple(range(int(partitions.group(1)) if partitions else 1)),)
    return [c if c.groups else replace(c, groups=everyone) for c in found]  # no groups: all devices are one


def count(text: str) -> dict[str, tuple[float, float]]:
    """By kind: how many run in a step, and the bytes each device sends in them."""
    result: dict[str, tuple[float, float]] = {}
    for c in collectives(text):
        if c.group_size > 1:
            n, sent = result.get(c.kind, (0.0, 0.0))
            result[c.kind] = (n + c.times, sent + c.times * c.sent_bytes)
    return result


def mesh_axes(groups: Sequence[Sequence[int]], mesh_shape: Sequence[int]) -> tuple[int, ...] | None:
    """The mesh axes along which these groups of partitions lie; None if they are no such groups."""
    places = np.arange(math.prod(mesh_shape)).reshape(tuple(mesh_shape))
    wanted = {tuple(sorted(g)) for g in groups}
    first = np.array(np.unravel_index(sorted(groups[0]), tuple(mesh_shape)))
    axes = tuple(i for i in range(len(mesh_shape)) if len(set(first[i])) > 1)
    rest = [i for i in range(len(mesh_shape)) if i not in axes]
    expected = places.transpose(*rest, *axes).reshape(-1, math.prod(mesh_shape[i] for i in axes))
    return axes if {tuple(sorted(map(int, row))) for row in expected} == wanted else None


def _computations(text: str) -> tuple[dict[str, _Computation], str]:
    found: dict[str, _Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = _HEADER.match(line) if not line.startswith(" ") else None
        if header:
            current = found.setdefault(header.group(2), _Computation(header.group(2)))
            entry = header.group(2) if header.group(1) else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.lines.append(line)
            current.shapes[match.group(1)] = match.group(2)
    return found, entry


def _walk(
    computations: dict[str, _Computation], name: str, times: float, known: bool, conditional: bool,
    above: frozenset[str],
) -> Iterator[Collective]:  # fmt: skip
    computation = computations.get(name)
    if computation is None or name in above:
        return
    for line in computation.lines:
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        kind = _kind(match.group(2))
        if kind is not None:
            yield from _read(kind, match.group(1), match.group(2), computation, times, known, conditional)
            continue
        for role, target in _CALLS.findall(match.group(2)):
            inner, inner_known = times, known
            if role in ("body", "condition"):
                trips = _TRIPS.search(match.group(2))
                inner *= float(trips.group(1)) if trips else 1.0
                inner_known &= trips is not None
            branch = role in ("true_computation", "false_computation", "branch_computations")
            for callee in re.findall(r"[\w.\-]+", target):
                yield from _walk(computations, callee, inner, inner_known, conditional or branch, above | {name})


def _kind(rest: str) -> str | None:
    """The collective an instruction is, if it is one; the ``-done`` half of a pair is none."""
    match = re.search(r"(?:^|[\s)}\]])(" + "|".join(KINDS) + r")(-start)?\(", rest)
    return match.group(1) if match else None


def _read(
    kind: str, name: str, rest: str, computation: _Computation, times: float, known: bool, conditional: bool
) -> Iterator[Collective]:
    opening = re.search(re.escape(kind) + r"(?:-start)?\(", rest)
    if opening is None:
        return
    operands = [_operand(part, computation) for part in _arguments(rest[opening.end() :])]
    groups = _groups(kind, rest)
    op_name = (re.search(r'op_name="([^"]*)"', rest) or ["", ""])[1]
    applied = (re.search(r"to_apply=%?([\w.\-]+)", rest) or ["", ""])[1]
    promoted = "promoted" in applied
    if kind == "all-to-all" and len(operands) > 1:  # one operand for each member of the group
        total = operands[0]
        operands = [Array(total.dtype, (sum(o.elements for o in operands),))]
    for operand in operands:
        yield Collective(kind, groups, operand, times, known, op_name, name, promoted, conditional)


def _arguments(text: str) -> list[str]:
    """The comma-separated operands up to the closing bracket."""
    depth, start, parts = 1, 0, []
    for i, c in enumerate(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                parts.append(text[start:i])
                break
        elif c == "," and depth == 1:
            parts.append(text[start:i])
            start = i + 1
    return [p.strip() for p in parts if p.strip()]


def _operand(text: str, computation: _Computation) -> Array:
    """An operand's shape: written with it, or where it was defined."""
    text = re.sub(r"/\*.*?\*/", "", text).strip()
    match = _ARRAY.search(text)
    if match is None:
        match = _ARRAY.search(computation.shapes.get(text.split()[-1].lstrip("%"), ""))
    if match is None:
        raise SbpError(f"cannot find the shape of operand {text!r} in the compiled program's text")
    return Array(match.group(1), tuple(int(d) for d in match.group(2).split(",") if d))


def _groups(kind: str, rest: str) -> tuple[tuple[int, ...], ...]:
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", rest)
        return tuple((int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)\}", pairs.group(1) if pairs else ""))
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if iota:
        shape, dims = ([int(d) for d in iota.group(k).split(",")] for k in (1, 2))
        places = np.arange(math.prod(dims)).reshape(dims)
        if iota.group(3):
            places = places.transpose([int(d) for d in iota.group(3).split(",")])
        return tuple(tuple(map(int, row)) for row in places.reshape(shape))
    along = _MESH_GROUPS.search(rest)
    if along:
        return _groups_along(*along.groups())
    listed = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", rest)
    if not listed and "replica_groups=" in rest:
        raise SbpError(f"cannot read the groups of a collective in the compiled program's text: {rest[:200]}")
    inside = listed.group(1) if listed else ""
    return tuple(tuple(int(d) for d in g.split(",")) for g in re.findall(r"\{([\d,]+)\}", inside))


# mesh['x'=2,'y'=4], device_ids=([2,4]T(1,0)) {'y'}: the groups lie along axes of a mesh; of a part of an axis where the
# name has :(before)size; ids are in order where none are given.
_MESH_GROUPS = re.compile(
    r"replica_groups=@?mesh\[([^\]]*)\](?:,\s*device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\))?\s*\{([^}]*)\}"
)
_AXIS = re.compile(r"""["']?([\w.\-]+)["']?(?:=(\d+)|:\((\d+)\)(\d+))?""")


def _groups_along(
    mesh: str, ids_shape: str | None, ids_order: str | None, ids: str | None, along: str
) -> tuple[tuple[int, ...], ...]:
    sizes = {name: int(size) for name, size, _, _ in _AXIS.findall(mesh)}
    numbers = lambda text: [int(d) for d in text.split(",")]  # noqa: E731
    places = np.array(numbers(ids)) if ids else np.arange(math.prod(sizes.values()))
    if ids_shape:
        places = places.reshape(numbers(ids_shape))
        places = places.transpose(numbers(ids_order)) if ids_order else places
    wanted = [(name, int(before or 1), int(size or sizes[name])) for name, _, before, size in _AXIS.findall(along)]
    shape, axes = [], {}
    for name, whole in sizes.items():
        # An axis is cut where a part of it begins or ends; each wanted part is then one dimension.
        cuts = {1, whole, *(cut for n, before, size in wanted if n == name for cut in (before, before * size))}
        for start, end in itertools.pairwise(sorted(cuts)):
            axes[name, start] = len(shape)
            shape.append(end // start)
        axes.setdefault((name, 1), -1)  # of size 1
    inner = [axes[name, before] for name, before, _ in wanted]
    inner = [i for i in inner if i >= 0]
    outer = [i for i in range(len(shape)) if i not in inner]
    members = math.prod(shape[i] for i in inner)
    return tuple(tuple(map(int, row)) for row in places.reshape(shape).transpose(*outer, *inner).reshape(-1, members))
