"""Thirty small models on 8 devices: seconds of planning, against those that XLA takes, and the gap that is proven.

    python benchmarks/small_models.py                        # all of benchmarks/small/, on 2x4
    python benchmarks/small_models.py --only unet,t5 --check # those alone, run and compared with plain jax.jit
    python benchmarks/small_models.py --mesh 2x2x2
    python benchmarks/small_models.py --cluster h100         # planned as if the devices were GPUs; nothing is compiled

22 transformers, convolutional, graph and recurrent networks and a differential equation, of 1 to 10 million
parameters, as users write them: forward, backward and an optimizer, unless the model's docstring says otherwise.
All seconds are processor seconds of a process of its own: "trace" is ``jax.make_jaxpr`` alone, "plan" is all that
``sbp.plan`` takes with default options (it traces, too), "search" the part of it that is the search,
"plain" and "planned" what XLA takes to compile the step as it is (for one device) and as it is planned. "ms" is the
plan's objective. Goals on 2-D meshes: a plan in at most 5 s, in at most half of "plain", with a gap of at most 1 %;
three times the seconds on 3-D ones. A number that misses its goal has a "!".
``--check`` also runs three steps beside plain ``jax.jit``: "verify" is ``plan.verify()``, "error" the largest relative
difference of a loss. Exits with 1 where a model is not planned, compiled or verified, or its losses differ.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

AXES = ("dp", "tp", "ep")
PLAN_SECONDS, OF_COMPILE, GAP, TIMES_3D = 5.0, 0.5, 0.01, 3.0
SAME = 2e-3  # of losses: reductions in another order, in float32
COLUMNS = ("model", "nodes", "classes", "trace", "plan", "search", "plain", "planned", "of plain", "gap", "ms",
           "verify", "error")  # fmt: skip


def measure(name: str, mesh: tuple[int, ...], cluster: str | None, check: bool, only_plan: bool) -> dict[str, Any]:
    """One row, in this process."""
    import jax
    import numpy as np
    from small import EXTRA, MODELS

    import sbp_jax as sbp

    axes = AXES[: len(mesh)]
    if cluster is None:
        where = sbp.placement("cpu", np.arange(8).reshape(mesh), axis_names=axes)
    else:
        where = sbp.placement.abstract(mesh, axis_names=axes, cluster=cluster)
    model = (MODELS | EXTRA)[name]()
    state, batch = jax.eval_shape(model.init), model.batch()
    donated = 0 if model.donates else ()
    start = time.process_time()
    jax.make_jaxpr(model.step)(state, batch)
    traced = time.process_time()
    plan = sbp.plan(model.step, state, batch, placement=where, donate_argnums=donated)
    planned = time.process_time()
    s = plan.statistics
    of_search = s["solve_seconds"] / max(plan.planning_seconds, 1e-9)
    row: dict[str, Any] = {
        "nodes": s["nodes"], "classes": s["classes"], "trace": traced - start, "plan": planned - traced,
        "search": of_search * (planned - traced), "gap": plan.optimality_gap, "ms": plan.objective * 1e3,
    }  # fmt: skip
    if cluster is not None or only_plan:
        return row
    step = sbp.auto_parallel(model.step, plan=plan, placement=where, donate_argnums=donated)
    for kind, function in (("plain", jax.jit(model.step)), ("planned", step)):
        lowered = function.lower(state, batch)
        start = time.process_time()
        compiled = lowered.compile()
        row[kind] = time.process_time() - start
    row["verify"] = "exact" if (report := plan.verify(compiled)).exact else "ok" if report.ok else "no"
    if check:
        row["error"] = _error(model, step)
    return row


def _error(model: Any, step: Any) -> float:
    """The largest relative difference of a result from plain jax.jit's, over three steps."""
    import jax
    import numpy as np

    plain, worst = jax.jit(model.step), 0.0
    states, batch = [jax.jit(model.init)() for _ in range(2)], model.batch()
    for _ in range(3):
        got = []
        for k, function in enumerate((plain, step)):
            states[k], result = function(states[k], batch)
            got.append(np.asarray(result, np.float64))
        worst = max(worst, float(np.abs(got[1] - got[0]).max() / max(np.abs(got[0]).max(), 1e-9)))
    return worst


def cells(name: str, row: dict[str, Any], mesh: tuple[int, ...]) -> list[str]:
    """A row as text, what misses a goal marked."""
    times = TIMES_3D if len(mesh) > 2 else 1.0
    found = [name, f"{row['nodes']}", f"{row['classes']}", f"{row['trace']:.2f}",
             f"{row['plan']:.2f}" + "!" * (row["plan"] > PLAN_SECONDS * times), f"{row['search']:.2f}"]  # fmt: skip
    if "plain" in row:
        part = row["plan"] / row["plain"]
        found += [f"{row['plain']:.2f}", f"{row['planned']:.2f}", f"{part:.2f}" + "!" * (part > OF_COMPILE * times)]
    else:
        found += [""] * 3
    found += [f"{row['gap']:.3%}" + "!" * (row["gap"] > GAP), f"{row['ms']:.6g}"]
    found += [row.get("verify", ""), f"{row['error']:.1e}" if "error" in row else ""]
    return found


def apart(name: str, args: argparse.Namespace) -> tuple[list[str], bool]:
    """One row's cells by a process of its own, which is ended after the limit; and whether all is well."""
    command = [sys.executable, __file__, "--one", name, "--mesh", args.mesh, *(["--check"] if args.check else [])]
    command += ["--cluster", args.cluster] if args.cluster else []
    command += ["--only-plan"] if args.only_plan else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, check=False)
    except subprocess.TimeoutExpired:
        return [name, f"not finished within {args.limit:g} s"], False
    if done.returncode:
        return [name, (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]], False
    row = json.loads(done.stdout.splitlines()[-1])
    well = row.get("verify", "exact") in ("exact", "ok") and row.get("error", 0.0) <= SAME
    return cells(name, row, tuple(map(int, args.mesh.split("x")))), well


def main() -> int:
    """Print the table, and how many rows miss a goal; 1 where a model failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models, with commas between")
    parser.add_argument("--mesh", default="2x4", help="of 8 devices, at most 3 axes (2x4)")
    parser.add_argument("--cluster", help="a preset to plan for, instead of this machine")
    parser.add_argument("--check", action="store_true", help="run three steps and compare the losses")
    parser.add_argument("--only-plan", action="store_true", help="compile nothing")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each model (300)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        mesh = tuple(map(int, args.mesh.split("x")))
        print(json.dumps(measure(args.one, mesh, args.cluster, args.check, args.only_plan)))
        return 0
    from small import MODELS

    names = args.only.split(",") if args.only else list(MODELS)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    missed, failed = [], []
    for name in names:
        row, well = apart(name, args)
        print(f"| {' | '.join(row)} |", flush=True)
        if not well:
            failed.append(name)
        elif any(cell.endswith("!") for cell in row):
            missed.append(name)
    print(f"of {len(names)} models {len(missed)} miss a goal, {len(failed)} failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
