"""What a program holds that makes some nodes again, before it is planned: as much as in another plan's signatures.

The minimum cut counts bytes over the turn alone. What is made again is held, too, from its first late reader to its
last, and the peak may lie elsewhere. So a mix is judged by when the rewritten program holds each value
(``memory/liveness.py``), with the bytes that they have in the plan; copies in other signatures are taken to stay.
"""

import math
from collections.abc import Collection, Sequence

import numpy as np

from ...plan import PlanData
from ...trace import Program, Value, recompute
from ..budget import Budget
from ..graph.clusters import factor_maps
from ..memory.liveness import lifetimes
from ..request import Request
from .min_cut import Sizes, Turn

# Work for each node of a program that is looked at (45 microseconds, measured on programs of 600 to 1,400 nodes).
_LOOK_WORK = 7e3


class Held:
    """The bytes that a device holds at most, by the nodes that are made again."""

    def __init__(self, program: Program, plan: PlanData, turn: Turn, sizes: Sizes, request: Request) -> None:
        self.program, self.turn, self.sizes, self.request = program, turn, sizes, request
        self.free = {v.id for op, k in zip(program.nodes, plan.nodes, strict=True) if k < 0 for v in op.outs}
        self._known: dict[frozenset[int], float] = {}
        itself = self._peak(program, range(len(program.nodes)), request.budget)
        self.beside = plan.memory_per_device - itself
        """What the plan holds that is not counted: copies in other signatures above all."""

    def __call__(self, nodes: Collection[int], budget: Budget) -> float:
        """Bytes per device at the peak, where these nodes are made again beyond the turn; infinite where the budget is
        over."""
        asked = frozenset(nodes)
        if asked not in self._known:
            if budget.over:
                return math.inf
            program, origin = recompute(self.program, self.turn.node, asked)
            self._known[asked] = self.beside + self._peak(program, origin, budget)
        return self._known[asked]

    def _peak(self, program: Program, origin: Sequence[int], budget: Budget) -> float:
        size, free = self._sizes(program, origin)
        device = self.request.cluster.device.name
        found = lifetimes(program, factor_maps(program, self.request.narrow_partial), free, device)
        change = np.zeros(len(program.nodes) + 1)
        for i, life in found.values.items():
            if not (life.named or life.home or life.inside or life.kept < life.made):
                change[life.made] += size[i]
                change[life.kept + 1] -= size[i]
        for k, items in found.scratch.items():
            op = program.nodes[k]
            at = found.values[op.outs[0].id].made
            for item in items:
                start, end = item.span or (at, at)
                v = (op.ins if item.side == "in" else op.outs)[item.position]
                part = size[v.id] / v.size_bytes if isinstance(v, Value) and v.size_bytes else 1.0
                change[start] += item.size_bytes * part
                change[end + 1] -= item.size_bytes * part
        budget.spend(_LOOK_WORK * len(program.nodes))
        return float(np.cumsum(change).max(initial=0.0))

    def _sizes(self, program: Program, origin: Sequence[int]) -> tuple[dict[int, float], set[int]]:
        """By value its bytes on a device, those of the node that it is a copy of; and which are made where read."""
        size: dict[int, float] = {}
        free: set[int] = set()
        for op in program.nodes:
            if (k := origin[op.index]) >= 0:
                for new, old in zip(op.outs, self.program.nodes[k].outs, strict=True):
                    size[new.id] = self.sizes(old)
                    if old.id in self.free:
                        free.add(new.id)
        for op in program.nodes:  # barriers and new links of scans: a link out of a body comes before the body
            if origin[op.index] < 0:
                x = op.reads[0]
                for new in op.outs:
                    size[new.id] = size[x.id] * new.size_bytes / max(x.size_bytes, 1)
        return size, free
