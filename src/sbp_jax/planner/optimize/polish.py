"""Local search: better choices for one node at a time, with the profile of bytes kept up to date."""

import numpy as np

from .arrays import Flat
from .messages import Messages

# A node's best choices that are tried when they cost less; memory may forbid the first ones.
_TRIED = 4
# Beyond so many tables a node's bytes change the profile by one prefix sum.
_FEW_TABLES = 8


class Polish:
    """Single-node moves on plans of a kernel that fit."""

    def __init__(self, f: Flat, messages: Messages) -> None:
        self.f, self.messages = f, messages
        n = len(f.nodes)
        order = np.argsort(f.table_node, kind="stable")
        begins = np.searchsorted(f.table_node[order], np.arange(n + 1)).tolist()
        sizes = f.sizes.tolist()
        self.tables: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for i in range(n):
            mine = order[begins[i] : begins[i + 1]]
            held = f.table_bytes[f.table_offset[mine][:, None] + np.arange(sizes[i])] if len(mine) else np.zeros((0, 0))
            self.tables.append((f.table_first[mine], f.table_end[mine], held))
        self.pair_tables: dict[int, list[tuple[int, int, int, np.ndarray]]] = {}
        for e, first, end, u in f.pair_tables:
            i, j = f.ends[e].tolist()
            self.pair_tables.setdefault(i, []).append((j, first, end, u))
            self.pair_tables.setdefault(j, []).append((i, first, end, u.T))

    def answers(self, i: int, choice: np.ndarray) -> np.ndarray:
        """What each choice of a node costs, the others' being given."""
        f = self.f
        total = f.costs[f.offsets[i] : f.offsets[i + 1]].copy()
        for block in self.messages.blocks[i]:
            if len(block.others):
                total += block.matrix[:, block.begins + choice[block.others]].sum(axis=1)
        return total

    def run(self, choice: np.ndarray, passes: int = 3) -> np.ndarray:
        """A plan at least as good, as far as single moves lead; one that fits stays one that fits."""
        choice, profile = choice.copy(), self.f.profile(choice)
        for _ in range(passes):
            moved = False
            for i in range(len(choice)):
                total = self.answers(i, choice)
                now = int(choice[i])
                better = np.flatnonzero(total < total[now])
                for k in better[np.argsort(total[better], kind="stable")][:_TRIED].tolist():
                    if self._move(i, now, k, choice, profile):
                        choice[i], moved = k, True
                        break
            if not moved:
                break
        return choice

    def _move(self, i: int, now: int, k: int, choice: np.ndarray, profile: np.ndarray) -> bool:
        """Change the profile if the move fits."""
        first, end, held = self.tables[i]
        changes: list[tuple[int, int, float]] = []
        if len(first):
            difference = held[:, k] - held[:, now]
            at = np.flatnonzero(difference)
            if len(at) > _FEW_TABLES:
                n = len(profile) + 1
                change = np.bincount(first[at], difference[at], n) - np.bincount(end[at], difference[at], n)
                total = np.rint(np.cumsum(change[:-1]))
                for o, a, b, u in self.pair_tables.get(i, ()):
                    total[a:b] += u[k, choice[o]] - u[now, choice[o]]
                if np.any((total > 0) & (profile + total > self.f.limit_bytes)):
                    return False
                profile += total
                return True
            changes = list(zip(first[at].tolist(), end[at].tolist(), difference[at].tolist(), strict=True))
        for o, a, b, u in self.pair_tables.get(i, ()):
            changes.append((a, b, float(u[k, choice[o]] - u[now, choice[o]])))
        for a, b, more in changes:
            profile[a:b] += more
        if all(more <= 0 or profile[a:b].max() <= self.f.limit_bytes for a, b, more in changes):
            return True
        for a, b, more in changes:
            profile[a:b] -= more
        return False
