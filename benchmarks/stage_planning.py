"""Seconds of planning pipeline stages: ops into layers, and layers into stages of 1,024 devices.

    python benchmarks/stage_planning.py [--only layers|stages]

No JAX and no model: random ops and costs from a seed. Ops: lognormal flops and random bytes of cuts (whole multiples of
1 MiB, and all the same, where every cut is a candidate). Stages: layers of unequal work on 21 sub-meshes of 128 nodes
of 8 devices; a stage's seconds fall with its devices to the power of 0.95, 0.8 or 0.6, so that few, some or many stages
are best; transfers, once a step, and the memory of 1F1B count. Limits: none, and two that are small enough to matter.

Exits with 1 where 50,000 ops take 2 s or 24 layers take 10 s. 96 layers have no bound.
"""

import argparse
import itertools
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from sbp_jax.pipeline.stages import StageCosts, Submesh, cluster_layers, plan_stages

OPS_BOUND_SECONDS = 2.0
STAGES_BOUND_SECONDS = 10.0
BOUNDED_LAYERS = 24
NODES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
SUBMESHES = (Submesh(1, 1), Submesh(1, 2), Submesh(1, 4), *(Submesh(n, 8) for n in NODES))
DEVICES = 1024
MICROBATCHES = 64


def main() -> int:
    """Print both tables; 1 where a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("layers", "stages"), help="one of the two tables")
    only = parser.parse_args().only
    console = Console(width=120)
    is_slow = False
    if only in (None, "layers"):
        table, slow = layers_table()
        console.print(table)
        is_slow |= slow
    if only in (None, "stages"):
        table, slow = stages_table()
        console.print(table)
        is_slow |= slow
    return int(is_slow)


def layers_table() -> tuple[Table, bool]:
    """Ops into layers; whether the bound is broken."""
    table = Table("ops", "layers asked", "cuts' bytes", "seconds", "layers", "deviation of flops", "largest cut")
    worst = 0.0
    for count, asked, kind in itertools.product((3_000, 50_000), (24, 96, 200), ("random", "equal")):
        rng = np.random.default_rng(count + asked)
        flops = rng.lognormal(0.0, 1.5, count)
        cuts = rng.integers(1, 20, count - 1) * 2.0**20 if kind == "random" else np.full(count - 1, 2.0**20)
        start = time.perf_counter()
        found = cluster_layers(flops, cuts, asked)
        seconds = time.perf_counter() - start
        worst = max(worst, seconds)
        deviation = np.std(found.flops) / np.mean(found.flops)
        largest = f"{found.largest_crossing_bytes / 2**20:.0f} MiB"
        table.add_row(f"{count:,}", str(asked), kind, f"{seconds:.2f}", str(found.count), f"{deviation:.1%}", largest)
    return table, worst > OPS_BOUND_SECONDS


def random_costs(layers: int, power: float) -> StageCosts:
    """Layers of unequal work, the last (with the loss) half as heavy again."""
    rng = np.random.default_rng(0)
    work = rng.uniform(0.7, 1.3, layers)
    work[-1] *= 1.5
    reached = np.concatenate(([0.0], np.cumsum(work)))
    amount = np.maximum(reached[None, :] - reached[:-1, None], 0.0)[:, :, None]
    sizes = np.array([s.devices for s in SUBMESHES])
    shape = (layers, layers + 1, len(sizes))
    return StageCosts(
        amount / sizes**power * rng.uniform(0.95, 1.05, shape),
        rng.uniform(0.0, 0.002, layers),
        amount * 0.3 / sizes + 0.01 * np.log2(sizes),
        amount * 16e9 / sizes,
        amount * 2e9 / sizes,
    )


def stages_table() -> tuple[Table, bool]:
    """Layers into stages; whether the bound is broken."""
    table = Table("layers", "power", "limit", "seconds", "tables", "proven gap", "stages", "step")
    worst = 0.0
    for layers, power, part in itertools.product((24, 96), (0.95, 0.8, 0.6), (None, 0.042, 0.025)):
        costs = random_costs(layers, power)
        # A part of the bytes that one layer's weights and activations take on one device.
        limit = None if part is None else part * layers * 1e9
        start = time.perf_counter()
        found = plan_stages(costs, SUBMESHES, DEVICES, MICROBATCHES, limit_bytes=limit)
        seconds = time.perf_counter() - start
        if layers <= BOUNDED_LAYERS:
            worst = max(worst, seconds)
        told = "none" if limit is None else f"{limit / 1e9:.2f} GB"
        numbers = (f"{seconds:.2f}", str(found.tables), f"{found.gap:.2%}", str(len(found.ranges)))
        table.add_row(str(layers), str(power), told, *numbers, f"{found.total_seconds:.3f} s")
    return table, worst > STAGES_BOUND_SECONDS


if __name__ == "__main__":
    sys.exit(main())
