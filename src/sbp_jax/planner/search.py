"""The search for the cheapest plan that fits: solve; where memory is short, price it, and solve again.

Memory is a constraint at every point of the step. The points where plans overflow get a price for each byte
(Lagrange multipliers), found by Kelley's cutting planes: the prices that make the plans seen so far cost most are
the next to try (Kelley, J. SIAM 8(4), 1960; Geoffrion, Math. Prog. Study 2, 1974). Each solution under prices,
less the prices of what is allowed, is a proven lower bound for every plan that fits. Beyond a few thousand pairs of
choices the next prices are the nearest to the best ones that promise enough (a level method, ``least.py``), and
plans that overflow are brought within the limit one node at a time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import optimize

from ..errors import PlanError
from .least import Least, Smallest
from .memory import Footprint, penalised
from .problem import IMPOSSIBLE, Problem
from .reduce import Reduction, unreduced
from .shortage import too_small
from .solve import Solution, solve, solve_within

_ROUNDS = 40
_MOST_PAIRS = 200_000
# Beyond a few thousand pairs of choices prices are tried to a small gap, in seconds: a round is a step, not a result,
# and what its program leaves open is in its bound.
_FEW_PAIRS = 2_000
_ROUND_GAP = 1e-3
_ROUND_SECONDS = 4.0
_EXACT_SECONDS = 20.0
# Of the processor, not the clock: what is found does not hang on what else a machine does.
_FIT_SECONDS = 4.0
_LEVEL = 0.5
_PROMISE = 1.2
_GUESSES = 4
_MENDINGS = 6


@dataclass(frozen=True, slots=True)
class Found:
    """The solution (its choice is the plan), its seconds a step without prices, and the bound proven for them."""

    solution: Solution
    seconds: float
    bound: float


@dataclass(slots=True)
class Search:
    """One planning problem, with and without a memory limit."""

    problem: Problem
    footprint: Footprint
    gap: float
    time_limit: float | None
    progress: Callable[[str], None]
    _at: dict[int, Problem] = field(default_factory=dict)
    _most_bytes: float = 1.0

    def run(self, limit: float | None) -> Found | None:
        """The cheapest plan within ``limit`` bytes a device; None where pins allow no plan at all.

        Raises ``PlanError`` with the smallest limit found possible, where ``limit`` is less.
        """
        solution = solve(self.problem, self.gap, self.time_limit)
        if solution is None:
            return None
        found = Found(solution, solution.objective, solution.bound)
        memory = self.footprint.over_time(solution.choice)
        if limit is None or memory.max(initial=0.0) <= limit:
            return found
        return self._fit(limit, found, memory)

    def _bytes_at(self, point: int) -> Problem:
        if point not in self._at:
            self._at[point] = self.footprint.at(point)
        return self._at[point]

    def _effort(self, gap: float, seconds: float) -> tuple[float, float | None]:
        """The gap to stop at and the seconds to take: all that it takes where the problem is small."""
        if self._pairs <= _FEW_PAIRS:
            return self.gap, self.time_limit
        seconds = max(seconds, 1.0)
        return max(self.gap, gap), seconds if self.time_limit is None else min(seconds, self.time_limit)

    @property
    def _pairs(self) -> int:
        return sum(m.size for m in self.problem.edges.values())

    def _fit(self, limit: float, first: Found, memory: np.ndarray) -> Found:
        points = [int(memory.argmax())]
        self._most_bytes = float(memory.max())
        seen = [(first.seconds, memory)]
        good: list[tuple[Sequence[int], float]] = [(first.solution.choice, first.seconds)]
        best: Found | None = None
        solution, bound = first.solution, first.bound
        smallest = Smallest(self.problem, self.footprint, self._bytes_at, self.time_limit, self.progress)
        lowest = smallest.holding_least({points[0]: 1.0}, self._most_bytes)
        if lowest is not None:
            profile = self.footprint.over_time(lowest.choice)
            if self._pairs > _FEW_PAIRS:
                seen.append((self.problem.evaluate(lowest.choice), profile))
            if profile[points[0]] > limit * (1 + 1e-6):  # nothing can fit: what comes nearest?
                raise self._short(limit, smallest.run([(first.solution, memory), (lowest, profile)]))
        # Without prices there is a bound already.
        centre: dict[int, float] = {points[0]: 0.0}
        start = time.process_time()
        for round_number in range(_ROUNDS):
            prices, ceiling = _master(seen, points, limit)
            small = self._pairs <= _FEW_PAIRS
            if not small and best is not None:
                ceiling = min(ceiling, best.seconds)
            if not small and (
                ceiling - bound <= _ROUND_GAP * abs(ceiling) or time.process_time() - start > self._fit_seconds()
            ):
                break
            if not small:
                level = bound + _LEVEL * (min(ceiling, _PROMISE * bound) - bound)
                prices = _nearer(seen, points, limit, centre, level, prices)
            self.progress(f"fitting into memory, round {round_number + 1}")
            priced = penalised(self.problem, [(p, self._bytes_at(t)) for p, t in zip(prices, points, strict=True)])
            tried = [s for s, _ in good[-_GUESSES:]]
            priced_solution = solve(priced, *self._effort(_ROUND_GAP, _ROUND_SECONDS), tried)
            if priced_solution is None:
                break
            solution = priced_solution
            memory = self.footprint.over_time(solution.choice)
            proven = solution.bound - float(np.dot(prices, np.full(len(points), limit)))
            if proven > bound:
                centre = dict(zip(points, prices.tolist(), strict=True))
            bound = max(bound, proven)
            seconds = self.problem.evaluate(solution.choice)
            known = any(abs(c - seconds) < 1e-15 and np.array_equal(m, memory) for c, m in seen)
            seen.append((seconds, memory))
            good.append((solution.choice, seconds))
            if not small and memory.max(initial=0.0) > limit:
                # A plan that overflows a little is brought within the limit, one node at a time.
                points = sorted({*points, int(memory.argmax())})
                mended = self._mended(solution.choice, points, limit)
                if mended is not None:
                    cost, held = self.problem.evaluate(mended), self.footprint.over_time(mended)
                    seen.append((cost, held))
                    good.append((mended, cost))
                    if held.max(initial=0.0) <= limit and (best is None or cost < best.seconds):
                        best = Found(replace(solution, choice=mended, objective=cost, bound=bound), cost, bound)
                    elif int(held.argmax()) not in points:
                        points.append(int(held.argmax()))
                continue
            if memory.max(initial=0.0) <= limit:
                if best is None or seconds < best.seconds:
                    best = Found(solution, seconds, bound)
            elif int(memory.argmax()) not in points:
                points.append(int(memory.argmax()))
                continue
            if best is not None and (best.seconds - bound <= 1e-6 * best.seconds or (known and small)):
                break
            if small and known and ceiling - bound <= 1e-9 * abs(ceiling):
                break
        best = best and Found(best.solution, best.seconds, bound)
        if best is None:
            least = smallest.run([(first.solution, seen[0][1]), (solution, memory)], limit)
            if least.peak <= limit:
                best = Found(least.solution, self.problem.evaluate(least.solution.choice), bound)
        if best is None or best.seconds - bound > self.gap * best.seconds + 1e-12:
            best = self._exact(limit, points, best, bound)
        if best is None:
            raise self._short(limit, smallest.run([(first.solution, seen[0][1]), (solution, memory)]))
        return Found(best.solution, best.seconds, min(best.bound, best.seconds))

    def _fit_seconds(self) -> float:
        return _FIT_SECONDS if self.time_limit is None else min(_FIT_SECONDS, 0.5 * self.time_limit)

    def _mended(self, choice: Sequence[int], points: Sequence[int], limit: float) -> tuple[int, ...] | None:
        """A plan near another that holds no more than ``limit`` at the points; None where changing single nodes fails.

        First whatever lowers the bytes beyond the limit at the least seconds, then what saves seconds within it.
        """
        base, now = unreduced(self.problem), list(choice)
        bytes_at = [unreduced(self._bytes_at(t)) for t in points]
        held = np.array([self._bytes_at(t).evaluate(now) for t in points])
        for _ in range(_MENDINGS):
            changed = False
            for n in base.nodes:
                if len(base.nodes[n]) == 1:
                    continue
                k = now[n]
                cost = _beside(base, n, now)
                cost -= cost[k]
                more = np.array([_beside(x, n, now) for x in bytes_at])
                after = held[:, None] + more - more[:, k : k + 1]
                beyond = np.maximum(after - limit, 0.0).sum(axis=0)
                fits = beyond <= 0
                if fits[k]:
                    best = int(np.where(fits, cost, np.inf).argmin())
                    better = cost[best] < -1e-12
                else:
                    saved = beyond[k] - beyond
                    rate = np.where(
                        (saved > 1.0) & (cost < IMPOSSIBLE / 2), np.maximum(cost, 0.0) / np.maximum(saved, 1.0), np.inf
                    )
                    best = int(rate.argmin())
                    better = bool(np.isfinite(rate[best]))
                if better and best != k:
                    now[n], held, changed = best, after[:, best], True
            if not changed:
                break
        return tuple(now) if (held <= limit).all() else None

    def _exact(self, limit: float, points: Sequence[int], best: Found | None, bound: float) -> Found | None:
        """What prices leave open, closed where the problem is small: limits at the points as rows of the program."""
        best = best and Found(best.solution, best.seconds, bound)
        if self._pairs > _MOST_PAIRS:
            return best
        points, start = list(points), time.perf_counter()
        for _ in range(_ROUNDS):
            self.progress(f"fitting into memory exactly, {len(points)} points")
            limits = [(self._bytes_at(t), limit) for t in points]
            effort = self._effort(_ROUND_GAP, _EXACT_SECONDS - (time.perf_counter() - start))
            solution = solve_within(self.problem, limits, *effort)
            if solution is None:
                return best
            bound = max(bound, solution.bound)
            memory = self.footprint.over_time(solution.choice)
            if memory.max(initial=0.0) <= limit:
                if best is None or solution.objective < best.seconds:
                    best = Found(solution, solution.objective, bound)
                return Found(best.solution, best.seconds, bound)
            best = best and Found(best.solution, best.seconds, bound)
            points.append(int(memory.argmax()))
        return best

    def _short(self, limit: float, least: Least) -> PlanError:
        return PlanError(too_small(limit, least, self.footprint))


def _beside(r: Reduction, n: int, choice: Sequence[int]) -> np.ndarray:
    """What each choice of a node costs beside the others as they are."""
    cost = r.nodes[n].copy()
    for a in r.around[n]:
        cost += r.matrix(n, a)[:, choice[a]]
    return cost


def _nearer(
    seen: Sequence[tuple[float, np.ndarray]], points: Sequence[int], limit: float, centre: dict[int, float],
    level: float, otherwise: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The prices nearest to ``centre`` under which all plans seen cost ``level`` (a level method: see ``least.py``)."""
    n = len(points)
    mean = float(np.mean([c for c, _ in seen]))
    scale = limit / max(mean, 1e-12)
    rows = np.array([(m[points] - limit) / scale for _, m in seen])
    costs = np.array([c for c, _ in seen])
    middle = np.array([centre.get(t, 0.0) for t in points]) * scale
    result = optimize.linprog(
        np.r_[np.zeros(n), np.ones(n)],
        A_ub=np.block([
            [-rows, np.zeros_like(rows)],
            [np.eye(n), -np.eye(n)],
            [-np.eye(n), -np.eye(n)],
        ]),
        b_ub=np.r_[costs - level, middle, -middle], bounds=[(0.0, 100.0)] * n + [(0.0, None)] * n, method="highs",
    )  # fmt: skip
    return otherwise if result.x is None else np.maximum(result.x[:n], 0.0) / scale


def _master(seen: Sequence[tuple[float, np.ndarray]], points: Sequence[int], limit: float) -> tuple[np.ndarray, float]:
    """Prices that make the cheapest plan seen as dear as possible, and that cost: a concave piecewise maximum."""
    n = len(points)
    mean = float(np.mean([c for c, _ in seen]))
    scale = limit / max(mean, 1e-12)  # prices in units of seconds per byte around mean / limit
    # maximise z subject to z <= cost_k + sum_t price_t (mem_kt - limit), prices in [0, cap]
    rows = np.array([[*((limit - m[points]) / scale), 1.0] for _, m in seen])
    costs = np.array([c for c, _ in seen])
    cap = 100.0
    result = optimize.linprog(
        np.r_[np.zeros(n), -1.0], A_ub=rows, b_ub=costs, bounds=[(0.0, cap)] * n + [(None, None)], method="highs"
    )
    return result.x[:n] / scale, float(result.x[n])
