"""What ``sbp-jax calibrate`` measures here, what its cluster predicts of it, and products by size on every preset.

    python benchmarks/calibration.py [--devices 8]

On simulated devices the figures are the host's: their threads share its cores and memory.
"""

import argparse
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from rich.console import Console
from rich.table import Table

from sbp_jax import cluster


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=8)
    args = parser.parse_args()
    if os.environ["JAX_PLATFORMS"] == "cpu":
        jax.config.update("jax_num_cpu_devices", args.devices)
    from sbp_jax.cluster.calibrate import calibrate

    console = Console(width=120)
    start = time.perf_counter()
    found = calibrate("here", args.devices)
    took = time.perf_counter() - start
    console.print(f"{args.devices} x {found.cluster.device.name}, jax {jax.__version__}, measured in {took:.0f} s, "
                  f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    for m in found.measurements:
        console.print(str(m), highlight=False)
    console.print(f"collectives fit within {found.worst_error:.0%}; {'; '.join(found.notes)}")

    sides = (256, 512, 1024, 2048, 4096, 8192, 16384)
    table = Table("preset", *map(str, sides), title="bfloat16 products of n x n: part of peak, by the model")
    for name in cluster.presets():
        c = cluster.get(name)
        table.add_row(name, *(f"{c.matmul_efficiency_of(n, n, n, 'bfloat16', 2):.2f}" for n in sides))
    console.print(table)

    sizes = (1e4, 1e6, 1e8, 1e9)
    table = Table("preset", "devices", *(f"{s:.0e} B" for s in sizes), title="all-reduce, microseconds, by the model")
    for name in ("v100", "a100-80", "h100", "b200", "mi300x"):
        for p in (8, 64):
            sent = [2 * (p - 1) / p * s for s in sizes]
            row = [f"{cluster.get(name).collective_seconds('all_reduce', b, (p,), (0,)) * 1e6:.0f}" for b in sent]
            table.add_row(name, str(p), *row)
    console.print(table)


if __name__ == "__main__":
    main()
