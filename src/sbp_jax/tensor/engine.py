"""Eager ops: a function on global tensors is a small program, planned and lowered like any other, once.

The operands' signatures are given, the results' are free: the plan is the one that moves the fewest bytes, and
among those the one that changes the fewest signatures. A call with the same function, shapes and signatures runs
the compiled step again.
"""

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import boxing
from .. import cluster as clusters
from .._compat import is_staging, looks_for_nans, opened, refuse_nans, traced, without_nan_checks
from ..ahead import cannot_run_ahead, to_its_end
from ..errors import PlacementError, SbpError
from ..lower import local_function, on_mesh
from ..pieces import is_even
from ..placement import Placement
from ..planner import Request, inner_pins, make_plan
from ..shardings import SbpLike, signature_on
from ..signature import Partial, Signature, broadcast
from ..trace import build
from .spec import Spec, make_spec
from .storage import from_logical

_LEAF = jax.tree.structure(0)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A compiled eager op: storages in, storages out; what the results are; the plan it runs by.

    ``is_single``: the function gives one tensor, not a tree of them. ``waits``: it must end before the next may start.
    """

    jitted: Callable[..., Any]
    specs: tuple[Spec, ...]
    tree: Any
    plan: Any = None
    constants: tuple[Any, ...] = ()
    is_single: bool = False
    waits: bool = False


def step_for(
    fn: Callable[..., Any], ins: Sequence[Spec | jax.ShapeDtypeStruct], where: Placement,
    results: SbpLike | None = None, name: str = "", tracing: AbstractContextManager[None] | None = None,
) -> Step:  # fmt: skip
    """Plan and lower ``fn`` of logical values.

    Args:
        fn: a JAX function of one positional argument for each of ``ins``.
        ins: global tensors' specs; plain arrays and numbers, which are whole, as shapes.
        where: the placement of everything.
        results: the signature that every result must have; None: the cheapest.
        tracing: what ``fn`` is traced in: the one part in which errors are the user's.
    """
    avals = [x.aval if isinstance(x, Spec) else x for x in ins]
    name = name or getattr(fn, "__name__", "function")
    with tracing or contextlib.nullcontext():
        closed, tree = traced(fn, avals, name)
    made = [v.aval for v in opened(closed)[0].outvars]
    program = build(closed, boundary=("sbp.given", "sbp.result"))
    whole = Signature((broadcast,) * where.ndim)
    pins = inner_pins(program, where)
    for k, (op, x) in enumerate(zip(program.input_ops, ins, strict=False)):
        signature = _plain(x.sbp, where) if isinstance(x, Spec) else whole
        op.params = {"kinds": _kinds(signature)}
        pins[op.index] = (signature, f"operand {k}")
    wanted: list[Signature] = []
    if results is not None:
        for k, (op, aval) in enumerate(zip(program.output_ops, made, strict=True)):
            asked = signature_on(results, len(aval.shape), where)
            wanted.append(make_spec(tuple(aval.shape), aval.dtype, where, asked).sbp)
            op.params = {"kinds": _kinds(wanted[k])}
            pins[op.index] = (_plain(wanted[k], where), f"result {k}")
    even = all([x.is_even for x in ins if isinstance(x, Spec)])
    even &= all([is_even(a.shape, s, where.shape) for a, s in zip(made, wanted, strict=False)])
    request = Request(
        where, clusters.resolve(where.cluster, where.type, where.is_abstract), pins, computation_ratio=0.0,
        share_layers=False, uneven=not even,
    )  # fmt: skip
    plan = make_plan(program, request, name)
    signatures = wanted or [leaf.signature for leaf in plan.outputs]
    specs = tuple([make_spec(tuple(a.shape), a.dtype, where, s) for a, s in zip(made, signatures, strict=True)])
    n = len(ins)
    held = [Spec(leaf.shape, op.outs[0].dtype, where, leaf.signature)
            for op, leaf in zip(program.input_ops[n:], plan.inputs[n:], strict=True)]  # fmt: skip
    constants = tuple(from_logical(s, c) for s, c in zip(held, program.constants, strict=True))
    taken = [*(x if isinstance(x, Spec) else Spec(x.shape, x.dtype, where, whole) for x in ins), *held]
    # A step is kept as long as its function is: it must not hold it, but where nans are looked for.
    is_shown = looks_for_nans() and all([s.is_plain for s in taken[:n]])
    plain = (lambda *xs: fn(*xs[:n])) if is_shown else None
    jitted = on_storages(local_function(program, plan), taken, specs, plan.function, plain)
    waits = cannot_run_ahead(where.mesh.devices.flat)
    return Step(jitted, specs, tree, plan, constants, tree == _LEAF, waits)


def boxing_step(src: Spec, dst: Signature) -> Step:
    """The redistribution of one tensor on its placement."""
    where = src.placement
    spec = src.with_(sbp=dst)
    route = boxing.route(src.sbp, spec.sbp, where, src.shape, src.dtype)

    def box(x: Any) -> list[Any]:
        return [boxing.apply(route, x, where.axis_names)]

    waits = cannot_run_ahead(where.mesh.devices.flat)
    return Step(on_storages(box, [src], [spec], "to_global"), (spec,), _LEAF, route, (), True, waits)


# JAX asks each function that it traces for its signature, and does not look far where it says it by itself.
_SIGNATURE = inspect.signature(lambda *storages: None)


def on_storages(
    local: Callable[..., Sequence[Any]], ins: Sequence[Spec], outs: Sequence[Spec], name: str,
    plain: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function of local components as a jitted function of storages.

    ``plain``: the same of logical values, where the storages are that; ``jax_debug_nans`` runs it op by op.
    """

    def body(*storages: Any) -> list[Any]:
        pieces = [x.reshape(x.shape[len(s.stacked) :]) if s.stacked else x for x, s in zip(storages, ins, strict=True)]
        results = local(*pieces)
        return [y.reshape((1,) * len(s.stacked) + y.shape) if s.stacked else y
                for y, s in zip(results, outs, strict=True)]  # fmt: skip

    setattr(body, "__signature__", _SIGNATURE)  # noqa: B010
    where = (*ins, *outs)[0].placement
    mapped = jax.shard_map(
        body, mesh=where.mesh, in_specs=tuple(s.partition_spec for s in ins),
        out_specs=[s.partition_spec for s in outs], check_vma=False,
    )  # fmt: skip

    def run(*storages: Any) -> list[Any]:
        with on_mesh(where, name):
            return mapped(*storages)

    def checked(*storages: Any) -> list[Any]:
        if not looks_for_nans() or is_staging():
            return run(*storages)
        # Called again to find what made a nan. Op by op, shard_map calls functions that are called again for the same
        # nan, without end (JAX 0.10 to 0.12).
        if plain is not None:
            plain(*storages)
        with without_nan_checks():
            results = jax.jit(run, out_shardings=[s.sharding for s in outs])(*storages)
        refuse_nans(results, name)
        return results

    for f in (run, checked):
        f.__name__ = f.__qualname__ = name
        setattr(f, "__signature__", _SIGNATURE)  # noqa: B010
    return jax.jit(checked, out_shardings=[s.sharding for s in outs])


def _plain(signature: Signature, where: Placement) -> Signature:
    """B on axes of one device, as plans say it."""
    return Signature(tuple(broadcast if n == 1 else c for n, c in zip(where.shape, signature, strict=True)))


def _kinds(signature: Signature) -> tuple[str, ...]:
    return tuple({c.op for c in signature if isinstance(c, Partial)})


class Cache:
    """Steps by function and by what they were made for. Functions are held weakly where they can be."""

    def __init__(self) -> None:
        self._by_function: weakref.WeakKeyDictionary[Any, dict[Hashable, Step]] = weakref.WeakKeyDictionary()
        self._by_owner: weakref.WeakKeyDictionary[Any, dict[Any, dict[Hashable, Step]]] = weakref.WeakKeyDictionary()
        self._kept: dict[int, tuple[Any, dict[Hashable, Step]]] = {}

    def of(self, fn: Any) -> dict[Hashable, Step]:
        """The steps of one function; of a method by its object, for methods are made anew at every look."""
        try:
            if isinstance(fn, types.MethodType):
                return self._by_owner.setdefault(fn.__self__, {}).setdefault(fn.__func__, {})
            found = self._by_function.get(fn)
            return self._by_function.setdefault(fn, {}) if found is None else found
        except TypeError:  # no hash, or no weak references: by identity, and kept
            return self._kept.setdefault(id(fn), (fn, {}))[1]

    def clear(self) -> None:
        """Forget every compiled op."""
        self._by_function.clear()
        self._by_owner.clear()
        self._kept.clear()


STEPS = Cache()


def same_placement(specs: Sequence[Spec], name: str) -> Placement:
    """The one placement of all operands; ``PlacementError`` says how to move one where they differ."""
    where = specs[0].placement
    for s in specs[1:]:
        if s.placement is not where and s.placement != where:
            raise PlacementError(
                f"{name}: operands are on different placements, {_told(where)} and {_told(s.placement)}; move one "
                "first: y.to_global(placement=x.placement, sbp=x.sbp)"
            )
    return where


def _told(p: Placement) -> str:
    return f"{p} of ranks {p.ranks.tolist()}"


def invoke(step: Step, storages: Sequence[Any], name: Any) -> Any:
    """Run a step; a donated or deleted operand is an error of its own. ``name``: of the function, or itself."""
    try:
        arguments = *storages, *step.constants
        return to_its_end(step.jitted, *arguments) if step.waits else step.jitted(*arguments)
    except (RuntimeError, ValueError) as error:
        if "deleted" in str(error) or "donated" in str(error):
            raise SbpError(
                f"{getattr(name, '__name__', name)}: an operand's buffers are gone: it was donated to a jitted "
                "function (donate_argnums) or deleted. Use the tensor that the function returned, or do not donate it"
            ) from error
        raise


@functools.lru_cache(maxsize=4096)
def boxing_step_for(src: Spec, dst: Signature) -> Step:
    """``boxing_step``, kept."""
    return boxing_step(src, dst)


def weak_aval(x: Any) -> jax.ShapeDtypeStruct:
    """The aval of a Python number: weakly typed, so that it takes the tensor's dtype."""
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(x))
    return jax.ShapeDtypeStruct((), dtype, weak_type=True)
