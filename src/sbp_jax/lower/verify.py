"""The compiled program's collectives against the plan's: same kinds, groups, sizes, counts; nothing unexplained.

XLA may still simplify what it is given. What it removes is reported: of two equal reductions one is enough, a
result nobody reads needs none, what does not change in a loop can leave it, ``all-reduce`` and a slice are a
``reduce-scatter``. What it adds is a mismatch in the manual lowering, where nothing is left to XLA. With
``lowering="gspmd"`` its partitioner chooses the collectives, and what it added or left out is reported.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..boxing import itemsize_of, words_of
from ..errors import PlanMismatch
from ..pieces import is_even
from ..plan import Boxing, Move, PlanData
from .hlo import Collective, collectives, mesh_axes

_KIND = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "permute": "collective-permute",
}

# Sums that are looked through for the parts of a joined collective.
_MOST_SUMS = 100_000
_SCOPE = re.compile(r"\bbox\d+\b")


@dataclass(slots=True)
class Expected:
    """One collective of the plan: what a device brings (``elements``), along which axes, how often a step."""

    kind: str
    axes: tuple[int, ...]
    elements: int
    times: float
    boxing: Boxing
    bytes: float
    left: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} of {self.elements} elements, {self.times:g} times, for {self.boxing}"


@dataclass(slots=True)
class Report:
    """Which compiled collectives are the plan's; what XLA added; what it left out. Bytes are per device and step.

    ``widened_bytes``, a part of ``found_bytes``, is what XLA's CPU backend adds by turning 16-bit numbers into 32-bit
    ones (its passes all-reduce-promotion and float-normalization); other backends send them as they are.
    """

    matched: list[tuple[Expected, Collective]] = field(default_factory=list)
    added: list[Collective] = field(default_factory=list)
    left_out: list[Expected] = field(default_factory=list)
    expected_bytes: float = 0.0
    found_bytes: float = 0.0
    widened_bytes: float = 0.0
    lowering: str = "manual"

    @property
    def ok(self) -> bool:
        """Nothing in the compiled program that the plan does not know."""
        return not self.added

    @property
    def exact(self) -> bool:
        """And nothing of the plan left out."""
        return not self.added and not self.left_out

    def __str__(self) -> str:
        lines = [
            f"{len(self.matched)} collectives match the plan; {self.found_bytes:.0f} bytes sent by each device, "
            f"{self.expected_bytes:.0f} planned"
            + (f", {self.widened_bytes:.0f} of them by widening 16-bit numbers" if self.widened_bytes else "")
        ]
        if self.lowering == "gspmd":
            lines.append("  lowering is gspmd: XLA's partitioner chose the collectives between sharding constraints")
        lines += [
            f"  added by XLA: {c.kind} {c.operand.dtype}{list(c.operand.shape)} in groups of {c.group_size}, "
            f"{c.times:g} times ({c.op_name or c.instruction})"
            for c in self.added
        ]
        lines += [f"  left out by XLA: {e}" for e in self.left_out]
        return "\n".join(lines)


def expected_collectives(plan: PlanData) -> list[Expected]:
    """The collectives that a plan's boxings stand for."""
    names, sizes = plan.placement.axis_names, plan.placement.shape
    result = []
    for b in plan.boxing_list:
        for move in b.moves:
            axes = tuple(names.index(a) for a in move.axes)
            if move.is_collective:
                pieces = _pieces(b, move, sizes, axes)
                result.append(Expected(_KIND[move.kind], axes, pieces, b.times, b, move.bytes, b.times))
    return result


def _pieces(b: Boxing, move: Move, sizes: Sequence[int], axes: Sequence[int]) -> int:
    """Elements one device brings to a move, from the bytes that it sends in it; of keys, their words."""
    p = math.prod(sizes[a] for a in axes)
    words = words_of(b.dtype)
    whole = math.prod(b.shape) * words
    if not all(is_even(b.shape, s, sizes) for s in (b.src, b.dst, *(m.dst for m in b.moves))):
        whole *= 2 ** len(b.shape)  # sent padded: no dim is as long again as it was
    itemsize = _itemsize(b) // words
    brought = move.bytes / {
        "all_reduce": 2 * (p - 1) / p,
        "all_gather": p - 1,
        "reduce_scatter": (p - 1) / p,
        "all_to_all": (p - 1) / p,
    }.get(move.kind, 1.0)
    return min(whole, round(brought / itemsize))


def _itemsize(b: Boxing) -> int:
    return itemsize_of(b.dtype)


def verify_text(plan: PlanData, text: str) -> Report:
    """Match every collective of a compiled program with one of the plan's."""
    report = Report(lowering=plan.lowering)
    expected = expected_collectives(plan)
    report.expected_bytes = sum(e.bytes * e.times for e in expected)
    found = [c for c in collectives(text) if c.group_size > 1]
    report.found_bytes = sum(c.sent_bytes * c.times for c in found)
    # First all that say which boxing they are, so that one whose name XLA lost cannot take another's place; then the
    # rest, those that run most often first.
    nameless = []
    for c in found:
        axes = mesh_axes(c.groups, plan.placement.shape)
        if not _match(report, c, _own(expected, c, axes)):
            nameless.append((c, axes))
    for c, axes in sorted(nameless, key=lambda x: -x[0].times):
        if not _match(report, c, _alike(expected, c, axes)):
            joined = _joined(expected, c, axes)
            for e in joined:
                _match(report, c, e)
            if not joined:
                report.added.append(c)
    widened = [c for e, c in report.matched if _itemsize(e.boxing) == 2 and c.operand.bytes == 4 * c.operand.elements]
    report.widened_bytes = sum(c.sent_bytes * c.times / 2 for c in widened)
    report.left_out = [e for e in expected if e.left > 1e-9]
    return report


def _match(report: Report, c: Collective, e: Expected | None) -> bool:
    if e is not None:
        e.left -= c.times
        report.matched.append((e, c))
    return e is not None


def _is_like(e: Expected, c: Collective, axes: tuple[int, ...] | None) -> bool:
    along = c.kind == "collective-permute" or tuple(sorted(e.axes)) == axes  # a permute lists pairs, not groups
    return e.left > 1e-9 and c.times <= e.left + 1e-9 and along and e.elements == c.operand.elements


def _own(expected: Sequence[Expected], c: Collective, axes: tuple[int, ...] | None) -> Expected | None:
    """The plan's collective that a compiled one is, by the scope it was emitted under."""
    scopes = set(_SCOPE.findall(c.op_name))  # several where XLA merged equal ones: "(box1/psum:box2/psum)"
    own = [e for e in expected if e.boxing.scope in scopes and _is_like(e, c, axes)]
    for kind in (c.kind, "all-reduce" if c.kind == "reduce-scatter" else ""):  # all-reduce and slice became one
        for e in own:
            if e.kind == kind:
                return e
    return None


def _alike(expected: Sequence[Expected], c: Collective, axes: tuple[int, ...] | None) -> Expected | None:
    """The plan's collective that does the same, the one of which the fewest runs are left over."""
    same = [e for e in expected if e.kind == c.kind and _is_like(e, c, axes)]
    return min(same, key=lambda e: e.left, default=None)


def _joined(expected: Sequence[Expected], c: Collective, axes: tuple[int, ...] | None) -> list[Expected]:
    """The plan's collectives that a compiled one does at once: XLA for GPUs flattens small reductions that nothing
    keeps apart, and joins them end to end. Those whose elements add up to it; none where no such set is found.
    """
    if c.kind != "all-reduce" or len(c.operand.shape) != 1:
        return []
    each = [
        e for e in expected
        if e.kind == c.kind and e.left > 1e-9 and abs(e.left - c.times) <= 1e-9 and tuple(sorted(e.axes)) == axes
        and e.elements * _itemsize(e.boxing) * c.operand.elements == c.operand.bytes * e.elements
    ]  # fmt: skip
    ways: dict[int, tuple[int, int]] = {0: (0, 0)}  # by sum of elements: the last one added, and the sum before it
    for k, e in enumerate(each):
        for total in list(ways):
            longer = total + e.elements
            if longer <= c.operand.elements and longer not in ways and len(ways) < _MOST_SUMS:
                ways[longer] = (k, total)
    found, total = [], c.operand.elements
    while total and total in ways:
        k, total = ways[total]
        found.append(each[k])
    return found


def verify_plan(plan: PlanData, text: str, strict: bool | None = None) -> Report:
    """The report. ``strict``: ``PlanMismatch`` where XLA added something; None: where the lowering is manual."""
    report = verify_text(plan, text)
    if not report.ok and (plan.lowering == "manual" if strict is None else strict):
        raise PlanMismatch(f"the compiled {plan.function} has collectives that the plan does not know:\n{report}")
    return report
