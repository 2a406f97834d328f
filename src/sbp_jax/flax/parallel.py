"""``sbp.flax.parallel``: a module class, nnx's or linen's, whose parameters are born sharded."""

import functools
import inspect
from typing import Any, TypeVar

from flax import linen, nnx

from ..errors import PlanError
from ..placement import Placement
from ..plan import PlanData
from .born import Where, born, checked
from .linen import wrap_init
from .pins import Asked, PinDict

_Class = TypeVar("_Class", bound=type)
# Where a decorated class keeps what it was decorated with.
_WHERE = "_sbp_where"


class _BornSharded(type):
    """Joins a metaclass: making an instance is born sharded."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        make = super().__call__

        def named(*args: Any, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        named.__name__ = cls.__name__
        return born(named, args, kwargs, dictionaries, where_of(cls))


@functools.cache
def _metaclass(base: type) -> type:
    return type(f"Parallel{base.__name__}", (_BornSharded, base), {})


def parallel(
    cls: Any = None,
    *,
    placement: Placement | None = None,
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
        PlanError: what is decorated is no module class; at creation as ``sbp.flax.create``, which see.
    """
    where = checked(Where(placement, sbp, plan, config), "sbp.flax.parallel")
    if cls is None:
        return functools.partial(parallel, placement=placement, sbp=sbp, config=config, plan=plan)
    _check_class(cls)
    setattr(cls, _WHERE, where)
    if issubclass(cls, linen.Module):
        cls.init = wrap_init(cls.init, where_of)
    elif not issubclass(type(cls), _BornSharded):
        cls.__class__ = _metaclass(type(cls))
    return cls


def where_of(cls: type) -> Any:
    """What a class, or the nearest of its bases, was decorated with; None for a plain class."""
    return getattr(cls, _WHERE, None)


def decorated(made: Any, start: str = "") -> list[tuple[str, Where]]:
    """Path and decoration of every decorated module in an nnx object, those that contain others last."""
    if not isinstance(made, nnx.Pytree | nnx.Variable | tuple | list | dict):
        return []
    found = []
    for path, node in nnx.iter_graph(made):
        where = where_of(type(node)) if isinstance(node, nnx.Module) else None
        if where is not None:
            found.append(("/".join(map(str, (*([start] if start else []), *path))), where))
    return sorted(found, key=lambda pair: -pair[0].count("/") if pair[0] else 1)


def dictionaries(made: Any, start: str = "") -> list[Asked]:
    """The pin dictionaries of the decorated modules in an nnx object; outer modules' are last, for the last counts."""
    return [Asked(w.pins, path, "sbp") for path, w in decorated(made, start) if w.pins]


def _check_class(cls: Any) -> None:
    if isinstance(cls, Placement):
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
