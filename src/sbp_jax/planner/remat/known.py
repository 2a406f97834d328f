"""What a plan of one form of a program tells the search among those of another one.

A program whose arguments are read anew, or whose values are made again, has most of its nodes in common with the one
that it is made from, and often a plan much like it. Its search begins with that plan, copies as what they are copies
of, and with the prices for bytes that proved that one's bound: alone it may end before it knows as much.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...plan import PlanData
from ...rules.widen import Code, code_of
from ..budget import Budget
from ..costs.assemble import Decisions
from ..costs.cost_graph import CostGraph, Subset, penalised
from ..graph.clusters import OpCluster
from ..memory.footprint import Footprint
from ..optimize.goal import Start
from ..optimize.program import solve

# Of work, for what the plan does not tell, which need not be better than this.
_SECONDS, _GAP = 1.0, 1e-2

_Way = tuple[tuple[Code, ...], tuple[Code, ...]]


@dataclass(frozen=True, slots=True)
class Known:
    """A plan and where each node of its program comes from; ``origin``: the same of the program to be searched.

    Origins are nodes of the program that both are made from, -1 for what is only in one of them.
    """

    plan: PlanData
    plan_origin: Sequence[int]
    origin: Sequence[int]

    def start(self, problem: CostGraph, decisions: Decisions, footprint: Footprint, budget: Budget) -> Start:
        """The plan as a choice for the program to be searched, and its prices there: none where nothing is the same.

        Plans that are not cheaper than this one are not asked for.
        """
        table = [(tuple(map(code_of, ins)), tuple(map(code_of, outs))) for ins, outs in self.plan.strategies]
        ways = {o: table[k] for o, k in zip(self.plan_origin, self.plan.nodes, strict=True) if o >= 0}
        kept = [self._like(cluster, ways) for cluster in decisions.representative]
        kept += [np.arange(len(problem.nodes[n])) for n in range(len(kept), len(problem.nodes))]  # the hubs
        if not any(len(k) < len(c) for k, c in zip(kept, problem.nodes, strict=True)):
            return Start([], known_seconds=self.plan.objective)
        point_of = {o: k for k, o in reversed(list(enumerate(self.origin)))}
        first = [self.plan_origin[t] for t in self.plan.byte_prices]
        prices = {
            point_of[o]: price for o, price in zip(first, self.plan.byte_prices.values(), strict=True) if o in point_of
        }
        priced = penalised(problem, [(price, footprint.at(t)) for t, price in prices.items()])
        choices = Subset(kept)
        # What the plan does not tell: as fast as can be, and as those prices have it.
        found = [solve(choices.of(graph), _GAP, budget.some(_SECONDS)) for graph in (problem, priced)]
        return Start([choices.widen(x.choice) for x in found if x is not None], prices, self.plan.objective)

    def _like(self, cluster: OpCluster, ways: dict[int, _Way]) -> np.ndarray:
        """The choices of a cluster that are the plan's; all of them where it has none of those."""
        left = list(range(len(cluster.strategies)))
        for op in cluster.ops:
            way = ways.get(self.origin[op.index])
            if way is None or len(left) == 1:
                continue
            same = [k for k in left if _agree(cluster.codes(cluster.strategies[k], op), way)]
            left = same or left
        return np.array(left)


def again_from(plan: PlanData, n_nodes: int) -> Callable[..., Start]:
    """What a search of the same program begins with, whose plans may cost more or less than this one."""
    same = range(n_nodes)
    known = Known(plan, same, same)

    def find_start(*of: Any) -> Start:
        return replace(known.start(*of), known_seconds=math.inf)

    return find_start


def _agree(codes: tuple[tuple[Code | None, ...], tuple[Code, ...]], way: _Way) -> bool:
    """Whether what a cluster says of an op is what the plan has there; it is silent on what is free."""
    (ins, outs), (known_ins, known_outs) = codes, way
    return (not outs or outs == known_outs) and all(a is None or a == b for a, b in zip(ins, known_ins, strict=False))
