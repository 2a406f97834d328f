"""The planner's peak memory per device, against XLA's own ``memory_analysis()`` of the compiled step.

    python benchmarks/memory.py [--only gpt] [--meshes 1x8,2x4,8x1]

XLA's figure is arguments + outputs - aliased outputs + temporaries: what the step needs from its caller and takes
itself. (``peak_memory_in_bytes`` of jaxlib 0.10.2 on CPUs leaves out the one buffer that holds all temporaries, so
it is little more than the arguments; it is not used.) The models are float32 here, whatever dtype they train in:
XLA for CPUs widens bfloat16 dots, accelerators do not. Shapes alone are compiled, so no model needs its memory.

Planned steps are compiled to be scheduled for memory, and to keep barriers, on CPUs too (``step/jitted.py``). Writes
``benchmarks/results/memory.txt``; exits with 1 when a model is off by more than 10 %.
"""

import argparse
import datetime
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
from rich.console import Console
from rich.table import Table

import sbp_jax as sbp
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


def needed(compiled: Any) -> int:
    """Bytes a device needs for a compiled step, by XLA's account."""
    m = compiled.memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes


def main() -> int:
    """Print and write the table; 1 when a model is off by more than 10 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--meshes", default="1x8,2x4,8x1")
    args = parser.parse_args()
    table = Table("model", "mesh", "arguments", "XLA", "plan", "plan / XLA", "gap")
    ratios: dict[tuple[str, str], float] = {}
    for name, (family, size, options) in MODELS.items():
        if args.only not in name:
            continue
        case = build(family, size, **options)
        state, batch = case.abstract_state(), jax.eval_shape(lambda case=case: case.batch(0))
        for mesh in args.meshes.split(","):
            shape = tuple(map(int, mesh.split("x")))
            where = sbp.placement("cpu", np.arange(8).reshape(shape), axis_names=("dp", "tp"))
            step = sbp.auto_parallel(case.step, placement=where, donate_argnums=0)
            plan = step.plan(state, batch)
            compiled = step.lower(state, batch).compile()
            ours, xla = plan.memory_per_device, needed(compiled)
            ratios[name, mesh] = ours / xla
            arguments = compiled.memory_analysis().argument_size_in_bytes
            table.add_row(name, mesh, f"{arguments:,}", f"{xla:,}", f"{ours:,.0f}", f"{ours / xla:.3f}",
                          f"{plan.optimality_gap:.2%}")  # fmt: skip
            print(f"{name} on {mesh}: {ours / xla:.3f}", file=sys.stderr, flush=True)
            jax.clear_caches()
    off = {k: r for k, r in ratios.items() if abs(r - 1) > TOLERANCE}
    within = [abs(r - 1) for k, r in ratios.items() if k not in off]
    lines = [
        f"within 10 %: {len(within)} of {len(ratios)}; of these the mean is off by {np.mean(within):.1%}, the worst "
        f"by {max(within):.1%}",
        *(f"off: {n} on {mesh}, {r:.3f}" for (n, mesh), r in off.items()),
    ]
    console = Console(width=110, record=True)
    console.print(table)
    console.print("\n".join(lines), markup=False, highlight=False)
    if not args.only:
        head = (
            f"memory.py; {platform.machine()}, {os.cpu_count()} cores, 8 simulated CPU devices; "
            f"Python {platform.python_version()}, jax {jax.__version__}, jaxlib {version('jaxlib')}, "
            f"sbp_jax {sbp.__version__}; {datetime.date.today()}\n\n"
        )
        (Path(__file__).parent / "results" / "memory.txt").write_text(head + console.export_text())
    return int(bool(off))


if __name__ == "__main__":
    sys.exit(main())
