"""Everything that only a GPU can show, in one command: at most nine minutes on one GPU, no network.

    PYTHONPATH=src python3 benchmarks/gpu.py      # with the machine's own Python, if it has what pyproject.toml names
    PYTHONPATH=src:DIR python3 benchmarks/gpu.py  # what it has not: pip install --target DIR highspy shtab tomli-w
    python benchmarks/gpu.py --dry-run            # the same code on a CPU, tiny: nothing is measured that matters
    python benchmarks/gpu.py --only steps --model ResNet

Each part runs in a process of its own, so that one that fails, or runs out of memory, leaves the others; what it says
is printed as it says it, and a part that there is no time for is named. Compared are medians of rounds taken in turns,
in one process.

* ``versions``: the machine and the software.
* ``steps``: a training step of GPT-2 small and of ResNet-50 in bfloat16, planned and under plain ``jax.jit``, and
  planned without the waits that ``trace/order.py`` writes. Bound: planned at most 1.01 times plain.
* ``attention``: cuDNN's fused attention, planned, against the same function under plain ``jax.jit``.
* ``calibrate``: what ``sbp-jax calibrate`` finds, and on that cluster predicted against measured seconds, by op and
  by step.
* ``memory``: the planner's memory against XLA's ``memory_analysis()`` of the zoo. Bound: within 10 %.
* ``examples``: the scripts of ``examples/``, which check themselves.

Writes ``benchmarks/results/gpu.txt`` unless it is a dry run, or only some parts. Exits with 1 where a part failed, or a
bound does not hold on a GPU.
"""

import argparse
import datetime
import functools
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUDGET_SECONDS = 530.0
# By part: the most seconds that it may take.
PARTS = {"versions": 60, "steps": 330, "attention": 60, "calibrate": 150, "memory": 200, "examples": 200}
BESIDE = ("memory", "examples")  # what is not timed runs at the same time, after the others
RATIO, MEMORY_TOLERANCE = 1.01, 0.1
# XLA tries kernels for each product and convolution, minutes for a model: the parts share what it chose.
KERNELS_FLAG = "--xla_gpu_per_fusion_autotune_cache_dir"
MODEL = "SBP_JAX_GPU_MODEL"  # tells a part what --model asks for
BROKEN = 3  # a part's exit status where a bound does not hold
EXAMPLES: dict[str, list[str]] = {
    "train_gpt.py": ["--preset=tiny", "--steps=10", "--compare-steps=5", "--out={out}"],
    "mlp_digits.py": ["--steps=25"],
    "resnet.py": ["--steps=20"],
    "bert_mlm.py": ["--layers=1", "--steps=20", "--batch=16", "--seq=32", "--compare-steps=2"],
    "moe.py": ["--layers=1", "--steps=15", "--compare-steps=1"],
    "lora.py": ["--layers=1", "--steps=30", "--pretrain-steps=40", "--compare-steps=2"],
    "dlrm.py": ["--features=4", "--steps=20", "--compare-steps=2"],
    "faces.py": ["--identities=4096", "--steps=15", "--compare-steps=2"],
}

if __name__ == "__main__" and "--part" in sys.argv:  # before jax starts
    os.environ["JAX_PLATFORMS"] = "cpu" if "--dry-run" in sys.argv else "cuda,cpu"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=1"
    sys.path.insert(0, str(ROOT / "examples"))


# -- parts: each prints its table; an exit status other than 0 says that a bound does not hold --------------------


def versions(is_dry: bool) -> int:
    """What runs here."""
    import jax
    from jax.extend.backend import get_backend

    import sbp_jax as sbp

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "missing"

    names = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "optax", "numpy", "scipy", "highspy")
    found = ", ".join(f"{name} {v}" for name in names if (v := installed(name)) != "missing" or "cuda" not in name)
    print(f"{datetime.date.today()}; Python {platform.python_version()}, sbp_jax {sbp.__version__}, {found}")
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        print(
            f"{device.platform} {device.id}: {device.device_kind}, {stats.get('bytes_limit', 0) / 2**30:.1f} GiB usable"
        )
    print(f"backend: {' '.join(get_backend().platform_version.split()) or 'of no version'}")
    try:
        query = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
            "--format=csv,noheader",
        ]
        print(subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip())
    except (OSError, subprocess.TimeoutExpired):
        print("no nvidia-smi")
    print(f"sbp_jax plans for: {_plan_of_nothing().cluster}")
    return 0


def steps(is_dry: bool) -> int:
    """Planned steps against plain ones, with and without the lowering's waits."""
    import jax

    import sbp_jax as sbp
    import zoo
    from sbp_jax.lower import emit

    sizes: dict[str, tuple[str, str, dict[str, Any]]] = {
        "GPT-2 small": ("gpt", "gpt2", {"dtype": "bfloat16", "dropout": 0.0, "batch": 8}),
        "ResNet-50": ("resnet", "resnet50", {"dtype": "bfloat16", "batch": 128}),
    }
    if is_dry:
        sizes = {"GPT-2 small": ("gpt", "tiny", {}), "ResNet-50": ("resnet", "tiny", {"bottleneck": True, "stem": 7})}
    broken = 0
    for name, (model, size, options) in sizes.items():
        if os.environ.get(MODEL, "") not in name:
            continue
        case = zoo.build(model, size, **options)
        batch = jax.device_put(case.batch(0))
        planned = sbp.auto_parallel(case.step, placement=_one(), donate_argnums=0)
        plan = planned.plan(case.abstract_state(), batch)
        calls: dict[str, Any] = {
            "plain": jax.jit(case.step, donate_argnums=0),
            "planned": planned,
            "no waits": sbp.auto_parallel(case.step, placement=_one(), donate_argnums=0),
        }
        runs, losses = {}, {}
        for label, call in calls.items():
            kept = emit.waits
            if label == "no waits":
                emit.waits = lambda *_, **__: {}
            start = time.perf_counter()
            state, loss = call(jax.jit(case.init)(), batch)
            losses[label] = float(loss)
            emit.waits = kept
            print(f"{name}, {label}: compiled and run in {time.perf_counter() - start:.1f} s", flush=True)
            runs[label] = _Training(call, state, batch)
        seconds = _in_turns(runs, rounds=4 if is_dry else 12, calls=2 if is_dry else 10)
        ratio = _ratio(seconds["planned"], seconds["plain"])
        free = _ratio(seconds["no waits"], seconds["plain"])
        memory = {k: _needed(calls[k].lower(case.abstract_state(), batch).compile()) for k in calls}
        print(
            f"{name}: {_ms(seconds['planned'])} planned, {_ms(seconds['plain'])} plain: ratio {ratio:.4f} (bound "
            f"{RATIO}); {free:.4f} without the waits; predicted {plan.step_seconds * 1e3:.2f} ms for {plan.cluster}"
        )
        print(f"  memory by XLA: {', '.join(f'{k} {v / 2**20:.1f} MiB' for k, v in memory.items())}; "
              f"the plan says {plan.memory_per_device / 2**20:.1f} MiB")  # fmt: skip
        print(f"  first loss: {', '.join(f'{k} {v:.6f}' for k, v in losses.items())}", flush=True)
        off = abs(losses["planned"] - losses["plain"]) / abs(losses["plain"])
        broken += ratio > RATIO or off > 1e-2
        jax.clear_caches()
    return BROKEN if broken else 0


def attention(is_dry: bool) -> int:
    """cuDNN's attention under a plan: the same numbers, the same seconds."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import sbp_jax as sbp

    batch, length, heads, width = (2, 64, 4, 16) if is_dry else (8, 1024, 12, 64)
    how = "xla" if is_dry else "cudnn"

    def loss(q: Any, k: Any, v: Any) -> Any:
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=how)
        return jnp.square(out.astype(jnp.float32)).mean()

    step = jax.value_and_grad(loss, (0, 1, 2))
    q, k, v = (jax.random.normal(key, (batch, length, heads, width), jnp.bfloat16)
               for key in jax.random.split(jax.random.key(0), 3))  # fmt: skip
    planned, plain = sbp.auto_parallel(step, placement=_one()), jax.jit(step)
    plan = planned.plan(q, k, v)
    found, expected = jax.tree.leaves(planned(q, k, v)), jax.tree.leaves(plain(q, k, v))
    off = max(float(np.max(np.abs(np.float32(a) - np.float32(b)))) / max(float(np.max(np.abs(np.float32(b)))), 1e-30)
              for a, b in zip(found, expected, strict=True))  # fmt: skip

    def many(*x: Any) -> Any:
        """Calls from Python take as long as one step does: here a program has many."""
        return jax.lax.fori_loop(0, 3 if is_dry else 50, lambda _, x: jax.tree.map(jnp.subtract, x, step(*x)[1]), x)

    planned, plain = sbp.auto_parallel(many, placement=_one()), jax.jit(many)
    seconds = _in_turns({"planned": lambda: planned(q, k, v), "plain": lambda: plain(q, k, v)}, 12, 2)
    abstract = sbp.placement.abstract(8, axis_names=("dp",), cluster="h100")
    eight = sbp.plan(step, q, k, v, placement=abstract)
    print(
        f"{how} attention {batch}x{length}x{heads}x{width}, forward and backward: largest difference {off:.1e} of "
        f"the largest value; ratio {_ratio(seconds['planned'], seconds['plain']):.4f}; "
        f"without a rule: {plan.unruled or 'none'}"
    )
    print(f"  planned for 8 devices: q is {eight.inputs[0].signature}, {eight.bytes_on_wire:.0f} bytes sent")
    return BROKEN if off > 1e-3 or plan.unruled else 0


def calibrate(is_dry: bool) -> int:
    """Calibration, and what its cluster predicts against what is measured."""
    import jax
    import jax.numpy as jnp

    import sbp_jax as sbp
    import zoo
    from sbp_jax.cluster.calibrate import calibrate as measured

    start = time.perf_counter()
    calibration = measured("here", 1)
    print(f"calibrated in {time.perf_counter() - start:.0f} s; {'; '.join(calibration.notes) or 'no notes'}")
    for m in calibration.measurements:
        print(f"  {m}")
    cluster = calibration.cluster
    config = sbp.AutoParallelConfig(cluster=cluster)
    b, s, h = (2, 32, 64) if is_dry else (8, 1024, 768)
    dtype = jnp.bfloat16
    x, wide = jnp.ones((b, s, h), dtype), jnp.ones((b, s, 4 * h), dtype)
    image = jnp.ones((b, 28, 28, h // 4), dtype)
    ops: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "matrix product": (lambda x, w: x @ w, (x, jnp.ones((h, 4 * h), dtype))),
        "gelu": (jax.nn.gelu, (wide,)),
        "layer norm": (_layer_norm, (x,)),
        "softmax": (lambda x: jax.nn.softmax(x, -1), (jnp.ones((b, 4, s, s), jnp.float32),)),
        "sum over the batch": (lambda x: x.sum((0, 1)), (wide,)),
        "transpose": (lambda x: x.swapaxes(1, 2), (wide,)),
        "embedding": (lambda t, i: t[i], (jnp.ones((50 * h, h), dtype), jnp.zeros((b, s), jnp.int32))),
        "gradient of an embedding": (
            lambda t, i, g: t.at[i].add(g), (jnp.ones((50 * h, h)), jnp.arange(b * s).reshape(b, s) % (50 * h),
                                             jnp.ones((b, s, h)))),
        "convolution 3x3": (_convolution, (image, jnp.ones((3, 3, h // 4, h // 4), dtype))),
        "adam's update": (_adam, tuple(jnp.ones((16 * h, h)) for _ in range(4))),
    }  # fmt: skip
    print(f"by op, on the calibrated cluster (compute {dtype.__name__}):")
    for name, (fn, arguments) in ops.items():
        predicted = sbp.plan(fn, *arguments, placement=_one(), config=config).step_seconds
        seconds = _on_device(fn, arguments)
        print(f"  {name:<26} predicted {predicted * 1e6:9.1f} us, measured {seconds * 1e6:9.1f} us: "
              f"{predicted / seconds:5.2f}", flush=True)  # fmt: skip
    models = (
        {"mlp": "tiny", "lstm": "tiny", "gpt": "tiny"} if is_dry else {"mlp": "large", "lstm": "medium", "gpt": "gpt2"}
    )
    print("by step:")
    for model, size in models.items():
        case = zoo.build(model, size)
        batch = jax.device_put(case.batch(0))
        call = sbp.auto_parallel(case.step, placement=_one(), config=config, donate_argnums=0)
        plan = call.plan(case.abstract_state(), batch)
        training = _Training(call, jax.jit(case.init)(), batch)
        seconds = statistics.median(_in_turns({model: training}, 5, 5)[model])
        print(f"  {model} {size:<10} predicted {plan.step_seconds * 1e3:9.3f} ms, simulated "
              f"{plan.simulate().step_seconds * 1e3:9.3f} ms, measured {seconds * 1e3:9.3f} ms: "
              f"{plan.step_seconds / seconds:5.2f}", flush=True)  # fmt: skip
        jax.clear_caches()
    return 0


def memory(is_dry: bool) -> int:
    """The plan's memory against XLA's account, from shapes."""
    import jax
    from memory import MODELS  # the benchmark of the same name

    import sbp_jax as sbp
    import zoo

    names = ["mlp tiny", "gpt tiny", "lstm tiny"] if is_dry else list(MODELS)
    broken = []

    def compare(name: str) -> None:
        family, size, options = MODELS[name]
        case = zoo.build(family, size, **options)
        state, batch = case.abstract_state(), jax.eval_shape(lambda: case.batch(0))
        step = sbp.auto_parallel(case.step, placement=_one(), donate_argnums=0)
        ours, xla = step.plan(state, batch).memory_per_device, _needed(step.lower(state, batch).compile())
        if abs(ours / xla - 1) > MEMORY_TOLERANCE:
            broken.append(name)
        print(f"  {name:<28} XLA {xla:>15,}  plan {ours:>17,.0f}  plan / XLA {ours / xla:.3f}", flush=True)

    with ThreadPoolExecutor(4) as pool:  # XLA compiles without Python's lock
        list(pool.map(compare, names))
    print(f"within {MEMORY_TOLERANCE:.0%}: {len(names) - len(broken)} of {len(names)}")
    return BROKEN if broken else 0


def examples(is_dry: bool) -> int:
    """Every example as a user starts it, small."""
    failed = 0
    with tempfile.TemporaryDirectory() as out:
        for script, options in list(EXAMPLES.items())[: 2 if is_dry else None]:
            command = [sys.executable, str(ROOT / "examples" / script), *(o.format(out=out) for o in options)]
            start = time.perf_counter()
            ended = subprocess.run(command, capture_output=True, text=True, timeout=10 * PARTS["examples"])
            took = time.perf_counter() - start
            checks = ended.stdout.count("  true: ")
            print(f"  {script:<14} exit status {ended.returncode} in {took:.0f} s, {checks} checks true", flush=True)
            if ended.returncode:
                failed += 1
                print("\n".join(f"    {line}" for line in (ended.stdout + ended.stderr).splitlines()[-15:]), flush=True)
    return 1 if failed else 0


# -- what they share ---------------------------------------------------------------------------------------------


class _Training:
    """A step that is fed with its own result."""

    def __init__(self, call: Any, state: Any, batch: Any) -> None:
        self.call, self.state, self.batch = call, state, batch

    def __call__(self) -> Any:
        self.state, loss = self.call(self.state, self.batch)
        return loss


def _one() -> Any:
    """The one device."""
    import jax

    import sbp_jax as sbp

    return sbp.placement("gpu" if jax.default_backend() == "gpu" else "cpu", ranks=[0], axis_names=("dp",))


def _plan_of_nothing() -> Any:
    """A plan for the devices here, which names the cluster that it takes them for."""
    import jax.numpy as jnp

    import sbp_jax as sbp

    return sbp.plan(jnp.negative, jnp.ones(1), placement=_one())


def _in_turns(runs: dict[str, Callable[[], Any]], rounds: int, calls: int) -> dict[str, list[float]]:
    """Seconds a call of each, a median's worth of rounds in turns, after one round that does not count."""
    import jax

    seconds: dict[str, list[float]] = {label: [] for label in runs}
    for k in range(rounds + 1):
        for label, run in runs.items():
            start = time.perf_counter()
            for _ in range(calls):
                last = run()
            jax.block_until_ready(last)
            if k:
                seconds[label].append((time.perf_counter() - start) / calls)
    return seconds


def _on_device(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Seconds of one call on the device, by programs of several: what starting a program takes is not in it."""
    import jax

    from sbp_jax.cluster.calibrate import seconds_each

    def repeated(times: int) -> Callable[[], Any]:
        def run(*values: Any) -> list[Any]:
            outs = []
            for _ in range(times):
                values, out = jax.lax.optimization_barrier((values, fn(*values)))  # or XLA would call it once
                outs.append(out)
            return outs

        return functools.partial(jax.jit(run), *arguments)

    return seconds_each(repeated, 2)


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _ms(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.2f} ms"


def _needed(compiled: Any) -> int:
    from memory import needed

    return needed(compiled)


def _layer_norm(x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    y = x.astype(jnp.float32)
    return ((y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def _convolution(x: Any, w: Any) -> Any:
    from jax import lax

    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _adam(p: Any, m: Any, v: Any, g: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v**0.5 + 1e-8), m, v


# -- all of it ---------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the parts, each in a process; print and write what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="tiny, on the CPU: does all of it run?")
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="this part (may be repeated); nothing is written"
    )
    parser.add_argument("--model", default="", help="of the steps those of models with this in their name")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        sys.path.insert(0, str(Path(__file__).parent))
        return globals()[args.part](args.dry_run)
    os.environ[MODEL] = args.model
    start, text, failed = time.monotonic(), [], []

    def run(part: str) -> tuple[str, str, int]:
        left = BUDGET_SECONDS - (time.monotonic() - start)
        return (
            (part, *_run(part, args.dry_run, min(PARTS[part], left))) if left > 20 else (part, "no time is left\n", 1)
        )

    asked = args.only or list(PARTS)
    kernels = tempfile.TemporaryDirectory()
    if not args.dry_run and KERNELS_FLAG not in (flags := os.environ.get("XLA_FLAGS", "")):
        os.environ["XLA_FLAGS"] = f"{flags} {KERNELS_FLAG}={kernels.name}"
    timed = [run(part) for part in asked if part not in BESIDE]
    with ThreadPoolExecutor() as pool:
        done = timed + list(pool.map(run, [part for part in asked if part in BESIDE]))
    for part, said, status in done:
        verdict = {0: "", BROKEN: ": A BOUND DOES NOT HOLD"}.get(status, ": FAILED")
        if status and not (args.dry_run and status == BROKEN):
            failed.append(part)
        text.append(f"== {part}{verdict}\n{said.rstrip()}\n")
    print("", *text, sep="\n")
    where = "a CPU, tiny: no figure means anything" if args.dry_run else "one GPU"
    ended = f"gpu.py on {where}; {time.monotonic() - start:.0f} s; " + (
        f"not right: {', '.join(failed)}" if failed else "all right"
    )
    print(ended)
    kernels.cleanup()
    if not args.dry_run and not args.only:
        (Path(__file__).parent / "results" / "gpu.txt").write_text("\n".join([ended, "", *text]))
    return int(bool(failed))


def _run(part: str, is_dry: bool, seconds: float) -> tuple[str, int]:
    """What a part says, and its exit status; it is ended after ``seconds``."""
    command = [sys.executable, __file__, "--part", part, *(["--dry-run"] if is_dry else [])]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    if part in BESIDE:
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    said: list[str] = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
        )
        assert process.stdout is not None
        ending = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
        ending.start()
        for line in process.stdout:
            print(f"{part}: {line}", end="", flush=True)
            said.append(line)
        status = process.wait()
        ending.cancel()
        errors.seek(0)
        if status == -signal.SIGKILL:
            said.append(f"ended after {seconds:.0f} s\n")
        elif status not in (0, BROKEN):
            said += errors.readlines()[-25:]
    return "".join(said), status


if __name__ == "__main__":
    sys.exit(main())
