"""Plans whose boxing hides behind compute: searches at prices of what sticks out, judged by the simulated step.

The plain sum of compute and boxing has an optimum that can be proven, but pays for what nobody waits for. So the plan
of the sum, and those of the fixed strategies, are simulated. The shortest one's compute says what could hide where
(``costs/slack.py``), and the program is planned again at prices of what sticks out; a few times, at a lower price
of what is covered as long as all of it hides, and without cover for what turned out to be waited for. Of all plans seen
the one with the shortest simulated step is taken. All passes are counted, none looks at the clock.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..plan import PlanData
from ..simulate import Simulation, simulate
from ..trace import Program
from .amounts import seconds_text
from .apart import Grouping, apart
from .budget import WORK_A_SECOND, Stops
from .catalogue import lookup
from .costs.assemble import Decisions
from .costs.cost_graph import IMPOSSIBLE, CostGraph
from .costs.slack import Slack
from .decide import Decided, decide
from .memory.infeasible import TooSmall
from .methods import Task
from .optimize.presolve import without_presolve
from .optimize.search import Found
from .output.timeline import Positions
from .request import Request

Price = Callable[[Slack, Sequence[int] | None], tuple[CostGraph, Decisions]]
Build = Callable[[Sequence[int], Grouping], PlanData]

# Searches at other prices. Measured (docs/decisions/0014): a third pass still finds something, a fourth rarely does.
PASSES = 3
# The price of covered time on the links, as a part of its seconds, in the first pass; then half of it.
FIRST_SHARE = 0.4
# Less of the step than this sticking out is nothing: the price is lowered.
_HIDDEN = 0.02
# A plan is taken only if its simulated step is shorter by at least this part.
WORTH = 1e-3
# Strategies whose plans are compared too, those that hide well first. They are a start, and judged by their simulated
# steps: to prove them further than this takes as long as to search all plans.
_EXPERTS = ("data_parallel", "zero2", "zero3", "megatron")
_EXPERT_GAP = 0.02
_EXPERT_STOPS = ((0.25, 0.05), (1.0, 0.2))
# A pass need not be proven further than this.
_PASS_GAP = 0.004
# These searches stop at gaps of so much after so many seconds of work: what they minimise is a model of what counts. Of
# seven small models on eight H100s one simulated step is 0.1 % longer so, and the slowest plan takes 17 s, not 73 s;
# with stops twice as early that step is 3 % longer.
_STOPS = ((1.0, 0.01), (2.0, 0.02), (3.0, 0.05), (6.0, 0.2))
# So does the search for the least sum, which they start from, once it brings a plan within a memory limit.
START_STOPS = (1.5 * WORK_A_SECOND, 0.02), (3.0 * WORK_A_SECOND, 0.05)
# The price after a pass that found nothing as short as a fixed strategy: so much of the one at which both cost as much;
# not less than the second.
_BELOW_EVEN, _LEAST_SHARE = 0.8, 0.05
# After so many seconds of work in passes, one whose step is longer than the shortest by this part is the last; so is a
# later one that is longer than the one before; the first one is by this part whatever it took. Measured:
# docs/decisions/0014.
_LONG_SECONDS, _FAR = 3.0, 0.15
_FAR_AT_FIRST = 0.13
# A step that is within this of its compute at the very least gains nothing more from hiding.
_NEAR = 0.01


@dataclass(frozen=True, slots=True)
class _Seen:
    """A plan that was simulated: the choice it is made of, what it is, the simulated step."""

    found: Found
    grouping: Grouping
    plan: PlanData
    step: Simulation


@dataclass(frozen=True, slots=True)
class _Pass:
    """A search: the share charged, the problem at these prices, the plan found with its bound."""

    share: float
    problem: CostGraph
    found: Found
    grouping: Grouping


@dataclass(frozen=True, slots=True)
class Shorter:
    """A choice whose simulated step is shorter, and the prices that its objective and bound are proven for."""

    decided: Decided
    plan: PlanData
    problem: CostGraph
    grouping: Grouping
    share: float
    seconds: float
    sum_seconds: float
    """The simulated step, and that of the plan it is compared with."""


def shorter(
    program: Program, task: Task, request: Request, base: PlanData, grouping: Grouping, price: Price, build: Build
) -> Shorter | None:  # fmt: skip
    """The plan with the shortest simulated step that these passes find; None where ``base`` has it.

    ``task`` asks for the plain sum; ``grouping`` is what its problem decides. ``price`` gives the problem at other
    prices, of classes of clusters (None: the task's own), ``build`` the plan of a choice.
    """
    firm = replace(request, limit_is_firm=True)
    covers = _Covers(program, request.cluster.op_seconds_floor)
    seen: list[_Seen] = []
    passes: list[_Pass] = []
    pass_gap = 0.0 if task.thorough else _PASS_GAP
    stops = () if task.thorough else _as_work(_STOPS)

    def look(found: Found, grouping: Grouping) -> _Seen:
        plan = build(found.solution.choice, grouping)
        seen.append(_Seen(found, grouping, plan, simulate(plan, request.cluster, events=False)))
        return seen[-1]

    first = simulate(base, request.cluster, events=False)
    for found in _experts(task, request):
        look(found, grouping)
    expert = _shortest(seen, first.step_seconds)
    plan, step = (base, first) if expert is None else (expert.plan, expert.step)
    share, compute = FIRST_SHARE, sum(float(c.min()) for c in task.problem.nodes)
    began = task.budget.spent
    n_passes = 0
    while n_passes < PASSES:
        best = _shortest(seen, first.step_seconds)
        shortest = first.step_seconds if best is None else best.step.step_seconds
        if shortest - compute <= _NEAR * shortest:
            break
        covers.learn(plan, step)
        slack = Slack(covers.of(plan), share)
        problem = price(slack, None)[0]
        request.progress("pricing what boxing sticks out")
        try:
            again = replace(task, problem=problem, gap=max(task.gap, pass_gap), budget=task.budget.again(stops))
            decided = decide(again, firm)
        except TooSmall:  # at these prices the search saw no plan that fits
            break
        if decided is None:
            break
        passes.append(_Pass(share, problem, decided.found, grouping))
        cut = None if request.zero_stage is not None else apart(again, decided.found, grouping, partial(price, slack))
        if cut is not None:
            passes.append(_Pass(share, cut.problem, cut.found, cut.grouping))
        new = look(passes[-1].found, passes[-1].grouping)
        n_passes += 1
        is_worse = n_passes > 1 and new.step.step_seconds > max(step.step_seconds, shortest)
        is_long = task.budget.spent - began > _LONG_SECONDS * WORK_A_SECOND
        times = new.step.step_seconds / shortest
        is_last = times > 1 + _FAR_AT_FIRST if n_passes == 1 else is_long and (is_worse or times > 1 + _FAR)
        if is_last and not task.thorough:
            break
        same = abs(new.step.step_seconds - step.step_seconds) <= WORTH * step.step_seconds
        plan, step = new.plan, new.step
        if expert is not None and expert.step.step_seconds < step.step_seconds:
            share, expert = _share_for(expert.plan, plan, share), None
        elif step.exposed_communication_seconds <= _HIDDEN * step.step_seconds:
            share /= 2
        elif same or decided.found.memory_is_short:  # what sticks out stays; where memory is short a search is long
            break
    best = _shortest(seen, (1 - WORTH) * first.step_seconds)
    if best is None:
        return None
    alike = [p for p in passes if p.grouping is best.grouping]
    if min([_left_open(best.found, p) for p in alike], default=1.0) > pass_gap:
        covers.learn(best.plan, best.step)
        own, _ = price(Slack(covers.of(best.plan), 0.0), best.grouping.decisions.class_of)
        # What sticks out of this plan's own compute: nothing is less than every node and pair at its own least.
        floor = Found(best.found.solution, own.evaluate(best.found.solution.choice), without_presolve(own).floor())
        alike.append(_Pass(0.0, own, floor, best.grouping))
    proven = _proven(best.found, alike)
    return Shorter(
        Decided(proven.found, request.solver), best.plan, proven.problem, best.grouping, proven.share,
        best.step.step_seconds, first.step_seconds,
    )  # fmt: skip


def _shortest(seen: Sequence[_Seen], below_seconds: float) -> _Seen | None:
    best = min(seen, key=lambda s: s.step.step_seconds, default=None)
    return best if best is not None and best.step.step_seconds < below_seconds else None


def _proven(chosen: Found, passes: Sequence[_Pass]) -> _Pass:
    """A choice at the prices of the pass whose bound it is nearest to: each pass proved one."""
    nearest = min(passes, key=lambda p: _left_open(chosen, p))
    proof, seconds = nearest.found, nearest.problem.evaluate(chosen.solution.choice)
    # A plan of less without the memory limit is known only where memory was short in the search at these prices.
    free = proof.free_seconds if proof.memory_is_short else seconds
    found = replace(chosen, seconds=seconds, bound=min(proof.bound, seconds), free_seconds=free,
                    memory_is_short=proof.memory_is_short, seconds_per_byte=proof.seconds_per_byte)  # fmt: skip
    return replace(nearest, found=found)


def _left_open(chosen: Found, proof: _Pass) -> float:
    """The gap of a choice at the prices of a pass, to the bound that was proven there."""
    seconds = proof.problem.evaluate(chosen.solution.choice)
    return max(0.0, seconds - proof.found.bound) / seconds if seconds else 0.0


def _share_for(hidden: PlanData, other: PlanData, share: float) -> float:
    """A price of covered boxing, at most half of ``share``, at which ``hidden``, which covers more, costs less."""
    more = hidden.boxing_seconds - other.boxing_seconds
    even = (other.compute_seconds - hidden.compute_seconds) / more if more > 0 else 1.0
    return min(share / 2, max(_LEAST_SHARE, _BELOW_EVEN * even))


def told(found: Shorter) -> str:
    """A plan's note on what its objective is."""
    return (
        f"what hides is not paid: the objective charges {found.share:.0%} of the boxing that compute can cover, and "
        f"all of the rest; the simulated step is {seconds_text(found.seconds)}, that of the least sum of compute and "
        f"boxing {seconds_text(found.sum_seconds)}"
    )


def _as_work(stops: Stops) -> Stops:
    return tuple((seconds * WORK_A_SECOND, gap) for seconds, gap in stops)


def _experts(task: Task, request: Request) -> list[Found]:
    """Plans of the fixed strategies, where the arguments' roles are known and the user asks for nothing else.

    With a finite ``below`` a search that finds no plan that fits ends there, and does not look for the smallest limit.
    """
    if request.zero_stage is not None or not task.roles.known:
        return []
    plans, stops = [], () if task.thorough else _as_work(_EXPERT_STOPS)
    for name in _EXPERTS:
        try:
            gap = max(task.gap, 0.0 if task.thorough else _EXPERT_GAP)
            found = lookup(name).run(replace(task, gap=gap, below=IMPOSSIBLE, budget=task.budget.again(stops)))
        except TooSmall:
            continue
        if found is not None:
            plans.append(replace(found, notes=()))
    return plans


class _Covers:
    """What compute of a plan can cover boxings of a program's values. What was seen to be waited for is remembered."""

    def __init__(self, program: Program, floor_seconds: float) -> None:
        self.program, self.floor_seconds = program, floor_seconds
        self.positions = positions = Positions(program)
        self.made = {v.id: positions.made(op, v.id) for op in program.nodes for v in op.outs}
        self.loops = {i: positions.loop(i) for i in self.made}
        self.most: dict[int, float] = {}

    def learn(self, plan: PlanData, step: Simulation) -> None:
        """What a simulated step waits for could not be covered: not more than the rest of it can be."""
        waited = dict(step.waits)
        for b in plan.boxing_list:
            if waited.get(b.id, 0.0) > 0:
                hidden = max(0.0, b.seconds - waited[b.id] / b.times)
                self.most[b.value_id] = min(self.most.get(b.value_id, hidden), hidden)

    def of(self, plan: PlanData) -> dict[tuple[int, int], float]:
        """By value and node that reads it, the seconds of compute from where the one is made to where the other, or
        what of its results is first needed by a kernel, begins."""
        program, positions = self.program, self.positions
        kernels = {n for n, cost in plan.timeline.runs if plan.timeline.costs[cost].seconds > self.floor_seconds}
        boxed = {b.value_id for b in plan.boxing_list}
        clocks = _clocks(plan)
        needed: dict[int, int] = {}
        each: dict[int, list[tuple[int, int, int, int]]] = {}  # by loop: value, reader, where it is made and needed
        nodes, reads, made, loops = program.nodes, program.reads(), self.made, self.loops
        for k in range(len(nodes) - 1, -1, -1):
            op = nodes[k]
            # Changes of shape and small kernels make nobody wait: their readers do.
            later = k
            if k not in kernels and op.outs:
                results = [v.id for v in op.outs]
                if all([i in needed and i not in boxed for i in results]):
                    later = min([needed[i] for i in results])
            for i in reads[k]:
                at = positions.needed(op, i)
                at = max(at, later) if at == k else at
                known = needed.get(i)
                if known is None or at < known:
                    needed[i] = at
                start = made.get(i)
                if start is not None:
                    each.setdefault(loops[i], []).append((i, k, start + 1, at))
        found: dict[tuple[int, int], float] = {}
        for loop, rows in each.items():
            values, readers, starts, ends = zip(*rows, strict=True)
            nodes_there, total = clocks.get(loop, ([], np.zeros(1)))
            begin, end = (total[np.searchsorted(nodes_there, x)] for x in (starts, ends))
            found.update(zip(zip(values, readers, strict=True), np.maximum(0.0, end - begin).tolist(), strict=True))
        for (i, k), seconds in found.items() if self.most else ():
            found[i, k] = min(seconds, self.most.get(i, np.inf))
        return found


def _clocks(plan: PlanData) -> dict[int, tuple[list[int], np.ndarray]]:
    """By loop (-1: outside of all) the nodes that take time in it, and the seconds of compute before each.

    An inner loop counts with all its iterations, unless collectives run in it: those have the links for themselves.
    """
    loops = plan.timeline.loops
    talks = {b.loop for b in plan.boxing_list if any(m.is_collective for m in b.moves)}
    inside: dict[int, list[tuple[int, float]]] = {k: [] for k in range(-1, len(loops))}
    starts = [loop.first for loop in loops]
    for node, cost in plan.timeline.runs:
        k = bisect_left(starts, node + 1) - 1
        while k >= 0 and loops[k].last < node:
            k = loops[k].parent
        inside[k].append((node, plan.timeline.costs[cost].seconds))
    for k in range(len(loops) - 1, -1, -1):  # inner loops come after those that they are in
        if k not in talks:
            inside[loops[k].parent].append((loops[k].first, loops[k].trips * sum(s for _, s in inside[k])))
        else:
            talks.add(loops[k].parent)
    found = {}
    for k, each in inside.items():
        each.sort()
        found[k] = [n for n, _ in each], np.concatenate([[0.0], np.cumsum([s for _, s in each])])
    return found
