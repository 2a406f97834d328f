"""Where the forward pass is cut into stages: by the user's paths or marks, or where layers of equal work meet."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ...errors import PlanError
from ...paths import named
from ...rules import Factors
from ...trace import Op, Structured, Value, user_line
from ..microbatches.cut import Microbatches, Region
from ..microbatches.units import Unit, is_transposed, made_by, nodes_of
from ..stages import cluster_layers
from .marks import mark_of

# How much more than the mean a stage may have, as a part of the mean: what is tried, in order.
MOST_UNEVEN = 0.15
_UNEVEN = (MOST_UNEVEN, 0.1, 0.05, 0.02, 0.0)
# A loop with so much more work than the forward pass outside of it has a forward pass of its own: a backward pass does
# two to four times the work of its forward pass.
_LEAST_FORWARD = 0.05


def forward_work(cut: Microbatches, factors: Sequence[Factors], forward: Sequence[int]) -> np.ndarray:
    """The floating-point operations of every forward op, at least one for each element that it makes."""
    return np.array([work(cut.units[number], factors) for number in forward], dtype=float)


def work(unit: Unit, factors: Sequence[Factors]) -> float:
    """The floating-point operations of an op, at least one for each element that it makes."""
    total = 0.0
    for n in nodes_of(unit):
        times = n.outs[0].times if n.outs else 1.0
        elements = float(sum(np.prod(v.shape) for v in n.outs))
        total += times * max(factors[n.index].flops, elements)
    return total


def crossing_bytes(
    cut: Microbatches, forward: Sequence[int], parts: Mapping[int, float] = MappingProxyType({})
) -> np.ndarray:
    """Between every forward op and the next, the bytes of a micro-batch that are made before and read after.

    ``parts``: by value which part of it counts; all of it, if it has none.
    """
    place = {number: k for k, number in enumerate(forward)}
    values: dict[int, tuple[Value, int, int]] = {}
    for k, number in enumerate(forward):
        for v in made_by(cut.units[number]):
            values[v.id] = (v, k, k)
        for x in cut.units[number].reads:
            if x.id in values:
                v, first, _ = values[x.id]
                values[x.id] = (v, first, k)
    steps = np.zeros(len(place) + 1)
    for v, first, last in values.values():
        if last > first:
            held = float(np.prod(cut.piece_shape(v))) * v.itemsize * parts.get(v.id, 1.0)
            steps[first] += held
            steps[last] -= held
    return np.cumsum(steps)[: max(len(place) - 1, 0)]


def nothing_to_cut(cut: Microbatches, factors: Sequence[Factors], forward: Sequence[int], name: str) -> str | None:
    """What to say of a step whose forward pass is in a loop that takes the gradients; None where there is one."""
    loops = [u for u in cut.units if isinstance(u, Structured) and is_transposed(u)]
    ahead = forward_work(cut, factors, forward).sum()
    if not loops:
        return None
    loop = max(loops, key=lambda u: work(u, factors))
    if ahead > _LEAST_FORWARD * work(loop, factors):
        return None
    where = user_line(loop.info)
    return (
        f"{name} takes its gradients inside a {loop.kind}{f' at {where}' if where else ''}: a loop runs as one op, so "
        "that there is no forward pass to cut into stages. If the loop adds gradients of parts of the batch up, give "
        "the whole batch to one jax.value_and_grad instead, and sbp.Pipeline(microbatches=...) does what the loop did; "
        "if it goes through steps of training, make one call of each; or take pipeline=None"
    )


def even(cut: Microbatches, factors: Sequence[Factors], forward: Sequence[int], count: int) -> dict[int, int]:
    """By forward op its stage of ``count``: about equal work, cut where little crosses."""
    if len(forward) < count:
        raise PlanError(
            f"{count} stages are asked for, and the step has {len(forward)} ops that can be cut into stages: take "
            f"stages={max(1, len(forward))} or fewer"
        )
    stages = alike(forward_work(cut, factors, forward), crossing_bytes(cut, forward), count)
    return dict(zip(forward, stages, strict=True))


def alike(work: np.ndarray, bytes_between: np.ndarray, count: int) -> list[int]:
    """By op, given its work and the bytes that cross between each and the next, its stage of ``count``."""
    bounds: Sequence[int] = ()
    for delta in _UNEVEN:  # where stages may be unlike, fewer may do
        bounds = cluster_layers(work, bytes_between, count, delta=delta).bounds
        if len(bounds) == count + 1:
            break
    else:
        bounds = [len(work) * s // count for s in range(count + 1)]
    return np.searchsorted(np.asarray(bounds[1:-1]), np.arange(len(work)), side="right").tolist()


def at_paths(cut: Microbatches, forward: Sequence[int], paths: Sequence[str]) -> dict[int, int]:
    """By forward op its stage, given the paths of arguments at which a new one begins.

    Raises ``PlanError`` for a path that no argument has, or that is used before the one named before it.
    """
    behind: dict[int, frozenset[str]] = {}
    names = cut.program.argument_names
    for op in cut.program.input_ops:
        behind[op.outs[0].id] = frozenset([op.label, named(op.label, names)])
    for unit, region in zip(cut.units, cut.regions, strict=True):
        if region is Region.ONCE:
            of = frozenset().union(*(behind.get(x.id, frozenset()) for x in unit.reads))
            behind.update((v.id, of) for v in made_by(unit))
    starts: list[int] = []
    for path in paths:
        wanted = f"/{path.strip('/')}/"
        at = next((k for k, number in enumerate(forward) for x in cut.units[number].reads
                   if any(wanted in f"/{label}/" for label in behind.get(x.id, ()))), None)  # fmt: skip
        if at is None:
            labels = sorted({named(op.label, names) for op in cut.program.input_ops})
            raise PlanError(
                f"stages: no op of the forward pass reads an argument below {path!r}; arguments are "
                f"{', '.join(labels[:6])}{', ...' if len(labels) > 6 else ''}"
            )
        if starts and at <= starts[-1]:
            raise PlanError(
                f"stages: {path!r} is used before {paths[len(starts) - 1]!r}: name them in the order of use"
            )
        starts.append(at)
    stages = np.searchsorted(np.asarray(starts), np.arange(len(forward)), side="right")
    return {number: int(s) for number, s in zip(forward, stages, strict=True)}


def at_marks(cut: Microbatches, forward: Sequence[int]) -> tuple[dict[int, int], list[str]] | None:
    """By forward op its stage, by the marks that ``sbp.scope`` left in the function, and the marks in order.

    An op without a mark is where the latest of what it reads is. None where there are no marks.
    """
    marks: dict[str, int] = {}
    own: dict[int, int] = {}
    for number in forward:
        mark = mark_of(cut.units[number])
        if mark:
            own[number] = marks.setdefault(mark, len(marks))
    if not marks:
        return None
    stage: dict[int, int] = {}
    made: dict[int, int] = {}
    for number in forward:
        unit = cut.units[number]
        latest = max((stage[made[x.id]] for x in unit.reads if x.id in made), default=0)
        stage[number] = own.get(number, latest)
        if stage[number] < latest:
            source = max((x for x in unit.reads if x.id in made), key=lambda x: stage[made[x.id]])
            name = unit.name if isinstance(unit, Op) else unit.kind
            raise PlanError(
                f"{name} is marked for stage {stage[number]} and uses {source}, which is made in stage {latest}: "
                "values flow from earlier stages to later ones. Mark it for a later stage, or move its use"
            )
        made.update((v.id, number) for v in made_by(unit))
    return stage, list(marks)
