"""The dimensions of all values of a program in classes: those that an op's factor map gives one factor are one.

All dims of all values are numbered, and what ops of one factor map say of them is said for all of these at once: a deep
model has few factor maps and many ops.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ...rules import Factors
from ...trace import Op, Program, Value
from .clusters import free_values


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a factor map: the dims that it is, and those that it is a part of, each by the place among its
    op's values of the one that has it, and the dim's number there."""

    dims: tuple[tuple[int, int], ...]
    whole: tuple[tuple[int, int], ...]
    is_blocked: bool


@dataclass(frozen=True, slots=True)
class Alike:
    """Ops of one factor map: their positions among the nodes; by op, the first dim of each of its values; the map's
    factors; of dims made of several factors: place, dim, sizes and numbers of the factors."""

    nodes: np.ndarray
    first: np.ndarray
    factors: tuple[Factor, ...]
    made: tuple[tuple[int, int, tuple[int, ...], tuple[tuple[int, int] | None, ...]], ...]

    def dims(self, at: tuple[int, int]) -> np.ndarray:
        """By op, the number of the dim ``at`` (place among its values, dim)."""
        return self.first[:, at[0]] + at[1]


class DimClasses:
    """Dims by number, ``start[value id]`` being the first one of a value; ``label`` is the class of each.

    ``shared`` constants have no dims in common with what is made of them.
    """

    def __init__(self, program: Program, factors: Sequence[Factors]) -> None:
        self.shared = _shared_constants(program, factors)
        self.values: list[Value] = [v for op in program.nodes for v in op.outs]
        n_dims = np.array([len(v.shape) for v in self.values], np.int64)
        ends = np.cumsum(n_dims)
        self.start = dict(zip([v.id for v in self.values], (ends - n_dims).tolist(), strict=True))
        self.n = int(ends[-1]) if len(ends) else 0
        # By dim: its value's position, and whether it is longer than 1.
        self.value_of = np.repeat(np.arange(len(self.values)), n_dims)
        self.is_long = np.array([n > 1 for v in self.values for n in v.shape], bool)
        self.label = np.arange(self.n)
        self.alike = self.group(zip(program.nodes, factors, strict=True), self.shared)
        every = [(a, f) for a in self.alike for f in a.factors]
        # A dim, and one that it is a part of, in the order of nodes.
        self.links = _in_order([(a.nodes, a.dims(f.dims[0]), a.dims(d)) for a, f in every if f.dims for d in f.whole])
        self._sizes, self._made, self._pieces = self._made_of_several()
        self.join(np.concatenate([_NONE, *(
            np.stack([a.dims(f.dims[0]), a.dims(d)], axis=1) for a, f in every for d in f.dims[1:]
        )]))  # fmt: skip

    def group(self, ops: Iterable[tuple[Op, Factors]], shared: Collection[int]) -> list[Alike]:
        """Ops by factor map, and by which of their operands are arrays and ``shared``."""
        start = self.start
        rows: defaultdict[tuple[int, tuple[bool | None, ...]], list[list[int]]] = defaultdict(list)
        maps: dict[int, Factors] = {}
        for op, f in ops:
            row, kinds = [op.index], []
            for x in (*op.ins, *op.outs):
                if isinstance(x, Value):
                    row.append(start[x.id])
                    kinds.append(x.id not in shared)
                else:
                    kinds.append(None)
            maps[id(f)] = f
            rows[id(f), tuple(kinds)].append(row)
        found = []
        for (k, kinds), each in rows.items():
            table = np.array(each, np.int64)
            found.append(Alike(table[:, 0], table[:, 1:], *_factors_of(maps[k], kinds)))
        return found

    def _made_of_several(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Dims made of several factors, in the order of nodes: a number for the factors' sizes, the dim, and the dims
        that the factors are (-1: none)."""
        most = max([len(m[2]) for a in self.alike for m in a.made], default=0)
        known: dict[tuple[int, ...], int] = {}
        found = [np.zeros((0, 3 + most), np.int64)]
        for a in self.alike:
            for place, d, sizes, parts in a.made:
                rows = np.full((len(a.nodes), 3 + most), -1)
                rows[:, 0], rows[:, 1], rows[:, 2] = a.nodes, known.setdefault(sizes, len(known)), a.dims((place, d))
                for j, at in enumerate(parts):
                    if at is not None:
                        rows[:, 3 + j] = a.dims(at)
                found.append(rows)
        every = np.concatenate(found)
        every = every[np.argsort(every[:, 0], kind="stable")]
        return every[:, 1], every[:, 2], every[:, 3:]

    def join(self, pairs: np.ndarray) -> None:
        """Make dims one, by rows of two numbers. What is cut into parts as it was made of them is the same parts
        again."""
        self._unite(pairs)
        while self._unite(self._same_parts()):
            pass

    def _unite(self, pairs: np.ndarray) -> bool:
        """Whether classes became one."""
        ends = self.label[pairs]
        ends = ends[ends[:, 0] != ends[:, 1]]
        if not len(ends):
            return False
        graph = coo_array((np.ones(len(ends), bool), (ends[:, 0], ends[:, 1])), shape=(self.n, self.n))
        self.label = connected_components(graph, directed=False)[1].astype(np.int64)[self.label]
        return True

    def _same_parts(self) -> np.ndarray:
        """Pairs of parts of what is one class and made of factors of the same sizes."""
        if not len(self._made):
            return _NONE
        key = self.label[self._made] * (int(self._sizes.max()) + 1) + self._sizes
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        of_first = self._pieces[first[group.ravel()]]
        both = (of_first >= 0) & (self._pieces >= 0)
        return np.stack([of_first[both], self._pieces[both]], axis=1)

    def class_of(self, v: Value, dim: int) -> int:
        """The class of a dim of a value."""
        return int(self.label[self.start[v.id] + dim])

    def classes_of(self, v: Value) -> list[tuple[int, int]]:
        """The dims of a value, longer than 1, with their classes."""
        at = self.start[v.id]
        return [(d, int(self.label[at + d])) for d, n in enumerate(v.shape) if n > 1]

    def parts(self) -> list[tuple[int, int]]:
        """All pairs of a class and one that it is a part of, in the order of nodes."""
        return list(dict.fromkeys(map(tuple, self.label[self.links].tolist())))


_NONE = np.zeros((0, 2), np.int64)


def _in_order(columns: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """Rows of the last two columns, in the order of the first."""
    rows = np.concatenate([np.zeros((0, 3), np.int64), *(np.stack(c, axis=1) for c in columns)])
    return rows[np.argsort(rows[:, 0], kind="stable"), 1:]


def _factors_of(
    f: Factors, kinds: Sequence[bool | None]
) -> tuple[tuple[Factor, ...], tuple[tuple[int, int, tuple[int, ...], tuple[tuple[int, int] | None, ...]], ...]]:
    """Factors, and dims made of several. ``kinds``: of operands and results; None for no array, False for no dims."""
    own: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    whole: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    several: list[tuple[int, int, tuple[int, ...]]] = []
    place = 0
    for dims, kind in zip((*f.ins, *f.outs), kinds, strict=True):
        for d, numbers in enumerate(dims) if kind is not None else ():
            if len(numbers) > 1:
                several.append((place, d, tuple(numbers)))
            for k in numbers if kind else ():
                (own if len(numbers) == 1 else whole)[k].append((place, d))
        place += kind is not None
    found = {k: Factor(tuple(own[k]), tuple(whole[k]), k in f.blocked) for k in {**own, **whole}}
    made = tuple(
        (at, d, tuple(f.sizes[k] for k in numbers), tuple(own[k][0] if own.get(k) else None for k in numbers))
        for at, d, numbers in several
    )
    return tuple(found.values()), made


def _shared_constants(program: Program, factors: Sequence[Factors]) -> set[int]:
    """Values made of scalars that several ops read: zeros that logits and a weight of their shape have in common say
    nothing of the dims of either."""
    free = free_values(program, factors, {})
    return {v for v, readers in program.consumers().items() if v in free and len(readers) > 1}
