"""Pipelines against the best plan without one, by model, mesh and schedule: seconds, bubble, memory.

    python benchmarks/pipeline.py [--models gpt,t5,wide_resnet] [--schedules 1f1b,zb_h1] [--meshes 2x4,4x2] [--quick]

8 simulated devices as 2 stages of 4 and as 4 of 2, 8 micro-batches, every synchronous schedule. The models are small: a
GPT, an encoder-decoder like T5, a Wide-ResNet (whose batch norms take the statistics of each micro-batch; the others
compute what they do without a pipeline, which is checked). Each schedule runs in turns with the plan on the same mesh
without a pipeline; "step" is the median of its rounds, "of no pipeline" that divided by the other's median in the same
rounds, not by the row "none", which was measured before. 20 minutes on two cores that others use, too.

What the numbers mean. All devices share this machine's cores, so all the work of a step is done one piece after the
other: a pipeline cannot be quicker here, and "of no pipeline" measured says what it costs the host, in more and smaller
programs (a micro-batch of a stage is one, in each direction). It says nothing of accelerators. Predicted, the devices
run at the same time; that is the figure for them, on the links of the cluster model "cpu". The bubble is the part of
the micro-batches' time in which a group of devices computes nothing; measured, it has the transfers and the host's own
work in it, and tasks that run alone are quicker than those that share the cores. Memory does not depend on the
machine: bytes of a device of each group, predicted by the plan, and as XLA counts it for the compiled parts (arguments,
results, temporaries), with as many micro-batches alive as the schedule's order has. What is on its way between stages
is in neither.

Exits with 1 when a loss is not the one without a pipeline. A schedule that fails has the error in its row.
"""

import argparse
import datetime
import functools
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import numpy as np
from memory import needed
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from small.transformers import t5

import sbp_jax as sbp
from sbp_jax.pipeline.run.actors_of import tasks_run
from sbp_jax.schedules import Kind, schedules
from zoo import build

MICROBATCHES, BATCH, ROUNDS, TOLERANCE = 8, 32, 3, 1e-4
SYNCHRONOUS = [n for n in schedules() if not n.startswith("pipedream")]

Example = tuple[Any, Callable[[], Any], Any]
"""A step, what makes its state, its batch."""


def of_zoo(family: str, **options: Any) -> Example:
    case = build(family, "tiny", batch=BATCH, **options)
    return case.step, case.init, case.batch(0)


def t5_like() -> Example:
    model = t5(layers=1, width=64, vocab=256, seq=32, batch=BATCH)
    return model.step, model.init, model.batch()


MODELS: dict[str, tuple[Callable[[], Example], dict[str, Any]]] = {
    "gpt": (functools.partial(of_zoo, "gpt", layers=2, dropout=0.0), {}),
    "t5": (t5_like, {}),
    "wide_resnet": (functools.partial(of_zoo, "wide_resnet"), {"batch_statistics": "microbatch"}),
}


class Runner:
    """A planned step with its state, which a call advances; ``loss`` is that of the first step."""

    def __init__(self, example: Example, mesh: str, pipeline: sbp.Pipeline | None) -> None:
        function, init, batch = example
        shape = tuple(map(int, mesh.split("x")))
        where = sbp.placement("cpu", np.arange(math.prod(shape)).reshape(shape), axis_names=("stage", "data"))
        config = sbp.AutoParallelConfig(pipeline=pipeline)
        self.step: Any = sbp.auto_parallel(function, placement=where, donate_argnums=0, config=config)
        self.state, self.batch = init(), batch
        self.plan: Any = self.step.plan(self.state, batch)
        self.needed = 0 if pipeline else needed(self.step.lower(self.state, batch).compile())
        self.loss = float(self())

    def __call__(self) -> Any:
        self.state, told = self.step(self.state, self.batch)
        return jax.block_until_ready((self.state, told))[1]

    def seconds(self) -> float:
        start = time.perf_counter()
        self()
        return time.perf_counter() - start


def bytes_of(x: Any) -> int:
    """Of an array's piece on a device."""
    return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize


class Stage:
    """What a device of a stage holds, by XLA's account of its compiled parts."""

    def __init__(self, parts: Any, count: int) -> None:
        self.parts = parts
        kept: dict[Any, int] = {}
        self.arriving: dict[int, int] = {}
        for part in parts.all:
            for slot, x in zip(part.takes, part.shapes, strict=True):
                kind = parts.source.takes[slot.key].kind if slot.kind == "port" else ""
                if kind in ("argument", "constant"):
                    kept["port", slot.key] = bytes_of(x)
                elif kind == "part":
                    self.arriving[slot.key] = bytes_of(x)
            for slot, x in zip(part.gives, part.function.out_info, strict=True):
                if slot.kind in ("sum", "stack") or (slot.kind == "held" and part is parts.before):
                    kept[slot.kind, slot.key] = bytes_of(x) * (count if slot.kind == "stack" else 1)
        self.kept = sum(kept.values())
        backward = dict(zip((Kind.INPUT, Kind.WEIGHT), parts.backward, strict=False))
        self.of = {Kind.FORWARD: parts.forward, Kind.BACKWARD: parts.backward[0], **backward}

    def made(self, kind: Kind) -> int:
        """Bytes that a task of a micro-batch leaves for later ones; the forward one also what came with it."""
        part = self.of[kind]
        given = zip(part.gives, part.function.out_info, strict=True)
        own = sum(bytes_of(x) for slot, x in given if slot.kind in ("residual", "port"))
        return own + (sum(self.arriving.values()) if kind is Kind.FORWARD else 0)

    def once(self) -> Iterator[tuple[int, int]]:
        """Of each part after the micro-batches: bytes of its temporaries, and of new results."""
        for part in self.parts.after:
            m = part.function.memory_analysis()
            yield m.temp_size_in_bytes, m.output_size_in_bytes - m.alias_size_in_bytes


def measured_memory(runner: Runner) -> list[int]:
    """By group of devices, the most bytes of a device over a step."""
    schedule = runner.plan.schedule
    (entry,) = runner.step._entries.values()
    stages = {i: Stage(parts, schedule.microbatches) for i, parts in entry.step.parts.items()}
    found = []
    for rank, tasks in enumerate(tasks_run(schedule)):
        own = [stages[i] for i in schedule.stages_of(rank)]
        kept = now = sum(stage.kept for stage in own)
        most = now
        alive: dict[tuple[int, int, int], int] = {}
        for t in tasks:
            stage = stages[t.direction, t.stage]
            size, i = stage.made(t.kind), (t.direction, t.stage, t.microbatch)
            now += size
            alive[i] = alive.get(i, 0) + size
            most = max(most, now + stage.of[t.kind].function.memory_analysis().temp_size_in_bytes)
            if t.kind in (Kind.BACKWARD, Kind.WEIGHT):
                now -= alive.pop(i)
        now = kept
        for stage in own:
            for temporary, new in stage.once():
                most = max(most, now + temporary + new)
                now += new
        found.append(most)
    return found


def mib(amounts: Sequence[float]) -> str:
    return " ".join(f"{x / 2**20:.1f}" for x in amounts)


def add_rows(table: Table, name: str, mesh: str, names: Sequence[str], rounds: int, off: list[str]) -> None:
    """A mesh of a model: without a pipeline, then every schedule in turns with that."""
    make, options = MODELS[name]
    base = Runner(make(), mesh, None)
    base()
    plain = statistics.median(base.seconds() for _ in range(rounds))
    memory = [mib([base.plan.memory_per_device]), mib([base.needed])]
    table.add_row(mesh, "none", f"{1e3 * plain:.0f} ms", "1.00", "1.00", "", "", *memory)
    for label in names:
        print(f"{name} on {mesh}: {label}", file=sys.stderr, flush=True)
        runner = None
        try:
            pipeline = sbp.Pipeline(int(mesh.split("x")[0]), MICROBATCHES, label, **options)
            runner = Runner(make(), mesh, pipeline)
            base()
            runner()
            pairs = [(runner.seconds(), base.seconds(), runner.step.record().bubble_fraction()) for _ in range(rounds)]
            seconds, plain, bubble = (statistics.median(column) for column in zip(*pairs, strict=True))
            plan = runner.plan
            table.add_row(
                mesh, label, f"{1e3 * seconds:.0f} ms", f"{seconds / plain:.2f}",
                f"{plan.step_seconds / base.plan.step_seconds:.2f}", f"{bubble:.0%}", f"{plan.bubble_fraction:.0%}",
                mib(plan.memory_by_rank), mib(measured_memory(runner)),
            )  # fmt: skip
            if not options and not math.isclose(runner.loss, base.loss, rel_tol=TOLERANCE):
                off.append(f"off: {name} on {mesh}, {label}: loss {runner.loss:.6f}, by no pipeline {base.loss:.6f}")
        except Exception as error:
            told = (str(error).splitlines() or [""])[0]
            table.add_row(mesh, label, escape(f"{type(error).__name__}: {told}"))
        finally:
            if runner is not None:
                runner.step.close()


def main() -> int:
    """Print a table for each model; 1 when a loss is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--schedules", default=",".join(SYNCHRONOUS))
    parser.add_argument("--meshes", default="2x4,4x2")
    parser.add_argument("--quick", action="store_true", help="2x4, 1f1b and zb_h1, 2 rounds")
    args = parser.parse_args()
    names = ["1f1b", "zb_h1"] if args.quick else args.schedules.split(",")
    meshes = ["2x4"] if args.quick else args.meshes.split(",")
    console = Console(width=140)
    console.print(
        f"pipeline.py; {platform.machine()}, {os.cpu_count()} cores, 8 simulated CPU devices; Python "
        f"{platform.python_version()}, jax {jax.__version__}, jaxlib {version('jaxlib')}, sbp_jax {sbp.__version__}; "
        f"{datetime.date.today()}\n{MICROBATCHES} micro-batches of {BATCH // MICROBATCHES} examples; MiB of a device "
        "of each group; m. is measured, p. predicted; "
        "of no pipeline: in the same rounds\n", markup=False, highlight=False,
    )  # fmt: skip
    off: list[str] = []
    for name in args.models.split(","):
        columns = ("mesh", "schedule", "step", "of no pipeline, m.", "p.", "bubble, m.", "p.", "MiB, p.", "MiB, m.")
        table = Table(*columns, title=name, title_justify="left")
        for mesh in meshes:
            add_rows(table, name, mesh, names, 2 if args.quick else ROUNDS, off)
        console.print(table)
    console.print("\n".join(off), markup=False, highlight=False)
    return int(bool(off))


if __name__ == "__main__":
    sys.exit(main())
