"""A cluster: a device, the links between devices by level, and what ops and collectives cost on it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SbpError
from . import collectives
from .collectives import KINDS, LIBRARIES
from .device import Device, product_seconds
from .levels import Level, Link, check_levels, fraction, not_negative

# The collectives that XLA's GPU backend starts on a stream of their own, beside compute, unless told otherwise: all of
# them. ``xla_gpu_disable_async_collectives`` is empty by default, "which indicates enabling async execution for all
# collectives" (openxla/xla, ``debug_options_flags.cc`` and ``gpu_hlo_schedule.cc``: ``convert_to_async``). How early
# they start is another matter: with ``jax_optimization_level`` O1 (or ``xla_gpu_enable_latency_hiding_scheduler``) the
# scheduler looks for compute to put beside them; by default they only start as early, and end as late, as the
# order that needs least memory allows (``PostprocessorToScheduleAsEarlyOrLateAsPossible``).
ASYNC: frozenset[str] = frozenset(KINDS)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and the levels of links between them, innermost first. Ranks fill a unit before the next.

    matmul_efficiency: the part of peak FLOP/s that a large matrix product sustains.
    memory_efficiency: the part of peak bytes per second that streaming through a device's memory reaches.
    fused_efficiency: the part of that which kernels with arithmetic reach: element-wise ops, reductions.
    op_seconds_floor: what the smallest kernel takes.
    overlaps: the kinds of collectives (as ``collective_seconds`` takes them) that run beside compute where the
        program's dependences let them, each level's on a stream of its own. The planner does not use it: its costs
        add up.
    overlap_slowdown: how much longer compute takes meanwhile, as a part of its time alone.
    library: whose algorithms collectives run by, "nccl" (NCCL, RCCL) or "generic"; see ``collectives``.

    Raises ``SbpError`` for values that cannot be.
    """

    name: str
    device: Device
    levels: tuple[Level, ...]
    matmul_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    op_seconds_floor: float = 0.0
    overlaps: frozenset[str] = ASYNC
    overlap_slowdown: float = 0.0
    library: str = "generic"
    fused_efficiency: float = 1.0

    def __post_init__(self) -> None:
        where = f"cluster {self.name!r}"
        check_levels(self.levels)
        fraction(where, matmul_efficiency=self.matmul_efficiency, memory_efficiency=self.memory_efficiency,
                 fused_efficiency=self.fused_efficiency)  # fmt: skip
        not_negative(where, op_seconds_floor=self.op_seconds_floor, overlap_slowdown=self.overlap_slowdown)
        if unknown := sorted(self.overlaps - set(KINDS)):
            raise SbpError(f"{where}: overlaps {', '.join(unknown)}: possible are {', '.join(KINDS)}")
        if self.library not in LIBRARIES:
            raise SbpError(f"{where}: library {self.library!r}: possible are {', '.join(LIBRARIES)}")

    def __hash__(self) -> int:
        # A cluster is part of every cached cost's key, asked for a million times a plan.
        return hash(self.name)

    @property
    def memory_rate(self) -> float:
        """Bytes per second that streaming through a device's memory reaches."""
        return self.device.memory_bytes_per_second * self.memory_efficiency

    def op_seconds(self, flops: float, moved_bytes: float, dtype: str, is_kernel: bool = True) -> float:
        """One op on one device: the longer of arithmetic and memory traffic, and at least a kernel's time.

        ``is_kernel``: False for an op that runs inside the kernel of another. Without ``flops`` it is a copy. The
        roofline model: Williams, Waterman and Patterson, CACM 52(4), 2009.
        """
        arithmetic = flops / (self.device.rate(dtype) * self.matmul_efficiency)
        moving = moved_bytes / (self.memory_rate * (self.fused_efficiency if flops else 1.0))
        return max(arithmetic, moving, self.op_seconds_floor if is_kernel else 0.0)

    def matmul_seconds(
        self, m: int, n: int, k: int, dtype: str, itemsize: int, batch: int = 1, moved_bytes: float | None = None
    ) -> float:
        """``batch`` matrix products of m x k and k x n on one device. The formula is in ``device``.

        ``moved_bytes`` through the device's memory; None: operands and result, once.
        """
        if moved_bytes is None:
            moved_bytes = float(batch * (m * k + k * n + m * n) * itemsize)
        rate = self.device.rate(dtype) * self.matmul_efficiency
        product = product_seconds(self.device, rate, self.memory_rate, m, n, k, batch, itemsize)
        return max(product, moved_bytes / self.memory_rate, self.op_seconds_floor)

    def matmul_efficiency_of(self, m: int, n: int, k: int, dtype: str, itemsize: int, batch: int = 1) -> float:
        """The part of peak FLOP/s that a product of this size reaches."""
        seconds = self.matmul_seconds(m, n, k, dtype, itemsize, batch)
        return 2.0 * batch * m * n * k / (seconds * self.device.rate(dtype))

    def copy_seconds(self, moved_bytes: float) -> float:
        """Writing ``moved_bytes`` to a device's own memory, having read as much."""
        return 2 * moved_bytes / self.memory_rate

    def link(self, mesh_shape: Sequence[int], axes: Sequence[int]) -> Link:
        """What groups along ``axes`` of a mesh communicate over: the slowest group's ring, and its outermost level."""
        return collectives.link(self.levels, tuple(mesh_shape), tuple(axes))

    def collective_seconds(self, kind: str, sent_bytes: float, mesh_shape: Sequence[int], axes: Sequence[int]) -> float:
        """A collective in which each device of every group along ``axes`` sends ``sent_bytes``.

        ``kind``: all_reduce, all_gather, reduce_scatter, all_to_all, permute, reduce or broadcast. Bytes are what the
        bandwidth-optimal algorithm sends (``boxing.table``); the formulas are in ``collectives``.
        """
        return collectives.seconds(_terms(self, kind, tuple(mesh_shape), tuple(axes)), sent_bytes)


@functools.lru_cache(maxsize=16384)
def _terms(cluster: Cluster, kind: str, mesh: tuple[int, ...], axes: tuple[int, ...]) -> collectives.Terms:
    """Kept: boxing asks for every move it looks at, with nothing but the bytes different."""
    return collectives.terms(cluster.levels, cluster.library, kind, mesh, axes)
