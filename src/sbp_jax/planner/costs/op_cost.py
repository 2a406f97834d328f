"""Seconds and bytes of running a cluster one way; seconds of boxing. The planner's only source of costs.

An op takes the longer of its arithmetic and its memory traffic (the roofline model, Williams, Waterman and
Patterson, CACM 52(4), 2009); a matrix product's arithmetic depends on its size (``cluster.device``). Boxing costs
come from ``boxing.seconds_matrix``. Equal clusters cost the same: whatever is read here is part of a cluster's label.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...boxing import cost_matrix, seconds_matrix
from ...cluster import Cluster
from ...pieces import stored_share
from ...rules.widen import B, Code, Strategy, signature_of
from ...trace import Op, Value
from ..graph.clusters import OpCluster

# The price of holding an argument, as a part of the time it takes to read it once.
_HOLDING = 1e-3
# Seconds for every axis on which a result is left partial.
_UNREDUCED = 2e-9

# Ops that compute nothing, yet are kernels. Reshapes, broadcasts, slices and pads XLA turns into bitcasts, or into
# index arithmetic inside what reads the result; so it may these, but then it writes that out instead.
_COPIES = {"concatenate", "stack", "dynamic_update_slice"}
# Ops that touch only a piece of their first operand: by name, the operand that is as large as the piece, None: result.
_TOUCHES: dict[str, int | None] = {"gather": None, "dynamic_update_slice": 1}
_PRODUCTS = {"dot_general", "ragged_dot_general", "conv_general_dilated"}


@dataclass(frozen=True)
class CostModel:
    """Costs on one mesh of one cluster. ``computation_ratio`` scales compute seconds (None: 1).

    ``uneven``: whether pieces may be padded.
    """

    hardware: Cluster
    axis_sizes: tuple[int, ...]
    computation_ratio: float | None = None
    uneven: bool = False

    @property
    def _is_hardware(self) -> bool:
        """Whether devices are more than threads of a host.

        Plans on simulated devices are to weigh bytes (see ``cluster.presets``), and a host's memory is so slow against
        its "links" that what cutting a copy or a fused op saves would outweigh them: there each op counts as a kernel
        and copies are free.
        """
        return self.hardware.device.units > 0

    def local_bytes(self, value: Value, code: Code) -> float:
        """Bytes of one device's piece, as it is stored: padded to the longest."""
        if self.uneven:
            return value.size_bytes * self.share(value.shape, code)
        return value.size_bytes / self.pieces(code)

    def share(self, shape: tuple[int, ...], code: Code) -> float:
        """The part of a value's bytes that one device stores."""
        if self.uneven:
            return stored_share(shape, code, self.axis_sizes)
        return 1 / self.pieces(code)

    def pieces(self, code: Code) -> int:
        """Into how many pieces a signature splits a value."""
        pieces = 1
        for n, c in zip(self.axis_sizes, code, strict=True):
            if c >= 0:
                pieces *= n
        return pieces

    def compute_seconds(self, cluster: OpCluster, strategy: Strategy) -> float:
        """One run of a cluster on one device."""
        op = cluster.ops[0]
        if op.name == "sbp.input":  # holding costs next to nothing: of two equal plans the smaller is taken
            held = sum(self.local_bytes(v, c) for v, c in zip(cluster.outs, strategy.outs, strict=True))
            return _HOLDING * held / self.hardware.device.memory_bytes_per_second
        if op.name in ("sbp.output", "sbp.result"):  # of two equal plans the one that leaves nothing to reduce
            return _UNREDUCED * sum(c < B for code in strategy.ins for c in code)
        if not cluster.flops and not (self._is_hardware and _is_copy(cluster)):
            return 0.0
        ratio = 1.0 if self.computation_ratio is None else self.computation_ratio
        return ratio * self._seconds(cluster, strategy, op)

    def _seconds(self, cluster: OpCluster, strategy: Strategy, op: Op) -> float:
        values, codes = (*cluster.ins, *cluster.outs), (*strategy.ins, *strategy.outs)
        moved = sum(n * self.local_bytes(v, c) for v, c, n in zip(values, codes, cluster.in_memory, strict=True) if n)
        flops = cluster.flops * strategy.share
        if cluster.root is None:
            if op.name in _TOUCHES:  # they move values, whatever is counted for their indices
                moved, flops = self._touched(cluster, strategy, op), 0.0
            if op.name in _PRODUCTS and len(cluster.outs) == 1:
                return self._product(op, strategy, cluster.flops, moved)
        # An op none of whose results reaches memory runs inside the kernel of what reads them.
        is_kernel = any(cluster.in_memory[len(cluster.ins) :]) or not self._is_hardware
        dtype = cluster.outs[0].dtype_name if cluster.outs else "float32"
        return self.hardware.op_seconds(flops, moved, dtype, is_kernel)

    def _touched(self, cluster: OpCluster, strategy: Strategy, op: Op) -> float:
        """Bytes read and written by an op that leaves most of its first operand alone."""
        piece = _TOUCHES[op.name]
        if piece is None:
            return 2 * self.local_bytes(cluster.outs[0], strategy.outs[0])
        of = op.ins[piece]
        codes = [c for v, c in zip(cluster.ins, strategy.ins, strict=True) if v is of]
        return 2 * self.local_bytes(of, codes[0]) if isinstance(of, Value) and codes else 0.0

    def _product(self, op: Op, strategy: Strategy, flops: float, moved: float) -> float:
        """A product of matrices: the result's local dims, and of the work what one device does, give its sizes."""
        code = strategy.outs[0]
        shape = list(op.outs[0].shape)
        for n, c in zip(self.axis_sizes, code, strict=True):
            if c >= 0:
                shape[c] = -(-shape[c] // n)
        batch, m, n = _matrix(op, shape)
        k = max(1, round(flops * strategy.share / (2.0 * batch * m * n))) if batch * m * n else 1
        of = op.ins[0]
        return self.hardware.matmul_seconds(m, n, k, str(of.dtype), int(of.dtype.itemsize), batch, moved)

    def communicates(self, value: Value, codes: Sequence[Code]) -> np.ndarray:
        """Whether the way between every two of ``codes`` sends anything."""
        states = [signature_of(c) for c in codes]
        sent = cost_matrix(states, value.shape, value.itemsize, self.axis_sizes, self.hardware)[1]
        return np.isfinite(sent) & (sent > 0)

    def boxing(self, value: Value, codes: Sequence[Code]) -> np.ndarray:
        """Seconds between every two of ``codes`` for one value; ``inf`` where there is no way."""
        return _boxing(tuple(codes), value.shape, value.itemsize, self.axis_sizes, self.hardware)


def _matrix(op: Op, shape: Sequence[int]) -> tuple[int, int, int]:
    """Batch, rows and columns of the products that give a result of ``shape``.

    A convolution is the product that implicit GEMM makes of it, positions by features (Chetlur et al., "cuDNN:
    Efficient Primitives for Deep Learning", 2014), one for each group.
    """
    if op.name == "dot_general":
        (lhs_contract, _), (lhs_batch, _) = op.params["dimension_numbers"]
        batches = len(lhs_batch)
        rows = len(op.ins[0].shape) - len(lhs_contract)  # of the result: its batch dims and the left operand's own
        return math.prod(shape[:batches]), math.prod(shape[batches:rows]), math.prod(shape[rows:])
    if op.name == "conv_general_dilated":
        at = op.params["dimension_numbers"].out_spec[1]
        groups = op.params["feature_group_count"] * op.params["batch_group_count"]
        features = max(1, min(shape[at], op.outs[0].shape[at] // groups))
        positions = math.prod(n for d, n in enumerate(shape) if d != at)
        return max(1, shape[at] // features), positions, features
    return 1, math.prod(shape[:-1]), shape[-1] if shape else 1


def _is_copy(cluster: OpCluster) -> bool:
    """Whether a cluster that computes nothing is a kernel of its own.

    Of several transpositions only what comes of them counts: they may undo each other.
    """
    op, root = cluster.ops[0], cluster.root
    if root is not None:
        return any(_moves_memory(root.shape, tuple(d for d in cluster.members[v.id] if d >= 0)) for v in cluster.outs)
    if op.name == "transpose":
        return _moves_memory(op.ins[0].shape, tuple(op.params["permutation"]))
    return op.name in _COPIES


@functools.lru_cache(maxsize=4096)
def _moves_memory(shape: tuple[int, ...], permutation: tuple[int, ...]) -> bool:
    """Whether a transposition is more than a choice of layout.

    Libraries read either operand of a (batched) product in both orders, so exchanging the two groups of dims that come
    after the batch is free: XLA folds it into the product or into a layout. Dims that change places across others,
    as when heads go before positions in attention, are copied.
    """
    order = [d for d in permutation if shape[d] != 1]
    ranks = sorted(order)
    while order and order[0] == ranks[0]:
        order, ranks = order[1:], ranks[1:]
    return not any(ranks[i:] + ranks[:i] == order for i in range(max(len(ranks), 1)))


@functools.lru_cache(maxsize=4096)
def _boxing(
    codes: tuple[Code, ...], shape: tuple[int, ...], itemsize: int, axis_sizes: tuple[int, ...], cluster: Cluster
) -> np.ndarray:
    return seconds_matrix([signature_of(c) for c in codes], shape, itemsize, axis_sizes, cluster)
