"""What every device computes whole although it is large: named with the user's line, and the reason.

An op is *large* where it takes a twentieth of what a device computes in a step, by seconds or by floating-point
operations, or where its results take a twentieth of the memory that a device holds: split, the step would be up to 5 %
faster (smaller). What a kernel of the user's, foreign code or the host does has no price here, nor has what iterates
until it converges, so its size decides: an operand or result of a mebibyte, or of a twentieth of the program's largest
value. Alike ops on one line count together.

The reason is the rule's where the rule allows no split; it is the price where it does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ...plan import PlanData
from ...rules import Factors, Rule, lookup
from ...rules import once as once_rules
from ...rules import opaque as opaque_rules
from ...rules.widen import strategies
from ...signature import Signature, Split
from ...trace import Op, Program
from .. import catalogue
from ..amounts import bytes_text
from ..request import Request

# An op that every device computes whole is told where it takes this part of the step's seconds or holds this part of
# its memory; one without a price from values of so many bytes on, or of this part of the largest.
LARGE = 0.05
_UNPRICED_BYTES = 2**20
# Ops, and lines of one, that notes name.
_NAMED = 8
_LINES = 3
# So many primitives without a rule have a note each; more have one together.
_APART = 2
# Reasons of ops that nothing would be gained by splitting, and of those whose cost is unknown.
_SMALL = {opaque_rules.KEYS, opaque_rules.TOKEN, opaque_rules.SHAPE}
_UNPRICED = {opaque_rules.BODY, opaque_rules.SCALES, once_rules.REASON}
_ITERATIVE = {"eig", "eigh", "schur", "svd"}
_PRICE = "splitting it would cost more in moving data than it saves"


Cause = Literal["rule", "sizes", "price"]


@dataclass(frozen=True, slots=True)
class Repeated:
    """Alike ops of one line: the primitive, the line, why every device computes them whole, how much of a device's
    compute they are. ``cause``: the rule (or that there is none), the sizes of dims that it would split, or the price.
    ``sent_bytes``: what a device sends in a step so that they have their operands whole.
    """

    primitive: str
    line: str
    reason: str
    cause: Cause
    share: float
    sent_bytes: float = 0.0

    @property
    def where(self) -> str:
        """The line and the reason."""
        return f"{self.line}: {self.reason or 'no rule for it'}"


@dataclass(slots=True)
class _Sums:
    """Of alike ops: seconds of kernels that take more than the smallest, operations, bytes of the largest results."""

    seconds: float = 0.0
    flops: float = 0.0
    result_bytes: int = 0
    sent_bytes: float = 0.0
    is_named: bool = False


def repeated(program: Program, factors: Sequence[Factors], plan: PlanData, request: Request) -> list[Repeated]:
    """What is large and computed whole by every device, most of the compute first. Nothing on one device."""
    if request.placement.size == 1:
        return []
    costs = {node: plan.timeline.costs[k] for node, k in plan.timeline.runs}
    sent: dict[int, float] = {}
    for b in plan.boxing_list:
        sent[b.needed_at] = sent.get(b.needed_at, 0.0) + b.bytes * b.times
    flops = sum([cost.flops * _times(program.nodes[node]) for node, cost in costs.items()])
    whole = [_is_whole(ins, outs) for ins, outs in plan.strategies]
    largest = max((v.size_bytes for op in program.nodes for v in op.outs), default=0)
    lines, reasons = program.lines, _Reasons(request)
    found: dict[tuple[str, str, str, Cause], _Sums] = {}
    for op, f, k in zip(program.nodes, factors, plan.nodes, strict=True):
        if k < 0 or not whole[k] or op.primitive is None or not any([x.shape for x in (*op.ins, *op.outs)]):
            continue  # scalars are whole anyway
        reason, cause = reasons(op, f)
        if reason in _SMALL:
            continue
        sums = found.setdefault((op.name, lines(op.info) or "unknown line", reason, cause), _Sums())
        sums.sent_bytes += sent.get(op.index, 0.0)
        cost = costs.get(op.index)
        if cost is not None:
            sums.seconds += cost.seconds * _times(op) * (cost.seconds > request.cluster.op_seconds_floor)
            sums.flops += cost.flops * _times(op)
        if cause != "price":
            sums.result_bytes = max(sums.result_bytes, sum(v.size_bytes for v in op.outs))
            sizes = [x.size_bytes for x in (*op.reads, *op.outs) if x.shape]
            enough = min(_UNPRICED_BYTES, LARGE * largest)
            sums.is_named |= not reason or (
                (reason in _UNPRICED or op.name in _ITERATIVE) and any(n >= enough for n in sizes)
            )
    made = []
    for (primitive, line, reason, cause), sums in found.items():
        share = max(_part(sums.seconds, plan.compute_seconds), _part(sums.flops, flops))
        if sums.is_named or max(share, _part(sums.result_bytes, plan.memory_per_device)) >= LARGE:
            made.append(Repeated(primitive, line, reason, cause, share, sums.sent_bytes))
    return sorted(made, key=lambda r: -r.share)


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def given(request: Request) -> str:
    """What besides prices decided, in words; empty where prices alone did."""
    found = [] if catalogue.lookup(request.solver).promises == "exact" else [f"solver={request.solver!r}"]
    found += [] if request.zero_stage is None else [f"zero_stage={request.zero_stage}"]
    found += ["the pins"] if request.pins else []
    return f", given {' and '.join(found)}" if found else ""


def notes(found: Iterable[Repeated], request: Request) -> list[str]:
    """One note for each primitive that a rule is the reason of, one for many without a rule, one for all others."""
    found = list(found)
    groups: dict[tuple[str, str], list[Repeated]] = {}
    for r in found:
        if r.cause != "price":
            groups.setdefault((r.primitive, r.reason), []).append(r)
    unknown = [some for (_, reason), some in groups.items() if not reason]
    is_folded = len(unknown) > _APART
    ruled = [_note(some) for some in groups.values() if some[0].reason or not is_folded]
    if is_folded:
        ruled.insert(0, _no_rules(unknown))
    left = len(ruled) - _NAMED
    made = ruled if left <= 0 else [*ruled[:_NAMED], f"{left} more ops that every device computes whole: plan.unruled"]
    priced = [f"{r.primitive} ({r.share:.0%}) [{r.line}]" for r in found if r.cause == "price" and r.share >= LARGE]
    if priced:
        more = f" and {len(priced) - _NAMED} more" if len(priced) > _NAMED else ""
        made.append(
            f"every device computes whole, because splitting would cost more than it saves{given(request)} (share of "
            f"its compute): {', '.join(priced[:_NAMED])}{more}"
        )
    return made


def _note(some: Sequence[Repeated]) -> str:
    """A note for one primitive, whole for one reason, wherever it stands."""
    primitive, reason = some[0].primitive, some[0].reason
    lines = list(dict.fromkeys(r.line for r in some))
    more = f" and {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
    where = f"[{', '.join(lines[:_LINES])}{more}]"
    if not reason:
        return f"no rule for {primitive}: every device computes it whole. sbp.register_rule says how it splits {where}"
    if reason == once_rules.REASON:
        return f"{primitive}: {reason} {where}"
    share = sum(r.share for r in some)
    much = f", {share:.0%} of its compute" if share >= 0.01 else ""
    return f"every device computes {primitive} whole{much}: {reason} {where}"


def _no_rules(groups: Sequence[Sequence[Repeated]]) -> str:
    """One note for many primitives without a rule: which, on how many lines, and what that costs."""
    counted = sorted(((len(some), some[0].primitive) for some in groups), key=lambda x: (-x[0], x[1]))
    names = ", ".join(f"{name} ({n} line{'s' if n > 1 else ''})" for n, name in counted)
    every = [r for some in groups for r in some]
    share, sent = sum(r.share for r in every), sum(r.sent_bytes for r in every)
    much = f" ({share:.0%} of its compute)" if share >= 0.01 else ""
    moved = f" and sends {bytes_text(sent)} a step for their operands" if sent else ""
    return (
        f"no rule for {len(groups)} primitives: {names}. Every device computes them whole{much}{moved}. "
        "sbp.register_rule says how a primitive splits; plan.unruled has the lines"
    )


class _Reasons:
    """Why an op is whole, found once for all that look alike: the words, and the cause."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.known: dict[tuple[str, int], tuple[str, Cause]] = {}

    def __call__(self, op: Op, f: Factors) -> tuple[str, Cause]:
        key = (op.name, id(f))
        if key not in self.known:
            self.known[key] = self._find(op, f, lookup(op.name))
        return self.known[key]

    def _find(self, op: Op, f: Factors, rule: Rule | None) -> tuple[str, Cause]:
        if rule is None:
            return "", "rule"
        if rule.reason:
            return rule.reason, "rule"
        sizes = self.request.placement.shape
        ways = strategies(f, sizes, (True,) * len(f.linear), self.request.uneven)
        if any(way.share < 1 for way in ways):
            return _PRICE + given(self.request), "price"
        if all(k in f.blocked for k in range(len(f.sizes))):
            shapes = " and ".join(dict.fromkeys("x".join(map(str, x.shape)) for x in op.ins if x.shape)) or "scalars"
            said = " ".join((rule.factors.__doc__ or "").split()).replace("``", "").split(". ")[0].rstrip(".")
            return f"its rule splits no dim of {shapes} ({said})", "rule"
        axes = ", ".join(f"{n} ({k})" for n, k in zip(self.request.placement.axis_names, sizes, strict=True) if k > 1)
        can = ", ".join(str(f.sizes[k]) for k in range(len(f.sizes)) if k not in f.blocked)
        return f"no dim that its rule splits ({can}) is a multiple of a mesh axis: {axes}", "sizes"


def _times(op: Op) -> float:
    some = op.outs or op.reads
    return some[0].times if some else 1.0


def _is_whole(ins: Sequence[Signature], outs: Sequence[Signature]) -> bool:
    """Whether nothing is split, and no operand a term (each device then works on its own)."""
    return not any(isinstance(c, Split) for s in (*ins, *outs) for c in s) and not any(s.has_partial for s in ins)
