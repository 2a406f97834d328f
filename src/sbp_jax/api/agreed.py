"""One plan for all processes: the first one that has devices of the placement plans, the others get its plan as JSON.

What each process asks for is compared before that: its program, its options, its versions.
"""

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import jax

from .. import processes
from ..errors import PlacementError, PlanError, ProcessError, SbpError, SignatureError
from ..placement import Placement
from ..plan import PlanData
from ..planner import PinError
from ..planner.memory.infeasible import OutOfTime, TooSmall
from ..trace import Program, canonical_text, fingerprint, user_line
from ..trace.canonical import Canonical
from ..trace.graph import Value
from .config import AutoParallelConfig

_ERRORS: dict[str, type[SbpError]] = {
    kind.__name__: kind for kind in (SbpError, PlacementError, PlanError, SignatureError, PinError)
}
_SHORT: dict[str, type[TooSmall]] = {kind.__name__: kind for kind in (TooSmall, OutOfTime)}
# Settings of JAX that change what a function is traced to, or what its numbers are.
_SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion",
    "jax_default_prng_impl", "jax_threefry_partitionable", "jax_default_dtype_bits",
)  # fmt: skip
_DECIDED = (
    "fingerprint", "placement", "inputs", "outputs", "signatures", "strategies", "nodes", "boxings", "recomputed",
    "rewritten", "lowering",
)  # fmt: skip
_VERSIONED = ("sbp_jax", "jax", "jaxlib")


def members(places: Callable[[], Sequence[Placement]]) -> tuple[int, ...]:
    """The processes that have devices of these placements; none where this process is on its own."""
    if not processes.is_initialized():
        return ()
    found: set[int] = set()
    for where in places():
        if where.is_abstract:
            return ()
        try:
            found |= {device.process_index for device in where.mesh.devices.flat}
        except PlacementError:  # more devices than there are: planned for only, or an error later
            return ()
    return tuple(sorted(found))


@contextlib.contextmanager
def telling(request: processes.Request | None) -> Iterator[None]:
    """What this process raises in the block, before it has asked, the others get as an error: they do not wait."""
    try:
        yield
    except Exception as error:
        if request is not None:
            request.fail(f"{type(error).__name__}: {error}")
        raise


def agree(
    request: processes.Request | None, name: str, facts: Callable[[], Mapping[str, str]], program: Program,
    make: Callable[[], PlanData],
) -> PlanData:  # fmt: skip
    """What ``make`` gives on the first of the request's processes, on all of them. Alone: what it gives here.

    An error of ``make`` there is the same error on all. Raises ``ProcessError`` where they do not ask for the same.
    """
    if request is None:
        return make()
    made: list[PlanData] = []
    raised: list[Exception] = []

    def text() -> str:
        try:
            made.append(make())
            return json.dumps(made[0].to_json(), separators=(",", ":"))
        except Exception as error:
            raised.append(error)
            return _error_text(error)

    with telling(request):
        ours = facts()
    told = request.agree(f"the plan of {name}", ours, text, lambda: {"program": _ops(program)})
    if raised:
        raise raised[0]
    if made:
        return made[0]
    data = json.loads(told)
    if "error" in data:
        raise _error(data, request.members[0])
    plan = PlanData.from_json(data, f"the plan of process {request.members[0]}")
    if plan.fingerprint != fingerprint(program):
        raise ProcessError(f"the plan of {name} that process {request.members[0]} made is for another program")
    return plan


def agree_on_same(
    request: processes.Request | None, name: str, facts: Callable[[], Mapping[str, str]], program: Program
) -> None:
    """Compare only: every process has the plan. Raises ``ProcessError`` where they do not ask for the same."""
    if request is not None:
        with telling(request):
            ours = facts()
        request.agree(f"the plan of {name}", ours, lambda: "", lambda: {"program": _ops(program)})


def first_says(request: processes.Request | None, name: str, measure: Callable[[], int | None]) -> int | None:
    """What all of the request's processes measure, each for itself, as the first one has it. Alone: as it is here."""
    with telling(request):
        ours = measure()
    if request is None:
        return ours
    told = request.agree(f"the memory of {name}", {"function": name}, lambda: json.dumps(ours))
    first: int | None = json.loads(told)
    return first


def facts_of(
    name: str, places: Sequence[Placement], config: AutoParallelConfig, program: Program, pins: Any, plan: str
) -> dict[str, str]:
    """What all processes must say alike, in the order in which differences are looked for.

    ``plan`` says where the plan is to come from. ``pins`` are those that the call has, before they are read.
    """
    return {
        "versions": ", ".join(f"{package} {_version(package)}" for package in _VERSIONED),
        "function": name,
        "setting of JAX": "\n".join(f"{k}={getattr(jax.config, k, None)}" for k in _SETTINGS),
        "placement": "\n".join(f"{p} of ranks {list(p.flat_ranks)}" for p in places),
        "option": "\n".join(_options(config)),
        "argument": "\n".join(f"{op.label} is {op.outs[0].dtype}{list(op.outs[0].shape)}"
                              f"{' weakly typed' if op.outs[0].weak else ''}" for op in program.input_ops),
        "result": "\n".join(f"{op.label} {op.ins[0].dtype}{list(op.ins[0].shape)}" for op in program.output_ops),
        "donated": str(sorted(program.donated)),
        "pin": canonical_text(pins),
        "plan": plan,
        "program": fingerprint(program),
    }  # fmt: skip


def digest(plan: PlanData) -> str:
    """What a plan decides, as a short text: not how long it took to make, or what is told of it."""
    data = plan.to_json()
    decided = {k: data.get(k) for k in _DECIDED}
    return hashlib.sha256(json.dumps(decided).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _options(config: AutoParallelConfig) -> list[str]:
    """Every option with another value than its default. The cache is the first process's alone."""
    asked = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "cache"}
    default = {f.name: f.default for f in fields(config)}
    return [f"{k}={getattr(x, 'name', x)!r}" for k, x in asked.items() if x != default[k]]


def _ops(program: Program) -> str:
    """A line for each op, with its place in the user's code; last the hash, which sees constants and rules too."""
    numbers: dict[int, int] = {}
    text = Canonical()

    def shown(x: Any) -> str:
        name = f"%{numbers.setdefault(x.id, len(numbers))}" if isinstance(x, Value) else str(x)
        return f"{name}:{x.dtype}{list(x.shape)}{'~' if x.weak else ''}"

    lines = []
    for k, op in enumerate(program.nodes):
        params = " ".join([op.name, *(f"{name}={text(x)}" for name, x in op.params.items() if x is not None)])
        operands, results = ", ".join(map(shown, op.ins)), ", ".join(map(shown, op.outs))
        where = user_line(op.info)
        lines.append(f"op {k}{f' ({where})' if where else ''}:\t{params} of {operands} giving {results}")
    return "\n".join([*(x.replace("\n", " ") for x in lines), f"hash (constants, rules):\t{fingerprint(program)}"])


def _error_text(error: Exception) -> str:
    told = {"error": type(error).__name__, "text": str(error)}
    return json.dumps(told | ({"smallest_bytes": error.smallest_bytes} if isinstance(error, TooSmall) else {}))


def _error(data: Mapping[str, Any], origin: int) -> SbpError:
    """The error that the first process got, as one of ours."""
    kind, text = data["error"], data["text"]
    if kind in _SHORT and "smallest_bytes" in data:
        return _SHORT[kind](text, data["smallest_bytes"])
    return _ERRORS[kind](text) if kind in _ERRORS else PlanError(f"process {origin} could not plan: {kind}: {text}")
