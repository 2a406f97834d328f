"""Every published search for signatures on the model zoo: objective over the best known, bound, seconds.

    python benchmarks/search_zoo.py [--only gpt,lstm] [--meshes 1x8,2x4] [--methods tofu,pase] [--cluster a100-80]
                                    [--picture out.png] [--families signatures,stages,placing,rewriting]

With ``--families``, the tables of these families one after the other: those beside signatures are search_stages.py,
search_placing.py and search_rewriting.py, each with its own defaults. All signatures' methods minimise the same, the
plain sum of compute and boxing (``overlap=False``), without a memory limit. The best known is the least objective of
the row, the exact search's included. "-": the method refused, with the reason below the table. Ends with exit code 1
where any method is below the bound that the exact search has proven: that is a fault in the bound.
"""

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import sbp_jax as sbp
import zoo

MODELS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: zoo.build("mlp", hidden=1024, features=1024, batch=4096, dropout=0.0),
    "lstm": lambda: zoo.build("lstm"),
    "resnet": lambda: zoo.build("resnet", batch=256),
    "gpt": lambda: zoo.build("gpt", batch=64, hidden=256, seq=128, dropout=0.0),
    "llama": lambda: zoo.build("llama"),
    "vit": lambda: zoo.build("vit"),
    "moe": lambda: zoo.build("moe"),
    "dlrm": lambda: zoo.build("dlrm"),
}
# The exhaustive search is for graphs of a few decisions; GSPMD wants a user's annotations, Adaptive Paddle an earlier
# plan.
LEFT_OUT = ("exhaustive", "gspmd", "adaptive_paddle")
_SAME = 1e-6
FAMILIES = ("signatures", "stages", "placing", "rewriting")


def main() -> int:
    """Print the tables and draw the picture; 1 where a method is below the proven bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--meshes", default="1x8,2x4,8x8,2x2x2")
    listed = [n for n in sbp.planner.solvers().of("signatures") if n not in LEFT_OUT]
    parser.add_argument("--methods", default=",".join(["ilp", *(n for n in listed if n != "ilp")]))
    parser.add_argument("--cluster", default="a100-80")
    parser.add_argument("--picture", type=Path, help="seconds against ratio, as PNG or SVG")
    parser.add_argument("--families", default="signatures", help=f"of {', '.join(FAMILIES)}")
    args = parser.parse_args()
    families = args.families.split(",")
    if unknown := [f for f in families if f not in FAMILIES]:
        parser.error(f"--families {', '.join(unknown)}: possible: {', '.join(FAMILIES)}")
    return max([signatures(args) if f == "signatures" else sibling(f) for f in families])


def sibling(family: str) -> int:
    """Another family's script, in a process of its own; its exit code."""
    print(f"\n== {family}", flush=True)
    return subprocess.run([sys.executable, str(Path(__file__).with_name(f"search_{family}.py"))]).returncode


def signatures(args: argparse.Namespace) -> int:
    """The table of signatures."""
    warnings.simplefilter("ignore", UserWarning)
    began, below = time.perf_counter(), 0
    refused: dict[str, str] = {}
    points: dict[str, list[tuple[float, float]]] = {}
    methods = args.methods.split(",")
    print("| model | mesh | method | ms | of best | bound of best | s |\n|---|---|---|---|---|---|---|", flush=True)
    for model in args.only.split(","):
        case = MODELS[model]()
        for mesh in args.meshes.split(","):
            shape = tuple(map(int, mesh.split("x")))
            where = sbp.placement.abstract(shape, cluster=args.cluster)
            plans: dict[str, sbp.Plan] = {}
            for name in methods:
                config = sbp.AutoParallelConfig(solver=name, overlap=False)
                try:
                    plans[name] = sbp.plan(
                        case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0,
                        config=config,
                    )  # fmt: skip
                except sbp.SbpError as error:
                    refused[name] = f"{model} on {mesh}: {error}"
            if not plans:
                continue
            best = min(p.objective for p in plans.values())
            proven = plans["ilp"].bound if "ilp" in plans else 0.0
            for name in methods:
                if name not in plans:
                    print(f"| {model} | {mesh} | {name} | - | - | - | - |", flush=True)
                    continue
                plan = plans[name]
                is_below = plan.objective < proven * (1 - _SAME)
                below += is_below
                seconds = plan.planning_seconds
                points.setdefault(name, []).append((seconds, plan.objective / best))
                print(
                    f"| {model} | {mesh} | {name} | {1e3 * plan.objective:.4g} | {plan.objective / best:.3f}"
                    f"{'!' if is_below else ''} | {plan.bound / best:.3f} | {seconds:.2f} |",
                    flush=True,
                )
    print_means(refused, points)
    print(f"\n{below} plans below a proven bound; {time.perf_counter() - began:.0f} s in all")
    if args.picture:
        draw(points, args.picture)
    return int(below > 0)


def print_means(refused: dict[str, str], points: dict[str, list[tuple[float, float]]]) -> None:
    """What was refused, and by method the means of its (seconds, ratio), the best first."""
    for name, why in refused.items():
        print(f"{name}: {why}")
    print("\n| method | rows | mean of best | worst | seconds, mean |\n|---|---|---|---|---|")
    for name in sorted(points, key=lambda n: sum(r for _, r in points[n]) / len(points[n])):
        s, r = zip(*points[name], strict=True)
        print(f"| {name} | {len(r)} | {sum(r) / len(r):.3f} | {max(r):.3f} | {sum(s) / len(s):.3f} |")


def draw(points: dict[str, list[tuple[float, float]]], path: Path) -> None:
    """Mean seconds against mean ratio, a point for each method."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for name, found in points.items():
        s, r = (sum(x) / len(x) for x in zip(*found, strict=True))
        axes.plot(s, r, "o")
        axes.annotate(name, (s, r), xytext=(4, 3), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("seconds of planning, mean")
    axes.set_ylabel("objective over the best known, mean")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
