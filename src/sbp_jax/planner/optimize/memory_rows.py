"""A kernel as a program for HiGHS: a binary for each choice, a transport problem for each edge, memory rows on demand.

A memory row is added for a point where a solution exceeds the limit: a few rows decide, all others are implied (22 of
20,000 on a problem with 35,000 nodes). The dual values of the rows are prices.
"""

import itertools
import math
from typing import Any

import numpy as np
from scipy import sparse

from ..budget import Budget
from . import highs
from .arrays import Flat, equal_rows, peaks
from .sums import dot

# So many rows are added at once, this part of all points apart.
_ROWS_AT_ONCE = 20
_APART = 400
# A point exceeds the limit by more than this part of it: HiGHS's default for the rows of programs with binaries
# (``mip_feasibility_tolerance``), and rows are parts of the limit.
_TOLERANCE = 1e-6
# Programs with binaries, each with more memory rows than the one before.
_MOST_BRANCHED = 20


class Program:
    """The linear relaxation, or the program with binaries, of a flat kernel."""

    def __init__(self, f: Flat) -> None:
        self.f = f
        highspy = highs.highspy()
        n = len(f.costs)
        sizes = f.sizes
        cost = [f.costs]
        rows, columns, values = [np.repeat(np.arange(len(sizes)), sizes)], [np.arange(n)], [np.ones(n)]
        n_rows, n_columns = len(sizes), n
        by_edge: dict[int, list[int]] = {}
        for k, (e, _, _, _) in enumerate(f.pair_tables):
            by_edge.setdefault(e, []).append(k)
        # Where the pair tables' bytes are: columns and bytes.
        self.pair_columns: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, int), np.zeros(0))] * len(f.pair_tables)
        for e, (i, j) in enumerate(f.ends.tolist()):
            m = f.matrices[e]
            others = [f.pair_tables[k][3] for k in by_edge.get(e, ())]
            group_i, first_i = equal_rows(np.concatenate([m, *others], axis=1))
            group_j, first_j = equal_rows(np.concatenate([m.T, *(u.T for u in others)], axis=1))
            small = m[first_i[:, None], first_j]
            at_i, at_j = np.nonzero(np.isfinite(small))
            new = n_columns + np.arange(len(at_i))
            cost.append(small[at_i, at_j])
            rows += [n_rows + at_i, n_rows + len(first_i) + at_j, n_rows + group_i, n_rows + len(first_i) + group_j]
            columns += [new, new, f.offsets[i] + np.arange(len(group_i)), f.offsets[j] + np.arange(len(group_j))]
            values += [np.ones(2 * len(new)), -np.ones(len(group_i) + len(group_j))]
            for k in by_edge.get(e, ()):
                self.pair_columns[k] = (new, f.pair_tables[k][3][first_i[:, None], first_j][at_i, at_j])
            n_columns += len(new)
            n_rows += len(first_i) + len(first_j)
        lower = np.zeros(n_rows)
        lower[: len(sizes)] = 1.0
        self.cost = np.concatenate(cost)
        largest = float(np.abs(self.cost).max(initial=0.0))
        # The solver's tolerances are absolute.
        self.scale = 10.0 ** (4 - math.floor(math.log10(largest))) if largest else 1.0
        matrix = sparse.csr_matrix(
            (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(n_rows, n_columns)
        )
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = n_columns, n_rows
        lp.col_cost_ = self.cost * self.scale
        lp.col_lower_, lp.col_upper_ = np.zeros(n_columns), np.ones(n_columns)
        lp.row_lower_, lp.row_upper_ = lower, lower
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data  # pyright: ignore[reportAttributeAccessIssue]
        self.highs: Any = highs.new()
        self.highs.passModel(lp)
        self.n_columns, self.n_rows = n_columns, n_rows
        self.unit_bytes = max(f.limit_bytes, 1.0)
        self.points: list[int] = []
        self.bound, self.is_optimal = -math.inf, False
        self.prices = np.zeros(len(f.base))

    def _profile(self, x: np.ndarray) -> np.ndarray:
        f = self.f
        held = np.bincount(f.entry_table, x[f.entry_choice] * f.table_bytes, len(f.table_node))
        pairs = np.array([float(dot(u, x[c])) for c, u in self.pair_columns])
        return f.profile_of(held, pairs)

    def _add_row(self, point: int) -> None:
        f = self.f
        row = np.zeros(self.n_columns)
        alive = (f.table_first <= point) & (point < f.table_end)
        entries = np.flatnonzero(alive[f.entry_table])
        np.add.at(row, f.entry_choice[entries], f.table_bytes[entries])
        for (_, first, end, _), (c, u) in zip(f.pair_tables, self.pair_columns, strict=True):
            if first <= point < end:
                np.add.at(row, c, u)
        at = np.flatnonzero(row)
        # The solver's tolerances are absolute: rows are parts of the limit.
        free = (f.limit_bytes - float(f.base[point])) / self.unit_bytes
        self.highs.addRow(-highs.highspy().kHighsInf, free, len(at), at.astype(np.int32), row[at] / self.unit_bytes)
        self.points.append(point)

    def add_rows(self, points: list[int]) -> None:
        """Add the memory rows of some points before solving."""
        for p in points:
            if p not in self.points:
                self._add_row(p)

    def _separate(self, profile: np.ndarray, most: int = _ROWS_AT_ONCE) -> bool:
        """Add rows at the highest points above the limit, apart from each other; False if there is none to add."""
        rest = profile.copy()
        rest[self.points] = -math.inf
        added = peaks(rest, self.f.limit_bytes * (1 + _TOLERANCE), most, len(profile) // _APART)
        for p in added:
            self._add_row(p)
        return bool(added)

    def relax(self, budget: Budget, most_rounds: int = 30) -> np.ndarray | None:
        """Solve the linear relaxation with the rows that it needs: parts of choices, or None where it was not solved.

        ``prices`` holds a price for each byte then, ``bound`` the optimum (without choices that were left out).
        """
        highspy = highs.highspy()
        x = None
        for _ in range(most_rounds):
            if not highs.run(self.highs, budget, branching=False):
                return x
            status = self.highs.getModelStatus()
            if status == highspy.HighsModelStatus.kInfeasible:
                self.bound = math.inf
                return None
            if status != highspy.HighsModelStatus.kOptimal:
                return x
            solution = self.highs.getSolution()
            every = np.asarray(solution.col_value)
            x = every[: len(self.f.costs)]
            self.bound = self.highs.getInfo().objective_function_value / self.scale + self.f.constant
            self.prices = np.zeros(len(self.f.base))
            duals = np.asarray(solution.row_dual)[self.n_rows :]
            self.prices[self.points] = np.maximum(0.0, -duals) / self.scale / self.unit_bytes
            if not self._separate(self._profile(every)):
                break
        return x

    def branch(self, budget: Budget, gap: float, start: np.ndarray | None = None, most_nodes: int = 500,
               seconds: float = math.inf) -> np.ndarray | None:  # fmt: skip
        """The best plan found within the limit, or None; ``bound`` is proven for the choices of this kernel."""
        highspy, h = highs.highspy(), self.highs
        n = len(self.f.costs)
        h.changeColsIntegrality(n, np.arange(n, dtype=np.int32), np.full(n, highspy.HighsVarType.kInteger))
        h.setOptionValue("mip_rel_gap", gap)
        h.setOptionValue("mip_max_nodes", most_nodes)
        best, best_cost = start, math.inf if start is None else self.f.evaluate(start)
        h.changeObjectiveOffset(self.f.constant * self.scale)
        # The rounds share the seconds.
        stop = max(0.0, budget.seconds_left - seconds) if budget.seconds < math.inf else 0.0
        for _ in range(_MOST_BRANCHED):
            if best is not None:
                at = (self.f.offsets[:-1] + best).astype(np.int32)
                h.setSolution(len(at), at, np.ones(len(at)))
            if not highs.run(h, budget, branching=True, reserve_seconds=stop):
                break
            if h.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
                self.bound = math.inf
                break
            info = h.getInfo()
            self.is_optimal = h.getModelStatus() == highspy.HighsModelStatus.kOptimal
            self.bound = max(self.bound, info.mip_dual_bound / self.scale)
            x = np.asarray(h.getSolution().col_value)
            if info.primal_solution_status != 2 or not len(x):
                break
            choice = self._read(x)
            profile = self.f.profile(choice)
            if profile.max(initial=0.0) <= self.f.limit_bytes:
                cost = self.f.evaluate(choice)
                if cost < best_cost:
                    best, best_cost = choice, cost
                break
            if not self._separate(profile, 5):
                break
        return best

    def _read(self, x: np.ndarray) -> np.ndarray:
        offsets = self.f.offsets.tolist()
        return np.array([int(x[a:b].argmax()) for a, b in itertools.pairwise(offsets)], np.int64)
