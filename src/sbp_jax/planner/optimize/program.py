"""The kernel as a 0-1 program, solved by HiGHS to a proven optimum, or to the gap or time asked for.

A binary for each choice of each node; for each edge a transport problem between the two nodes' choices, whose
rows and columns that cost the same are one. The linear relaxation comes first, without presolve: on large models
it is usually whole already (measured: 12-layer GPT on 2x4, 170,000 columns, 0.35 s; presolve and branch-and-bound
from scratch 3 s). Where it is not, branch-and-bound starts from a rounded and locally improved choice, without
presolve too (tiny GPT on 2x4: 6 s against 40 s).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from ..budget import Budget
from ..costs.cost_graph import IMPOSSIBLE, CostGraph
from . import highs
from .arrays import equal_rows
from .bounds import consistent
from .closing import Closing
from .presolve import Presolved, without_presolve
from .sums import dot

# Random roundings of a relaxation for a first plan: where branching begins with it, where it is all that is asked.
_ROUNDINGS = 20
_FEW_ROUNDINGS = 4
# A relaxation is whole up to HiGHS's default for integers (``mip_feasibility_tolerance``).
_TOLERANCE = 1e-6
# Kernels of fewer pairs of choices go to the 0-1 program at once.
_SMALL = 60_000


@dataclass(frozen=True, slots=True)
class Solution:
    """The choice for each node of the problem; objective and proven lower bound, in seconds a step.

    ``timed_out``: the budget was over before the linear relaxation was solved, the choice is only improved locally.
    ``seen``: the plans met on the way.
    """

    choice: tuple[int, ...]
    objective: float
    bound: float
    kernel_nodes: int
    variables: int
    timed_out: bool = False
    seen: tuple[Sequence[int], ...] = ()


def solve(
    problem: CostGraph, gap: float = 0.0, budget: Budget | None = None, guesses: Iterable[Sequence[int]] = (),
    relaxed: bool = False, enough: float = math.inf,
) -> Solution | None:  # fmt: skip
    """The best choice, or None when every choice is impossible. ``guesses`` are plans that may be good.

    ``relaxed``: no branching; what the linear relaxation leaves open is between the bound and a rounded choice.
    ``enough``: a bound of so much ends the search.

    When the budget (None: no limit) is over there is still a choice (the relaxation rounded, or a first guess, improved
    locally) and a bound, if a weak one; None also where that choice is impossible.
    """
    budget = budget or Budget()
    r = without_presolve(problem)
    r.shrink_for_bounds(budget)
    size = len(r.nodes)

    def exact(kernel: Presolved, some: Budget) -> tuple[dict[int, int] | None, float]:
        return _Program(kernel).solve(gap, some)

    closing = Closing(
        problem.evaluate, improve, None if relaxed else exact, gap, budget, bound=r.floor(), enough=enough
    )
    for guess in guesses:
        closing.offer(list(guess))
    if not consistent(r):
        return None
    closing.offer(r.expand(improve(r, {n: int(c.argmin()) for n, c in r.nodes.items()})))
    closing.run(r, _SMALL)
    variables, timed_out = 0, False
    if not closing.done:
        timed_out = True
        if not budget.over:
            program = _Program(r)
            chosen, proven = program.solve(gap, budget, branch=not relaxed)
            variables = len(program.cost)
            # What is struck costs more than the best plan.
            closing.bound = max(closing.bound, min(proven + r.constant, closing.objective))
            if chosen is not None:
                timed_out = False
                closing.offer(r.expand(chosen))
    if closing.choice is None:
        return None
    choice, objective = tuple(closing.choice), closing.objective
    return Solution(choice, objective, min(objective, closing.bound), size, variables, timed_out, tuple(closing.seen))


def solve_within(
    problem: CostGraph, limits: Sequence[tuple[CostGraph, float]], gap: float, budget: Budget,
    guess: Sequence[int] | None = None,
) -> Solution | None:  # fmt: skip
    """The best choice of which each of other totals (of the same nodes and choices) is at most its limit; or None.

    ``guess``: a choice that keeps to the limits.

    Nothing is reduced but nodes of one choice, for reductions are exact for costs only: for problems of a few thousand
    choices.
    """
    r, totals = _limited(problem, limits)
    if not r.nodes:  # one plan is left
        fits = r.constant < IMPOSSIBLE and all(t.constant <= t.limit for t in totals)
        only = (0,) * len(problem.nodes)
        return Solution(only, r.constant, r.constant, 0, 0) if fits else None
    program = _Program(r, totals)
    found = program.branch_within(gap, budget, guess)
    if found is None:
        return None
    chosen, bound = found
    choice = tuple(chosen.get(n, 0) for n in range(len(problem.nodes)))
    objective = problem.evaluate(choice)
    if objective >= IMPOSSIBLE:
        return None
    return Solution(choice, objective, min(bound, objective), len(r.nodes), len(program.cost))


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The linear relaxation of a problem within limits: by limit what a unit less of it would cost, by node the choices
    that it takes a part of, and its largest parts as a choice."""

    prices: tuple[float, ...]
    parts: list[np.ndarray]
    choice: tuple[int, ...]


def relax_within(problem: CostGraph, limits: Sequence[tuple[CostGraph, float]], budget: Budget) -> Relaxation | None:
    """The relaxation of ``solve_within``; None where it has no solution, or the budget was over before that."""
    r, totals = _limited(problem, limits)
    if not r.nodes:
        return None
    program = _Program(r, totals)
    scale = program.scale
    solver = program.model(scale)
    if not highs.run(solver, budget, branching=False):
        return None
    if solver.getModelStatus() != highs.highspy().HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    duals = np.asarray(solution.row_dual)[len(program.right) - len(totals) :]
    prices = np.maximum(0.0, -duals) / scale / np.array([t.unit for t in totals])
    x = np.asarray(solution.col_value)
    parts = [np.zeros(1, int)] * len(problem.nodes)
    for n, o in program.offsets.items():
        parts[n] = np.flatnonzero(x[o : o + len(r.nodes[n])] > _TOLERANCE)
    chosen = program.read(x)
    return Relaxation(tuple(prices.tolist()), parts, tuple(chosen.get(n, 0) for n in range(len(problem.nodes))))


def _limited(problem: CostGraph, limits: Sequence[tuple[CostGraph, float]]) -> tuple[Presolved, list["_Total"]]:
    """A problem without its nodes of one choice, and its other totals."""
    free = [n for n, c in enumerate(problem.nodes) if len(c) > 1]
    nodes, edges, constant = _settled(problem, free)
    totals = [_Total(*_settled(other, free), limit) for other, limit in limits]
    for total in totals:  # a total may have edges where there are no costs
        for pair, m in total.edges.items():
            edges.setdefault(pair, np.zeros(m.shape))
    return Presolved(nodes, edges, [np.arange(len(c)) for c in problem.nodes], constant), totals


@dataclass(frozen=True, slots=True)
class _Total:
    """Another total of the same choices, at most ``limit``."""

    nodes: dict[int, np.ndarray]
    edges: dict[tuple[int, int], np.ndarray]
    constant: float
    limit: float

    @property
    def unit(self) -> float:
        """What its row counts in: parts of the limit."""
        return max(self.limit, 1e-12)


def _settled(
    problem: CostGraph, free: Sequence[int]
) -> tuple[dict[int, np.ndarray], dict[tuple[int, int], np.ndarray], float]:
    """Costs of the ``free`` nodes, their edges, and a constant: all other nodes have one choice."""
    nodes = {n: problem.nodes[n].copy() for n in free}
    edges: dict[tuple[int, int], np.ndarray] = {}
    constant = sum(float(c[0]) for n, c in enumerate(problem.nodes) if n not in nodes)
    for (a, b), m in problem.edges.items():
        if a in nodes and b in nodes:
            edges[a, b] = m
        elif a in nodes:
            nodes[a] += m[:, 0]
        elif b in nodes:
            nodes[b] += m[0]
        else:
            constant += float(m[0, 0])
    return nodes, edges, constant


class _Program:
    """The kernel's columns and rows. Columns: each node's choices, then each edge's pairs of groups.

    The last rows, one for each of ``limits``, are at most their right sides; all others are equal to them.
    """

    def __init__(self, r: Presolved, limits: Sequence[_Total] = ()) -> None:
        self.r, self.n_limits = r, len(limits)
        self.offsets: dict[int, int] = {}
        n = 0
        for node, c in r.nodes.items():
            self.offsets[node] = n
            n += len(c)
        self.binaries = n
        cost = [np.concatenate(list(r.nodes.values()))] if n else [np.zeros(0)]
        rows, columns, values, right = [], [], [], []

        def add(cols: np.ndarray, vals: np.ndarray, rhs: float) -> None:
            rows.append(np.full(len(cols), len(right)))
            columns.append(cols)
            values.append(vals)
            right.append(rhs)

        for node, c in r.nodes.items():
            add(self.offsets[node] + np.arange(len(c)), np.ones(len(c)), 1.0)
        totals: list[list[tuple[np.ndarray, np.ndarray]]] = [
            [(self.offsets[node] + np.arange(len(c)), c) for node, c in other.nodes.items()] for other in limits
        ]
        for (a, b), m in r.edges.items():
            others = [other.edges.get((a, b), np.zeros(m.shape)) for other in limits]
            groups_a, first_a = equal_rows(np.concatenate([m, *others], axis=1))
            groups_b, first_b = equal_rows(np.concatenate([m.T, *(x.T for x in others)], axis=1))
            small = m[first_a[:, None], first_b]
            y = n + np.arange(small.size).reshape(small.shape)
            cost.append(small.ravel())
            n += small.size
            for total, x in zip(totals, others, strict=True):
                total.append((y.ravel(), x[first_a[:, None], first_b].ravel()))
            for node, groups, lines in ((a, groups_a, y), (b, groups_b, y.T)):
                first_row = len(right)
                rows += [first_row + np.repeat(np.arange(len(lines)), lines.size // len(lines)), first_row + groups]
                columns += [lines.ravel(), self.offsets[node] + np.arange(len(groups))]
                values += [np.ones(lines.size), -np.ones(len(groups))]
                right += [0.0] * len(lines)
        for total, other in zip(totals, limits, strict=True):
            columns_of, held = zip(*total, strict=True) if total else ((np.zeros(0, int),), (np.zeros(0),))
            free = (other.limit - other.constant) / other.unit
            add(np.concatenate(columns_of), np.concatenate(held) / other.unit, free)
        self.cost = np.concatenate(cost)
        self.right = np.asarray(right)
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))) if rows else ([], ([], []))
        self.matrix = sparse.csc_matrix(entries, shape=(len(right), n))

    @property
    def scale(self) -> float:
        """Seconds are small numbers and the solver's tolerances absolute: the total is brought to thousands."""
        possible = self.cost[(self.cost > 0) & (self.cost < IMPOSSIBLE / 2)]
        return 1000.0 / max(float(np.median(possible)) * len(self.r.nodes), 1e-12) if len(possible) else 1.0

    def solve(self, gap: float, budget: Budget, branch: bool = True) -> tuple[dict[int, int] | None, float]:
        """The choice of each node of the kernel, and a lower bound without the constant.

        No choice where the budget is over before the relaxation is solved.
        """
        if not self.binaries:
            return {}, 0.0
        scale = self.scale
        solver, status = self.model(scale), highs.highspy().HighsModelStatus
        solver.setOptionValue("presolve", "off")
        if not highs.run(solver, budget, branching=False):
            return None, -math.inf
        if solver.getModelStatus() in (status.kTimeLimit, status.kIterationLimit):
            return None, self._bound_of_duals(solver, scale)
        if solver.getModelStatus() != status.kOptimal:
            return dict.fromkeys(self.r.nodes, 0), math.inf
        x = np.asarray(solver.getSolution().col_value)[: self.binaries]
        relaxed = solver.getInfo().objective_function_value / scale
        if np.minimum(x, 1 - x).max() < _TOLERANCE:
            return self.read(x), relaxed
        start = self._round(x, _ROUNDINGS if branch else _FEW_ROUNDINGS)
        # The gap is a part of all seconds.
        cost = self.r.value(start)
        if not branch or budget.closes(cost, relaxed + self.r.constant, gap):
            return start, relaxed
        best, bound = self._branch(solver, start, scale, gap, budget)
        return best, max(bound, relaxed)

    def branch_within(
        self, gap: float, budget: Budget, guess: Sequence[int] | None
    ) -> tuple[dict[int, int], float] | None:
        """The best choice within the limits, and a lower bound with the constant; None where the budget was over
        before one was found.
        """
        scale = self.scale
        solver = self.model(scale)
        if guess is not None:
            self._start(solver, {n: guess[n] for n in self.offsets})
        found = self._run_with_binaries(solver, scale, gap, budget)
        return None if found is None or found[0] is None else (found[0], found[1] + self.r.constant)

    def _run_with_binaries(
        self, solver: Any, scale: float, gap: float, budget: Budget
    ) -> tuple[dict[int, int] | None, float] | None:
        """The choice found, if any, and the bound without the constant; None where the budget was over already."""
        kinds = np.full(self.binaries, highs.highspy().HighsVarType.kInteger)
        solver.changeColsIntegrality(self.binaries, np.arange(self.binaries, dtype=np.int32), kinds)
        solver.changeObjectiveOffset(self.r.constant * scale)  # the gap is a part of all seconds
        solver.setOptionValue("mip_rel_gap", max(gap, budget.small_gap))
        if not highs.run(solver, budget, branching=True):
            return None
        x = np.asarray(solver.getSolution().col_value)[: self.binaries]
        found = self.read(x) if len(x) and solver.getInfo().primal_solution_status == 2 else None
        return found, solver.getInfo().mip_dual_bound / scale - self.r.constant

    def model(self, scale: float) -> Any:
        """The relaxation in HiGHS, seconds times ``scale``."""
        highspy = highs.highspy()
        n = len(self.cost)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = n, len(self.right)
        possible = self.cost < IMPOSSIBLE / 2
        lp.col_cost_ = np.where(possible, self.cost * scale, 0.0)
        lp.col_lower_ = np.zeros(n)
        lp.col_upper_ = np.where(possible, 1.0, 0.0)
        lp.row_upper_ = self.right
        lower = self.right.copy()
        lower[len(lower) - self.n_limits :] = -highspy.kHighsInf
        lp.row_lower_ = lower
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = self.matrix.indptr  # pyright: ignore[reportAttributeAccessIssue]
        lp.a_matrix_.index_ = self.matrix.indices  # pyright: ignore[reportAttributeAccessIssue]
        lp.a_matrix_.value_ = self.matrix.data  # pyright: ignore[reportAttributeAccessIssue]
        solver = highs.new()
        solver.passModel(lp)
        return solver

    def _branch(
        self, solver: Any, start: dict[int, int], scale: float, gap: float, budget: Budget
    ) -> tuple[dict[int, int], float]:
        self._start(solver, start)
        found = self._run_with_binaries(solver, scale, gap, budget)
        if found is None or found[0] is None:
            return start, -math.inf if found is None else found[1]
        return min(found[0], start, key=self.r.value), found[1]

    def _start(self, solver: Any, choice: dict[int, int]) -> None:
        columns = np.array([self.offsets[n] + k for n, k in choice.items()], dtype=np.int32)
        solver.setSolution(len(columns), columns, np.ones(len(columns)))

    def _bound_of_duals(self, solver: Any, scale: float) -> float:
        """What the row duals at hand prove: with any of them, each column at the better of its bounds is a bound."""
        y = np.asarray(solver.getSolution().row_dual)
        if len(y) != len(self.right):
            return -math.inf
        possible = self.cost < IMPOSSIBLE / 2
        reduced = np.where(possible, self.cost * scale - self.matrix.T.dot(y), 0.0)
        return float(dot(y, self.right) + np.minimum(reduced, 0.0).sum()) / scale

    def read(self, x: np.ndarray) -> dict[int, int]:
        """The choices of the largest parts."""
        return {n: int(np.argmax(x[o : o + len(self.r.nodes[n])])) for n, o in self.offsets.items()}

    def _round(self, x: np.ndarray, times: int) -> dict[int, int]:
        """The best of several roundings of the relaxation, each improved one node at a time."""
        random = np.random.default_rng(0)
        best = improve(self.r, self.read(x))
        for _ in range(times):
            draw = {}
            for n, o in self.offsets.items():
                p = np.clip(x[o : o + len(self.r.nodes[n])], 0, None)
                draw[n] = int(random.choice(len(p), p=p / p.sum()))
            best = min(best, improve(self.r, draw), key=self.r.value)
        return best


def improve(r: Presolved, choice: dict[int, int]) -> dict[int, int]:
    """Change one node of a kernel at a time to its best answer to its neighbours, until nothing is gained."""
    pending = dict.fromkeys(r.nodes)
    while pending:
        n = next(iter(pending))
        del pending[n]
        cost = r.nodes[n].copy()
        for a in r.around[n]:
            cost += r.matrix(n, a)[:, choice[a]]
        k = int(cost.argmin())
        if cost[k] < cost[choice[n]] - 1e-15:
            choice[n] = k
            pending.update(dict.fromkeys(r.around[n]))
    return choice
