"""Variables born sharded: the initialisation is one compiled program whose results lie on the mesh from the start.

No variable is ever whole on one device, unless its signature says so. Every device draws only its own piece of the
random numbers (``jax_threefry_partitionable``, JAX's default), which are those of a single device.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from .._compat import is_tracing
from ..errors import PlacementError, PlanError
from ..placement import Placement
from ..plan import PlanData
from ..shardings import PlacementLike, to_partition_spec
from ..signature import Component, Signature, Split, broadcast
from .pins import Asked, PinDict, resolve
from .variables import Entry, annotation, entries, is_leaf, is_object
from .where import Where, checked, common_placement, decorated, dictionaries

# A variable of fewer bytes is whole on every device, if nothing is asked for it.
SMALL_BYTES = 2**16


def create(
    make: Callable[..., Any],
    *args: Any,
    placement: PlacementLike | None = None,
    sbp: PinDict | None = None,
    plan: PlanData | None = None,
    **kwargs: Any,
) -> Any:
    """``make(*args, **kwargs)``, nnx objects (a module, or a tuple of a module and its optimizer), born sharded.

    Args:
        make: makes the objects: a class, or a function. It is traced, so it must not look at values of arrays.
        args, kwargs: ``nnx.Rngs`` and other nnx objects among them are updated as ``make`` would, and stay where they
            are; arrays are traced;
            everything else is passed as it is.
        placement: the mesh. Left out: that of the ``sbp.flax.parallel`` modules made, else every visible device on one
            axis.
        sbp: signatures by variable path (``pins.py`` has the rules). What is neither named nor annotated
            (``nnx.with_partitioning``) is split along its longest dimensions that the mesh divides, if it is 64 KiB or
            more, and whole otherwise. What an optimizer keeps for a parameter follows it.
        plan: instead, the signatures of a plan that has these variables among its arguments.

    Inside another trace (``jax.jit``, ``nnx.eval_shape``) nothing is placed: it is ``make(*args, **kwargs)``.

    Raises:
        PlanError: a key that matches nothing, a plan without one of the variables, a result that is no nnx object.
        SignatureError: a signature that does not fit.
        PlacementError: an abstract placement, or one whose devices do not exist.
    """
    given: Any = placement
    where = checked(Where(given, sbp, plan), "sbp.flax.create")
    return born(make, args, kwargs, [Asked(sbp)] if sbp else [], where)


def born(
    make: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    asked: Sequence[Asked],
    where: Where,
) -> Any:
    """As ``create``. The dictionaries of decorated modules among what is made count as well, after ``asked``."""
    if is_tracing():
        return make(*args, **kwargs)
    p = where.mesh_placement()
    mesh = mesh_of(p, _name(make))
    leaves, tree = jax.tree.flatten((tuple(args), kwargs), is_leaf=is_object)
    kinds = ["object" if is_object(x) else "array" if isinstance(x, jax.Array) else "static" for x in leaves]
    arrays = [x for x, kind in zip(leaves, kinds, strict=True) if kind == "array"]
    tag, kept = object(), []
    with nnx.update_context(tag):
        with nnx.split_context(tag) as context:
            graph, state = context.split([x for x, kind in zip(leaves, kinds, strict=True) if kind == "object"])

        def whole(state: Any, arrays: Any) -> Any:
            with nnx.merge_context(tag, True) as context:
                objects = context.merge(graph, state)
            supply = {"object": iter(objects), "array": iter(arrays)}
            given = [next(supply[kind]) if kind in supply else x for x, kind in zip(leaves, kinds, strict=True)]
            args, kwargs = jax.tree.unflatten(tree, given)
            made = make(*args, **kwargs)
            if not any(map(is_object, jax.tree.leaves(made, is_leaf=is_object))):
                raise PlanError(f"{_name(make)} made {type(made).__name__}, which is no nnx object with variables")
            theirs = decorated(made, known=objects)  # what was passed is made already, and stays where it is
            kept.append(([*dictionaries(theirs), *asked], theirs, isinstance(made, nnx.Pytree)))
            with nnx.split_context(tag) as context:
                return context.split(objects), context.split(made)

        with jax.set_mesh(mesh):
            init = Init.of(whole, (state, arrays), _name(make))
        (old_graph, _), (new_graph, new) = init.shapes
        named, theirs, is_one = kept[-1]
        if where.placement is None and where.plan is None:
            p = common_placement([w for _, w in theirs], _name(make)) or p
            mesh = mesh_of(p, _name(make))
        signatures = decide(new, named, where, p, is_rooted=not is_one)
        count = init.count - len(jax.tree.leaves(new))
        old_state = init.here(range(count))
        new_state = jax.tree.unflatten(jax.tree.structure(new), init.on(mesh, shardings_of(new, signatures, p), count))
        with nnx.merge_context(tag, False) as context:
            context.merge(old_graph, jax.tree.unflatten(jax.tree.structure(init.shapes[0][1]), old_state))
            made = context.merge(new_graph, new_state)
    _tell_mesh(made, mesh)
    return made


@dataclass(frozen=True, slots=True)
class Init:
    """A traced initialisation: its program, the arrays it takes, the shapes of its results (``count`` leaves)."""

    run: Callable[..., Sequence[Any]]
    inputs: Sequence[Any]
    shapes: Any
    count: int

    @classmethod
    def of(cls, fn: Callable[..., Any], args: tuple[Any, ...], name: str) -> "Init":
        """``fn(*args)`` traced, once."""
        try:
            closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            raise PlanError(
                f"{name} cannot be born sharded: its initialisation is traced, and looks at the value of an array "
                f"({type(error).__name__}). Pass what it decides by as a Python value or a numpy array"
            ) from error
        return cls(jaxpr_as_fun(closed), jax.tree.leaves(args), shapes, len(jax.tree.leaves(shapes)))

    def here(self, which: Sequence[int]) -> Sequence[Any]:
        """Results computed where the inputs are; of the program only what they need runs."""
        return jax.jit(lambda *xs: [self.run(*xs)[i] for i in which])(*self.inputs) if which else []

    def jitted(self, shardings: Sequence[NamedSharding], start: int = 0) -> Any:
        """The program that makes the results from ``start`` on, in their places."""
        return jax.jit(lambda *xs: list(self.run(*xs)[start:]), out_shardings=list(shardings))

    def on(self, mesh: Any, shardings: Sequence[NamedSharding], start: int = 0) -> Sequence[Any]:
        """The results from ``start`` on, in their places."""
        return self.jitted(shardings, start)(*(_everywhere(x, mesh) for x in self.inputs))


def _everywhere(x: Any, mesh: Any) -> Any:
    """An input, usable on the mesh: arrays that are bound to other devices are copied to every one of it."""
    if isinstance(x, jax.Array) and x.committed and not set(mesh.devices.flat) == x.sharding.device_set:
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))
    return x


def decide(shapes: Any, asked: Sequence[Asked], where: Where, p: Placement, *, is_rooted: bool) -> list[Signature]:
    """By variable of a tree its signature: the plan's; else what is pinned; else the natural one."""
    found, _ = entries(shapes)
    if where.plan is not None:
        return _from_plan(found, where.plan)
    pinned = resolve(found, asked, p, is_rooted=is_rooted)
    return [natural(e, p) if pin is None else pin for e, pin in zip(found, pinned, strict=True)]


def shardings_of(shapes: Any, signatures: Sequence[Signature], p: Placement) -> list[NamedSharding]:
    """By array of a tree its sharding, from the signatures of the variables."""
    variables = jax.tree.leaves(shapes, is_leaf=is_leaf)
    return [
        NamedSharding(p.mesh, to_partition_spec(signature, p, len(x.shape)))
        for variable, signature in zip(variables, signatures, strict=True)
        for x in jax.tree.leaves(variable)
    ]


def natural(entry: Entry, p: Placement) -> Signature:
    """Large variables split, axis by axis, along the longest dimension that the axis divides; small ones whole."""
    is_numeric = entry.dtype is not None and not jnp.issubdtype(entry.dtype, jax.dtypes.extended)
    if not is_numeric or math.prod(entry.shape) * np.dtype(entry.dtype).itemsize < SMALL_BYTES:
        return Signature((broadcast,) * p.ndim)
    left, components = list(entry.shape), []
    for n in p.shape:
        dims = [d for d, length in enumerate(left) if n > 1 and length % n == 0 and length >= n]
        component: Component = broadcast
        if dims:
            dim = max(dims, key=lambda d: left[d])
            component, left[dim] = Split(dim), left[dim] // n
        components.append(component)
    return Signature(tuple(components))


def _from_plan(found: Sequence[Entry], plan: PlanData) -> list[Signature]:
    """By entry the signature of the plan's argument whose path ends with the entry's; the shortest such."""
    known: dict[tuple[str, tuple[int, ...]], tuple[int, Signature]] = {}
    for leaf in plan.inputs:
        parts = leaf.path.removesuffix("/value").split("/")
        for k in range(len(parts)):
            key = "/".join(parts[k:]), tuple(leaf.shape)
            if key not in known or len(parts) < known[key][0]:
                known[key] = len(parts), leaf.signature
    result, missing = [], []
    for entry in found:
        hit = next((known[n, entry.shape] for n in entry.spellings(True) if (n, entry.shape) in known), None)
        if hit is None:
            missing.append(f"{entry.path} {entry.shape}")
        else:
            result.append(hit[1])
    if missing:
        raise PlanError(
            f"the plan of {plan.function!r} is for other variables: it has none such as {', '.join(missing[:5])}"
            f"{f' and {len(missing) - 5} more' * (len(missing) > 5)}. Plan again for this module, or leave plan= out"
        )
    return result


def mesh_of(p: Placement, name: str) -> Any:
    """The mesh to create ``name`` on; an abstract placement has none."""
    if p.is_abstract:
        raise PlacementError(
            f"{name} cannot be created on {p}: it is abstract, it has no devices. For planning make the shapes only, "
            f"nnx.eval_shape(lambda: {name}(...)), and pass them to .plan(...)"
        )
    return p.mesh


def _tell_mesh(made: Any, mesh: Any) -> None:
    """Annotated variables name their mesh, so that an optimizer made from them needs no ``jax.set_mesh``."""
    for _, variable in nnx.iter_graph(made):
        if isinstance(variable, nnx.Variable) and annotation(variable) and not variable.get_metadata().get("mesh"):
            variable.set_metadata(mesh=mesh)


def _name(make: Callable[..., Any]) -> str:
    while isinstance(make, functools.partial):
        make = make.func
    return getattr(make, "__name__", type(make).__name__)
