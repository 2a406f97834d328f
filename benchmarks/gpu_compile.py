"""Planned steps through XLA's compiler for GPUs, on a machine without one: collectives, overlap, memory.

    pip install jax-cuda13-plugin                             # of jaxlib's version; no driver and no CUDA is needed
    python benchmarks/gpu_compile.py                          # the zoo on 8 H100s, as 2x4 and 8
    python benchmarks/gpu_compile.py --only "gpt small" --meshes 8 --text OUT.hlo

The GPUs are only described (``jax.experimental.topologies``), so XLA compiles for them and nothing runs. What it
cannot measure it takes from its tables: no kernel is tuned. By row: whether each collective in the compiled program is
the plan's (``plan.verify``); how many there are after XLA has combined them; "beside", the part of the bytes sent by
collectives between whose start and end a kernel runs, by XLA's own schedule (a collective that is not asynchronous
has none); bytes a device by the plan and by ``memory_analysis()``, without what cuDNN takes for itself. Exits with 1
where a step does not compile, or a collective is not the plan's.
"""

import argparse
import importlib.util
import json
import os
import pkgutil
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

# Of an H100 SXM, as CUDA tells them of the device: what XLA's compiler asks for.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000  l2_cache_size: 52428800  device_memory_size: 84978434048
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 }
"""
FLOAT32 = {"dtype": "float32"}
MODELS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "mlp large": ("mlp", "large", {}, {}),
    "gpt small": ("gpt", "small", {}, {}),
    "gpt small, scan": ("gpt", "small", {"scan_layers": True}, {}),
    "gpt small, scan, remat": ("gpt", "small", {"scan_layers": True, "remat": True}, {}),
    "gpt tiny, 8 micro-batches": ("gpt", "tiny", {"grad_accumulation": 8, "dropout": 0.0}, {}),
    "gpt2": ("gpt", "gpt2", {}, {}),
    "gpt2, float32": ("gpt", "gpt2", FLOAT32, {}),
    "gpt2, data parallel": ("gpt", "gpt2", {}, {"solver": "data_parallel"}),
    "gpt2, zero2": ("gpt", "gpt2", {}, {"solver": "zero2"}),
    "gpt2, zero3": ("gpt", "gpt2", {}, {"solver": "zero3"}),
    "gpt2, megatron": ("gpt", "gpt2", {}, {"solver": "megatron"}),
    "gpt2, gspmd": ("gpt", "gpt2", {}, {"lowering": "gspmd"}),
    "gpt_nnx tiny": ("gpt_nnx", "tiny", {}, {}),
    "llama tiny": ("llama", "tiny", {}, {}),
    "moe tiny": ("moe", "tiny", {}, {}),
    "vit tiny": ("vit", "tiny", {}, {}),
    "dlrm tiny": ("dlrm", "tiny", {}, {}),
    "lstm medium": ("lstm", "medium", {}, {}),
    "resnet18": ("resnet", "resnet18", {}, {}),
    "vit-h14, 4 layers": ("vit", "vit-h14", {"layers": 4}, {}),
    "llama3-8b, 2 layers": ("llama", "llama3-8b", {"layers": 2, "batch": 8}, {}),
    "moe-10b, 4 layers": ("moe", "moe-10b", {"layers": 4, "batch": 16}, {}),
}
_KERNELS = ("fusion", "custom-call", "dot", "while", "convolution", "sort", "scatter", "copy", "reduce", "conditional")
_LINE = re.compile(r"\s+(?:ROOT )?%?(\S+) = .*? ([a-z][a-z-]*)\(%?([\w.\-]*)")


def beside(text: str) -> tuple[int, float]:
    """How many collectives a compiled program starts, and the part of their bytes beside which a kernel runs."""
    from sbp_jax.lower.hlo import collectives

    covered: set[str] = set()
    kernels, started = 0, {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, op, operand = match.groups()
        if op.endswith("-start"):
            started[name] = kernels
        elif op.endswith("-done"):
            if kernels > started.get(operand, kernels):
                covered.add(operand)
        elif op in _KERNELS:
            kernels += 1
    found = [c for c in collectives(text) if c.group_size > 1]
    sent = {c.instruction: 0.0 for c in found}
    for c in found:
        sent[c.instruction] += c.sent_bytes * c.times
    total = sum(sent.values())
    return len(sent), sum(b for name, b in sent.items() if name in covered) / total if total else 0.0


def measure(name: str, mesh: str, text_to: str) -> dict[str, Any]:
    """One row, in this process."""
    import jax
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh
    from memory import needed

    import sbp_jax as sbp
    from zoo import build

    jax.devices()  # reads the plugins
    shape = tuple(map(int, mesh.split("x")))
    nodes = f"1x1x{int(np.prod(shape))}"
    devices = topologies.get_topology_desc("h100", "cuda", target_config=H100, topology=nodes).devices
    where = Mesh(np.array(devices).reshape(shape), ("dp", "tp", "pp")[: len(shape)])
    family, size, options, config = MODELS[name]
    case = build(family, size, **options)
    inputs = case.abstract_state(), case.batch(0)
    step = sbp.auto_parallel(case.step, placement=where, donate_argnums=0, config=sbp.AutoParallelConfig(**config))
    plan = step.plan(*inputs)
    start = time.perf_counter()
    compiled = step.lower(*inputs).compile()
    took = time.perf_counter() - start
    text = compiled.as_text()
    if text_to:
        Path(text_to).write_text(text)
    report = plan.verify(compiled, strict=False)
    n, part = beside(text)
    return {
        "verify": "exact" if report.exact else "ok" if report.ok else f"{len(report.added)} added",
        "ok": report.ok or plan.lowering == "gspmd",
        "planned": sum(1 for b in plan.boxing_list for m in b.moves if m.is_collective), "compiled": n, "beside": part,
        "plan": plan.memory_per_device, "xla": needed(compiled), "compile": took,
    }  # fmt: skip


def main() -> int:
    """Print the table, a process for each row; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the models' names")
    parser.add_argument("--meshes", default="2x4,8")
    parser.add_argument("--text", default="", help="write the compiled program's text there")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(*json.loads(args.row))))
        return 0
    plugins = importlib.util.find_spec("jax_plugins")
    if plugins is None or not any(
        m.name.startswith("xla_cuda") for m in pkgutil.iter_modules(plugins.submodule_search_locations)
    ):
        print("not run: XLA's compiler for GPUs is not installed (make gpu-compile, or pip install jax-cuda13-plugin)")
        return 0
    failed = 0
    columns = ("model", "mesh", "verify", "collectives planned", "compiled", "beside", "plan MiB", "XLA MiB",
               "plan / XLA", "compile s")  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for name in (n for n in MODELS if args.only in n):
        for mesh in args.meshes.split(","):
            command = [sys.executable, __file__, "--row", json.dumps([name, mesh, args.text])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                failed += 1
                print(f"| {name} | {mesh} | {(done.stderr.strip().splitlines() or ['?'])[-1][:160]} |", flush=True)
                continue
            r = json.loads(done.stdout.splitlines()[-1])
            failed += not r["ok"]
            row = [name, mesh, r["verify"], f"{r['planned']}", f"{r['compiled']}", f"{r['beside']:.0%}",
                   f"{r['plan'] / 2**20:.1f}", f"{r['xla'] / 2**20:.1f}", f"{r['plan'] / r['xla']:.3f}",
                   f"{r['compile']:.1f}"]  # fmt: skip
            print(f"| {' | '.join(row)} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
