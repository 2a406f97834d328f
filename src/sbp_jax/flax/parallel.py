"""``sbp.flax.parallel``: a module class, nnx's or linen's, whose parameters are born sharded."""

import functools
import inspect
from typing import Any, TypeVar

from flax import linen, nnx
from jax.sharding import AbstractMesh, Mesh

from ..errors import PlanError
from ..placement import Placement
from ..plan import PlanData
from ..shardings import PlacementLike
from .born import born
from .linen import wrap_init
from .pins import PinDict
from .where import Where, checked, decorate, where_of

_Class = TypeVar("_Class", bound=type)


class _BornSharded(type):
    """Joins a metaclass: making an instance is born sharded."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make = super().__call__

        def named(*args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        named.__name__ = cls.__name__
        return born(named, args, kwargs, [], where_of(cls))


@functools.cache
def _metaclass(base: type) -> type:
    return type(f"Parallel{base.__name__}", (_BornSharded, base), {})


def parallel(
    cls: Any = None,
    *,
    placement: PlacementLike | None = None,
    sbp: PinDict | None = None,
    config: Any = None,
    plan: PlanData | None = None,
) -> Any:
    """Decorate a ``nnx.Module`` or ``linen.Module`` class: its parameters are born sharded, never whole on one device.

    Args:
        cls: the class. It stays the same class (name, docstring, ``isinstance``, pickle); so do its subclasses.
        placement: the mesh; every visible device on one axis where left out. ``sbp.flax.jit`` takes it from the module
            when it is given none itself.
        sbp: signatures by variable path, ``{"head/kernel": sbp.split(1), "blocks/*/mlp/kernel": ("B", "S(0)")}``
            (``*``: one part; ``**``: any number). They are pins wherever the module is planned, and what an optimizer
            keeps for such a parameter follows it. For linen, ``params/`` may be left out of a path, and
            ``sbp.flax.pins(state, {...})`` makes the pins for ``sbp.auto_parallel``.
        config: the ``AutoParallelConfig`` that ``sbp.flax.jit`` takes when it is given none itself.
        plan: instead of ``placement`` and ``sbp``: every variable is born in this plan's signature.

    What is neither named nor annotated is split along its longest dimensions that the mesh divides, if it is 64 KiB or
    more; the planner is free to choose otherwise for it. nnx: making an instance does it. linen: ``Model(...).init``
    does; a sample input may be a ``jax.ShapeDtypeStruct``. Inside another trace (``jax.jit``, ``nnx.eval_shape``)
    nothing is placed.

    Raises:
        PlanError: what is decorated is no module class; at creation, those of ``sbp.flax.create``.
    """
    given: Any = placement
    where = checked(Where(given, sbp, plan, config), "sbp.flax.parallel")
    if cls is None:
        return functools.partial(parallel, placement=placement, sbp=sbp, config=config, plan=plan)
    _check_class(cls)
    decorate(cls, where)
    if issubclass(cls, linen.Module):
        cls.init = wrap_init(cls.init)
    elif not issubclass(type(cls), _BornSharded):
        cls.__class__ = _metaclass(type(cls))
    return cls


def _check_class(cls: Any) -> None:
    if isinstance(cls, Placement | Mesh | AbstractMesh):
        raise PlanError("sbp.flax.parallel takes the placement by name: @sbp.flax.parallel(placement=p)")
    if inspect.isclass(cls):
        if not issubclass(cls, nnx.Module | linen.Module):
            raise PlanError(
                f"sbp.flax.parallel decorates classes of nnx.Module or linen.Module; {cls.__name__} is neither"
            )
        if cls.__module__.split(".")[0] == "flax":
            raise PlanError(
                f"sbp.flax.parallel would change Flax's own {cls.__name__} for everybody: decorate a subclass, or make "
                f"one instance with sbp.flax.create({cls.__name__}, ..., placement=p)"
            )
    elif isinstance(cls, nnx.Module | linen.Module):
        raise PlanError(
            f"sbp.flax.parallel decorates a class, got an instance of {type(cls).__name__}, whose parameters are made "
            f"already: decorate {type(cls).__name__}, or use sbp.flax.create(lambda: {type(cls).__name__}(...))"
        )
    elif callable(cls):
        name = getattr(cls, "__name__", type(cls).__name__)
        raise PlanError(
            f"sbp.flax.parallel decorates a module class, got the function {name}: a training step takes "
            "@sbp.flax.jit, a function that makes a model takes sbp.flax.create"
        )
    else:
        raise PlanError(f"sbp.flax.parallel decorates a module class, got {type(cls).__name__} {cls!r}")
