"""One plan in three programs: explicit collectives, constraints for XLA's partitioner, shardings of arguments alone.

    python benchmarks/lowerings.py                     # the zoo's tiny models, on 2x4 and 2x2x2
    python benchmarks/lowerings.py --quick             # two of them on 2x4
    python benchmarks/lowerings.py --models moe --mesh 8x1 --show --limit 1200

Each step is planned once and compiled three times for 8 simulated CPU devices: "manual" and "gspmd" are
``AutoParallelConfig(lowering=...)``, "jit" is plain ``jax.jit`` with ``plan.shardings()``, where XLA's partitioner
chooses everything between arguments and results. Collectives by kind and bytes are those of the compiled program, times
their runs in a step; "added" and "left out" count what only the program or only the plan has. A row's "of the plan" is
its bytes over the plan's. Steps run in turns in one process; "ms" is the median, "ratio" that over manual's, and on a
machine with fewer cores than devices it says little. Each model runs in a process of its own for at most ``--limit``
seconds; the rows that it printed until then stay. Exits with 1 where the losses of two lowerings differ, and where a
model did not finish.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # the partitioner warns where it gathers what it cannot move
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import numpy as np

import sbp_jax as sbp
import zoo
from sbp_jax.lower.hlo import KINDS, count
from sbp_jax.lower.verify import verify_text

ROUNDS = 7
MESHES = ((2, 4), (2, 2, 2))
AXES = ("dp", "tp", "ep")
# name: the zoo's model and what is changed of its tiny size. A batch has at least one example for each device.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {}),
    "gpt": ("gpt", {}),
    "gpt scan remat": ("gpt", {"scan_layers": True, "remat": True}),
    "gpt accumulation": ("gpt", {"grad_accumulation": 4, "batch": 32}),
    "gpt_nnx": ("gpt_nnx", {}),
    "llama scan remat": ("llama", {"scan_layers": True, "remat": True}),
    "moe": ("moe", {}),
    "moe scan": ("moe", {"scan_layers": True, "layers": 4}),
    "vit scan remat": ("vit", {"scan_layers": True, "remat": True}),
    "resnet": ("resnet", {}),
    "wide_resnet": ("wide_resnet", {}),
    "lstm": ("lstm", {}),
    "dlrm": ("dlrm", {}),
}
QUICK = ("mlp", "dlrm")
SHORT = {"all-reduce": "reduce", "all-gather": "gather", "reduce-scatter": "scatter", "all-to-all": "a2a",
         "collective-permute": "permute"}  # fmt: skip
COLUMNS = ("model", "mesh", "program", *SHORT.values(), "bytes", "of the plan", "added", "left out", "compile s",
           "ms", "ratio")  # fmt: skip


def measure(name: str, mesh: tuple[int, ...], show: bool) -> bool:
    """Print the rows of one model; whether all three programs give the same losses."""
    model, overrides = MODELS[name]
    batch = max(zoo.MODELS[model].SIZES["tiny"].batch, overrides.get("batch", 0), 8)
    case = zoo.build(model, "tiny", **overrides | {"batch": batch})
    where = sbp.placement("cpu", np.arange(8).reshape(mesh), axis_names=AXES[: len(mesh)])
    plan = sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0)
    init, arguments = jax.jit(case.init), (case.abstract_state(), case.batch(0))
    ins, outs = plan.shardings()
    steps = {
        lowering: sbp.auto_parallel(
            case.step, plan=plan, placement=where, donate_argnums=0, config=sbp.AutoParallelConfig(lowering=lowering)
        )
        for lowering in ("manual", "gspmd")
    }
    steps["jit"] = jax.jit(case.step, in_shardings=ins, out_shardings=outs, donate_argnums=0)
    texts, seconds = {}, {}
    for kind, step in steps.items():
        start = time.perf_counter()
        texts[kind] = step.lower(*arguments).compile().as_text()
        seconds[kind] = time.perf_counter() - start
    states = {kind: jax.device_put(init(), ins[0]) for kind in steps}
    losses: dict[str, list[float]] = {kind: [] for kind in steps}
    taken: dict[str, list[float]] = {kind: [] for kind in steps}
    for r in range(ROUNDS + 2):
        example = jax.device_put(case.batch(r), ins[1])
        for kind, step in steps.items():
            start = time.perf_counter()
            states[kind], loss = step(states[kind], example)
            losses[kind].append(float(loss))
            taken[kind].append(time.perf_counter() - start)
    medians = {kind: statistics.median(times[2:]) for kind, times in taken.items()}
    for kind in steps:
        report, by_kind = verify_text(plan, texts[kind]), count(texts[kind])
        assert set(by_kind) <= set(KINDS)
        of_plan = report.found_bytes / report.expected_bytes if report.expected_bytes else float("nan")
        row = [
            name, "x".join(map(str, mesh)), kind, *(f"{by_kind.get(k, (0, 0))[0]:.0f}" for k in SHORT),
            f"{report.found_bytes:.0f}", f"{of_plan:.2f}", str(len(report.added)), str(len(report.left_out)),
            f"{seconds[kind]:.1f}", f"{1e3 * medians[kind]:.1f}", f"{medians[kind] / medians['manual']:.2f}",
        ]  # fmt: skip
        print(f"| {' | '.join(row)} |", flush=True)
        if show and not report.exact:
            print(report, flush=True)
    same = all(np.allclose(losses[kind][:3], losses["manual"][:3], rtol=1e-4) for kind in steps)
    if not same:
        print(f"losses of {name} differ: {losses}", flush=True)
    return same


def apart(name: str, mesh: tuple[int, ...], show: bool, limit: float) -> bool:
    """The same in a process of its own, which is ended after ``limit`` seconds."""
    told = "x".join(map(str, mesh))
    command = [sys.executable, __file__, "--one", name, "--mesh", told, *(["--show"] if show else [])]
    try:
        code = subprocess.run(command, timeout=limit, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"{name} on {told}: not finished within {limit:g} s", flush=True)
        return False
    if code not in (0, 1):  # 1: it said which losses differ
        print(f"{name} on {told}: ended with code {code}", flush=True)
    return code == 0


def main() -> int:
    """Print the table; 1 where losses differ or a model did not finish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="those whose names begin with one of these, with commas between")
    parser.add_argument("--mesh", help="one mesh of 8 devices, of at most 3 axes: 8x1")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for each model on each mesh (1800)")
    parser.add_argument("--one", choices=MODELS, help="rows of this model alone, in this process")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} on 2x4")
    parser.add_argument("--show", action="store_true", help="list what differs from the plan")
    args = parser.parse_args()
    if args.one:
        mesh = tuple(map(int, args.mesh.split("x"))) if args.mesh else MESHES[0]
        return int(not measure(args.one, mesh, args.show))
    begins = tuple(args.models.split(",")) if args.models else ("",)
    names = [name for name in (QUICK if args.quick else MODELS) if name.startswith(begins)]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    meshes = MESHES[:1] if args.quick else MESHES
    if args.mesh:
        meshes = (tuple(map(int, args.mesh.split("x"))),)
    same = [apart(name, mesh, args.show, args.limit) for mesh in meshes for name in names]
    print("every program has the same losses" if all(same) else "losses differ, or a model did not finish: see above")
    return int(not all(same))


if __name__ == "__main__":
    sys.exit(main())
