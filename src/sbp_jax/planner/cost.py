"""Seconds and bytes of running a cell one way; seconds of boxing. The planner's only source of costs.

An op takes the longer of its arithmetic and its memory traffic (the roofline model, Williams, Waterman and
Patterson, CACM 52(4), 2009); boxing costs come from ``boxing.cost_matrix``.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..boxing import cost_matrix
from ..cluster import Cluster
from ..rules.widen import Code, Strategy, signature_of
from ..trace import Value
from .cells import Cell

# The price of holding an argument, as a part of the time it takes to read it once.
_HOLDING = 1e-3


@dataclass(frozen=True)
class CostModel:
    """Costs on one mesh of one cluster. ``computation_ratio`` scales compute seconds (None: 1)."""

    cluster: Cluster
    axis_sizes: tuple[int, ...]
    computation_ratio: float | None = None

    def local_bytes(self, value: Value, code: Code) -> float:
        """Bytes of one device's piece."""
        pieces = 1
        for n, c in zip(self.axis_sizes, code, strict=True):
            if c >= 0:
                pieces *= n
        return value.size_bytes / pieces

    def compute_seconds(self, cell: Cell, strategy: Strategy) -> float:
        """One run of a cell on one device."""
        if cell.ops[0].name == "sbp.input":  # holding costs next to nothing: of two equal plans the smaller is taken
            held = sum(self.local_bytes(v, c) for v, c in zip(cell.outs, strategy.outs, strict=True))
            return _HOLDING * held / self.cluster.device.memory_bytes_per_second
        if not cell.flops:
            return 0.0
        values, codes = (*cell.ins, *cell.outs), (*strategy.ins, *strategy.outs)
        moved = sum(n * self.local_bytes(v, c) for v, c, n in zip(values, codes, cell.in_memory, strict=True) if n)
        dtype = str(cell.outs[0].dtype) if cell.outs else "float32"
        seconds = self.cluster.op_seconds(cell.flops * strategy.share, moved, dtype)
        return seconds * (1.0 if self.computation_ratio is None else self.computation_ratio)

    def boxing(self, value: Value, codes: Sequence[Code]) -> tuple[np.ndarray, np.ndarray]:
        """Seconds and bytes sent between every two of ``codes`` for one value; ``inf`` where there is no way."""
        return _boxing(tuple(codes), value.shape, value.itemsize, self.axis_sizes, self.cluster)


@functools.lru_cache(maxsize=4096)
def _boxing(
    codes: tuple[Code, ...], shape: tuple[int, ...], itemsize: int, axis_sizes: tuple[int, ...], cluster: Cluster
) -> tuple[np.ndarray, np.ndarray]:
    return cost_matrix([signature_of(c) for c in codes], shape, itemsize, axis_sizes, cluster)
