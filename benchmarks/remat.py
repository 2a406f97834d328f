"""Planning with ``remat="auto"`` where memory is short: objective, gap and seconds, and XLA's memory within the limit.

    python benchmarks/remat.py                                  # four steps on 2x4 at 0.8, 0.5 and 0.35 of their memory
    python benchmarks/remat.py --only gpt2 --parts 0.5 --mesh 8x1
    python benchmarks/remat.py --small vit,bert --parts 0.7,0.5 # models of benchmarks/small/, or all

The limit is a part of what the plan without a limit holds, by its own account. "of free": the objective over that
plan's; "again": how many nodes run twice; "plan" and "XLA": bytes a device over the limit, XLA's by
``memory_analysis()`` of the compiled step (of 8 simulated CPU devices, so planned for those).
Where XLA needs more than the limit for the first plan the step is planned again for less when it is lowered: the row is
of that plan, and "first", "XLA" and "s" are the first one's objective and bytes, and the seconds of planning and
compiling once more.
Seconds are processor seconds. Goals: a gap of at most 5 %, 20 s, XLA's memory within the limit; "!" marks what misses
one. Where no plan fits even so, the smallest limit that the error names.
"""

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import memory
from small import MODELS as SMALL

import sbp_jax as sbp
from zoo import build

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2, 4 layers": ("gpt", "gpt2", {"layers": 4, "dtype": "float32"}),
    "gpt tiny": ("gpt", "tiny", {"batch": 64, "dropout": 0.0}),
    "llama tiny": ("llama", "tiny", {}),
    "resnet tiny": ("resnet", "tiny", {"batch": 256}),
}
GAP, SECONDS = 0.05, 20.0


def main() -> int:
    """Print the table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--parts", default="0.8,0.5,0.35")
    parser.add_argument("--mesh", default="2x4")
    parser.add_argument("--small", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    print(f"{'model':<22}{'mesh':<7}{'part':>6}{'limit MiB':>11}{'of free':>9}{'gap':>9}{'s':>8}"
          f"{'again':>8}{'plan':>8}{'XLA':>7}   {'first':>8}{'XLA':>7}{'s':>7}", flush=True)  # fmt: skip
    missed = 0
    parts = [float(p) for p in args.parts.split(",")]
    if args.small:
        for name in SMALL if args.small == "all" else args.small.split(","):
            m = SMALL[name]()
            missed += rows(name, m.step, (jax.eval_shape(m.init), m.batch()), args.mesh, parts, m.donates)
        return int(missed > 0)
    for name, (family, size, options) in MODELS.items():
        if args.only in name:
            case = build(family, size, **options)
            missed += rows(name, case.step, (case.abstract_state(), case.batch(0)), args.mesh, parts)
    return int(missed > 0)


def rows(
    name: str, of: Callable[..., Any], inputs: tuple[Any, Any], mesh: str, parts: list[float], donates: bool = True
) -> int:  # fmt: skip
    """Print a model's rows; how many miss a goal."""
    donated = 0 if donates else ()
    free = memory.planned(of, mesh, donate_argnums=donated).plan(*inputs)
    missed = 0
    for part in parts:
        limit = part * free.memory_per_device
        line = f"{name:<22}{mesh:<7}{part:6.2f}{limit / 2**20:11.1f}"
        config = sbp.AutoParallelConfig(memory_limit=limit, remat="auto")
        step = memory.planned(of, mesh, donate_argnums=donated, config=config)
        start = time.process_time()
        try:
            plan = step.plan(*inputs)
        except sbp.PlanError as error:
            took = time.process_time() - start
            smallest = re.search(r"does is (\d+) bytes", str(error))
            told = f"{int(smallest[1]) / limit:.3f} of this limit" if smallest else str(error)[:60]
            print(f"{line}  nothing fits; the smallest limit: {told} ({took:.1f}s)", flush=True)
            missed += took > SECONDS
            continue
        took = time.process_time() - start
        compiled = step.lower(*inputs).compile()
        run, again_took = step.plan(*inputs), time.process_time() - start - took
        first = memory.needed(plan.compile()) / limit if run is not plan else None
        xla = memory.needed(compiled) / limit
        told = re.search(r"(\d+) nodes are run again", " ".join(run.notes))
        again = int(told[1]) if told else 0
        marks = [run.optimality_gap > GAP, took > SECONDS, xla > 1.0]
        missed += any(marks)
        print(f"{line}{run.objective / free.objective:9.3f}{run.optimality_gap:8.2%}{'!' * marks[0]:<1}"
              f"{took:7.1f}{'!' * marks[1]:<1}{again:8}{run.memory_per_device / limit:8.3f}"
              f"{xla:7.3f}{'!' * marks[2]:<1}"
              + (f"{plan.objective / free.objective:10.3f}{first:7.3f}{again_took:7.1f}" if first else ""),
              flush=True)  # fmt: skip
    return missed


if __name__ == "__main__":
    sys.exit(main())
