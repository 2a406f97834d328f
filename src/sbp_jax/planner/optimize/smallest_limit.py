"""The smallest memory limit: the plan of the least peak, and a proof that no plan needs much less.

A game of two: one weights the points of the step (weights add up to 1), the other chooses the plan that holds the
least by these weights. What that plan holds so weighed is less than or equal to the peak of every plan: a bound.
The best weights are found by a level method (``bundle.py``). Kelley's planes alone, which always go for the most
promised, jump from corner to corner: on GPT-3 they end a third above plans that exist.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..amounts import bytes_text
from ..budget import Budget
from ..costs.cost_graph import CostGraph, costless, penalised
from ..memory.infeasible import OutOfTime, TooSmall, holdings
from ..memory.protocol import FootprintLike
from .bundle import LEVEL, largest, nearest
from .feasible import Feasible
from .goal import Goal
from .program import Solution, solve, solve_within
from .recombine import chosen
from .regions import LOOK_WORK

# Rounds at most; seconds of work for all of them, where the smallest is to be told, and where any plan that fits will
# do; the part of it for the program of one.
_ROUNDS = 60
_SECONDS, _SECONDS_FOR_ANY = 6.0, 30.0
_ROUND_PART = 1 / 3
# Good enough: the bound this near to the smallest plan; or so many rounds in which neither moved by a thousandth.
CLOSE = 0.01
_STALLED = 6
# Then plans are looked for that hold less, for so many seconds of work; at limits this part of the way to the bound,
# then at others, where there is time. Set by hand; docs/decisions/0019 has what it leads to.
_LOWER_SECONDS = 15.0
_DOWN = (0.7, 0.9)
# Then the smallest of the plans seen are mixed: so many of them, for so many seconds of work. What they
# hold is looked at in so many parts of the step.
_MIXED = 8
_MIX_SECONDS = 2.0
_PARTS = 24
# Kinds of values that an error names. What is short is told as a part of the limit, too, up to so many times it.
_NAMED = 5
_FAR = 10


@dataclass(slots=True)
class Least:
    """The smallest plan seen, its bytes over the step, and what every plan holds at least at its peak."""

    solution: Solution
    memory: np.ndarray
    bound: float

    @property
    def peak(self) -> float:
        """The bytes that the smallest plan seen holds at most."""
        return float(self.memory.max(initial=0.0))


@dataclass(slots=True)
class Smallest:
    """The search for the smallest peak of one problem."""

    goal: Goal
    at: Callable[[int], CostGraph]
    least: float = 0.0
    """What every plan is known to hold at its peak at least."""
    _costless: CostGraph | None = field(default=None)
    feasible: Feasible = field(init=False)

    def __post_init__(self) -> None:
        self.feasible = Feasible(self.goal.problem, self.goal.footprint)

    def holding_least(self, weights: dict[int, float], unit: float, budget: Budget) -> Solution | None:
        """The plan that holds the least at weighted points, in ``unit`` bytes, as far as found in the budget."""
        self._costless = self._costless or costless(self.goal.problem)
        # Bytes as parts of what a plan holds: small beside what is impossible.
        prices = [(w / unit, self.at(t)) for t, w in weights.items() if w > 0]
        return solve(penalised(self._costless, prices), 1e-3, budget)

    def run(self, first: Sequence[tuple[Solution, np.ndarray]], enough: float = 0.0) -> Least:
        """The smallest plan, given some to start from; one of at most ``enough`` bytes will do."""
        seen = list(first)
        unit = max(float(min(m.max(initial=1.0) for _, m in seen)), 1.0)
        bound, centre = self.least, {}
        seconds = _SECONDS_FOR_ANY if enough else _SECONDS
        budget = self.goal.budget.some(seconds)
        points: list[int] = []
        gaps: list[float] = []
        for round_number in range(_ROUNDS):
            best = min(seen, key=lambda x: float(x[1].max()))
            peak = float(best[1].max())
            gaps.append(peak - bound)
            if len(gaps) > _STALLED and gaps[-_STALLED - 1] - gaps[-1] < 1e-3 * peak:
                break
            if peak <= max(enough, bound * (1 + CLOSE)) or budget.over:
                break
            self.goal.progress(f"finding the smallest memory limit, round {round_number + 1}")
            points = sorted({*points, *(int(m.argmax()) for _, m in seen[-2:])})
            held = np.array([m[points] for _, m in seen]) / unit
            weights, promised = _next(held, np.array([centre.get(t, 0.0) for t in points]), bound / unit)
            weighted = dict(zip(points, weights.tolist(), strict=True))
            solution = self.holding_least(weighted, unit, budget.some(_ROUND_PART * seconds))
            if solution is None:
                break
            if solution.bound * unit > bound:
                bound = solution.bound * unit
                centre = weighted
            memory = self.goal.footprint.over_time(solution.choice)
            known = any(np.array_equal(m, memory) for _, m in seen)
            if known and int(memory.argmax()) in points and promised * unit <= bound * (1 + 1e-6):
                break
            seen.append((solution, memory))
        if not enough:
            bound = self._lower(seen, bound)
        solution, memory = self.mixed(seen, points, bound, enough)
        self.least = bound
        return Least(solution, memory, min(bound, float(memory.max(initial=0.0))))

    def _lower(self, seen: list[tuple[Solution, np.ndarray]], bound: float) -> float:
        """Add plans that hold less than those seen; the bound."""
        budget = self.goal.budget.some(_LOWER_SECONDS)

        def meet(choice: Sequence[int]) -> None:
            seen.append((replace(seen[0][0], choice=tuple(choice)), self.goal.footprint.over_time(choice)))

        for part in _DOWN:
            peak = min(float(memory.max()) for _, memory in seen)
            if budget.over or peak <= bound * (1 + CLOSE):
                break
            self.goal.progress("finding the smallest memory limit, lower")
            bound = self.feasible.lower(peak, bound, part, budget, meet)
        return bound

    def nearest(self, known: Sequence[tuple[Solution, np.ndarray]]) -> Least:
        """The smallest plan: of those known, or found from them where that is to be told."""
        if self.goal.tell_smallest:
            return self.run(known)
        return Least(*min(known, key=lambda x: float(x[1].max(initial=0.0))), self.least)

    def mixed(
        self, seen: Sequence[tuple[Solution, np.ndarray]], points: Sequence[int], lowest: float, enough: float
    ) -> tuple[Solution, np.ndarray]:
        """The smallest of the plans seen, and of what the smallest few choose, mixed node by node.

        Weights alone find the corners: plans that hold little at one point and much at another. So the limit for a mix
        holds all over the step. It goes half the way to ``lowest`` each time that one is found; ``enough`` will do.
        """
        seen = sorted(seen, key=lambda x: float(x[1].max()))
        best = seen[0]
        over = np.array_split(np.max([m for _, m in seen[:_MIXED]], axis=0), _PARTS)
        ends = np.cumsum([0, *(len(part) for part in over)])
        at = {*points, *(int(end + part.argmax()) for end, part in zip(ends, over, strict=False) if len(part))}
        budget = self.goal.budget.some(_MIX_SECONDS)
        look = LOOK_WORK * (len(self.goal.problem.nodes) + len(self.goal.problem.edges))
        few: dict[int, CostGraph] = {}
        choices, problem = None, self.goal.problem
        while (peak := float(best[1].max())) > max(enough, lowest * (1 + CLOSE)):
            if choices is None:  # the best plan's are among them
                choices = chosen([s.choice for s, _ in [best, *seen[:_MIXED]]])
                few, problem = {}, choices.of(self.goal.problem)
                budget.spend(look)
            target = enough if enough > lowest else 0.5 * (lowest + peak)
            if budget.over:
                break
            new = [t for t in at if t not in few]
            few |= {t: choices.of(self.at(t)) for t in new}
            budget.spend(look * (len(new) + len(at)))
            mixed = solve_within(problem, [(few[t], target) for t in at], 1.0, budget)
            if mixed is None:
                lowest = target
                if target == enough:
                    break
                continue
            choice = choices.widen(mixed.choice)
            memory = self.goal.footprint.over_time(choice)
            at.add(int(memory.argmax()))
            seen.append((replace(best[0], choice=choice), memory))
            if memory.max() < peak:
                best, choices = seen[-1], None
        return best


def _next(held: np.ndarray, centre: np.ndarray, bound: float) -> tuple[np.ndarray, float]:
    """The weights nearest to ``centre`` under which every plan seen holds enough, half-way from bound to promise;
    and that promise."""
    none = np.zeros(len(held))
    straight, promised = largest(none, held, 1.0, total=1.0)
    level = bound + LEVEL * (promised - bound) if centre.any() else promised * (1 - 1e-9)
    weights = nearest(none, held, level, centre, 1.0, total=1.0)
    if weights is None:
        weights = np.full(len(centre), 1.0 / len(centre)) if straight is None else straight
    return weights, promised


def too_small(limit: float, least: Least, footprint: FootprintLike) -> TooSmall:
    """The error for a limit that no plan was found for."""
    short = least.peak - limit
    part = f" ({short / limit:.1%})" if short < _FAR * limit else ""
    most = _most(least, footprint)

    def told(bound: float) -> str:
        proof = (
            f"every plan holds at least {_bytes(bound)}"
            if bound > limit
            else f"that none does is not proven{f' (the bound is {_bytes(bound)})' if bound > 0 else ''}"
        )
        return (
            f"no plan was found that fits into a memory limit of {_bytes(limit)} per device; the smallest that one "
            f"does is {_bytes(least.peak)}, {bytes_text(short)}{part} more; {proof}. {most}"
            f"Raise memory_limit to {least.peak:.0f}, use more devices, a smaller batch, or rematerialisation "
            "(remat='auto', jax.checkpoint)"
        )

    return TooSmall(told(least.bound), least.peak, least.bound, told)


def out_of_time(limit: float, smallest: float) -> OutOfTime:
    """The error where no plan was found before the budget was over."""
    return OutOfTime(
        f"no plan was found in time that fits into a memory limit of {limit:.0f} bytes per device; the smallest seen "
        f'holds {smallest:.0f}. Raise memory_limit, or search longer (time_limit, effort="thorough")',
        smallest,
    )


def _most(least: Least, footprint: FootprintLike) -> str:
    held = holdings(footprint, least.solution.choice, int(least.memory.argmax()))
    if not held:
        return ""
    total = max(sum(h.bytes for h in held), 1.0)
    lines = [
        f"  {bytes_text(h.bytes)} ({h.bytes / total:.0%}) {h.words}{f', {h.count} arrays' if h.count > 1 else ''}"
        for h in held[:_NAMED]
    ]
    return "That plan's peak is held by\n" + "\n".join(lines) + f"\nand {max(len(held) - _NAMED, 0)} smaller kinds. "


def _bytes(n: float) -> str:
    return f"{n:.0f} bytes ({bytes_text(n)})" if n >= 1024 else bytes_text(n)
