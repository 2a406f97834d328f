"""What a plan without padding loses: dims that do not divide keep it from splitting. Said with the plan, with what
padding would give.

Most programs have no such dim that matters: what it could save at most follows from the plan alone, and is looked at
first. Only where that is a good part of the step, the program is planned once more, with padding.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...plan import PlanData
from ...signature import Broadcast, Signature, Split
from ...trace import Op, Program
from ..amounts import bytes_text, seconds_text
from ..budget import Budget
from ..memory.infeasible import TooSmall
from ..request import Request

# Less than this part of the step, or dims of values smaller than this, are not worth another plan.
_WORTH = 0.1
_SMALL_BYTES = 32 * 1024
# So little of the step is nothing.
_NOTHING = 1e-3
# Another plan must save this part of the step to be told.
_TOLD = 0.01
# Beyond so many variables, or where the first plan took this part of the time limit, or of the work that a search may
# do (1.5 s by default), no second plan is made: it takes as long.
_MOST_VARIABLES = 100_000
_MOST_TIME = 0.25
_MOST_WORK = 0.05
# Lengths that a note names.
_NAMED = 3


@dataclass(slots=True)
class Lost:
    """Seconds a step that splitting dims which do not divide could save at most, in all and by the dim's length."""

    seconds: float = 0.0
    by_length: dict[int, float] = field(default_factory=dict)
    largest_bytes: int = 0

    def add(self, lengths: set[int], seconds: float) -> None:
        """Seconds that dims of any of these lengths may be the cause of."""
        if lengths and seconds > 0:
            self.seconds += seconds
            for n in lengths:
                self.by_length[n] = self.by_length.get(n, 0.0) + seconds


def lost(program: Program, plan: PlanData) -> Lost:
    """What the plan computes repeatedly or moves, of ops and values with dims that do not divide."""
    found, sizes = Lost(), plan.placement.shape
    known: dict[object, tuple[set[int], int, int]] = {}  # like ops of one strategy lose the same
    for node, cost in plan.timeline.runs:
        op = program.nodes[node]
        key = plan.nodes[node], tuple([(x.shape, x.dtype) for x in (*op.ins, *op.outs)])
        if key not in known:
            known[key] = _of_op(op, plan.strategies[plan.nodes[node]], sizes)
        lengths, pieces, largest_bytes = known[key]
        if lengths:
            times = op.outs[0].times if op.outs else 1.0
            found.add(lengths, plan.timeline.costs[cost].seconds * times * (1 - 1 / pieces))
            found.largest_bytes = max(found.largest_bytes, largest_bytes)
    itemsize = {v.id: v.itemsize for op in program.nodes for v in op.outs}
    for b in plan.boxing_list:
        parts = [n for name, n in zip(plan.placement.axis_names, sizes, strict=True) if name in b.axes]
        lengths = {n for k in (*parts, plan.placement.size) for n in b.shape if n >= k and n % k} if parts else set()
        if lengths:
            found.add(lengths, b.seconds * b.times)
            size = itemsize.get(b.value_id, 4)
            for n in b.shape:
                size *= n
            found.largest_bytes = max(found.largest_bytes, size)
    return found


def _of_op(
    op: Op, strategy: tuple[tuple[Signature, ...], tuple[Signature, ...]], sizes: Sequence[int]
) -> tuple[set[int], int, int]:
    """The lengths of dims that every device computes whole though axes could cut them unevenly, into how many pieces
    these would, and the bytes of the op's largest operand or result."""
    ins, outs = strategy
    values = list(zip((*op.ins, *op.outs), (*ins, *outs), strict=False))
    lengths: set[int] = set()
    pieces = 1
    for axis, parts in enumerate(sizes):
        if parts > 1 and all(isinstance(s[axis], Broadcast) for _, s in values):
            here = {n for v, s in values for n in _uneven(v.shape, s, sizes, parts)}
            lengths |= here
            pieces *= parts if here else 1
    return lengths, pieces, max([getattr(v, "size_bytes", 0) for v, _ in values], default=0)


def _uneven(shape: Sequence[int], signature: Signature, sizes: Sequence[int], parts: int) -> Iterator[int]:
    """The lengths of dims of which one more axis of ``parts`` could cut a piece, but unevenly."""
    for d, n in enumerate(shape):
        left = n
        for size, c in zip(sizes, signature, strict=True):
            if isinstance(c, Split) and c.dim == d:
                left //= size
        if left >= parts and left % parts:
            yield n


def compare_with_padding(
    program: Program, request: Request, plan: PlanData, make: Callable[[Program, Request], PlanData]
) -> None:
    """Say in a plan without padding what padding would give, where dims that do not divide may cost a good part of it.

    ``make`` plans again. Notes are added to the plan; ``only_even`` is set where its bound speaks of even splits only.
    """
    if request.uneven or plan.placement.size == 1 or plan.recomputed is not None:
        return
    found = lost(program, plan)
    plan.only_even = found.seconds > _NOTHING * plan.step_seconds
    if found.seconds < _WORTH * plan.step_seconds or found.largest_bytes < _SMALL_BYTES:
        return
    told = _told(program, plan, found)
    limit, budget = request.time_limit, request.budget
    budget.spend(plan.statistics.get("work", 0.0))
    is_long = budget.spent > _MOST_WORK * budget.work
    is_late = limit is not None and plan.planning_seconds > _MOST_TIME * limit
    if plan.statistics.get("variables", 0) > _MOST_VARIABLES or is_late or is_long:
        plan.notes.append(
            f"{told}: at most {found.seconds / plan.step_seconds:.0%} of the step could be saved by padding. "
            "AutoParallelConfig(pad=True) plans with it"
        )
        return
    request.progress("planning with padding, to compare")
    start = time.perf_counter()
    if limit is not None:
        budget = Budget(seconds=max(limit - plan.planning_seconds, 0.0), stops=budget.stops)
    try:
        padded = make(program, replace(request, uneven=True, budget=budget, thorough=False))
    except TooSmall:
        return
    finally:
        plan.planning_seconds += time.perf_counter() - start
    if padded.objective < (1 - _TOLD) * plan.objective:
        plan.notes.append(
            f"{told}: AutoParallelConfig(pad=True) splits what does not divide padded, and would take "
            f"{seconds_text(padded.step_seconds)} instead of {seconds_text(plan.step_seconds)} a step, sending "
            f"{bytes_text(padded.bytes_on_wire)} instead of {bytes_text(plan.bytes_on_wire)}"
        )
    elif padded.bound >= plan.bound:
        plan.only_even = False  # proven with padding as well


def _told(program: Program, plan: PlanData, found: Lost) -> str:
    """The dims that matter, most seconds first, by an argument that has them."""
    most = sorted(found.by_length, key=lambda n: -found.by_length[n])
    most = [n for n in most if found.by_length[n] >= _WORTH * found.seconds][:_NAMED]
    names = []
    for n in most:
        leaf = next((x for x in plan.inputs if n in x.shape), None)
        shape = "" if leaf is None else f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        where = "" if leaf is None else f" (dimension {leaf.shape.index(n)} of {plan.called(leaf.path)}, {shape})"
        names.append(f"{n}{where}")
    axes = " x ".join(f"{n}" for n in plan.placement.shape if n > 1)
    verb = "does" if len(names) == 1 else "do"
    return f"{', '.join(names)} {verb} not divide by {axes} devices"
