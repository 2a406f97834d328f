"""Gradient accumulation: a scan of 8 micro-batches, data parallel. How often are the gradients reduced?

    python benchmarks/grad_accumulation.py

Counts the reductions of gradient-sized tensors in the compiled HLO, those in loops by trip count: plain ``jax.jit``
with the shardings written by hand, and the plan's.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
from jax.sharding import NamedSharding
from rich.console import Console
from rich.table import Table

import sbp_jax as sbp
from sbp_jax.lower import hlo
from zoo import gpt

LARGE = 2048  # elements: weight matrices, not biases or scalars


def reductions(text: str | None) -> tuple[float, float, float]:
    """Reductions a step of large tensors: all-reduces, reduce-scatters; bytes of all collectives."""
    found = hlo.collectives(text or "")
    large = [c for c in found if c.group_size > 1 and c.operand.elements >= LARGE]
    return (
        sum(c.times for c in large if c.kind == "all-reduce"),
        sum(c.times for c in large if c.kind == "reduce-scatter"),
        sum(c.times * c.sent_bytes for c in found if c.group_size > 1),
    )


def main() -> None:
    """Print the table."""
    case = gpt.build("tiny", grad_accumulation=8, dropout=0.0)
    p = sbp.placement.all("cpu", axis_names=("dp",))
    state, batch = jax.eval_shape(case.init), case.batch(0)
    weights = sum(x.ndim >= 2 and x.size >= LARGE for x in jax.tree.leaves(state["params"]))
    specs = case.hand_shardings(("dp",))["data_parallel"]
    placed, split = (jax.tree.map(lambda s: NamedSharding(p.mesh, s), tree) for tree in specs)
    plain = jax.jit(case.step, in_shardings=(placed, split), out_shardings=(placed, None), donate_argnums=0)
    step = sbp.auto_parallel(case.step, placement=p, donate_argnums=0)
    plan = step.plan(state, batch)
    table = Table("step", "all-reduces", "reduce-scatters", "reductions a weight", "bytes sent")
    for name, text in (
        ("plain jax.jit, data parallel", plain.lower(state, batch).compile().as_text()),
        ("the plan", step.lower(state, batch).compile().as_text()),
    ):
        reduced, scattered, sent = reductions(text)
        table.add_row(
            name, f"{reduced:.0f}", f"{scattered:.0f}", f"{(reduced + scattered) / weights:.2f}", f"{sent:,.0f}"
        )
    Console(width=110).print(table)
    exact = plan.verify().exact
    print(f"{weights} weight matrices, 8 micro-batches; plan verified: {exact}, gap {plan.optimality_gap:.2%}")


if __name__ == "__main__":
    main()
