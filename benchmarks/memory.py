"""The planner's peak memory per device, against XLA's own ``memory_analysis()`` of the compiled step.

    python benchmarks/memory.py [--only gpt] [--meshes 1x8,2x4,8x1] [--random 30]

The models of ``examples/zoo``, programs and training steps unlike them (``memory_programs.py``, ``memory_steps.py``),
and the first random programs (``tests/random_programs.py``, dims 16 times as large) that take 1 MiB or more; what
others take is mostly scalars.

XLA's figure is arguments + outputs - aliased outputs + temporaries: what the step needs from its caller and takes
itself. (``peak_memory_in_bytes`` of jaxlib 0.10.2 on CPUs leaves out the one buffer that holds all temporaries, so
it is little more than the arguments; it is not used.) The models are float32 here, whatever dtype they train in:
XLA for CPUs widens bfloat16 dots, accelerators do not. Shapes alone are compiled, so no model needs its memory.

Planned steps are compiled to be scheduled for memory, and to keep barriers, on CPUs too (``step/jitted.py``). Writes
``benchmarks/results/memory.txt``; exits with 1 when a model is off by more than 10 %, or another program is not
between 0.95 and 1.15 of XLA's figure.
"""

import argparse
import datetime
import math
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import numpy as np
from memory_programs import PROGRAMS, random_program
from memory_steps import STEPS
from rich.console import Console
from rich.table import Table

import sbp_jax as sbp
from sbp_jax.step.fits import needed_bytes as needed
from zoo import build

FLOAT32: dict[str, Any] = {"dtype": "float32"}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mlp tiny": ("mlp", "tiny", {}),
    "mlp wide": ("mlp", "wide", {}),
    "mlp large": ("mlp", "large", FLOAT32),
    "gpt tiny": ("gpt", "tiny", {}),
    "gpt small": ("gpt", "small", {}),
    "gpt tiny, 8 micro-batches": ("gpt", "tiny", {"grad_accumulation": 8, "dropout": 0.0}),
    "gpt small, scanned layers": ("gpt", "small", {"scan_layers": True}),
    "gpt small, scanned, remat": ("gpt", "small", {"scan_layers": True, "remat": True}),
    "gpt small, remat": ("gpt", "small", {"remat": True}),
    "gpt2, 4 layers": ("gpt", "gpt2", {"layers": 4, **FLOAT32}),
    "gpt_nnx tiny": ("gpt_nnx", "tiny", {}),
    "lstm tiny": ("lstm", "tiny", {}),
    "lstm medium": ("lstm", "medium", {}),
    "resnet tiny": ("resnet", "tiny", {}),
    "resnet18": ("resnet", "resnet18", {}),
}
TOLERANCE = 0.1
BOUNDS = 0.95, 1.15


class Rows:
    """What has been measured: plan / XLA by name and mesh."""

    def __init__(self) -> None:
        self.table = Table("program", "mesh", "arguments", "XLA", "plan", "plan / XLA", "gap")
        self.ratios: dict[tuple[str, str], float] = {}
        self.off: list[str] = []

    def add(self, name: str, mesh: str, step: Any, args: Any, low: float, high: float, least: int = 0) -> bool:
        """Plan and compile; whether it takes ``least`` bytes."""
        plan = step.plan(*args)
        compiled = step.lower(*args).compile()
        ours, xla = plan.memory_per_device, needed(compiled)
        jax.clear_caches()
        if xla < least:
            return False
        ratio = self.ratios[name, mesh] = ours / xla
        if not low <= ratio <= high:
            self.off.append(f"off: {name} on {mesh}, {ratio:.3f}")
        arguments = compiled.memory_analysis().argument_size_in_bytes
        self.table.add_row(name, mesh, f"{arguments:,}", f"{xla:,}", f"{ours:,.0f}", f"{ratio:.3f}",
                           f"{plan.optimality_gap:.2%}")  # fmt: skip
        print(f"{name} on {mesh}: {ratio:.3f}", file=sys.stderr, flush=True)
        return True


def planned(function: Any, mesh: str, **options: Any) -> Any:
    """A function planned on a mesh of simulated devices."""
    shape = tuple(map(int, mesh.split("x")))
    names = ("dp", "tp", "pp")[: len(shape)]
    where = sbp.placement("cpu", np.arange(math.prod(shape)).reshape(shape), axis_names=names)
    return sbp.auto_parallel(function, placement=where, **options)


def add_random(rows: Rows, count: int) -> None:
    """The first random programs that are large enough."""
    found = seed = 0
    while found < count and seed < 8 * count:
        program = random_program(seed)
        args = [jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") else x for x in program.args]
        try:
            mesh = "x".join(map(str, program.mesh))
            found += rows.add(f"random {seed}", mesh, planned(program.function(), mesh), args, *BOUNDS, least=2**20)
        except Exception as error:
            print(f"random {seed}: {type(error).__name__}", file=sys.stderr, flush=True)
        seed += 1


def main() -> int:
    """Print and write the table; 1 when a program is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--meshes", default="1x8,2x4,8x1")
    parser.add_argument("--random", type=int, default=30)
    args = parser.parse_args()
    rows = Rows()
    for name, (family, size, options) in MODELS.items():
        if args.only not in name:
            continue
        case = build(family, size, **options)
        example = case.abstract_state(), jax.eval_shape(lambda case=case: case.batch(0))
        for mesh in args.meshes.split(","):
            rows.add(name, mesh, planned(case.step, mesh, donate_argnums=0), example, 1 - TOLERANCE, 1 + TOLERANCE)
    for some, options in ((PROGRAMS, {}), (STEPS, {"donate_argnums": 0})):
        for name, make in some.items():
            if args.only in name:
                function, example = make()
                for mesh in args.meshes.split(","):
                    rows.add(name, mesh, planned(function, mesh, **options), example, *BOUNDS)
    if args.only in "random":
        add_random(rows, args.random)
    errors = [abs(r - 1) for r in rows.ratios.values()]
    lines = [
        f"within 10 %: {sum(e <= 0.1 for e in errors)} of {len(errors)}; the mean is off by {np.mean(errors):.1%}; "
        f"between {min(rows.ratios.values()):.3f} and {max(rows.ratios.values()):.3f}",
        *rows.off,
    ]
    console = Console(width=110, record=True)
    console.print(rows.table)
    console.print("\n".join(lines), markup=False, highlight=False)
    if not args.only:
        head = (
            f"memory.py; {platform.machine()}, {os.cpu_count()} cores, 8 simulated CPU devices; "
            f"Python {platform.python_version()}, jax {jax.__version__}, jaxlib {version('jaxlib')}, "
            f"sbp_jax {sbp.__version__}; {datetime.date.today()}\n\n"
        )
        (Path(__file__).parent / "results" / "memory.txt").write_text(head + console.export_text())
    return int(bool(rows.off))


if __name__ == "__main__":
    sys.exit(main())
