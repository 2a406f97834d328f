"""Unlike devices: what each computes and holds, and the links between every two."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...cluster import Cluster, Level, device, get
from ...errors import PlanError
from ..amounts import bytes_text

# A server's processor: AMD EPYC 7763, 64 cores of 2.45 GHz with 32 float32 operations a cycle, eight channels of
# DDR4-3200 (AMD, "EPYC 7003 Series Processors", 2021). How much of both is reached is an assumption.
HOST = Cluster(
    "host", device("host", {"float32": 5.0e12, "float64": 2.5e12}, 512 * 2.0**30, 204.8e9, units=64),
    (Level("memory", None, 100e9, 1e-6),), matmul_efficiency=0.7, memory_efficiency=0.7, op_seconds_floor=2e-6,
)  # fmt: skip
# Between unlike devices: PCIe 4.0 x16, 31.5 GB/s one direction, of which some 25 are reached (an assumption, as is the
# time before the first byte).
_PCIE_BYTES_PER_SECOND, _PCIE_LATENCY = 25e9, 10e-6


@dataclass(frozen=True)
class Devices:
    """Devices that ops are placed on, of one kind or of several.

    Attributes:
        names: one for each.
        kinds: what each is, by the library's cost model (``sbp.Cluster``, of which links are not read).
        latency_seconds, bytes_per_second: by pair what a transfer takes before its first byte, and a second; the
            diagonal is not read.
        memory_bytes: what each may hold; None: what its kind has.
        jax_devices: the ``jax.Device`` that each stands for when ops run; None: ``jax.devices()`` in order.

    Raises ``PlanError`` for devices or links without a cost.
    """

    names: tuple[str, ...]
    kinds: tuple[Cluster, ...]
    latency_seconds: tuple[tuple[float, ...], ...]
    bytes_per_second: tuple[tuple[float, ...], ...]
    memory_bytes: tuple[float, ...] | None = None
    jax_devices: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        n = len(self.names)
        if not n or len(self.kinds) != n or len(set(self.names)) != n:
            raise PlanError(
                f"devices need different names and a kind each; got {list(self.names)}, {len(self.kinds)} kinds"
            )
        for what in ("latency_seconds", "bytes_per_second"):
            if np.shape(getattr(self, what)) != (n, n):
                raise PlanError(f"{what} has shape {np.shape(getattr(self, what))}; {n} devices need ({n}, {n})")
        for a in range(n):
            for b in range(n):
                rate, wait = self.bytes_per_second[a][b], self.latency_seconds[a][b]
                if a != b and not (0 < rate and 0 <= wait < math.inf):
                    raise PlanError(
                        f"no link from {self.names[a]!r} to {self.names[b]!r}: {rate:g} bytes a second after "
                        f"{wait:g} s; every two devices need a rate above zero and a finite latency (a way through a "
                        "third counts)"
                    )
        for what, given in (("memory_bytes", self.memory_bytes), ("jax_devices", self.jax_devices)):
            if given is not None and len(given) != n:
                raise PlanError(f"{what} has {len(given)} entries for {n} devices")
        if self.memory_bytes is not None and not all(m > 0 for m in self.memory_bytes):
            raise PlanError(f"memory_bytes must be above zero; got {list(self.memory_bytes)}")

    @classmethod
    def of(
        cls, *kinds: str | Cluster, bytes_per_second: float | None = None, latency_seconds: float | None = None,
        memory_bytes: Sequence[float] | None = None, jax_devices: Sequence[Any] | None = None,
    ) -> "Devices":  # fmt: skip
        """Devices by presets' names (``sbp.cluster.presets()``), ``"host"`` (a server's processor), or clusters.

        Two of one preset are linked as in a node of it, all others by PCIe 4.0 through the host; ``bytes_per_second``
        and ``latency_seconds`` replace both. Unknown names raise ``SbpError``.
        """
        found = [HOST if k == "host" else get(k) for k in kinds]
        n = len(found)
        rate, wait = np.full((n, n), _PCIE_BYTES_PER_SECOND), np.full((n, n), _PCIE_LATENCY)
        for a in range(n):
            for b in range(n):
                if found[a] == found[b] and found[a] is not HOST:
                    level = found[a].levels[0]
                    rate[a, b] = level.efficiency * (level.pair_bytes_per_second or level.bytes_per_second)
                    wait[a, b] = level.latency_seconds
        rate = rate if bytes_per_second is None else np.full((n, n), bytes_per_second)
        wait = wait if latency_seconds is None else np.full((n, n), latency_seconds)
        return cls(_numbered([c.name for c in found]), tuple(found), _rows(wait), _rows(rate),
                   None if memory_bytes is None else tuple(memory_bytes),
                   None if jax_devices is None else tuple(jax_devices))  # fmt: skip

    @classmethod
    def by_speed(
        cls, names: Sequence[str], *, flops_per_second: Sequence[float], memory_bytes_per_second: Sequence[float],
        memory_bytes: Sequence[float], bytes_per_second: float | Sequence[Sequence[float]] = _PCIE_BYTES_PER_SECOND,
        latency_seconds: float | Sequence[Sequence[float]] = _PCIE_LATENCY, jax_devices: Sequence[Any] | None = None,
    ) -> "Devices":  # fmt: skip
        """Devices by their speeds, an entry for each; links alike (a number) or by pair (a matrix)."""
        n = len(names)
        given = {"flops_per_second": flops_per_second, "memory_bytes_per_second": memory_bytes_per_second,
                 "memory_bytes": memory_bytes}  # fmt: skip
        for what, values in given.items():
            if len(values) != n or not all(0 < x < math.inf for x in values):
                raise PlanError(f"{what}={list(values)}: {n} devices need a number above zero each: no speed, no cost")
        kinds = tuple(
            Cluster(name, device(name, {"float32": f}, m, r, units=1), (Level("link", None, 1e9, 0.0),))
            for name, f, r, m in zip(names, flops_per_second, memory_bytes_per_second, memory_bytes, strict=True)
        )
        rate, wait = (np.full((n, n), x) if np.ndim(x) == 0 else np.asarray(x, float)
                      for x in (bytes_per_second, latency_seconds))  # fmt: skip
        return cls(tuple(names), kinds, _rows(wait), _rows(rate), None,
                   None if jax_devices is None else tuple(jax_devices))  # fmt: skip

    def __len__(self) -> int:
        return len(self.names)

    @property
    def limits(self) -> np.ndarray:
        """(devices,): bytes that each may hold."""
        if self.memory_bytes is not None:
            return np.array(self.memory_bytes, float)
        return np.array([c.device.memory_bytes for c in self.kinds])

    def transfer_seconds(self, size_bytes: float) -> np.ndarray:
        """(devices, devices): seconds from each to each; 0 on the diagonal."""
        rate = np.array(self.bytes_per_second)
        np.fill_diagonal(rate, math.inf)
        seconds = np.array(self.latency_seconds) + size_bytes / rate
        np.fill_diagonal(seconds, 0.0)
        return seconds

    def __str__(self) -> str:
        wide = max(map(len, self.names))
        rows = [f"{name:<{wide}}  {c.device.rate('float32') / 1e12:.3g} TFLOP/s in float32, {bytes_text(m)} at "
                f"{c.device.memory_bytes_per_second / 1e9:.4g} GB/s"
                for name, c, m in zip(self.names, self.kinds, self.limits, strict=True)]  # fmt: skip
        return "\n".join(rows)


def _rows(x: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in np.atleast_2d(x))


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """Names that occur more than once get numbers."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        found.append(f"{name}:{seen[name]}" if names.count(name) > 1 else name)
    return tuple(found)
