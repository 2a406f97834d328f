"""Adaptive Paddle: the devices have changed; the next plan is the cheapest, what must be moved to it included.

Ao et al., "End-to-end Adaptive Distributed Training on PaddlePaddle", arXiv:2112.02752: a cluster is described by an
object that may change during a job, and a global planner with a cost model plans anew for what there is then. Here the
state that a step keeps (parameters, optimizer state, buffers) lies as an earlier plan left it, and the seconds of
moving it, over the steps that are to come, are added to the step's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ....boxing import itemsize_of, route
from ....cluster import Cluster
from ....errors import PlanError
from ....pieces import piece_box
from ....placement import Placement
from ....plan import PlanData
from ....rules.widen import signature_of
from ....signature import Signature
from ...catalogue import Option, register
from ...costs.cost_graph import CostGraph, penalised
from ...optimize.search import Found, search
from ..families import kept
from ..node_roles import Leaf
from ..task import Task


@dataclass(frozen=True, slots=True)
class Earlier:
    """Where state lies: a placement, and by path of an argument its shape and signature."""

    placement: Placement
    arguments: dict[str, tuple[tuple[int, ...], Signature]]


def read(given: Any) -> str:
    """An earlier plan, or the path of a saved one, as the text of what matters of it. ``PlanError`` for others."""
    if isinstance(given, str) and given.startswith("{"):
        _earlier(given)
        return given
    plan = PlanData.load(given) if isinstance(given, str | Path) and str(given) else given
    if not isinstance(plan, PlanData):
        raise PlanError(
            "earlier= of solver 'adaptive_paddle': the plan that the state lies by until now; give a sbp.Plan, or the "
            f"path of one that plan.save(path) wrote. Got {given!r}"
        )
    where = plan.placement
    return json.dumps({
        "type": where.type, "shape": where.shape, "ranks": where.flat_ranks,
        "arguments": {leaf.path: [leaf.shape, str(leaf.signature)] for leaf in plan.inputs},
    }, sort_keys=True)  # fmt: skip


@register(
    "adaptive_paddle", promises="none",
    decides="the signature of every value, as the best of the step and of moving the state to it",
    paper="Ao et al.: End-to-end Adaptive Distributed Training on PaddlePaddle, arXiv:2112.02752",
    options=(
        Option("earlier", "", "the plan until now: a sbp.Plan, or the path of a saved one", read=read),
        Option("steps", 1000, "steps that are to come, over which moving counts", least=1),
    ),
)  # fmt: skip
def adaptive_paddle(task: Task) -> Found | None:
    """The cheapest plan of (step + seconds of moving / steps), by the exact search. It proves nothing of the step."""
    where, cluster, text = task.placement, task.cluster, task.options["earlier"]
    if not text:
        raise PlanError(
            "solver='adaptive_paddle' plans from an earlier plan on, and none is given: "
            "solver_options={'earlier': plan}, a sbp.Plan or the path of a saved one. Without one use solver='ilp'"
        )
    if where is None or cluster is None:
        raise PlanError("solver='adaptive_paddle' goes by where state lies, and this problem has costs only; use 'ilp'")
    state = kept(task)
    if not state:
        raise PlanError(
            "solver='adaptive_paddle' moves the state that a step keeps, and none is known: donate the training state, "
            "donate_argnums=0 say, or use solver='ilp'"
        )
    before = _earlier(text)
    moves = [np.zeros(len(c)) for c in task.problem.nodes]
    for leaf in state:
        old = _of(leaf, before)
        moves[leaf.node] += [_seconds(leaf, old, signature_of(c), before.placement, where, cluster) for c in leaf.codes]
    weighed = penalised(task.problem, [(1.0 / task.options["steps"], CostGraph(moves, {}))])
    found = search(replace(task, problem=weighed))
    if found is None:
        return None
    choice = found.solution.choice
    seconds = task.problem.evaluate(choice)
    lies = [(leaf, _of(leaf, before), signature_of(leaf.codes[choice[leaf.node]])) for leaf in state]
    each = sum((_missing(x.shape, itemsize_of(x.dtype), old, new, before.placement, where) for x, old, new in lies),
               np.zeros(where.size))  # fmt: skip
    changed = sum(_is_changed(x.shape, old, new, before.placement, where) for x, old, new in lies)
    moving = float(sum(m[k] for m, k in zip(moves, choice, strict=True)))
    note = (
        f"adaptive_paddle: {changed} of {len(state)} arguments of the state change where they lie; "
        f"{each.sum() / 2**20:.4g} MiB move, {each.max() / 2**20:.4g} MiB to one device, in {1e3 * moving:.4g} ms, "
        f"which count over {task.options['steps']} steps"
    )
    solution = replace(found.solution, objective=seconds, bound=0.0)
    return replace(found, solution=solution, seconds=seconds, bound=0.0, notes=(*found.notes, note))


def _earlier(text: str) -> Earlier:
    try:
        data = json.loads(text)
        shape, ranks = tuple(data["shape"]), tuple(data["ranks"])
        where = Placement(data["type"], shape, ranks, tuple(f"axis{k}" for k in range(len(shape))))
        found = {path: (tuple(dims), Signature.parse(s)) for path, (dims, s) in data["arguments"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise PlanError(f"earlier= of solver 'adaptive_paddle': the text of a plan is damaged ({error!r})") from error
    return Earlier(where, found)


def _of(leaf: Leaf, before: Earlier) -> Signature:
    """How an argument lay. ``PlanError`` for one that the earlier plan had not, or in another shape."""
    shape, signature = before.arguments.get(leaf.path, (None, None))
    if signature is None or shape != tuple(leaf.shape):
        had = "has no such argument" if shape is None else f"it is {'x'.join(map(str, shape)) or 'a scalar'}"
        raise PlanError(
            f"solver='adaptive_paddle': {leaf.label} is {'x'.join(map(str, leaf.shape)) or 'a scalar'}, in the earlier "
            f"plan {had}. Give the plan of this step, made for the devices that it had; batches may differ"
        )
    return signature


def _is_same(a: Placement, b: Placement) -> bool:
    return (a.type, a.shape, a.flat_ranks) == (b.type, b.shape, b.flat_ranks)


def _seconds(leaf: Leaf, old: Signature, new: Signature, here: Placement, there: Placement, cluster: Cluster) -> float:
    """On the same mesh the seconds of boxing; else of what the device that lacks most gets over its outermost link."""
    if _is_same(here, there):
        return route(old, new, there, tuple(leaf.shape), leaf.dtype, cluster).seconds
    most = float(_missing(tuple(leaf.shape), itemsize_of(leaf.dtype), old, new, here, there).max(initial=0.0))
    return cluster.collective_seconds("permute", most, (there.size,), (0,)) if most else 0.0


@lru_cache(maxsize=65536)
def _boxes(shape: tuple[int, ...], signature: Signature, where: Placement) -> np.ndarray:
    """By device (of the placement's order), dim: first index and the one after the last."""
    boxes = [piece_box(shape, signature, where.shape, position) for position in np.ndindex(*where.shape)]
    return np.array(boxes, dtype=np.int64).reshape(where.size, len(shape), 2)


def _own(here: Placement, there: Placement) -> list[tuple[int, int]]:
    """Positions in both placements of the devices that stay."""
    before = {rank: k for k, rank in enumerate(here.flat_ranks)} if here.type == there.type else {}
    return [(before[rank], k) for k, rank in enumerate(there.flat_ranks) if rank in before]


@lru_cache(maxsize=65536)
def _missing(
    shape: tuple[int, ...], itemsize: int, old: Signature, new: Signature, here: Placement, there: Placement
) -> np.ndarray:
    """By device of ``there`` the bytes of its piece that it does not hold yet."""
    wanted, held = _boxes(shape, new, there), _boxes(shape, old, here)
    size = (wanted[:, :, 1] - wanted[:, :, 0]).prod(axis=1).astype(float)
    if pairs := _own(here, there):
        a, b = (np.array(x) for x in zip(*pairs, strict=True))
        common = np.minimum(held[a, :, 1], wanted[b, :, 1]) - np.maximum(held[a, :, 0], wanted[b, :, 0])
        size[b] -= np.maximum(common, 0).prod(axis=1)
    return size * itemsize


def _is_changed(shape: Sequence[int], old: Signature, new: Signature, here: Placement, there: Placement) -> bool:
    """Whether a device that stays holds another piece than before."""
    held, wanted = _boxes(tuple(shape), old, here), _boxes(tuple(shape), new, there)
    return any((held[a] != wanted[b]).any() for a, b in _own(here, there))
