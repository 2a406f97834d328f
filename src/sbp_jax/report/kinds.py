"""Many decisions in short: one sentence why they are as they are, and a row for each kind of op."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..plan import PlanData
from ..plan.insight import Alternative, Decision
from .grid import Column, Grid
from .units import brief, human_seconds, shape_text, short_line, signed

_MOST = 15
_MOST_SIGNATURES = 3
ARGUMENT = "argument"


@dataclass(frozen=True, slots=True)
class Kind:
    """Decisions of one kind of op: how many ops they stand for, the largest shape made, the signatures, seconds a step.

    ``nearest`` is what costs least more (or saves most) if one of them alone changed: (its decision's name, what).
    """

    name: str
    ops: int
    shape: tuple[int, ...]
    dtype: str
    signatures: tuple[str, ...]
    compute_seconds: float
    boxing_seconds: float
    nearest: tuple[str, Alternative] | None
    line: str


def kinds(
    plan: PlanData, numbers: Sequence[int], names: Mapping[int, str], layers: Collection[str] | None
) -> tuple[Kind, ...]:
    """Some decisions by kind of op, what weighs most first. ``layers``: only what is in these; None: all."""
    spots, boxed = plan.insight.spots, dict.fromkeys(numbers, 0.0)
    inside = {k for k, s in enumerate(spots) if layers is None or s.layer in layers}
    for b, c in zip(plan.boxing_list, plan.insight.crossings, strict=True):
        if c.maker in boxed and c.made_in in inside:
            boxed[c.maker] += b.seconds * b.times
    groups: dict[str, list[int]] = {}
    for k in numbers:
        d = plan.insight.decisions[k]
        groups.setdefault(ARGUMENT if d.name else d.op, []).append(k)

    def ops(d: Decision) -> int:
        return sum(n for s, n in d.spots if s in inside)

    found = []
    for name, some in groups.items():
        decisions = [plan.insight.decisions[k] for k in some]
        largest = max(decisions, key=lambda d: _size(d.shape))
        near = [(names[k], d.alternatives[0]) for k, d in zip(some, decisions, strict=True) if d.alternatives]
        found.append(Kind(
            name, sum(map(ops, decisions)), largest.shape, largest.dtype,
            tuple(dict.fromkeys(brief(d.signature) for d in decisions)),
            sum(d.compute_seconds * ops(d) / max(d.count, 1) for d in decisions), sum(boxed[k] for k in some),
            min(near, key=lambda x: x[1].seconds, default=None), short_line(largest.source),
        ))  # fmt: skip
    return tuple(sorted(found, key=lambda x: -(x.compute_seconds + x.boxing_seconds)))


def _size(shape: Sequence[int]) -> int:
    n = 1
    for x in shape:
        n *= x
    return n


def table(found: Sequence[Kind]) -> Grid:
    """The kinds as text."""
    made = Grid(
        "", Column("op", wrap=16), Column("ops", "right", 6), Column("makes up to", drop=4, wrap=16),
        Column("as", wrap=9), Column("compute", "right"), Column("boxing", "right"), Column("nearest other", wrap=16),
        Column("line", drop=5),
    )  # fmt: skip
    for cells in rows(found):
        made.add_row(*cells)
    return made


def rows(found: Sequence[Kind]) -> list[list[str]]:
    """The table's cells."""
    lines = []
    for x in found[:_MOST]:
        more = len(x.signatures) - _MOST_SIGNATURES
        signatures = [*x.signatures[:_MOST_SIGNATURES], *([f"... {more} more"] if more > 0 else [])]
        near = _change(x.nearest[1]) if x.nearest else "none"
        lines.append([
            x.name, str(x.ops), shape_text(x.shape, x.dtype), "\n".join(signatures), human_seconds(x.compute_seconds),
            human_seconds(x.boxing_seconds), near, x.line,
        ])  # fmt: skip
    rest = found[_MOST:]
    if rest:
        sums = [human_seconds(sum(getattr(x, n) for x in rest)) for n in ("compute_seconds", "boxing_seconds")]
        lines.append([f"... {len(rest)} more kinds", str(sum(x.ops for x in rest)), "", "", *sums, "", ""])
    return lines


def _change(a: Alternative) -> str:
    return f"{brief(a.signature)} {signed(human_seconds(a.seconds), a.seconds)}"


def why(found: Sequence[Kind], n: int, limit_binds: bool, gap: float) -> str:
    """One sentence on some decisions."""
    compute, boxing = (sum(getattr(x, name) for x in found) for name in ("compute_seconds", "boxing_seconds"))
    near = min((x.nearest for x in found if x.nearest), key=lambda x: x[1].seconds, default=None)
    head = f"{n} decisions, {human_seconds(compute)} of compute and {human_seconds(boxing)} of boxing a step: "
    if near is None:
        return head + "each is the only one possible, or pinned"
    name, a = near
    what = f"{name} as ({a.signature})"
    if a.seconds > 0:
        return head + f"changed alone, each would make the step longer; the nearest is {what}, {_more(a)}"
    if not a.seconds:
        return head + f"changed alone, none would make the step shorter; {what} would take as long"
    return head + f"{what} alone would save {human_seconds(-a.seconds)}, but {_but(limit_binds, gap)}"


def why_one(title: str, d: Decision, limit_binds: bool, gap: float) -> str:
    """One sentence on one decision."""
    if not d.alternatives:
        return f"{title} is ({d.signature}): nothing else is possible there, or it is pinned"
    a = d.alternatives[0]
    if a.seconds > 0:
        return f"{title} is ({d.signature}) because the next best, ({a.signature}), alone would add {_more(a)}"
    if not a.seconds:
        return f"{title} is ({d.signature}); ({a.signature}) would take as long"
    saved = human_seconds(-a.seconds)
    return f"{title} is ({d.signature}): ({a.signature}) alone would save {saved}, but {_but(limit_binds, gap)}"


def _more(a: Alternative) -> str:
    parts = {"compute": a.compute_seconds, "boxing": a.boxing_seconds}
    told = ", ".join(f"{what} {signed(human_seconds(x), x)}" for what, x in parts.items() if x)
    return f"{signed(human_seconds(a.seconds), a.seconds)} a step ({told})"


def _but(limit_binds: bool, gap: float) -> str:
    if limit_binds:
        return "it holds more than the memory limit, here or together with the rest"
    if gap:
        return f"the search stopped at a plan that is at most {gap:.2%} from the best"
    return "not together with the rest"
