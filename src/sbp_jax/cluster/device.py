"""One accelerator: what it computes a second, what its memory moves, and how long a matrix product takes.

A matrix product is cut into tiles, one for each of the device's units (an SM, a CU, an MXU) at a time, so its time is
a whole number of *waves*: the last may be nearly empty, and tiles at the edges partly so. NVIDIA, "Matrix
Multiplication Background User's Guide" (DU-09799-001), sections 2.3 and 3: tile and wave quantisation, and the sizes
of cuBLAS's tiles. A wave takes

* its arithmetic: 2 a b k operations on a tile of a x b, at the unit's part of the sustained rate;
* or the reading of its operands through the cache shared by all units, (a + b) k elements a tile, where that is
  longer (small tiles re-read more);
* and the filling of its pipeline: first loads and last stores meet no arithmetic, some two round trips to memory;
* and the storing of its results, where a unit's tiles follow each other: a tile's epilogue comes after its last
  product, all units reach it together, and nothing is computed meanwhile. With a short k, as in attention's scores,
  that is half of the time (measurements in ``presets``). Later kernels store one tile beside the next.

Where a product has few tiles but a long k, libraries cut k too and add up the pieces in memory ("split-k"). The best
of all that is taken, as libraries do by their heuristics, but never less than operands and result take to cross the
device's memory once.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from .levels import not_negative, positive

# Rows, columns and depth of a tile.
Tile = tuple[int, int, int]
_SPLITS = (1, 2, 4, 8)
_PARTIAL_BYTES = 4  # pieces of a product whose k was cut are added in float32


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. ``flops_per_second`` by dtype name, dense; memory in bytes and bytes per second.

    units: how many tiles of a matrix product are computed at a time; 0 leaves tiles out of account.
    tiles: rows, columns and depth of the tiles that its library has.
    fill_seconds: what a wave of tiles spends on filling its pipeline.
    cache_bytes_per_second: from the cache that all units share; 0 leaves it out of account.
    stores_between: 1 where a tile's results are stored before the next tile begins; 0 where meanwhile.
    """

    name: str
    flops_per_second: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_bytes_per_second: float
    units: int = 0
    tiles: tuple[Tile, ...] = ()
    fill_seconds: float = 0.0
    cache_bytes_per_second: float = 0.0
    stores_between: int = 0

    def __post_init__(self) -> None:
        where = f"device {self.name!r}"
        positive(where, memory_bytes=self.memory_bytes, memory_bytes_per_second=self.memory_bytes_per_second)
        positive(f"{where}, flops_per_second", **dict(self.flops_per_second))
        not_negative(where, units=self.units, fill_seconds=self.fill_seconds,
                     cache_bytes_per_second=self.cache_bytes_per_second,
                     stores_between=self.stores_between)  # fmt: skip
        for tile in self.tiles:
            positive(f"{where}, tile {list(tile)}", rows=tile[0], columns=tile[1], depth=tile[2])
        positive(where, **{"flops_per_second of float32": dict(self.flops_per_second).get("float32", 0.0)})

    def rate(self, dtype: str) -> float:
        """Peak FLOP/s in ``dtype``; one not listed runs at the rate of float32."""
        rates = dict(self.flops_per_second)
        return rates.get(dtype, rates["float32"])


def device(
    name: str, rates: Mapping[str, float], memory_bytes: float, memory_bytes_per_second: float, units: int = 0,
    tiles: tuple[Tile, ...] = (), fill_seconds: float = 0.0, cache_bytes_per_second: float = 0.0,
    stores_between: int = 0,
) -> Device:  # fmt: skip
    """A ``Device`` from a mapping of rates."""
    return Device(name, tuple(sorted(rates.items())), memory_bytes, memory_bytes_per_second, units, tiles,
                  fill_seconds, cache_bytes_per_second, stores_between)  # fmt: skip


@functools.lru_cache(maxsize=65536)
def product_seconds(
    device: Device, rate: float, memory_rate: float, m: int, n: int, k: int, batch: int, itemsize: int
) -> float:
    """Seconds of ``batch`` products of m x k and k x n, memory traffic of operands and result apart.

    ``rate`` in sustained FLOP/s; ``memory_rate`` in bytes per second, for storing results between tiles and for the
    pieces of a product whose k is cut.
    """
    if not device.units or not device.tiles or min(m, n) == 1:  # a vector's product is a reduction, not of tiles
        return 2.0 * batch * m * n * k / rate
    units = device.units
    unit_rate = rate / units
    best = math.inf
    for rows, columns, depth in device.tiles:
        tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
        for split in _SPLITS:
            if split > 1 and k < 2 * split * depth:
                break
            deep = math.ceil(k / split / depth) * depth
            arithmetic = 2.0 * rows * columns * deep / unit_rate
            reading = 0.0
            if device.cache_bytes_per_second:
                reading = (rows + columns) * deep * itemsize * units / device.cache_bytes_per_second
            waves = math.ceil(tiles * split / units)
            total = waves * (max(arithmetic, reading) + device.fill_seconds)
            if split == 1 and device.stores_between:
                total += batch * m * n * itemsize / memory_rate
            if split > 1:
                total += 2.0 * split * batch * m * n * _PARTIAL_BYTES / memory_rate
            best = min(best, total)
    return best
