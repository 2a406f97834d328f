"""Every published search for pipeline stages on models of the zoo: a step's seconds over the best, seconds of search.

    python benchmarks/search_stages.py [--only gpt,lstm] [--microbatches 4,16] [--cluster v100] [--limit 0.5] [--built]

The tables of layers are made once for each model; every method reads the same. "best": over the exact search's step,
by the model that all are judged by. "pace": seconds from one micro-batch to the next, over the least of all. With
``--limit``, a device has that part of the memory that the exact stages without a limit hold. "-": the method refused,
with the reason below the table. Ends with exit code 1 where a method is below what is proven.

With ``--built``, the stages are planned, too, and another table compares what the tables of layers say with the plans:
seconds from one micro-batch to the next (of a plan those of its simulated schedule, in the steady part), and of a step.
"""

import argparse
import dataclasses
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import sbp_jax as sbp
import zoo
from sbp_jax.pipeline.choose import search
from sbp_jax.pipeline.searches import search_stages
from sbp_jax.pipeline.stages import StageCosts, Stages
from sbp_jax.schedules import by_name

GPT: dict[str, Any] = {"batch": 64, "hidden": 512, "seq": 128, "dropout": 0.0}
# By name the model of the zoo and its options.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"hidden": 2048, "features": 2048, "batch": 1024, "dropout": 0.0}),
    "gpt-2-layers": ("gpt", {**GPT, "layers": 2}),
    "gpt": ("gpt", {**GPT, "layers": 12}),
    "resnet": ("resnet", {"batch": 64}),
    "vit": ("vit", {"batch": 64}),
    "llama": ("llama", {"batch": 64}),
}
_SAME = 1e-9


@dataclasses.dataclass(slots=True)
class Tables:
    """What all ranges of layers take on all groups of devices, and how they are searched, as ``Pipeline`` does it."""

    costs: StageCosts
    meshes: list[Any]
    how: dict[str, Any]
    layers: Any


class _Stop(Exception):
    pass


def planned(name: str, model: str, microbatches: int, where: sbp.Placement) -> Any:
    """The plan of a pipeline whose stages a method has found."""
    of, options = MODELS[model]
    case = zoo.build(of, **options)
    pipeline = sbp.Pipeline(microbatches=microbatches, search=name, batch_statistics="microbatch")
    config = sbp.AutoParallelConfig(pipeline=pipeline)
    return sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0, config=config)


def tables(model: str, microbatches: int, where: sbp.Placement) -> Tables:
    """The tables of a model."""
    seen: list[Tables] = []
    made: list[Any] = []

    def layers(*args: Any) -> Any:
        made.append(kept_layers(*args))
        return made[-1]

    def look(name: str, given: Any, costs: StageCosts, meshes: Any, devices: int, count: int, **how: Any) -> Any:
        seen.append(Tables(costs, list(meshes), how, made[-1]))
        raise _Stop

    kept_search, kept_layers = search.search_stages, search.LayerTables
    search.search_stages, search.LayerTables = look, layers  # pyright: ignore[reportAttributeAccessIssue]
    try:
        planned("alpa_inter", model, microbatches, where)
    except _Stop:
        pass
    finally:
        search.search_stages, search.LayerTables = kept_search, kept_layers
    return seen[0]


def built(name: str, model: str, microbatches: int, where: sbp.Placement, known: Tables) -> tuple[float, float]:
    """Of the plan of a method's stages: seconds from one micro-batch to the next, and of a step."""
    kept = search.LayerTables
    search.LayerTables = lambda *args: known.layers  # pyright: ignore[reportAttributeAccessIssue]
    try:
        plan = planned(name, model, microbatches, where)
    finally:
        search.LayerTables = kept

    def whole(count: int) -> float:
        longer = by_name(plan.schedule.name, plan.schedule.ranks, count)
        return dataclasses.replace(plan, schedule=longer).timing.makespan_seconds

    first = 3 * plan.schedule.ranks
    return (whole(first + 16) - whole(first)) / 16, plan.step_seconds


def compare(found: Stages, name: str, model: str, m: int, where: sbp.Placement, known: Tables) -> list[str]:
    """What the tables say of a method's stages beside what their plan says, as a row."""
    pace, step = built(name, model, m, where, known)
    cells = [f"{model}, {m}", name, " ".join(map(str, found.devices))]
    for said, is_so in ((found.slowest_seconds, pace), (found.total_seconds, step)):
        cells += [f"{1e3 * said:.4g}", f"{1e3 * is_so:.4g}", f"{is_so / said:.2f}"]
    return [f"| {' | '.join(cells)} |"]


def main() -> int:
    """Print the table; 1 where a method is below the proven bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--microbatches", default="4,16")
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--cluster", default="v100")
    parser.add_argument("--limit", type=float, help="part of the memory that the best stages hold")
    parser.add_argument("--built", action="store_true", help="plan the stages, too, and compare")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    shape = tuple(map(int, args.mesh.split("x")))
    where = sbp.placement.abstract(shape, cluster=args.cluster)
    names = list(sbp.planner.solvers().of("stages"))
    points: dict[str, list[tuple[float, float, float]]] = {}
    refused, below, compared = dict[str, str](), 0, list[str]()
    print(
        "| model | micro-batches | method | stages | ms | best | pace | search s |\n|---|---|---|---|---|---|---|---|"
    )
    for model in args.only.split(","):
        for m in map(int, args.microbatches.split(",")):
            known = tables(model, m, where)
            costs, meshes, how = known.costs, known.meshes, known.how
            if args.limit:
                free = search_stages("alpa_inter", {}, costs, meshes, where.size, m, **how)
                how["limit_bytes"] = args.limit * max(free.memory_bytes)
            found, seconds = {}, {}
            for name in names:
                began = time.perf_counter()
                try:
                    found[name] = search_stages(name, {}, costs, meshes, where.size, m, **how)
                except sbp.PlanError as error:
                    refused[name] = f"{model}, {m} micro-batches: {error}"
                seconds[name] = time.perf_counter() - began
            if not found:
                print(f"| {model} | {m} | none fits | - | - | - | - | - |")
                continue
            best = min(f.total_seconds for f in found.values())
            proven = found["alpa_inter"].bound_seconds if "alpa_inter" in found else 0.0
            paces = {name: f.slowest_seconds for name, f in found.items()}
            pace = min(paces.values())
            if args.built:
                for name, f in found.items():
                    compared += compare(f, name, model, m, where, known)
            for name in names:
                if name not in found:
                    print(f"| {model} | {m} | {name} | - | - | - | - | {seconds[name]:.3f} |")
                    continue
                f = found[name]
                is_below = f.total_seconds < proven * (1 - _SAME)
                below += is_below
                ratios = f.total_seconds / best, paces[name] / pace
                points.setdefault(name, []).append((*ratios, seconds[name]))
                print(
                    f"| {model} | {m} | {name} | {' '.join(map(str, f.devices))} | {1e3 * f.total_seconds:.4g} | "
                    f"{ratios[0]:.3f}{'!' if is_below else ''} | {ratios[1]:.3f} | {seconds[name]:.3f} |",
                    flush=True,
                )
    if compared:
        heads = "pace, ms", "the plan's", "ratio", "step, ms", "the plan's", "ratio"
        print(f"\n| model, micro-batches | search | devices | {' | '.join(heads)} |")
        print("|---|---|---|---|---|---|---|---|---|", *compared, sep="\n")
    for name, why in refused.items():
        print(f"{name}: {why}")
    print("\n| method | rows | mean of best | worst | pace, mean | search s, mean |\n|---|---|---|---|---|---|")
    for name in sorted(points, key=lambda n: sum(x[0] for x in points[n]) / len(points[n])):
        ratio, pace, s = zip(*points[name], strict=True)
        n = len(ratio)
        print(f"| {name} | {n} | {sum(ratio) / n:.3f} | {max(ratio):.3f} | {sum(pace) / n:.3f} | {sum(s) / n:.3f} |")
    print(f"\n{below} answers below a proven bound")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
