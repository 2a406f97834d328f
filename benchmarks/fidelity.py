"""Bytes on the wire, plan against compiled program: equal, on the zoo at 8, 64 and 256 simulated devices.

    python benchmarks/fidelity.py                       # every model below
    python benchmarks/fidelity.py --quick               # a few of them at 8 devices
    python benchmarks/fidelity.py --devices 256 --models gpt3

Each step is planned (for "h100"; tiny ones for the "cpu" cluster, where bytes weigh more), lowered from shapes alone,
compiled for so many CPU devices, and read back: every collective of the compiled program must be one of the plan's,
with its kind, axes, size and number of runs. Nothing is allocated or run, so a step of GPT-3's size has its true size.
"added" and "left out" count collectives that only XLA or only the plan has. 16-bit numbers, which XLA's CPU backend
widens to 32 bits before it sends them, count as other backends send them. Seconds are the process's own. Exits with 1
where a byte differs.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

MESHES = {8: (2, 4), 64: (8, 8), 256: (32, 8)}
_GPT3 = {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200, "batch": 1536, "fused_qkv": True,
         "remat": True, "scan_layers": True}  # fmt: skip
_WIDE = {"hidden": 256, "heads": 32, "vocab": 1024}
# name: the zoo's model, its size, what is changed of it. A batch has at least one example for each device.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mlp": ("mlp", "tiny", {"hidden": 256}),
    "mlp large bfloat16": ("mlp", "large", {}),
    "gpt": ("gpt", "tiny", _WIDE),
    "gpt scan remat bfloat16": ("gpt", "tiny", _WIDE | {"scan_layers": True, "remat": True, "dtype": "bfloat16"}),
    "gpt accumulation": ("gpt", "tiny", {"grad_accumulation": 4}),
    "gpt2 bfloat16": ("gpt", "gpt2", {}),
    "gpt3 bfloat16, 96 layers scan remat": ("gpt", "gpt2", _GPT3),
    "gpt3 float32, 96 layers scan remat": ("gpt", "gpt2", _GPT3 | {"dtype": "float32"}),
    "gpt_nnx": ("gpt_nnx", "tiny", {}),
    "llama scan remat": ("llama", "tiny", {"scan_layers": True, "remat": True}),
    "llama3-8b scan remat": ("llama", "llama3-8b", {"scan_layers": True, "remat": True}),
    "moe": ("moe", "tiny", {}),
    "moe-10b scan": ("moe", "moe-10b", {"scan_layers": True}),
    "vit scan remat": ("vit", "tiny", {"scan_layers": True, "remat": True}),
    "resnet": ("resnet", "tiny", {}),
    "wide_resnet": ("wide_resnet", "tiny", {}),
    "lstm": ("lstm", "tiny", {}),
    "dlrm": ("dlrm", "tiny", {}),
}
QUICK = ("mlp", "gpt scan remat bfloat16", "moe", "dlrm")
COLUMNS = (
    "model", "mesh", "plan bytes", "compiled bytes", "collectives", "added", "left out", "plan s", "compile s", "",
)  # fmt: skip


def measure(name: str, devices: int, show: bool) -> bool:
    """Print one row, in this process; whether bytes are equal and nothing is added or left out."""
    import numpy as np

    import sbp_jax as sbp
    import zoo
    from sbp_jax.lower.verify import verify_text

    model, size, overrides = MODELS[name]
    batch = max(zoo.MODELS[model].SIZES[size].batch, overrides.get("batch", 0), devices)
    case = zoo.build(model, size, **overrides | {"batch": batch})
    mesh = MESHES[devices]
    ranks = np.arange(devices).reshape(mesh)
    where = sbp.placement("cpu", ranks, axis_names=("dp", "tp"))
    config = sbp.AutoParallelConfig(cluster="cpu" if size == "tiny" else "h100")
    step = sbp.auto_parallel(case.step, placement=where, config=config, donate_argnums=0)
    state, example = case.abstract_state(), case.batch(0)
    start = time.process_time()
    plan = step.plan(state, example)
    planned = time.process_time()
    text = step.lower(state, example).compile().as_text()
    compiled = time.process_time()
    report = verify_text(plan, text)
    found = report.found_bytes - report.widened_bytes
    exact = report.exact and abs(report.expected_bytes - found) < 0.5
    row = [
        name, "x".join(map(str, mesh)), f"{report.expected_bytes:.0f}", f"{found:.0f}",
        str(len(report.matched)), str(len(report.added)), str(len(report.left_out)), f"{planned - start:.1f}",
        f"{compiled - planned:.1f}", "exact" if exact else "DIFFERS",
    ]  # fmt: skip
    print(f"| {' | '.join(row)} |", flush=True)
    if show and not exact:
        print(report, flush=True)
    return exact


def main() -> int:
    """Print the table, a process for each number of devices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", help=f"some of {', '.join(map(str, MESHES))}")
    parser.add_argument("--models", help="those whose names begin with one of these")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} at 8 devices")
    parser.add_argument("--show", action="store_true", help="list what differs")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    begins = tuple(args.models.split(",")) if args.models else ("",)
    names = [name for name in (QUICK if args.quick else MODELS) if name.startswith(begins)]
    if args.run:
        return int(not all([measure(name, args.run, args.show) for name in names]))
    counts = list(map(int, args.devices.split(","))) if args.devices else [8] if args.quick else list(MESHES)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    status = 0
    for n in counts:
        env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={n}"}
        own = [*sys.argv[1:], "--run", str(n)]
        status |= subprocess.run([sys.executable, __file__, *own], env=env, check=False).returncode
    print("every plan's bytes are its program's" if not status else "bytes differ")
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main())
