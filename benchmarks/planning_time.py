"""Seconds and memory that planning takes, by model and mesh; every plan is made from shapes alone.

    python benchmarks/planning_time.py                       # GPT of 12 and 24 layers
    python benchmarks/planning_time.py --models all          # every model below, unrolled and written with scan
    python benchmarks/planning_time.py --layers 24,48,96,192 # GPT-3's width: how time grows with layers
    python benchmarks/planning_time.py --models gpt3 --mesh 16x8x8

A step is forward, backward and the optimizer. "trace" is ``jax.make_jaxpr`` alone; "plan" is everything after it:
the graph, rules, repeated layers, costs, search, the plan written out. Both are processor seconds of a process of its
own, which are steady on a busy machine ("wall" is its plan's seconds by the clock); "peak" is the memory of that
process at its largest, jax and the traced step included.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

_GPT3 = {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200, "batch": 1536, "fused_qkv": True,
         "remat": True}  # fmt: skip
_LLAMA = {"batch": 64, "remat": True}
_SCAN = {"scan_layers": True}
# name: the zoo's model, its size, what is changed of it, the mesh
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "gpt3": ("gpt", "gpt2", _GPT3, "128x8"),
    "gpt3-scan": ("gpt", "gpt2", _GPT3 | _SCAN, "128x8"),
    "llama3-8b": ("llama", "llama3-8b", _LLAMA, "8x8"),
    "llama3-8b-scan": ("llama", "llama3-8b", _LLAMA | _SCAN, "8x8"),
    "llama3-8b-3d": ("llama", "llama3-8b", _LLAMA, "4x4x4"),
    "llama3-70b": ("llama", "llama3-70b", _LLAMA, "8x8"),
    "llama3-70b-scan": ("llama", "llama3-70b", _LLAMA | _SCAN, "8x8"),
    "moe-27b": ("moe", "moe-27b", {"batch": 256}, "8x8"),
    "moe-27b-scan": ("moe", "moe-27b", {"batch": 256, **_SCAN}, "8x8"),
    "vit-h14": ("vit", "vit-h14", {}, "8x8"),
    "vit-h14-scan": ("vit", "vit-h14", _SCAN, "8x8"),
    "wrn-28-10": ("wide_resnet", "wrn-28-10", {}, "8x8"),
    "dlrm": ("dlrm", "criteo", {}, "8x8"),
}
COLUMNS = (
    "equations",
    "nodes",
    "classes",
    "trace s",
    "plan s",
    "wall s",
    "search, wall s",
    "gap",
    "step ms",
    "peak GiB",
)


def measure(model: str, size: str, overrides: dict[str, Any], mesh: str, cluster: str) -> dict[str, float]:
    """One row, in this process."""
    import jax

    import sbp_jax as sbp
    import zoo

    shape = tuple(map(int, mesh.split("x")))
    where = sbp.placement.abstract(shape, axis_names=("dp", "tp", "pp")[: len(shape)], cluster=cluster)
    case = zoo.build(model, size, **overrides)
    state, batch = case.abstract_state(), case.batch(0)
    start = time.process_time()
    equations = len(jax.make_jaxpr(case.step)(state, batch).eqns)
    traced = time.process_time()
    plan = sbp.plan(case.step, state, batch, placement=where, donate_argnums=0)
    planned = time.process_time()
    s = plan.statistics
    return {
        "equations": equations,
        "nodes": s["nodes"],
        "classes": s["classes"],
        "trace s": traced - start,
        # Planning traces the step a second time.
        "plan s": planned - traced - (traced - start),
        "wall s": plan.planning_seconds,
        "search, wall s": s["solve_seconds"],
        "gap": plan.optimality_gap,
        "step ms": plan.step_seconds * 1e3,
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "fits": float(not any("does not fit" in note for note in plan.notes)),
    }


def main() -> None:
    """Print the table, a process for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help=f"'all', or some of {', '.join(MODELS)}")
    parser.add_argument("--layers", default="", help="numbers of layers, of the (first) model named, or of GPT-3")
    parser.add_argument("--mesh", default="", help="instead of each model's own")
    parser.add_argument("--cluster", default="h100")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(*json.loads(args.row))))
        return
    names = list(MODELS) if args.models == "all" else (args.models or "gpt3").split(",")
    rows = [(name, *MODELS[name]) for name in names]
    if args.layers or not args.models:
        small = {} if args.layers else {"hidden": 768, "heads": 12, "seq": 1024, "batch": 512}
        _, model, size, overrides, mesh = rows[0]
        rows = [
            (
                f"{names[0]}, {n} layers",
                model,
                size,
                {**overrides, **small, "layers": n},
                mesh if args.layers else "8x8",
            )
            for n in map(int, (args.layers or "12,24").split(","))
        ]
    print(f"| {' | '.join(('model', 'mesh', *COLUMNS))} |\n|{'---|' * (2 + len(COLUMNS))}")
    for name, model, size, overrides, own_mesh in rows:
        mesh = args.mesh or own_mesh
        row = json.dumps([model, size, overrides, mesh, args.cluster])
        done = subprocess.run([sys.executable, __file__, "--row", row], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {name} | {mesh} | {done.stderr.strip().splitlines()[-1]} |", flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        cells = [f"{found[c]:.4%}" if c == "gap" else f"{found[c]:.4g}" if isinstance(found[c], float)
                 and c not in ("nodes", "classes") else f"{found[c]:.0f}" for c in COLUMNS]  # fmt: skip
        cells[-2] += "" if found["fits"] else " (does not fit)"
        print(f"| {name} | {mesh} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
