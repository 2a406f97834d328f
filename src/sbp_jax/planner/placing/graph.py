"""Whole ops to be placed, as numbers: seconds by device, tensors that pass between them. No JAX."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import PlanError


@dataclass(frozen=True, slots=True)
class Tensor:
    """What an op makes for others, or an argument.

    Attributes:
        maker: the op that makes it; -1 for an argument, which lies on every device that reads it before the start.
        size_bytes: its bytes.
        readers: the ops that read it, ascending.
        is_result: whether it is held to the end.
    """

    maker: int
    size_bytes: float
    readers: tuple[int, ...]
    is_result: bool = False


@dataclass(frozen=True, eq=False)
class OpGraph:
    """Ops in an order they can run in.

    Attributes:
        names: of the ops.
        seconds: (ops, devices), what each takes on each device; ``inf`` where it cannot run.
        tensors: what they read and make.
        scratch_bytes: (ops,), bytes held only while an op runs.
        members: by op the numbers of those it was merged of.

    Raises ``PlanError`` where the numbers do not fit together.
    """

    names: tuple[str, ...]
    seconds: np.ndarray
    tensors: tuple[Tensor, ...]
    scratch_bytes: np.ndarray
    members: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        n = len(self.names)
        if self.seconds.ndim != 2 or len(self.seconds) != n or self.scratch_bytes.shape != (n,):
            raise PlanError(
                f"{n} ops need seconds of shape ({n}, devices) and scratch_bytes of shape ({n},); got "
                f"{self.seconds.shape} and {self.scratch_bytes.shape}"
            )
        if n and not np.isfinite(self.seconds).any(axis=1).all():
            where = int(np.flatnonzero(~np.isfinite(self.seconds).any(axis=1))[0])
            raise PlanError(f"op {self.names[where]!r} can run on none of the devices")
        if np.isnan(self.seconds).any() or (self.seconds < 0).any():
            raise PlanError("seconds must not be below zero")
        for t in self.tensors:
            if any(not t.maker < r < n for r in t.readers) or not 0 <= t.size_bytes < math.inf:
                raise PlanError(f"{t}: readers come after the maker, and bytes are finite and not below zero")

    @property
    def devices(self) -> int:
        """How many devices its seconds are for."""
        return self.seconds.shape[1]

    def __len__(self) -> int:
        return len(self.names)

    @functools.cached_property
    def reads(self) -> list[list[int]]:
        """By op the numbers of the tensors it reads that other ops make."""
        found: list[list[int]] = [[] for _ in self.names]
        for k, t in enumerate(self.tensors):
            if t.maker >= 0:
                for r in t.readers:
                    found[r].append(k)
        return found

    @functools.cached_property
    def edges(self) -> list[tuple[int, int, float]]:
        """(from, to, bytes), one for each pair of ops of which the second reads what the first makes."""
        found: dict[tuple[int, int], float] = {}
        for t in self.tensors:
            if t.maker >= 0:
                for r in t.readers:
                    found[t.maker, r] = found.get((t.maker, r), 0.0) + t.size_bytes
        return [(a, b, n) for (a, b), n in sorted(found.items())]

    @functools.cached_property
    def before(self) -> list[list[int]]:
        """By op the ops that it reads of."""
        found: list[list[int]] = [[] for _ in self.names]
        for a, b, _ in self.edges:
            found[b].append(a)
        return found

    @functools.cached_property
    def after(self) -> list[list[int]]:
        """By op the ops that read of it."""
        found: list[list[int]] = [[] for _ in self.names]
        for a, b, _ in self.edges:
            found[a].append(b)
        return found

    def argument_bytes(self, device: Sequence[int]) -> np.ndarray:
        """(devices,): bytes of the arguments that each device holds; one that several of its ops read counts once."""
        held = np.zeros(self.devices)
        for t in self.tensors:
            if t.maker < 0:
                for d in {device[r] for r in t.readers}:
                    held[d] += t.size_bytes
        return held

    @functools.cached_property
    def own_bytes(self) -> np.ndarray:
        """(ops,): bytes of the arguments that an op reads, and of what it makes."""
        found = np.array(self.scratch_bytes, float)
        for t in self.tensors:
            for op in (t.maker,) if t.maker >= 0 else t.readers:
                found[op] += t.size_bytes
        return found
