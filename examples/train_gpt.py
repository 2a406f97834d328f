"""Train a byte-level GPT on the source of Python's standard library, on every device there is.

    python examples/train_gpt.py                                  # CPUs: 8 simulated devices as a 2x4 mesh
    python examples/train_gpt.py --preset gpt2 --bfloat16         # on GPUs: all of them

``sbp.flax.jit`` stands where ``nnx.jit`` stood; it plans the sharding of every value in the step. The script prints
the plan, checks the compiled program against it, trains, and repeats the first steps on a single device: the losses
must agree. It writes plan.json and loss.png. ``--baseline`` trains with plain ``nnx.jit`` on one device instead.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
import optax
from flax import nnx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from shared import Corpus, choose_mesh, mesh_shape, simulate_cpu_devices
from zoo import gpt_nnx
from zoo.common import configure
from zoo.gpt import SIZES, GptConfig

matplotlib.use("Agg")  # writes files only; must precede pyplot
from matplotlib import pyplot

PRESETS = ("tiny", "small", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
TOLERANCE = 1e-3  # relative, of each step's loss against the single device's

# train_step(model, optimizer, batch) -> loss, compiled one way or another
TrainStep = Callable[[gpt_nnx.Gpt, nnx.Optimizer, dict[str, np.ndarray]], jax.Array]


def train_step(model: gpt_nnx.Gpt, optimizer: nnx.Optimizer, batch: dict[str, np.ndarray]) -> jax.Array:
    """One step of training, in place; the loss in nats a byte. Nothing in it knows of devices."""
    loss, grads = nnx.value_and_grad(gpt_nnx.loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss


def create(config: GptConfig, steps: int) -> tuple[gpt_nnx.Gpt, nnx.Optimizer]:
    """A new model and its optimizer, the same numbers every time."""
    warmup = min(20, steps // 5)
    schedule = optax.warmup_cosine_decay_schedule(
        0.1 * config.learning_rate, config.learning_rate, warmup, steps, 0.1 * config.learning_rate
    )
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.1))
    model = gpt_nnx.Gpt(config, nnx.Rngs(0))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def train(step: TrainStep, config: GptConfig, steps: int, corpus: Corpus, of: int, label: str) -> Iterator[float]:
    """The losses of the first ``steps`` of a training ``of`` steps, from the start, with a progress bar."""
    model, optimizer = create(config, of)
    yield from run(step, model, optimizer, config, steps, corpus, label)


def run(
    step: TrainStep,
    model: gpt_nnx.Gpt,
    optimizer: nnx.Optimizer,
    config: GptConfig,
    steps: int,
    corpus: Corpus,
    label: str,
) -> Iterator[float]:
    """Train for ``steps`` steps; yields each loss. The first step's time, which compiles, is left out of the rate."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[rate]:>9,.0f} tokens/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=steps, loss=float("nan"), rate=0.0)
        began = time.perf_counter()
        for i in range(steps):
            loss = float(step(model, optimizer, corpus.batch(i, config.batch, config.seq)))
            if i == 0:
                began = time.perf_counter()
            rate = i * config.batch * config.seq / (time.perf_counter() - began)
            progress.update(task, advance=1, loss=loss, rate=rate)
            yield loss


def draw(path: Path, losses: list[float], reference: list[float], corpus: Corpus) -> None:
    """The losses over the steps, with the byte frequencies' entropy to be measured against."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(losses, label="training loss")
    if reference:
        axes.plot(reference, "k--", linewidth=1, label="the same on a single device")
    axes.axhline(corpus.entropy, color="tab:red", linestyle=":", label=f"byte frequencies alone: {corpus.entropy:.3f}")
    axes.set(xlabel="step", ylabel="nats a byte", title="A byte-level GPT on Python's standard library")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plan_and_verify(step: Any, model: gpt_nnx.Gpt, optimizer: nnx.Optimizer, batch: dict[str, np.ndarray]) -> Any:
    """The plan of ``step``, printed, and the compiled program checked against it; returns the plan."""
    plan = step.plan(model, optimizer, batch)
    console.out(str(plan), highlight=False)
    began = time.perf_counter()
    plan.verify()
    console.print(
        f"[green]verified[/green] in {time.perf_counter() - began:.1f} s: "
        "the compiled program moves the data that the plan says, no more and no less"
    )
    return plan


def differences(losses: list[float], reference: list[float]) -> np.ndarray:
    """Relative difference of each loss from the single device's."""
    want = np.array(reference)
    return np.abs(np.array(losses[: len(want)]) - want) / np.abs(want)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small", help="the model's size; small: 3 M parameters")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16 (parameters stay float32)")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step, on all devices together")
    parser.add_argument("--seq", type=int, help="bytes in a sequence (default: the preset's)")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--mesh", type=mesh_shape, help="as 2x4: axes dp x tp (default: all GPUs, or 2x4 on CPUs)")
    parser.add_argument("--compare-steps", type=int, default=20, help="steps repeated on a single device; 0: none")
    parser.add_argument("--out", type=Path, default=Path("out"), help="directory of plan.json and loss.png")
    parser.add_argument("--baseline", action="store_true", help="plain nnx.jit on one device, no plan")
    options = parser.parse_args(arguments)
    for name, least in (("steps", 1), ("batch", 1), ("seq", 1), ("compare_steps", 0)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    if not 0 <= options.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, got {options.dropout}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0, or 1 when the losses differ from the single device's."""
    options = parse(arguments)
    simulate_cpu_devices(int(np.prod(options.mesh or (2, 4))))
    kind, shape = choose_mesh(options.mesh)
    preset = configure(SIZES, options.preset, {})
    config = configure(
        SIZES,
        options.preset,
        {
            "vocab": 256,
            "batch": options.batch,
            "seq": options.seq or preset.seq,
            "dropout": options.dropout,
            "dtype": "bfloat16" if options.bfloat16 else "float32",
        },
    )
    corpus = Corpus.standard_library()
    model, optimizer = create(config, options.steps)
    millions = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) / 1e6
    console.print(
        f"GPT of {millions:.1f} M parameters, {config.layers} layers, {config.dtype}; "
        f"{corpus.files} files of the standard library, {corpus.data.size / 1e6:.1f} MB"
    )

    plan = None
    if options.baseline:
        console.print(f"plain nnx.jit on one {kind} device")
        step: Any = nnx.jit(train_step)
    else:
        import sbp_jax as sbp

        ranks = np.arange(int(np.prod(shape))).reshape(shape).tolist()
        placement = sbp.placement(kind, ranks=ranks, axis_names=("dp", "tp"))
        console.print(f"sbp.flax.jit on {placement}", highlight=False)
        step = sbp.flax.jit(placement=placement)(train_step)
        plan = plan_and_verify(step, model, optimizer, corpus.batch(0, config.batch, config.seq))

    losses = list(run(step, model, optimizer, config, options.steps, corpus, "training"))
    del model, optimizer  # room for the single-device run
    compared = min(options.compare_steps, options.steps)
    single = nnx.jit(train_step)
    reference = list(train(single, config, compared, corpus, options.steps, "one device")) if compared else []

    options.out.mkdir(parents=True, exist_ok=True)
    written = [options.out / "loss.png"]
    draw(written[0], losses, reference, corpus)
    if plan is not None:
        written.insert(0, options.out / "plan.json")
        plan.save(written[0])

    last = float(np.mean(losses[-10:]))
    console.print(
        f"loss {losses[0]:.3f} -> {last:.3f} nats a byte (mean of the last 10); "
        f"byte frequencies alone: {corpus.entropy:.3f}"
    )
    ok = True
    if reference:
        off = differences(losses, reference)
        ok = bool((off <= TOLERANCE).all())  # a NaN is not <=
        verdict = "[green]equal[/green]" if ok else "[red]NOT equal[/red]"
        console.print(
            f"{verdict} to a single device over the first {compared} steps: largest relative difference "
            f"{off.max():.1e} at step {int(off.argmax())} (at most {TOLERANCE:g} is allowed)"
        )
    console.print(f"wrote {' and '.join(map(str, written))}", highlight=False)
    return 0 if ok else 1


console = Console(soft_wrap=True)

if __name__ == "__main__":
    sys.exit(main())
