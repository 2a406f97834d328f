"""Bytes on the wire of the plan, against what plain ``jax.jit`` compiles for the shardings a user writes by hand.

    python benchmarks/plan_quality.py [--size tiny] [--only gpt]

For each model of the zoo on 1x8, 2x4 and 8x1 simulated CPU devices: bytes that each device sends in a step, read
from the compiled HLO by the same reader for all three; predicted and measured. Ends with exit code 1 when a plan
sends more than the better of the two.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import numpy as np
from jax.sharding import NamedSharding
from rich.console import Console
from rich.table import Table

import sbp_jax as sbp
from sbp_jax.lower import hlo

FAMILIES = ("mlp", "gpt", "gpt_nnx", "resnet", "lstm")
MESHES = ((1, 8), (2, 4), (8, 1))


def sent(text: str | None) -> float:
    """Bytes each device sends in a step."""
    return sum(b for _, b in hlo.count(text or "").values())


def by_hand(case: Any, p: sbp.Placement, specs: tuple[Any, Any]) -> float:
    """Plain ``jax.jit`` with the user's shardings; the new state is kept in the old one's."""
    state, batch = (jax.tree.map(lambda s: NamedSharding(p.mesh, s), tree) for tree in specs)
    step = jax.jit(case.step, in_shardings=(state, batch), out_shardings=(state, None), donate_argnums=0)
    return sent(step.lower(jax.eval_shape(case.init), case.batch(0)).compile().as_text())


def main() -> int:
    """Print the table; 1 when a plan is worse than a hand-written sharding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    table = Table("model", "mesh", "plan: HLO bytes", "plan: predicted", "data parallel", "megatron", "plan / better",
                  "gap", "planned in")  # fmt: skip
    rows, worse = [], 0
    for family in (args.only,) if args.only else FAMILIES:
        case = importlib.import_module(f"zoo.{family}").build(args.size)
        for mesh in MESHES:
            p = sbp.placement("cpu", np.arange(8).reshape(mesh), axis_names=("dp", "tp"))
            step = sbp.auto_parallel(case.step, placement=p, donate_argnums=0)
            state, batch = jax.eval_shape(case.init), case.batch(0)
            plan = step.plan(state, batch)
            ours = sent(step.lower(state, batch).compile().as_text())
            hand = {k: by_hand(case, p, v) for k, v in case.hand_shardings(("dp", "tp")).items()}
            best = min(hand.values())
            ratio = ours / best if best else float(ours > 0)
            worse += ours > best
            rows.append({"model": family, "mesh": mesh, "plan": ours, "predicted": plan.bytes_on_wire, **hand,
                         "gap": plan.optimality_gap, "seconds": plan.planning_seconds})  # fmt: skip
            table.add_row(family, f"{mesh[0]}x{mesh[1]}", f"{ours:,.0f}", f"{plan.bytes_on_wire:,.0f}",
                          f"{hand['data_parallel']:,.0f}", f"{hand['megatron']:,.0f}", f"{ratio:.3f}",
                          f"{plan.optimality_gap:.2%}", f"{plan.planning_seconds:.2f} s")  # fmt: skip
    Console(width=130).print(table)
    print(f"plans that send more than the better hand-written sharding: {worse} of {len(rows)}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
