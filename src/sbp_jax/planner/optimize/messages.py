"""Lower bounds, reduced costs and plans by message passing.

Costs may move between a node's choices and its edges without changing what any plan costs; the sum of all separate
minima is then a lower bound. Sequential tree-reweighted message passing (TRW-S: Kolmogorov, IEEE TPAMI 28(10), 2006)
moves them node by node, forwards and backwards, so that the bound only grows. Messages stay valid when costs change:
after new prices for memory a few sweeps are enough.
"""

import numpy as np

from .arrays import Flat
from .sums import dot


class Messages:
    """Message passing over a kernel whose bytes have prices; ``bound`` is valid for plans within the limit.

    The kernel is reduced: each choice has a possible partner at each neighbour. A node's incoming messages are
    adjacent, those of earlier nodes first.
    """

    def __init__(self, f: Flat) -> None:
        self.f = f
        n, sizes, offsets = len(f.nodes), f.sizes.tolist(), f.offsets.tolist()
        earlier: list[list[tuple[int, np.ndarray, int]]] = [[] for _ in range(n)]
        later: list[list[tuple[int, np.ndarray, int]]] = [[] for _ in range(n)]
        for e, (i, j) in enumerate(f.ends.tolist()):
            later[i].append((j, f.matrices[e], e))
            earlier[j].append((i, f.matrices[e].T, e))
        self.given_at, at = [], 0
        slot: dict[tuple[int, int], int] = {}
        for i in range(n):
            self.given_at.append(at)
            for e in [e for _, _, e in earlier[i]] + [e for _, _, e in later[i]]:
                slot[e, i] = at
                at += sizes[i]
        self.given = np.zeros(at)
        self.degree = [(len(earlier[i]), len(later[i])) for i in range(n)]
        self.sizes, self.offsets = sizes, offsets
        self.blocks: list[tuple[_Block, _Block]] = []
        self.place: dict[tuple[int, int], tuple[int, int, int]] = {}
        for i in range(n):
            both = []
            for side in (earlier[i], later[i]):
                begins = np.cumsum([0, *(sizes[j] for j, _, _ in side)])
                both.append(_Block(
                    np.concatenate([m for _, m, _ in side], axis=1) if side else np.zeros((sizes[i], 0)),
                    np.repeat(np.arange(len(side)), [sizes[j] for j, _, _ in side]),
                    np.concatenate([slot[e, j] + np.arange(sizes[j]) for j, _, e in side]) if side
                    else np.zeros(0, np.int64),
                    np.array([j for j, _, _ in side], np.int64), begins[:-1],
                ))  # fmt: skip
                for (_, m, e), begin in zip(side, begins.tolist(), strict=False):
                    self.place[e, i] = (len(both) - 1, begin, m.shape[1])
            self.blocks.append((both[0], both[1]))
        for e, _, _, _ in f.pair_tables:  # these get costs of their own when bytes have prices
            for i in f.ends[e].tolist():
                block = self.blocks[i][self.place[e, i][0]]
                if block.priced is block.matrix:
                    block.priced = block.matrix.copy()
        self.costs = f.costs
        self.prices = np.zeros(len(f.base))
        self.paid = 0.0
        self.totals = np.zeros(len(f.costs))
        self.work = sum(m.size for m in f.matrices)

    def set_prices(self, prices: np.ndarray) -> None:
        """Charge for each byte at each point what ``prices`` say; what the limit allows is free."""
        self.prices = prices
        self.costs, matrices = self.f.priced(prices)
        self.paid = float(dot(prices, self.f.limit_bytes - self.f.base)) if prices.any() else 0.0
        for e, m in matrices.items():
            for i, of in ((int(self.f.ends[e, 0]), m), (int(self.f.ends[e, 1]), m.T)):
                side, begin, width = self.place[e, i]
                self.blocks[i][side].priced[:, begin : begin + width] = of

    def sweep(self, forwards: bool) -> float:
        """Every node gives the neighbours ahead of it equal parts of what it has; the bound then."""
        given, offsets, bound = self.given, self.offsets, 0.0
        order = range(len(self.sizes)) if forwards else range(len(self.sizes) - 1, -1, -1)
        for i in order:
            n_earlier, n_later = self.degree[i]
            ahead = n_later if forwards else n_earlier
            size, start = self.sizes[i], self.given_at[i]
            mine = given[start : start + size * (n_earlier + n_later)].reshape(-1, size)
            total = self.costs[offsets[i] : offsets[i + 1]] + mine.sum(axis=0)
            self.totals[offsets[i] : offsets[i + 1]] = total
            part = 1.0 / max(n_earlier, n_later, 1)
            if ahead * part < 1.0:
                bound += float(total.min()) * (1.0 - ahead * part)
            if ahead:
                block = self.blocks[i][1 if forwards else 0]
                of_ahead = mine[n_earlier:] if forwards else mine[:n_earlier]
                share = (part * total - of_ahead).T
                given[block.to] = (block.priced + share.take(block.edge, axis=1)).min(axis=0)
        return bound + self.f.constant - self.paid

    def bound(self, sweeps: int) -> float:
        """The best bound of some sweeps there and back."""
        best = -np.inf
        for _ in range(sweeps):
            best = max(best, self.sweep(True), self.sweep(False))
        return best

    def reduced_costs(self) -> np.ndarray:
        """What each choice costs beyond the bound at least, as of the last sweep.

        Valid with the bound of the sweep before the last, the prices being the same in both.
        """
        least = np.minimum.reduceat(self.totals, self.f.offsets[:-1]) if len(self.totals) else self.totals
        return self.totals - np.repeat(least, self.f.sizes)

    def read(self, forwards: bool = True) -> np.ndarray:
        """A plan, node by node: the best by what is chosen already, and by the messages of the rest."""
        costs = self.costs
        choice = np.zeros(len(self.sizes), np.int64)
        order = range(len(self.sizes)) if forwards else range(len(self.sizes) - 1, -1, -1)
        for i in order:
            n_earlier, n_later = self.degree[i]
            size, start = self.sizes[i], self.given_at[i]
            mine = self.given[start : start + size * (n_earlier + n_later)].reshape(-1, size)
            total = costs[self.offsets[i] : self.offsets[i + 1]].copy()
            block = self.blocks[i][0 if forwards else 1]
            if len(block.others):
                total += block.priced[:, block.begins + choice[block.others]].sum(axis=1)
            rest = mine[n_earlier:] if forwards else mine[:n_earlier]
            choice[i] = (total + rest.sum(axis=0)).argmin()
        return choice


class _Block:
    """The edges of a node on one side: their matrices beside each other, and where the messages go.

    ``priced`` are the matrices with prices for their bytes.
    """

    __slots__ = ("begins", "edge", "matrix", "others", "priced", "to")

    def __init__(
        self, matrix: np.ndarray, edge: np.ndarray, to: np.ndarray, others: np.ndarray, begins: np.ndarray
    ) -> None:
        self.matrix = self.priced = matrix
        self.edge, self.to, self.others, self.begins = edge, to, others, begins
