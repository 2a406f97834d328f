"""Every published search for pipeline stages on models of the zoo: a step's seconds over the best, seconds of search.

    python benchmarks/search_stages.py [--only gpt,lstm] [--microbatches 4,16] [--cluster v100] [--limit 0.5]

The tables of layers are made once for each model; every method reads the same. "best": over the exact search's step,
by the model that all are judged by. "pace": seconds from one micro-batch to the next, with a
stage's part of what it does once a step, over the least of all. With
``--limit``, a device has that part of the memory that the exact stages without a limit hold. "-": the method refused,
with the reason below the table. Ends with exit code 1 where a method is below what is proven.
"""

import argparse
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
from sbp_jax.pipeline.searches import search_stages
from sbp_jax.pipeline.stages import StageCosts, Stages, in_flight_of

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 2048, "features": 2048, "batch": 1024, "dropout": 0.0},
    "gpt": {"batch": 64, "hidden": 512, "seq": 128, "layers": 12, "dropout": 0.0},
    "resnet": {"batch": 64},
    "vit": {"batch": 64},
    "llama": {"batch": 64},
}
_SAME = 1e-9


def tables(model: str, microbatches: int, where: sbp.Placement) -> tuple[StageCosts, list[Any]]:
    """What all ranges of layers take on all groups of devices, as the chooser of ``Pipeline`` sees it."""
    from sbp_jax.pipeline.choose import search

    seen: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def look(name: str, given: Any, costs: StageCosts, meshes: Any, *rest: Any, **more: Any) -> Any:
        seen["found"] = costs, list(meshes)
        raise Stop

    case = zoo.build(model, **MODELS[model])
    config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(microbatches=microbatches, search="alpa_inter",
                                                          batch_statistics="microbatch"))  # fmt: skip
    kept, search.search_stages = search.search_stages, look
    try:
        sbp.plan(
            case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0, config=config
        )  # fmt: skip
    except Stop:
        return seen["found"]
    finally:
        search.search_stages = kept
    raise AssertionError


def pace_of(found: Stages, microbatches: int) -> float:
    """What Piper and PipeDream minimise."""
    each = zip(found.seconds, found.transfer_seconds, found.once_seconds, strict=True)
    return max(s + t + once / microbatches for s, t, once in each)


def main() -> int:
    """Print the table; 1 where a method is below the proven bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--microbatches", default="4,16")
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--cluster", default="v100")
    parser.add_argument("--limit", type=float, help="part of the memory that the best stages hold")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    shape = tuple(map(int, args.mesh.split("x")))
    where = sbp.placement.abstract(shape, cluster=args.cluster)
    names = list(sbp.planner.solvers().of("stages"))
    points: dict[str, list[tuple[float, float, float]]] = {}
    refused, below = dict[str, str](), 0
    print(
        "| model | micro-batches | method | stages | ms | best | pace | search s |\n|---|---|---|---|---|---|---|---|"
    )
    for model in args.only.split(","):
        for m in map(int, args.microbatches.split(",")):
            costs, meshes = tables(model, m, where)
            how: dict[str, Any] = {"limit_bytes": None, "in_flight": in_flight_of("1f1b"), "overlaps": False}
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
            paces = {name: pace_of(f, m) for name, f in found.items()}
            pace = min(paces.values())
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
