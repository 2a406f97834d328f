"""What to say when there are no stages: which layers do not fit, by how many bytes, and what would help."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ...errors import PlanError
from ...planner.amounts import bytes_text
from .costs import Array, Problem, StageCosts, stage_bytes
from .in_flight import InFlight
from .table import Adds, Rows, fill

_NAMED = 6
_HELP = (
    "What helps: recompute activations (remat), smaller micro-batches, a schedule with fewer of them in flight (1f1b "
    "holds at most as many as there are stages from a stage on, gpipe all), more devices, larger sub-meshes"
)


def explained(problem: Problem, costs: StageCosts, in_flight: InFlight, limit_bytes: float | None) -> PlanError:
    """The error for a problem without any stages."""
    return PlanError(
        _sizes(problem) or _seconds(problem) or _memory(problem, costs, in_flight, limit_bytes) or _together(problem)
    )


def _sizes(problem: Problem) -> str:
    """Sub-meshes that do not add up to the devices."""
    if not problem.use_all and min(problem.sizes) * problem.least <= problem.devices:
        return ""
    # By number of stages, which numbers of devices there are.
    reached = np.zeros((problem.most + 1, problem.devices + max(problem.sizes) + 1), bool)
    reached[0, 0] = True
    for s in range(1, problem.most + 1):
        for size in set(problem.sizes):
            reached[s, size:] |= reached[s - 1, :-size]
    possible = np.flatnonzero(reached[problem.least :].any(axis=0))
    if problem.use_all and problem.devices in possible:
        return ""
    near = [int(n) for n in (*possible[possible < problem.devices][-1:], *possible[possible > problem.devices][:1])]
    sizes = ", ".join(map(str, sorted(set(problem.sizes))))
    help = " or use_all=False" if problem.use_all and near and near[0] < problem.devices else ""
    return (
        f"devices={problem.devices}: {_count(problem)} of {sizes} devices do not add up to that; "
        f"nearest possible: {', '.join(map(str, near))} devices{help}"
    )


def _count(problem: Problem) -> str:
    return (
        f"{problem.least} sub-meshes"
        if problem.least == problem.most
        else f"{problem.least} to {problem.most} sub-meshes"
    )


def _seconds(problem: Problem) -> str:
    """Layers that no stage can have, whatever it takes."""
    missing = [k for k, found in enumerate(_covering(np.isfinite(problem.pace))) if not found]
    if not missing:
        return ""
    return f"{_layers(missing)}: every stage with it has infinite seconds on every sub-mesh; give seconds of one"


def _covering(possible: Array) -> list[bool]:
    """For each layer, whether a stage that is possible has it."""
    return [bool(possible[: k + 1, k + 1 :].any()) for k in range(len(possible))]


def _memory(problem: Problem, costs: StageCosts, in_flight: InFlight, limit_bytes: float | None) -> str:
    if limit_bytes is None:
        return ""
    finite = np.isfinite(problem.pace)
    fits = finite & (problem.most_after >= 0)
    alone = [k for k, found in enumerate(_covering(fits)) if not found]
    said = f"no stages fit in limit_bytes={limit_bytes:.0f} ({bytes_text(limit_bytes)}) on {problem.devices} devices: "
    if alone:
        said += f"{_layers(alone)} in no stage at all ({_excess(problem, costs, in_flight, limit_bytes, alone)}). "
    else:
        said += "each layer does in some stage, but no stages with all layers do. "
    smallest = _smallest_limit(problem, costs, in_flight)
    if smallest is None:
        return "" if not alone else said + _HELP
    more = smallest - limit_bytes
    return said + f"The smallest limit that does is {smallest:.0f} bytes, {bytes_text(more)} more. {_HELP}"


def _excess(problem: Problem, costs: StageCosts, in_flight: InFlight, limit_bytes: float, layers: Sequence[int]) -> str:
    """Of layers that do not fit: by how much, each as a stage of its own, with as few micro-batches as can be."""
    found = []
    for k in layers[:_NAMED]:
        after = 0 if k == problem.layers - 1 else 1
        needed = stage_bytes(costs, in_flight, after, problem.microbatches)[k, k + 1]
        usable = np.flatnonzero(np.isfinite(problem.pace[k, k + 1]))
        if not len(usable):
            found.append(f"layer {k}: not possible as a stage of its own")
            continue
        largest = max(usable.tolist(), key=lambda o: (problem.sizes[o], -needed[o]))
        found.append(
            f"layer {k}: {bytes_text(needed[largest] - limit_bytes)} too much on the largest sub-mesh, "
            f"{problem.labels[largest]}"
        )
    return "; ".join(found) + ("; ..." if len(layers) > _NAMED else "")


def _smallest_limit(problem: Problem, costs: StageCosts, in_flight: InFlight) -> float | None:
    """The smallest limit that any stages fit in: the same table, of the largest bytes instead of the sum."""
    free = dataclasses.replace(problem, most_after=np.full(problem.pace.shape, problem.layers))
    each = [stage_bytes(costs, in_flight, a, problem.microbatches) for a in range(problem.most)]
    table = fill(free, np.isfinite(problem.pace), Adds(np.stack(each), np.maximum), Rows(problem.most, False))
    return None if table is None else table.best()[0]


def _together(problem: Problem) -> str:
    """What is left: stages that are possible, and never at once."""
    return (
        f"no {_count(problem)} have all {problem.layers} layers and {problem.devices} devices: seconds are infinite "
        "for the stages that would be needed. Give finite seconds of more stages, other sub-meshes, or "
        + ("use_all=False" if problem.use_all else "more devices")
    )


def _layers(numbers: Sequence[int]) -> str:
    """``layer 3``; ``layers 0-2, 5``."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    words = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
    return f"layer{'s' if len(numbers) > 1 else ''} {words}"
