"""Seconds to plan an unrolled GPT training step (forward, backward, AdamW), tracing apart.

    python benchmarks/planning_time.py [--layers 12,24] [--mesh 2x4]

Every plan is made from shapes alone. The last column is the time against the first row's.
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
from rich.console import Console
from rich.table import Table

import sbp_jax as sbp
from zoo import gpt


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", default="12,24")
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--cluster", default="a100-80")
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    shape = tuple(map(int, args.mesh.split("x")))
    where = sbp.placement.abstract(shape, axis_names=("dp", "tp", "pp")[: len(shape)], cluster=args.cluster)
    table = Table("layers", "equations", "nodes", "classes", "columns", "trace", "plan", "gap", "plan, ratio")
    first = None
    for layers in map(int, args.layers.split(",")):
        case = gpt.build(layers=layers, hidden=768, heads=12, seq=1024, vocab=50304, batch=args.batch)
        state, batch = jax.eval_shape(case.init), case.batch(0)
        start = time.perf_counter()
        equations = len(jax.make_jaxpr(case.step)(state, batch).eqns)
        traced = time.perf_counter() - start
        plan = sbp.plan(case.step, state, batch, placement=where, donate_argnums=0)
        first = first or plan.planning_seconds
        s = plan.statistics
        table.add_row(str(layers), str(equations), f"{s['nodes']:.0f}", f"{s['classes']:.0f}", f"{s['variables']:.0f}",
                      f"{traced:.2f} s", f"{plan.planning_seconds:.2f} s", f"{plan.optimality_gap:.2%}",
                      f"{plan.planning_seconds / first:.2f}")  # fmt: skip
    Console(width=120).print(table)
    print(
        f"on {where}; peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )


if __name__ == "__main__":
    main()
