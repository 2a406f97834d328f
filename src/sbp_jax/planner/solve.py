"""The kernel as a 0-1 program, solved by HiGHS to a proven optimum or to the gap asked for.

A binary for each choice of each node; for each edge a transport problem between the two nodes' choices, whose
rows and columns that cost the same are one. Huangfu and Hall, "Parallelizing the dual revised simplex method",
Math. Prog. Comp. 10 (2018); through ``scipy.optimize.milp``, which JAX brings along.
"""

from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from ..errors import PlanError
from .problem import IMPOSSIBLE, Problem
from .reduce import Reduction, reduce


@dataclass(frozen=True, slots=True)
class Solution:
    """The strategy chosen for each class; objective and proven lower bound, in seconds a step."""

    choice: tuple[int, ...]
    objective: float
    bound: float
    kernel_nodes: int
    variables: int


def solve(problem: Problem, gap: float = 0.0, time_limit: float | None = None) -> Solution | None:
    """The best choice, or None when every choice is impossible.

    Raises ``PlanError`` when the time limit passes without any choice found.
    """
    reduction = reduce(problem)
    chosen, bound, variables = _kernel(reduction, gap, time_limit)
    choice = reduction.expand(chosen)
    objective = problem.evaluate(choice)
    if objective >= IMPOSSIBLE:
        return None
    return Solution(
        tuple(choice[: problem.n_classes]), objective, min(objective, bound + reduction.constant),
        len(reduction.nodes), variables,
    )  # fmt: skip


def _kernel(r: Reduction, gap: float, time_limit: float | None) -> tuple[dict[int, int], float, int]:
    if not r.nodes:
        return {}, 0.0, 0
    offsets: dict[int, int] = {}
    cost: list[np.ndarray] = []
    n = 0
    for node, c in r.nodes.items():
        offsets[node] = n
        cost.append(c)
        n += len(c)
    binaries = n
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    values: list[np.ndarray] = []
    right: list[float] = []

    def add(cols: np.ndarray, vals: np.ndarray, rhs: float) -> None:
        rows.append(np.full(len(cols), len(right)))
        columns.append(cols)
        values.append(vals)
        right.append(rhs)

    for node, c in r.nodes.items():
        add(offsets[node] + np.arange(len(c)), np.ones(len(c)), 1.0)
    for (a, b), m in r.edges.items():
        groups_a, first_a = _same(m)
        groups_b, first_b = _same(m.T)
        small = m[np.ix_(first_a, first_b)]
        if small.size == 1:
            cost.append(np.zeros(0))
            cost[list(r.nodes).index(a)] = cost[list(r.nodes).index(a)] + small[0, 0]
            continue
        y = n + np.arange(small.size).reshape(small.shape)
        cost.append(small.ravel())
        n += small.size
        for node, groups, lines in ((a, groups_a, y), (b, groups_b, y.T)):
            for k, line in enumerate(lines):
                members = offsets[node] + np.flatnonzero(groups == k)
                add(np.concatenate([line, members]), np.r_[np.ones(len(line)), -np.ones(len(members))], 0.0)
    objective = np.concatenate(cost)
    positive = objective[(objective > 0) & (objective < IMPOSSIBLE / 2)]
    # Seconds are tiny numbers; the solver's tolerances are absolute. The total is brought to about 1000.
    scale = 1000.0 / max(float(np.median(positive)) * len(r.nodes), 1e-12) if len(positive) else 1.0
    upper = np.where(objective >= IMPOSSIBLE / 2, 0.0, 1.0)
    matrix = sparse.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(len(right), n)
    )
    options: dict[str, float | bool] = {"mip_rel_gap": gap, "presolve": True}
    if time_limit is not None:
        options["time_limit"] = time_limit
    result = optimize.milp(
        np.where(upper > 0, objective * scale, 0.0),
        integrality=np.r_[np.ones(binaries), np.zeros(n - binaries)],
        bounds=optimize.Bounds(0.0, upper),
        constraints=optimize.LinearConstraint(matrix, np.asarray(right), np.asarray(right)),
        options=options,
    )
    if result.x is None:
        if result.status == 2:  # infeasible: any choice will do, its cost says that it is impossible
            return dict.fromkeys(r.nodes, 0), np.inf, n
        raise PlanError(
            f"no plan was found within the time limit of {time_limit} s ({result.message}); "
            "allow more time (AutoParallelConfig(time_limit=...)), or give a mesh with fewer axes"
        )
    chosen = {node: int(np.argmax(result.x[o : o + len(r.nodes[node])])) for node, o in offsets.items()}
    bound = result.mip_dual_bound if getattr(result, "mip_dual_bound", None) is not None else result.fun
    return chosen, float(bound) / scale, n


def _same(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal rows as one: each row's group, each group's first row."""
    _, first, groups = np.unique(m, axis=0, return_index=True, return_inverse=True)
    return groups.ravel(), first
