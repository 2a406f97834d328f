"""Plans that fit where memory is so short that exact solutions at prices, a few points at a time, find none.

Message passing (``messages.py``) with prices at all peaks of a plan at once (``multipliers.py``): a change of prices
costs a sweep over the problem, not a solution, so that there can be hundreds. What the sweeps read off are plans
that are not good, but fit: docs/decisions/0019 has how far down. They go into the pool from which plans are put
together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..budget import Budget
from ..costs.cost_graph import CostGraph
from ..memory.protocol import FootprintLike
from .arrays import Flat, by_node, flat
from .instance import at_peaks, instance_of
from .kernel import Kernel, kernel_of
from .messages import Messages
from .multipliers import Multipliers
from .polish import Polish

# Sweeps before bytes get prices.
_FREE_SWEEPS = 10
# It ends after so many changes of prices in which the bound has not grown by a part of so much, if no plan fits yet;
# else after so many without a better plan. Set by hand.
_IDLE, _GROWN = 150, 1e-4
_AFTER = 20
# Where less and less is asked for: the changes of prices without such a plan after which it ends.
_LOWER_IDLE = 60
# A sweep there and back, with its plan, and the work beside its matrices for each node.
_SWEEPS = 4
_NODE_WORK = 1_500


class Feasible:
    """Plans of one problem that fit into any limit."""

    def __init__(self, problem: CostGraph, footprint: FootprintLike) -> None:
        self._problem, self._footprint = problem, footprint
        self._kernel: tuple[Kernel, Flat] | None = None

    def search(self, limit: float, budget: Budget, meet: Callable[[Sequence[int]], object]) -> None:
        """Give ``meet`` plans that hold at most ``limit`` bytes, each cheaper than the one before; maybe none.

        Some plan must be possible without a limit.
        """
        kernel, f = self._within(limit, budget)
        if (f.base > limit).any():
            return
        if not f.nodes:  # presolve left one plan
            meet(self._plan(kernel, {}))
            return
        messages = Messages(f)
        work = messages.work + _NODE_WORK * len(f.nodes)
        polish = Polish(f, messages)
        best, since = np.inf, 0

        def offer(choice: np.ndarray, profile: np.ndarray) -> float:
            nonlocal best, since
            since += 1
            cost = f.evaluate(choice)
            if profile.max(initial=0.0) <= limit and cost < best:
                better = polish.run(choice)
                budget.spend(work)
                best, since = f.evaluate(better), 0
                meet(self._plan(kernel, by_node(f, better)))
            return best

        prices = Multipliers(f, messages, offer)
        bound = messages.bound(_FREE_SWEEPS)
        budget.spend(2 * _FREE_SWEEPS * work)
        most = f.most_cost  # a bound above it proves that no plan fits
        while not budget.over and prices.bound <= most and since < (_IDLE if best == np.inf else _AFTER):
            prices.step()
            budget.spend(_SWEEPS * work)
            if best == np.inf and prices.bound > bound + _GROWN * abs(bound):
                bound, since = prices.bound, 0

    def lower(
        self, peak: float, bound: float, part: float, budget: Budget, meet: Callable[[Sequence[int]], object]
    ) -> float:  # fmt: skip
        """Give ``meet`` plans that hold less than ``peak`` bytes, each less than the one before; maybe none.

        Each time the limit goes this part of the way from the least peak down to the ``bound``, and prices go on from
        where they are: what a plan holds at other points then says where to go, long before one is within the limit.
        Returns what every plan holds at least.
        """

        def below(peak: float) -> float:
            return peak - part * (peak - bound)

        kernel, f = self._within(below(peak), budget)
        bound = max(bound, float(f.base.max(initial=0.0)))
        if not f.nodes:  # presolve left one plan
            if bound < peak:
                meet(self._plan(kernel, {}))
            return bound
        messages = Messages(f)
        work, most, since = messages.work + _NODE_WORK * len(f.nodes), f.most_cost, 0

        def offer(choice: np.ndarray, profile: np.ndarray) -> float:
            nonlocal peak, since
            since += 1
            if (held := float(profile.max(initial=0.0))) < peak:
                peak, since = held, 0
                meet(self._plan(kernel, by_node(f, choice)))
                if peak <= prices.f.limit_bytes:
                    prices.limit(below(peak))
            return np.inf

        prices = Multipliers(f, messages, offer)
        messages.bound(_FREE_SWEEPS)
        budget.spend(2 * _FREE_SWEEPS * work)
        while not (budget.over or since >= _LOWER_IDLE or peak <= bound):
            prices.step()
            budget.spend(_SWEEPS * work)
            if prices.bound > most:  # nothing is within the limit
                bound = prices.f.limit_bytes
                prices.limit(below(peak))
        return bound

    def _within(self, limit: float, budget: Budget) -> tuple[Kernel, Flat]:
        self._kernel = self._kernel or self._presolved(budget)
        kernel, f = self._kernel
        return kernel, replace(f, limit_bytes=limit)

    def _plan(self, kernel: Kernel, choice: Mapping[int, int]) -> list[int]:
        found = kernel.expand(choice)
        return [found[n] for n in range(len(self._problem.nodes))]

    def _presolved(self, budget: Budget) -> tuple[Kernel, Flat]:
        kernel = kernel_of(at_peaks(instance_of(self._problem, self._footprint)))
        kernel.presolve()
        budget.spend(kernel.work + _NODE_WORK * len(self._problem.nodes))
        return kernel, flat(kernel)
