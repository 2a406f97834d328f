"""What hides is not paid: simulated steps of the plans of the plain sum, of fixed strategies, and of exposed prices.

    python benchmarks/overlap.py                             # the zoo, small, on 8 H100s and A100s
    python benchmarks/overlap.py --only gpt,mlp --meshes 8 --clusters h100
    python benchmarks/overlap.py --at-scale                  # GPT-3 and LLaMA-3-8B as well, one mesh each

For each model, mesh and cluster, in milliseconds: "sum" is the objective of ``AutoParallelConfig(overlap=False)``, the
least sum of compute and boxing; "simulated" the step of that plan; "best expert" the shortest simulated step of the
fixed strategies' plans, "of sum" as a part of the sum's; "exposed" the simulated step of the default plan, "of sum" the
same; then what its objective is, the proven gap, the part of the step that waits for data, and the processor seconds of
planning without and with it. Exits with 1 where the default's simulated step is longer than any of the others.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import solvers

import sbp_jax as sbp
import zoo

MODELS: dict[str, Callable[[], Any]] = solvers.MODELS | {
    "wide_resnet": lambda: zoo.build("wide_resnet"),
    "vit": lambda: zoo.build("vit"),
    "moe": lambda: zoo.build("moe"),
    "dlrm": lambda: zoo.build("dlrm"),
    "gpt small": lambda: zoo.build("gpt", "small", batch=64),
}
AT_SCALE = {"llama3-8b-scan": "8x8", "gpt3-scan": "128x8"}
# Two plans of the same seconds may be written in another order.
_SAME = 1e-3


def main() -> int:
    """Print the table; 1 where the default plan's simulated step is longer than another's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--meshes", default="8,2x4")
    parser.add_argument("--clusters", default="h100,a100-80")
    parser.add_argument("--at-scale", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rows = [(m, mesh, c) for m in args.only.split(",") for mesh in args.meshes.split(",")
            for c in args.clusters.split(",")]  # fmt: skip
    if args.at_scale:
        rows += [(m, mesh, "h100") for m, mesh in AT_SCALE.items()]
    print(f"{'model':<17}{'mesh':<7}{'cluster':<9}{'sum':>9}{'simulated':>11}{'best expert':>23}{'of sum':>8}"
          f"{'exposed':>10}{'of sum':>8}{'objective':>11}{'gap':>8}{'waits':>7}{'s':>7}{'s':>7}",
          flush=True)  # fmt: skip
    longer = shorter = 0
    for model, mesh, cluster in rows:
        worst, gained = row(model, mesh, cluster)
        longer += worst
        shorter += gained
    print(f"{len(rows)} cases: shorter than the sum's in {shorter}, longer than the sum's or an expert's in {longer}")
    return int(longer > 0)


def row(model: str, mesh: str, cluster: str) -> tuple[bool, bool]:
    """Print a row: whether the default plan's step is longer than another's, whether it is shorter than the sum's."""
    case = solvers.at_scale(model) if model in AT_SCALE else MODELS[model]()
    inputs = case.abstract_state(), case.batch(0)
    shape = tuple(map(int, mesh.split("x")))
    where = sbp.placement.abstract(shape, axis_names=("dp", "tp", "pp")[: len(shape)], cluster=cluster)

    def plan(**options: Any) -> tuple[sbp.Plan, float, float]:
        start = time.process_time()
        config = sbp.AutoParallelConfig(**options)
        found = sbp.plan(case.step, *inputs, placement=where, donate_argnums=0, config=config)
        took = time.process_time() - start
        return found, found.simulate().step_seconds, took

    plain, plain_step, plain_took = plan(overlap=False)
    found, step, took = plan()
    experts = {}
    for solver in solvers.EXPERTS:
        try:
            experts[solver] = plan(solver=solver)[1]
        except sbp.PlanError:  # does not fit, or its roles are not known
            continue
    expert = min(experts, key=lambda k: experts[k], default="")
    told = f"{expert} {experts[expert] * 1e3:.4g}" if expert else "-"
    ratio = f"{experts[expert] / plain_step:.3f}" if expert else "-"
    waits = found.simulate().exposed_communication_seconds / step
    print(f"{model:<17}{mesh:<7}{cluster:<9}{plain.objective * 1e3:9.4g}{plain_step * 1e3:11.4g}{told:>23}{ratio:>8}"
          f"{step * 1e3:10.4g}{step / plain_step:8.3f}{found.priced:>11}{found.optimality_gap:8.2%}{waits:7.1%}"
          f"{plain_took:7.1f}{took:7.1f}", flush=True)  # fmt: skip
    return step > (1 + _SAME) * min(plain_step, *experts.values()), step < (1 - _SAME) * plain_step


if __name__ == "__main__":
    sys.exit(main())
