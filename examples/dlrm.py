"""Recommendation with tables of embeddings too large to copy: tables split, perceptrons data parallel.

    python examples/dlrm.py                                        # CPUs: 8 simulated devices as a 2x4 mesh
    python examples/dlrm.py --size criteo-small --batch 16384      # on GPUs: all of them

DLRM (Naumov et al., arXiv:1906.00091; the model is zoo/dlrm.py) looks up 26 features in a table each. In data
parallelism every device holds and updates every table. Split by rows (the vocabulary), a device finds zeros for the
rows that it has not: a lookup is a sum of terms, P, and a reduce_scatter brings each row to who needs it. Split by
columns each device has a part of every vector, and an all_to_all brings them together. The script plans data parallel,
by rows (pinned), and freely; says what each sends and holds, trains the last two, and checks them against one device.
"""

import argparse
from typing import Any

import jax
import numpy as np

import sbp_jax as sbp
import zoo
from shared import brief, check, check_equal, check_learned, devices, mesh_shape, mib
from zoo.dlrm import SIZES

LARGE = 1024  # rows; smaller tables do not matter


def build(options: argparse.Namespace) -> zoo.Case:
    """The training step: Criteo's features, all rows, a tenth, or a thousandth of them."""
    rows = SIZES["criteo" if options.size == "tiny" else options.size].tables
    rows = tuple(max(3, n // 1000) for n in rows) if options.size == "tiny" else rows
    return zoo.build("dlrm", options.size, tables=rows[: options.features], batch=options.batch)


def large(plan: sbp.Plan) -> list[Any]:
    """The arguments of a plan that are large tables."""
    return [leaf for leaf in plan.inputs if leaf.path.startswith("0/params/tables/") and leaf.shape[0] >= LARGE]


def describe(name: str, plan: sbp.Plan) -> None:
    """What a plan does to the tables, what it sends and holds."""
    print(f"\ntables {name}:")
    print(brief(plan, "0/params/bottom/*/w", "0/params/top/*/w"))
    tables = sorted({str(leaf.signature) for leaf in large(plan)})
    print(f"  tables of {LARGE} rows and more: {len(large(plan))}, as ({'), ('.join(tables)})")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the tutorial; the plans by name, and the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "criteo-small", "criteo"), default="tiny")
    parser.add_argument("--features", type=int, default=26, help="of Criteo's 26 the first so many")
    parser.add_argument("--batch", type=int, default=256, help="clicks in a step, on all devices together")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compare-steps", type=int, default=5, help="steps repeated by rows, and on one device")
    parser.add_argument("--mesh", type=mesh_shape, help="as 2x4: axes dp x tp (default: all GPUs, or 2x4 on CPUs)")
    options = parser.parse_args(arguments)
    where = devices(("dp", "tp"), options.mesh)
    case = build(options)
    state, batch = case.abstract_state(), case.batch(0)

    # Pins for the arguments, as a tree like them: rows of large tables over all devices; None leaves free.
    rows = [sbp.Signature.parse("S(0), S(0)") if t.shape[0] >= LARGE else None for t in state["params"]["tables"]]
    by_rows = ({"params": {"tables": rows, "bottom": None, "top": None}, "opt_state": None}, None)
    copied = sbp.AutoParallelConfig(solver="data_parallel")
    steps = {
        "copied": sbp.auto_parallel(case.step, placement=where, donate_argnums=0, config=copied),
        "by rows": sbp.auto_parallel(case.step, placement=where, donate_argnums=0, in_sbp=by_rows),
        "planned": sbp.auto_parallel(case.step, placement=where, donate_argnums=0),
    }
    plans = {name: step.plan(state, batch) for name, step in steps.items()}  # shapes are enough
    for name, plan in plans.items():
        describe(name, plan)

    print("\nWhat must hold:")
    for name in ("by rows", "planned"):
        plan, whole = plans[name], plans["copied"]
        check(plan.verify().ok, f"tables {name}: the compiled program moves what the plan says, no more")
        if where.size == 1:
            continue  # nothing to split
        moved = {boxing.shape for boxing in plan.boxings()}
        check(all(sbp.broadcast not in leaf.signature for leaf in large(plan)), f"tables {name}: none is copied")
        check(not moved & {leaf.shape for leaf in large(plan)}, "no table or gradient of a table is sent")
        check(
            plan.memory_per_device < whole.memory_per_device,
            f"a device holds {mib(plan.memory_per_device)}, {mib(whole.memory_per_device)} with copies",
        )
    if where.size > 1:
        lie = plans["by rows"].signatures()[0][0]["params"]["tables"][0]
        check(lie == rows[0], "rows are where they were pinned")
    ratio = plans["planned"].step_seconds / min(plans[name].step_seconds for name in ("copied", "by rows"))
    check(ratio <= 1 + 1e-3 + plans["planned"].optimality_gap, f"the plan takes {ratio:.2f} of the others' time")

    compared = min(options.compare_steps, options.steps)
    losses: dict[str, list[float]] = {}
    runs = {"planned": options.steps, "by rows": compared, "one device": compared}
    for name, count in runs.items():
        step = jax.jit(case.step) if name == "one device" else steps[name]
        state, losses[name] = jax.jit(case.init)(), []
        for i in range(count):
            state, loss = step(state, case.batch(i))
            losses[name].append(float(loss))
    planned = losses["planned"]
    print(f"\nloss {planned[0]:.3f} -> {np.mean(planned[-5:]):.3f} nats a click in {options.steps} steps")
    check_equal(planned[:compared], losses["one device"], "equal to a single device")
    check_equal(losses["by rows"], losses["one device"], "so are tables by rows")
    check_learned(planned, by=0.1 * planned[0], last=5)
    return {"plans": plans, "losses": losses}


if __name__ == "__main__":
    main()
