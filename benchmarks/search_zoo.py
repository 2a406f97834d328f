"""Every published search for signatures on the model zoo: objective over the best known, bound, seconds.

    python benchmarks/search_zoo.py [--only gpt,lstm] [--meshes 1x8,2x4] [--methods tofu,pase] [--cluster a100-80]
                                    [--picture out.png] [--families signatures,stages,placing,rewriting]
                                    [--jobs 2] [--results benchmarks/results]

With several ``--families``, each in a process of its own, ``--jobs`` at a time, and printed when it has ended: those
beside signatures are search_stages.py, search_placing.py and search_rewriting.py, each with its own defaults. About 17
minutes on 2 cores. ``--results``: a folder for what each prints, as docs/benchmarks.md shows it. ``--picture``: mean
seconds of search against the mean ratio to the best, a point for each method, a part for each family.

All signatures' methods minimise the same, the plain sum of compute and boxing (``overlap=False``), without a memory
limit. The best known is the least objective of the row, the exact search's included. "gspmd" follows pins: batches and
weights of more than one dim as Megatron's plan has them. "adaptive_paddle" plans from the exact plan for half of the
devices on; its objective is the step's, without moving. "exhaustive" is for graphs as small as "products". A method
that refused says "too large" or "refused", with the reason below the table. Ends with exit code 1 where any method is
below the bound that the exact search has proven: that is a fault in the bound.
"""

import argparse
import datetime
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import jax
import jax.numpy as jnp
import search_tables

import sbp_jax as sbp
import zoo

# A step, its arguments, which of them are donated.
Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
Points = dict[str, list[tuple[float, float]]]


def of_zoo(name: str, **options: Any) -> Callable[[], Case]:
    """A model of the zoo."""

    def make() -> Case:
        case = zoo.build(name, **options)
        return case.step, (case.abstract_state(), case.batch(0)), (0,)

    return make


def products() -> Case:
    """Two matrix products, forward: few enough plans to try them all on one axis."""
    shapes = {"a": (1024, 4096), "b": (4096, 1024), "x": (2048, 1024)}
    a, b, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes.values())
    return lambda w, x: x @ w["a"] @ w["b"], ({"a": a, "b": b}, x), ()


MODELS: dict[str, Callable[[], Case]] = {
    "products": products,
    "mlp": of_zoo("mlp", hidden=1024, features=1024, batch=4096, dropout=0.0),
    "lstm": of_zoo("lstm"),
    "resnet": of_zoo("resnet", batch=256),
    "gpt": of_zoo("gpt", batch=64, hidden=256, seq=128, dropout=0.0),
    "llama": of_zoo("llama"),
    "vit": of_zoo("vit"),
    "moe": of_zoo("moe"),
    "dlrm": of_zoo("dlrm"),
}
_SAME = 1e-6
# The longest first.
FAMILIES = ("signatures", "rewriting", "placing", "stages")


def main() -> int:
    """Print the tables and draw the picture; 1 where a method is below the proven bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--meshes", default="1x8,2x4,8x8,2x2x2")
    listed = list(sbp.planner.solvers().of("signatures"))
    parser.add_argument("--methods", default=",".join(["ilp", *(n for n in listed if n != "ilp")]))
    parser.add_argument("--cluster", default="a100-80")
    parser.add_argument("--picture", type=Path, help="seconds against ratio, as PNG or SVG")
    parser.add_argument("--families", default="signatures", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--jobs", type=int, default=2, help="so many families at a time")
    parser.add_argument("--results", type=Path, help="a folder for what is printed")
    args = parser.parse_args()
    families = args.families.split(",")
    if unknown := [f for f in families if f not in FAMILIES]:
        parser.error(f"--families {', '.join(unknown)}: possible: {', '.join(FAMILIES)}")
    if families == ["signatures"] and args.results is None:
        code, points = signatures(args)
        if args.picture:
            draw({"signatures": means_of(points)}, args.picture)
        return code
    return together(args, [f for f in FAMILIES if f in families])


def together(args: argparse.Namespace, families: Sequence[str]) -> int:
    """Each family in a process of its own; the worst exit code."""
    began, code, found = time.perf_counter(), 0, dict[str, search_tables.Means]()
    with ThreadPoolExecutor(args.jobs) as pool:
        waiting = {pool.submit(run, command_of(family, args)): family for family in families}
        for done in as_completed(waiting):
            family, (one, text, seconds) = waiting[done], done.result()
            print(f"\n== {family}: {seconds:.0f} s, exit code {one}\n{text}", flush=True)
            code = max(code, abs(one))
            try:
                found[family] = search_tables.means_in(family, text)
            except (ValueError, KeyError, ZeroDivisionError, StopIteration):
                print(f"no table in what {family} printed", flush=True)
                code = max(code, 1)
            if args.results:
                name = search_tables.FAMILIES[family]
                told = f"Python {platform.python_version()}, jax {jax.__version__}; {datetime.date.today()}"
                head = f"{name}.py; on {os.cpu_count()} cores, {args.jobs} families at a time; {told}."
                (args.results / f"{name}.txt").write_text(f"{head}\n\n{text}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"\n{time.perf_counter() - began:.0f} s in all, {used.ru_utime + used.ru_stime:.0f} s of processors")
    if args.picture:
        draw({family: found[family] for family in FAMILIES if family in found}, args.picture)
    return code


def command_of(family: str, args: argparse.Namespace) -> list[str]:
    """What prints a family's table."""
    own = [sys.executable, str(Path(__file__).with_name(f"{search_tables.FAMILIES[family]}.py"))]
    names = ("only", "meshes", "methods", "cluster") if family == "signatures" else ()
    return own + [x for name in names for x in (f"--{name}", getattr(args, name))]


def run(command: Sequence[str]) -> tuple[int, str, float]:
    """(exit code, what it printed, seconds)."""
    began = time.perf_counter()
    found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return found.returncode, found.stdout, time.perf_counter() - began


def signatures(args: argparse.Namespace) -> tuple[int, Points]:
    """The table of signatures: 1 where a method is below the bound, and by method its (seconds, ratio) of each row."""
    warnings.simplefilter("ignore", UserWarning)
    began, below = time.perf_counter(), 0
    refused: dict[str, list[str]] = {}
    points: Points = {}
    methods = args.methods.split(",")
    print("| model | mesh | method | ms | of best | bound of best | s |\n|---|---|---|---|---|---|---|", flush=True)
    for model in args.only.split(","):
        case = MODELS[model]()
        for mesh in args.meshes.split(","):
            shape = tuple(map(int, mesh.split("x")))
            plans: dict[str, sbp.Plan] = {}
            for name in methods:
                try:
                    plans[name] = planned(name, case, shape, args.cluster, plans)
                except sbp.SbpError as error:
                    refused.setdefault(name, []).append(f"{model} on {mesh}: {error}")
            if not plans:
                continue
            best = min(p.objective for p in plans.values())
            proven = plans["ilp"].bound if "ilp" in plans else 0.0
            for name in methods:
                if name not in plans:
                    why = "too large" if "tries every plan" in refused[name][-1] else "refused"
                    print(f"| {model} | {mesh} | {name} | {why} | - | - | - |", flush=True)
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
    return int(below > 0), points


def planned(name: str, case: Case, shape: tuple[int, ...], cluster: str, known: Mapping[str, sbp.Plan]) -> sbp.Plan:
    """A method's plan; ``known`` are those of others on the same mesh."""
    step, arguments, donated = case

    def plan(solver: str, shape: tuple[int, ...], in_sbp: Any = None, **options: Any) -> sbp.Plan:
        config = sbp.AutoParallelConfig(solver=solver, solver_options=options or None, overlap=False)
        where = sbp.placement.abstract(shape, cluster=cluster)
        return sbp.plan(step, *arguments, placement=where, donate_argnums=donated, in_sbp=in_sbp, config=config)

    if name == "gspmd":
        try:
            megatron = known.get("megatron") or plan("megatron", shape)
        except sbp.SbpError:  # no parameters
            return plan(name, shape)
        return plan(name, shape, in_sbp=few_pins(megatron, arguments))
    if name == "adaptive_paddle":
        last = max(k for k, n in enumerate(shape) if n > 1)
        half = tuple(n // 2 if k == last else n for k, n in enumerate(shape))
        return plan(name, shape, earlier=plan("ilp", half))
    return plan(name, shape)


def few_pins(megatron: sbp.Plan, arguments: tuple[Any, ...]) -> Any:
    """What a user would write for GSPMD: how batches lie, and weights of more than one dim, without what the optimizer
    keeps of them."""
    leaves, tree = jax.tree.flatten(arguments)
    pins: list[Any] = [None] * len(leaves)
    for k, leaf in enumerate(megatron.inputs):
        is_weight = "params" in leaf.path.split("/") and len(leaf.shape) > 1
        if is_weight or leaf.path.startswith("1/"):
            pins[k] = str(leaf.signature)
    return jax.tree.unflatten(tree, pins)


def print_means(refused: Mapping[str, Sequence[str]], points: Points) -> None:
    """What was refused, and by method the means of its (seconds, ratio), the best first."""
    for name, why in refused.items():
        print(f"{name}: refused {len(why)} times; {why[-1]}")
    print("\n| method | rows | mean of best | worst | seconds, mean |\n|---|---|---|---|---|")
    for name, ratio, seconds in means_of(points):
        rows = points[name]
        print(f"| {name} | {len(rows)} | {ratio:.3f} | {max(r for _, r in rows):.3f} | {seconds:.3f} |")


def means_of(points: Points) -> search_tables.Means:
    """By method its mean ratio to the best known and its mean seconds, the best first."""
    found = [(name, *(sum(x) / len(x) for x in zip(*of, strict=True))) for name, of in points.items()]
    return sorted(((name, ratio, seconds) for name, seconds, ratio in found), key=lambda x: x[1])


def draw(found: Mapping[str, search_tables.Means], path: Path) -> None:
    """Mean seconds against mean ratio, a point for each method, a part of the picture for each family."""
    import matplotlib.pyplot as plt

    columns = min(len(found), 2)
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(7 * columns, 5 * rows), squeeze=False)
    for part, (family, methods) in zip(axes.flat, found.items(), strict=False):
        for name, ratio, seconds in methods:
            part.plot(max(seconds, 1e-4), ratio, "o")
            part.annotate(name, (max(seconds, 1e-4), ratio), xytext=(4, 3), textcoords="offset points", fontsize=8)
        part.set_xscale("log")
        part.set_title(family)
        part.set_xlabel("seconds of search, mean")
        part.set_ylabel("objective over the best known, mean")
    for part in axes.flat[len(found) :]:
        part.set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
