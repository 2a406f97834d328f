"""Prices for what is short, from the plans seen so far: a level method, kept from jumping by a centre.

Under weights w every plan k seen is worth ``costs[k] + rows[k] @ w``; the least of these is concave in w, and at its
largest is what can be hoped for. Going straight there (Kelley's planes: J. SIAM 8(4), 1960) jumps from corner to
corner. A level method (Lemarechal, Nemirovskii and Nesterov, Math. Prog. 69, 1995) takes the weights nearest to the
best so far under which every plan seen is worth enough.
"""

import numpy as np
from scipy import optimize

# The level of the method: this part of the way from the bound to what the plans seen promise. Set by hand: the
# method converges with any part between 0 and 1 (Lemarechal, Nemirovskii and Nesterov).
LEVEL = 0.5
# The level is looked for no higher than this times the bound: far plans promise much and hold nothing.
_PROMISE = 1.2


def largest(
    costs: np.ndarray, rows: np.ndarray, cap: float, total: float | None = None
) -> tuple[np.ndarray | None, float]:
    """The weights, from 0 to ``cap``, under which the least of the plans is worth most, and that worth.

    ``total`` is what weights add up to, where that is given.
    """
    n = rows.shape[1]
    result = optimize.linprog(
        np.r_[np.zeros(n), -1.0], A_ub=np.c_[-rows, np.ones(len(rows))], b_ub=costs, **_sum(n, 1, total),
        bounds=[(0.0, cap)] * n + [(None, None)], method="highs",
    )  # fmt: skip
    return (None, -np.inf) if result.x is None else (np.clip(result.x[:n], 0.0, cap), float(result.x[n]))


def nearest(
    costs: np.ndarray, rows: np.ndarray, level: float, centre: np.ndarray, cap: float, total: float | None = None
) -> np.ndarray | None:
    """The weights nearest to ``centre`` (absolute differences) under which every plan is worth ``level``, if any."""
    n = rows.shape[1]
    result = optimize.linprog(
        np.r_[np.zeros(n), np.ones(n)],
        A_ub=np.block([
            [-rows, np.zeros_like(rows)],
            [np.eye(n), -np.eye(n)],
            [-np.eye(n), -np.eye(n)],
        ]),
        b_ub=np.r_[costs - level, centre, -centre], **_sum(n, n, total),
        bounds=[(0.0, cap)] * n + [(0.0, None)] * n, method="highs",
    )  # fmt: skip
    return None if result.x is None else np.clip(result.x[:n], 0.0, cap)


def _sum(n: int, others: int, total: float | None) -> dict[str, list[list[float]] | list[float]]:
    return {} if total is None else {"A_eq": [[1.0] * n + [0.0] * others], "b_eq": [total]}


def better(
    costs: np.ndarray, rows: np.ndarray, centre: np.ndarray, bound: float, known: float, part: float, gap: float,
    cap: float,
) -> np.ndarray | None:  # fmt: skip
    """The weights nearest to ``centre`` that promise ``part`` of the way from the bound to the most that any do, or to
    the ``known`` worth; None where no weights promise more than ``gap`` beyond the bound."""
    straight, ceiling = largest(costs, rows, cap)
    ceiling = min(ceiling, known)
    if straight is None or ceiling - bound <= gap * abs(ceiling):
        return None
    near = nearest(costs, rows, bound + part * (min(ceiling, _PROMISE * bound) - bound), centre, cap)
    return straight if near is None else near


def mixed(costs: np.ndarray, rows: np.ndarray, cap: float) -> np.ndarray | None:
    """The parts of plans in the cheapest mix that keeps to all rows on average: what ``largest`` is the dual of."""
    n = rows.shape[1]
    result = optimize.linprog(
        np.r_[np.zeros(n), -1.0], A_ub=np.c_[-rows, np.ones(len(rows))], b_ub=costs,
        bounds=[(0.0, cap)] * n + [(None, None)], method="highs",
    )  # fmt: skip
    return None if result.x is None else np.maximum(0.0, -result.ineqlin.marginals)
