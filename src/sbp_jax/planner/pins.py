"""Users' pins: signatures that are fixed before the search. Checked one by one, obeyed, and explained when they clash.

A pin is a node's index, the signature of its result (of an output: its operand), and the words to name it by. They
come from ``sbp.to_global`` and JAX's sharding constraints in the function and from ``in_sbp`` and ``out_sbp``;
parameters' metadata can join them.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from ..errors import InternalError, PlanError, SignatureError
from ..pieces import stored_shape
from ..placement import Placement
from ..rules.widen import Code, Strategy, code_of, signature_of
from ..shardings import signature_on
from ..signature import Signature, broadcast, local_shape
from ..trace import Op, Program, constraint_of, user_line
from .constraints import Among, among

# What the pins leave of an op's strategies.
Allowed = Callable[[Op, Sequence[Strategy]], tuple[Strategy, ...]]
Pins = Mapping[int, tuple[Signature | Among, str]]
# Steps between two pins that a message names, half from either end.
_MOST_BETWEEN = 8


class PinError(PlanError, SignatureError):
    """A pin that no plan on a mesh obeys: malformed, not possible there, or against other pins."""


def narrow_to_pins(program: Program, pins: Pins, placement: Placement) -> Allowed:
    """Keeps the strategies that a node's pin allows."""
    twin = {program.input_ops[i].index: program.output_ops[o].index for i, o in program.donated}

    def allowed(op: Op, ways: Sequence[Strategy]) -> tuple[Strategy, ...]:
        asked = [pins[k] for k in (op.index, twin.get(op.index, -1)) if k in pins]
        if not asked:
            return tuple(ways)
        if len({pin for pin, _ in asked}) > 1:
            (a, first), (b, second) = asked[:2]
            between = ops_between(program, op, program.nodes[twin[op.index]])
            raise PinError(
                f"two pins contradict each other: {first} asks for ({a}), {second} for "
                f"({b}), but a donated argument and the result that replaces it share one signature. "
                f"Between them: {between}. Give both the same, or do not donate the argument"
            )
        for pin, words in asked:
            allows = _test(pin)
            kept = tuple(s for s in ways if allows((s.outs or s.ins)[0]))
            if not kept:
                value = (op.outs or op.ins)[0]
                if isinstance(pin, Signature):
                    local_shape(value.shape, pin, placement.shape)
                possible = sorted({str(signature_of((s.outs or s.ins)[0])) for s in ways})
                raise PinError(f"{words}: ({pin}) is not possible for {value}; possible: {possible}")
            ways = kept
        return tuple(ways)

    return allowed


def _test(pin: Signature | Among) -> Callable[[Code], bool]:
    return pin.allows if isinstance(pin, Among) else code_of(pin).__eq__


def pin_allows(pin: Signature | Among, signature: Signature) -> bool:
    """Whether a signature with resolved dims obeys a pin."""
    return _test(pin)(code_of(signature))


def ops_between(program: Program, first: Op, last: Op) -> str:
    """The shortest way through the program from one op to another: primitives with the lines that cause them."""
    path = _path(program, first, last)
    if path is None:
        path = _path(program, last, first)
    if path is None:
        return "no op: neither depends on the other"
    steps: list[str] = []
    for op in path[1:-1]:
        line = user_line(op.info)
        step = f"{op.name.removeprefix('sbp.')} [{line}]" if line else op.name.removeprefix("sbp.")
        if not steps or steps[-1] != step:
            steps.append(step)
    if len(steps) > _MOST_BETWEEN:
        half = _MOST_BETWEEN // 2
        steps = [*steps[:half], f"{len(steps) - _MOST_BETWEEN} more ops", *steps[-half:]]
    return " -> ".join(steps) or "nothing"


def _path(program: Program, first: Op, last: Op) -> list[Op] | None:
    consumers = program.consumers()
    before: dict[int, Op | None] = {first.index: None}
    queue = [first]
    for op in queue:
        if op is last:
            path: list[Op] = []
            here: Op | None = op
            while here is not None:
                path.append(here)
                here = before[here.index]
            return path[::-1]
        for v in op.outs:
            for user, _ in consumers.get(v.id, ()):
                if user.index not in before:
                    before[user.index] = op
                    queue.append(user)
    return None


def conflict_message(program: Program, pins: Pins, possible: Callable[[Pins], bool]) -> str:
    """Which pins cannot all be met: a smallest set (no pin of it can be left out), and what lies between them.

    ``possible`` says of some pins whether any plan meets them. Pins are left out one at a time, and left out for good
    when there is still no plan (the deletion filter: Chinneck and Dravnieks, ORSA J. Computing 3(2), 1991).
    """
    if possible({}) is False:
        raise InternalError("no plan is possible for this program on this placement, even without pins")
    core = dict(pins)
    for index in list(core):
        fewer = {k: pin for k, pin in core.items() if k != index}
        if not possible(fewer):
            core = fewer
    told = "; ".join(f"{words} asks for ({s})" for s, words in core.values())
    ops = [program.nodes[k] for k in core]
    between = "; ".join(ops_between(program, a, b) for a, b in itertools.pairwise(ops))
    joined = f". Between them: {between}" if between else ""
    return (
        f"no plan satisfies all pins at once. These contradict each other: {told}{joined}. Change or remove one of "
        "them, put a sbp.to_global(x, sbp=...) between them, or plan without pins: "
        "AutoParallelConfig(ignore_user_sbp=True)"
    )


def inner_pins(
    program: Program, placement: Placement, uneven: bool = False
) -> dict[int, tuple[Signature | Among, str]]:
    """By node: the pins written inside the function, ``sbp.to_global`` and JAX's sharding constraints.

    ``uneven``: whether they may ask for padded pieces.
    """
    pins: dict[int, tuple[Signature | Among, str]] = {}
    for op in program.nodes:
        if op.name != "sbp.pin":
            continue
        line, shape = user_line(op.info) or "an unknown line", op.outs[0].shape
        constraint = op.params.get("constraint")
        if constraint is None:
            name = f"to_global at {line}"
            pins[op.index] = (pin_of(shape, op.params["signature"], placement, name, uneven), name)
            continue
        name = f"{constraint.call} at {line}"
        try:
            pin = among(constraint, shape, placement, uneven)
        except SignatureError as error:
            raise PinError(f"{name}: {error}") from None
        if pin is not None:
            pins[op.index] = (pin, name)
    return pins


def pin_of(
    shape: Sequence[int], given: Any, placement: Placement, words: str, uneven: bool = False
) -> Signature | Among:
    """As ``pin_signature``; a ``PartitionSpec`` with dimensions left ``UNCONSTRAINED`` leaves a choice."""
    spec = given.spec if isinstance(given, NamedSharding) else given
    if not isinstance(spec, PartitionSpec) or PartitionSpec.UNCONSTRAINED not in tuple(spec):
        return pin_signature(shape, given, placement, words, uneven)
    mesh = given.mesh if isinstance(given, NamedSharding) else _mesh_of(placement)
    try:
        found = among(constraint_of(NamedSharding(mesh, spec), len(shape), words), shape, placement, uneven)
    except (SignatureError, ValueError) as error:
        raise PinError(f"{words}: {error}") from None
    return found if found is not None else Signature((broadcast,) * placement.ndim)


def pin_signature(
    shape: Sequence[int], signature: Any, placement: Placement, words: str, uneven: bool = False
) -> Signature:
    """A user's pin (a signature, ``PartitionSpec`` or ``NamedSharding``), checked against its value's shape."""
    try:
        resolved = signature_on(signature, len(shape), placement)
        (stored_shape if uneven else local_shape)(shape, resolved, placement.shape)
    except SignatureError as error:
        raise PinError(f"{words}: {error}") from None
    # On an axis of one device every component means the same; plans say B there.
    sizes = placement.shape
    return Signature(tuple(broadcast if n == 1 else c for n, c in zip(sizes, resolved, strict=True)))


def _mesh_of(placement: Placement) -> AbstractMesh:
    """A mesh of a placement's axes, all of them automatic: explicit ones, JAX 0.12's default, leave no dim open."""
    return AbstractMesh(placement.shape, placement.axis_names, axis_types=(AxisType.Auto,) * placement.ndim)
