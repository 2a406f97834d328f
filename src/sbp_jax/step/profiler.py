"""A planned step run under JAX's profiler: where its time goes by layer, measured.

XLA records when each instruction of the compiled program runs (``hlo_op`` in the trace); the program's metadata says
which node of the plan, or which boxing, an instruction is; the plan says which layer that belongs to. A fused kernel
counts for the node that XLA names it after. Containers of other instructions (loops, calls) do not count themselves.
"""

import contextlib
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from .._compat import without_nan_checks
from ..errors import PlanError
from ..lower import named_in
from ..plan import PlanData
from ..report.facts import Facts
from ..report.layers import boxing_spot, rows
from ..report.profile import Profile, ProfileRow

_INSTRUCTION = re.compile(r"^\s*(?:ROOT\s+)?%?([\w.\-]+) = .*?\b([a-z][a-z\-]*)\(")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
# Their time is that of the instructions in them.
_CONTAINERS = ("while", "conditional", "call", "async-start", "async-done", "async-update")
_WARM = 2


@dataclass(frozen=True, slots=True)
class _Ran:
    """An instruction that ran on a device: nanoseconds, and its name."""

    start: float
    end: float
    name: str


def profile(
    plan: PlanData, text: str, fresh: Callable[[], Any], run: Callable[[Any], None], facts: Facts, repetitions: int
) -> Profile:
    """Run a step ``repetitions`` times under the profiler, after warm ones without it.

    ``text`` is its compiled HLO with names, ``fresh`` makes the arguments of one run, ``run`` runs to the end.
    ``PlanError`` where the profiler records nothing of the step.
    """
    if repetitions < 1:
        raise PlanError(f"plan.profile runs a step at least once, got repetitions={repetitions}")
    with tempfile.TemporaryDirectory() as folder, without_nan_checks():
        for _ in range(_WARM):
            run(fresh())
        unprofiled = [_timed(run, fresh()) for _ in range(repetitions)]
        with _tracing(folder):
            measured = [_timed(run, fresh()) for _ in range(repetitions)]
        with warnings.catch_warnings():
            # One of Python 3.13 at the reader's own types, where warnings are errors, ends the process (JAX 0.12).
            warnings.simplefilter("ignore", DeprecationWarning)
            ran = _read(Path(folder), _module(text))
    instructions = dict(_instructions(text))
    step = sum(measured) / repetitions
    if not any(x.name in instructions for some in ran.values() for x in some):
        raise PlanError(
            f"JAX's profiler recorded no instruction of {plan.function} on {plan.placement}: its backend writes no "
            "trace of ops, so nothing is measured by layer. A whole step took "
            f"{1e3 * sum(unprofiled) / repetitions:.3g} ms"
        )
    seconds: dict[tuple[str, bool], float] = {}
    for some in ran.values():
        for name, nanoseconds in _shared(some, instructions).items():
            node, box = instructions[name][1]
            key = _layer(plan, node, box), box >= 0
            seconds[key] = seconds.get(key, 0.0) + nanoseconds * 1e-9 / repetitions / len(ran)
    return Profile(
        plan.function, str(plan.placement), plan.cluster, repetitions, step, sum(unprofiled) / repetitions,
        facts.step_seconds, tuple(_rows(plan, facts, seconds, step)),
    )  # fmt: skip


def _rows(plan: PlanData, facts: Facts, seconds: Mapping[tuple[str, bool], float], step: float) -> Iterator[ProfileRow]:
    """A row for each of the report's, then what XLA added, then the rest."""
    left = dict(seconds)
    compute, waits, total = facts.compute_seconds, facts.exposed_seconds, 0.0
    for row in rows(plan, facts.exposed):
        computed, boxed = (sum(left.pop((layer, b), 0.0) for layer in row.layers) for b in (False, True))
        predicted = row.compute_seconds, row.exposed_seconds
        compute, waits, total = compute - predicted[0], waits - predicted[1], total + computed + boxed
        if computed or boxed or any(predicted):
            yield ProfileRow(row.name, tuple(row.layers), computed, boxed, *predicted)
    added = sum(left.values())
    yield ProfileRow("(ops that XLA added)", (), added, 0.0, 0.0, 0.0)
    # Predicted: copies on a device, and compute that collectives beside it make slower.
    yield ProfileRow("other (idle, launching)", (), step - total - added, 0.0, compute, waits)


def _layer(plan: PlanData, node: int, box: int) -> str:
    insight = plan.insight
    if box >= 0:
        at = next((k for k, b in enumerate(plan.boxing_list) if b.id == box), -1)
        if at >= 0:
            return insight.spots[boxing_spot(plan, insight.crossings[at].made_in, insight.crossings[at].used_in)].layer
    elif 0 <= node < len(insight.node_spots):
        return insight.spots[insight.node_spots[node]].layer
    return ""


def _shared(ran: Sequence[_Ran], instructions: Mapping[str, tuple[str, tuple[int, int]]]) -> dict[str, float]:
    """By instruction, the nanoseconds of a device that are its own.

    Where several run at once they share the time; boxings have what passes while nothing else runs.
    """
    events: list[tuple[float, int, str]] = []
    for x in ran:
        if x.name in instructions and instructions[x.name][0] not in _CONTAINERS and x.end > x.start:
            events += [(x.start, 1, x.name), (x.end, -1, x.name)]
    events.sort(key=lambda e: e[:2])
    found: dict[str, float] = {}
    active: dict[str, int] = {}
    boxing: dict[str, int] = {}
    before = 0.0
    for at, change, name in events:
        some = active or boxing
        if some and at > before:
            part = (at - before) / sum(some.values())
            for other, n in some.items():
                found[other] = found.get(other, 0.0) + n * part
        before = at
        mine = boxing if instructions[name][1][1] >= 0 else active
        mine[name] = mine.get(name, 0) + change
        if not mine[name]:
            del mine[name]
    return found


def _instructions(text: str) -> Iterator[tuple[str, tuple[str, tuple[int, int]]]]:
    """By name of an instruction: its opcode, and the node and boxing it is named after."""
    for line in text.splitlines():
        found = _INSTRUCTION.match(line)
        if found:
            op_name = _OP_NAME.search(line)
            yield found[1], (found[2], named_in(op_name[1] if op_name else ""))


def _module(text: str) -> str:
    return re.split(r"[,\s]", text.partition("HloModule ")[2], maxsplit=1)[0]


def _timed(run: Callable[[Any], None], arguments: Any) -> float:
    start = time.perf_counter()
    run(arguments)
    return time.perf_counter() - start


@contextlib.contextmanager
def _tracing(folder: str) -> Iterator[None]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise PlanError(f"JAX's profiler cannot be started, so nothing is measured: {error}") from error
    try:
        yield
    finally:
        jax.profiler.stop_trace()


def _read(folder: Path, module: str) -> dict[str, list[_Ran]]:
    """By device, the instructions of a module that ran there."""
    found: dict[str, list[_Ran]] = {}
    for path in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    name = stats.get("hlo_op")
                    if name is None or str(stats.get("hlo_module", module)).partition("(")[0] != module:
                        continue
                    device = f"{plane.name} {stats.get('device_ordinal', '')}"
                    start = float(event.start_ns)
                    found.setdefault(device, []).append(_Ran(start, start + float(event.duration_ns), str(name)))
    return found
