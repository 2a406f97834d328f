"""A kernel as flat arrays: costs with offsets, memory tables with prefix sums for prices and profiles."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .kernel import Kernel


@dataclass(frozen=True, slots=True)
class Flat:
    """A kernel whose nodes are numbered 0 to n - 1 in the order of the original ones.

    ``costs[offsets[i] : offsets[i + 1]]`` are node i's. ``ends[e]`` are edge e's nodes ``i < j``, with ``i``'s choices
    as the rows of ``matrices[e]``. Table t holds ``table_bytes[table_offset[t] + choice]``, the choice being that of
    node ``table_node[t]``, from ``table_first[t]`` to ``table_end[t] - 1``. ``pair_tables`` are (edge, first, end,
    bytes).
    """

    nodes: list[int]
    offsets: np.ndarray
    costs: np.ndarray
    ends: np.ndarray
    matrices: list[np.ndarray]
    table_node: np.ndarray
    table_first: np.ndarray
    table_end: np.ndarray
    table_offset: np.ndarray
    table_bytes: np.ndarray
    pair_tables: list[tuple[int, int, int, np.ndarray]]
    base: np.ndarray
    limit_bytes: float
    constant: float
    # For each entry of ``table_bytes``: its table and the place of its choice in ``costs``.
    entry_table: np.ndarray
    entry_choice: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """How many choices each node has."""
        return np.diff(self.offsets)

    @property
    def most_cost(self) -> float:
        """More than any possible plan costs."""
        nodes = np.maximum.reduceat(self.costs, self.offsets[:-1]).sum() if self.nodes else 0.0
        pairs = sum(float(np.max(m, where=np.isfinite(m), initial=0.0)) for m in self.matrices)
        total = self.constant + float(nodes) + pairs
        return total + 0.01 * abs(total)

    def evaluate(self, choice: np.ndarray) -> float:
        """The cost of a plan, the constant included."""
        total = self.constant + float(self.costs[self.offsets[:-1] + choice].sum())
        left, right = choice[self.ends[:, 0]].tolist(), choice[self.ends[:, 1]].tolist()
        return total + sum(float(m[i, j]) for m, i, j in zip(self.matrices, left, right, strict=True))

    def profile(self, choice: np.ndarray) -> np.ndarray:
        """The bytes that a plan holds at each point."""
        held = self.table_bytes[self.table_offset + choice[self.table_node]]
        pairs = [float(u[choice[self.ends[e, 0]], choice[self.ends[e, 1]]]) for e, _, _, u in self.pair_tables]
        return self.profile_of(held, np.array(pairs))

    def profile_of(self, held: np.ndarray, held_by_pairs: np.ndarray) -> np.ndarray:
        """The bytes at each point, from the bytes of each table and of each pair table."""
        n = len(self.base) + 1
        change = np.bincount(self.table_first, held, n) - np.bincount(self.table_end, held, n)
        for (_, first, end, _), u in zip(self.pair_tables, held_by_pairs.tolist(), strict=True):
            change[first] += u
            change[end] -= u
        # Bytes are whole numbers: rounding removes what adding and subtracting left.
        return self.base + np.rint(np.cumsum(change[:-1]))

    def priced(self, prices: np.ndarray) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Node costs, and the matrices of edges that hold bytes, with a price for each byte at each point."""
        until = np.concatenate([[0.0], np.cumsum(prices)])
        each = until[self.table_end] - until[self.table_first]
        extra = np.bincount(self.entry_choice, each[self.entry_table] * self.table_bytes, len(self.costs))
        matrices: dict[int, np.ndarray] = {}
        for e, first, end, u in self.pair_tables:
            matrices[e] = matrices.get(e, self.matrices[e]) + (until[end] - until[first]) * u
        return self.costs + extra, matrices


def flat(kernel: Kernel) -> Flat:
    """The arrays of a kernel."""
    nodes = sorted(kernel.costs)
    at = {n: i for i, n in enumerate(nodes)}
    sizes = [len(kernel.costs[n]) for n in nodes]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    edges = [(at[n], at[o], m) for n in nodes for o, m in sorted(kernel.neighbours[n].items()) if n < o]
    number = {(i, j): e for e, (i, j, _) in enumerate(edges)}
    tables = [(at[n], first, end, u) for n in nodes for (first, end), u in kernel.held[n].items()]
    lengths = np.array([sizes[i] for i, _, _, _ in tables], np.int64)
    starts = np.cumsum(lengths) - lengths
    entry_table = np.repeat(np.arange(len(tables)), lengths)
    table_node = np.array([t[0] for t in tables], np.int64)
    total = int(lengths.sum())
    entry_choice = offsets[table_node[entry_table]] + np.arange(total) - starts[entry_table]
    pairs = [
        (number[at[a], at[b]], first, end, u)
        for (a, b), held in sorted(kernel.held_by_pairs.items())
        for (first, end), u in held.items()
        if u.any()
    ]
    return Flat(
        nodes, offsets, _joined([kernel.costs[n] for n in nodes]),
        np.array([(i, j) for i, j, _ in edges], np.int64).reshape(-1, 2), [m for _, _, m in edges], table_node,
        np.array([t[1] for t in tables], np.int64), np.array([t[2] for t in tables], np.int64), starts,
        _joined([t[3] for t in tables]), pairs, kernel.base, kernel.limit_bytes, kernel.constant,
        entry_table, entry_choice,
    )  # fmt: skip


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0)


def by_node(f: Flat, choice: np.ndarray) -> Mapping[int, int]:
    """A plan of the arrays as the kernel's: choices by the original nodes' numbers."""
    return dict(zip(f.nodes, choice.tolist(), strict=True))


def equal_rows(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equal rows as one: each row's group, each group's first row."""
    number: dict[bytes, int] = {}
    rows = np.ascontiguousarray(m + 0.0)  # no negative zeros
    groups = np.array([number.setdefault(row.tobytes(), len(number)) for row in rows], dtype=np.int64)
    return groups, np.unique(groups, return_index=True)[1]


def peaks(profile: np.ndarray, limit_bytes: float, most: int, apart: int) -> list[int]:
    """The highest points above a limit, at most so many, more than ``apart`` (or 1) from each other; highest first."""
    found, rest, apart = [], profile.copy(), max(1, apart)
    while len(found) < most and len(rest):
        p = int(rest.argmax())
        if rest[p] <= limit_bytes:
            break
        found.append(p)
        rest[max(0, p - apart) : p + apart + 1] = -np.inf
    return found
