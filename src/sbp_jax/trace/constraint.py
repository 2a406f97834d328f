"""JAX's own ways to say how a value lies, inside a planned function: each becomes a pin of the graph.

``with_sharding_constraint``, ``device_put`` and ``reshard`` to a sharding, the ``in_shardings`` and ``out_shardings``
of a nested ``jax.jit``, and ``out_sharding=`` of an op (explicit mesh axes). A program is traced before its placement
is known: which signatures a ``Constraint`` leaves is found with the placement (``planner/constraints.py``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, Sharding

from ..errors import SbpError
from ..shardings import device_ids
from .graph import Atom, Lit
from .pin import pin_p
from .scope import Tracer
from .source import user_line

Rewriter = Callable[[Tracer, Any, list[Atom]], Sequence[Atom]]

# Parameters of ordinary ops that say how the result lies. Only explicit mesh axes count there.
_OF_RESULTS = ("sharding", "out_sharding")


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a sharding asks of a value.

    ``mesh``: names and sizes of its mesh axes; ``devices``: their ids, row-major, None for an abstract mesh. ``dims``:
    for each dimension the axes that split it, None where the dimension is free. ``partial``: axes along which it is
    a sum. ``free``: axes of which nothing is said. ``call``: what the user called. Without mesh axes it is a device.
    """

    mesh: tuple[tuple[str, int], ...]
    dims: tuple[tuple[str, ...] | None, ...]
    partial: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    call: str = field(default="with_sharding_constraint", compare=False, repr=False)
    # Not printed: a plan made for an abstract mesh fits the same program on devices.
    devices: tuple[int, ...] | None = field(default=None, repr=False)

    def __str__(self) -> str:
        entries = [
            "UNCONSTRAINED" if d is None else "None" if not d else repr(d[0]) if len(d) == 1 else repr(d)
            for d in self.dims
        ]
        entries += [f"unreduced={{{', '.join(map(repr, self.partial))}}}"] if self.partial else []
        return f"P({', '.join(entries)})"


def called(params: Mapping[str, Any]) -> str:
    """What the user called that made a pin with these parameters."""
    found = params.get("constraint")
    return "to_global" if found is None else found.call


def sharding_constraint(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``jax.lax.with_sharding_constraint``."""
    sharding, free = eqn.params["sharding"], eqn.params.get("unconstrained_dims", ())
    return [_pinned(t, ins[0], sharding, "with_sharding_constraint", eqn.source_info, free)]


def reshard(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``jax.sharding.reshard``, and what ``jax.grad`` writes for it: it speaks of explicit axes only."""
    return [_pinned(t, ins[0], eqn.params["dst_sharding"], "reshard", eqn.source_info, is_typed=True)]


def device_put(t: Tracer, eqn: Any, ins: list[Atom]) -> Sequence[Atom]:
    """``jax.device_put``, of several values at once."""
    targets = eqn.params["devices"]
    return [_put(t, x, target, eqn.source_info) for x, target in zip(ins, targets, strict=True)]


def _put(t: Tracer, x: Atom, target: Any, info: Any) -> Atom:
    if target is None or str(target) == str(jax.memory.Space.Device):
        return x
    if isinstance(target, jax.memory.Space):
        _refuse_memory(info, "jax.device_put", "pinned_host" if target is jax.memory.Space.Host else str(target))
    return _pinned(t, x, getattr(target, "sharding", target), "device_put", info)


def around_call(t: Tracer, eqn: Any, inline: Callable[[list[Atom]], Sequence[Atom]], ins: list[Atom]) -> list[Atom]:
    """The results of a nested call, its arguments and results pinned to its shardings, where it has any."""
    given, made = eqn.params.get("in_shardings", ()), eqn.params.get("out_shardings", ())
    if any(isinstance(s, Sharding) for s in given):
        ins = [_if_said(t, x, s, "in_shardings of a jax.jit", eqn) for x, s in zip(ins, given, strict=True)]
    results = list(inline(ins))
    if any(isinstance(s, Sharding) for s in made):
        results = [_if_said(t, x, s, "out_shardings of a jax.jit", eqn) for x, s in zip(results, made, strict=True)]
    return results


def _if_said(t: Tracer, x: Atom, sharding: Any, call: str, eqn: Any) -> Atom:
    return _pinned(t, x, sharding, call, eqn.source_info) if isinstance(sharding, Sharding) else x


def without_shardings(params: Mapping[str, Any]) -> tuple[Mapping[str, Any], NamedSharding | None]:
    """An op's parameters as one device runs it, and the sharding that they asked of its result.

    A sharding that splits nothing is taken for the type that JAX hands on, except where ``out_sharding`` says it.
    """
    found = [(name, s) for name in _OF_RESULTS if isinstance(s := params.get(name), NamedSharding)]
    if not found:
        return params, None
    name, sharding = found[0]
    is_asked = name == "out_sharding" or any(e is not None for e in sharding.spec)
    return {**params, **{n: None for n, _ in found}}, sharding if is_asked else None


def pinned_result(t: Tracer, x: Atom, sharding: NamedSharding, info: Any) -> Atom:
    """The result of an op that names its own ``out_sharding``."""
    return _pinned(t, x, sharding, "out_sharding", info, is_typed=True)


def _pinned(
    t: Tracer, x: Atom, sharding: Any, call: str, info: Any, unconstrained: Sequence[int] = (),
    is_typed: bool = False,
) -> Atom:  # fmt: skip
    """``x`` behind a pin; ``x`` itself where the sharding asks nothing. ``is_typed``: automatic axes say nothing."""
    if isinstance(x, Lit):
        return x
    if isinstance(sharding, jax.Device):
        sharding = jax.sharding.SingleDeviceSharding(sharding)
    if sharding.memory_kind not in (None, "device", *(d.default_memory().kind for d in _device_set(sharding))):
        _refuse_memory(info, call, str(sharding.memory_kind))
    if isinstance(sharding, NamedSharding):
        asked = constraint_of(sharding, len(x.shape), call, unconstrained, is_typed)
        if len(asked.free) == len(asked.mesh):
            return x
    elif len(sharding.device_set) == 1:
        (device,) = sharding.device_set
        asked = Constraint((), ((),) * len(x.shape), (), (), call, (device.id,))
    else:
        raise SbpError(
            f"{_line(info)}: {call} asks for {sharding}, which names no mesh axes. Give a NamedSharding of the "
            "placement's mesh (placement.mesh), or leave it out"
        )
    params = {"constraint": asked}
    return t.emit("sbp.pin", [x], [x], params, pin_p, info, called(params))[0]


def constraint_of(
    sharding: NamedSharding, ndim: int, call: str, unconstrained: Sequence[int] = (), is_typed: bool = False
) -> Constraint:
    """What a sharding asks of a value of rank ``ndim``; dims ``unconstrained`` are free, whatever its spec."""
    mesh, spec = sharding.mesh, sharding.spec
    dims: list[tuple[str, ...] | None] = []
    for entry in (*spec, *[None] * (ndim - len(spec))):
        is_free = entry is PartitionSpec.UNCONSTRAINED or len(dims) in unconstrained
        names = () if entry is None else (entry,) if isinstance(entry, str) else entry
        dims.append(None if is_free else tuple(map(str, names)))
    types = mesh.axis_types or (AxisType.Auto,) * len(mesh.axis_names)
    free = [str(n) for n, kind in zip(mesh.axis_names, types, strict=True) if is_typed and kind != AxisType.Explicit]
    sizes = tuple((str(n), int(k)) for n, k in mesh.shape.items())
    partial = tuple(sorted(map(str, getattr(spec, "unreduced", ()))))
    return Constraint(sizes, tuple(dims), partial, tuple(free), call, device_ids(mesh))


def _device_set(sharding: Sharding) -> Iterable[Any]:
    return () if isinstance(getattr(sharding, "mesh", None), AbstractMesh) else sharding.device_set


def _refuse_memory(info: Any, call: str, kind: str) -> None:
    raise SbpError(
        f"{_line(info)}: {call} asks for memory kind {kind!r}; a plan holds every value in its devices' default "
        "memory. Leave it out; where memory is short, jax.checkpoint or AutoParallelConfig(remat='auto') computes "
        "values again instead of storing them elsewhere"
    )


def _line(info: Any) -> str:
    return user_line(info) or "an unknown line"


HANDLERS: dict[str, Rewriter] = {
    "sharding_constraint": sharding_constraint,
    "reshard": reshard,
    "device_put": device_put,
}
