"""``GlobalTensor``: a value spread over the devices of a placement, seen as one, with arithmetic.

The value never depends on placement or signature: those say where the data is. Arithmetic plans itself, one op at a
time, on the engine that plans whole training steps.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._compat import is_differentiated, is_tracer, take_as_array
from ..errors import SbpError
from ..signature import Partial
from .call import Eager, call
from .core import Stored
from .spec import Spec


def _operator(fn: Callable[..., Any], swapped: bool = False) -> Callable[[Any, Any], Any]:
    """A binary operator; what is no number, array or tensor is left to the other operand."""
    eager = Eager(fn)

    def operate(self: "GlobalTensor", other: Any) -> Any:
        if not isinstance(other, Stored) and not _is_operand(other):
            return NotImplemented
        return eager(GlobalTensor, other, self) if swapped else eager(GlobalTensor, self, other)

    return operate


def _is_operand(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex | jax.Array) or (hasattr(x, "dtype") and hasattr(x, "shape"))


def _unary(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    eager = Eager(fn)
    return lambda self: eager(GlobalTensor, self)


def _method(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``jax.numpy`` as a method, with its arguments."""

    def method(self: "GlobalTensor", *args: Any, **kwargs: Any) -> Any:
        return call(GlobalTensor, fn, (self, *args), kwargs)

    method.__name__ = fn.__name__
    method.__doc__ = f"``jax.numpy.{fn.__name__}`` of this tensor."
    return method


def _power(x: Any, y: Any) -> Any:
    return jnp.power(x, y)


class GlobalTensor(Stored):
    """A tensor with a placement and a signature (OneFlow's global tensor).

    Attributes:
        shape, dtype: of the logical value.
        placement: the devices that hold it.
        sbp: how they hold it, one component for each axis of the placement.
        storage: the ``jax.Array`` in which every device holds its component (``spec.py`` says how).
        array: the logical value as a ``jax.Array`` on the same devices; partial values are reduced, once.

    Operators, indexing and the methods of ``jax.Array`` work; operands on the same placement are boxed to whatever
    signatures cost the least, plain arrays and numbers are broadcast. A pytree with one leaf, the storage: it passes
    through ``jax.jit``, and ``jax.grad`` where it is not partial. ``pickle`` takes the components of this process;
    ``copy.deepcopy`` gives buffers of its own.
    """

    __slots__ = ()

    __add__, __radd__ = _operator(jnp.add), _operator(jnp.add, swapped=True)
    __sub__, __rsub__ = _operator(jnp.subtract), _operator(jnp.subtract, swapped=True)
    __mul__, __rmul__ = _operator(jnp.multiply), _operator(jnp.multiply, swapped=True)
    __truediv__, __rtruediv__ = _operator(jnp.true_divide), _operator(jnp.true_divide, swapped=True)
    __floordiv__, __rfloordiv__ = _operator(jnp.floor_divide), _operator(jnp.floor_divide, swapped=True)
    __mod__, __rmod__ = _operator(jnp.remainder), _operator(jnp.remainder, swapped=True)
    __matmul__, __rmatmul__ = _operator(jnp.matmul), _operator(jnp.matmul, swapped=True)
    __and__, __rand__ = _operator(jnp.bitwise_and), _operator(jnp.bitwise_and, swapped=True)
    __or__, __ror__ = _operator(jnp.bitwise_or), _operator(jnp.bitwise_or, swapped=True)
    __xor__, __rxor__ = _operator(jnp.bitwise_xor), _operator(jnp.bitwise_xor, swapped=True)
    __lshift__, __rshift__ = _operator(jnp.left_shift), _operator(jnp.right_shift)
    __lt__, __le__ = _operator(jnp.less), _operator(jnp.less_equal)
    __gt__, __ge__ = _operator(jnp.greater), _operator(jnp.greater_equal)
    __eq__, __ne__ = _operator(jnp.equal), _operator(jnp.not_equal)  # pyright: ignore[reportAssignmentType]
    __rpow__ = _operator(_power, swapped=True)
    __neg__, __pos__, __abs__ = _unary(jnp.negative), _unary(jnp.positive), _unary(jnp.abs)
    __invert__ = _unary(jnp.bitwise_not)
    __hash__ = Stored.__hash__

    sum, mean, prod, max, min = map(_method, (jnp.sum, jnp.mean, jnp.prod, jnp.max, jnp.min))
    var, std, all, any = map(_method, (jnp.var, jnp.std, jnp.all, jnp.any))
    argmax, argmin, argsort, sort = map(_method, (jnp.argmax, jnp.argmin, jnp.argsort, jnp.sort))
    cumsum, cumprod, clip, round = map(_method, (jnp.cumsum, jnp.cumprod, jnp.clip, jnp.round))
    dot, matmul, trace, diagonal = map(_method, (jnp.dot, jnp.matmul, jnp.trace, jnp.diagonal))
    squeeze, swapaxes, ravel, repeat = map(_method, (jnp.squeeze, jnp.swapaxes, jnp.ravel, jnp.repeat))
    take, conj, nonzero = map(_method, (jnp.take, jnp.conj, jnp.nonzero))
    abs, exp, log, sqrt, tanh = map(_method, (jnp.abs, jnp.exp, jnp.log, jnp.sqrt, jnp.tanh))
    real, imag = property(_unary(jnp.real)), property(_unary(jnp.imag))
    T, mT = property(_unary(jnp.transpose)), property(_unary(jnp.matrix_transpose))

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int):  # a fixed exponent: repeated products, as JAX does
            return call(GlobalTensor, _power, (self, other), {})
        return _operator(_power)(self, other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def astype(self, dtype: Any) -> "GlobalTensor":
        """Converted to ``dtype``; a partial sum stays partial where no term is rounded."""
        return call(GlobalTensor, lax.convert_element_type, (self, jax.dtypes.canonicalize_dtype(dtype)), {})

    def reshape(self, *shape: Any, order: str = "C") -> "GlobalTensor":
        """The same elements in another shape; -1 is inferred."""
        options = {} if order == "C" else {"order": order}
        return call(GlobalTensor, jnp.reshape, (self, _as_tuple(shape)), options)

    def view(self, *shape: Any) -> "GlobalTensor":
        """``reshape`` (OneFlow's name)."""
        return self.reshape(*shape)

    def flatten(self) -> "GlobalTensor":
        """All elements along one dim."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> "GlobalTensor":
        """Dims in another order; reversed without arguments."""
        return call(GlobalTensor, jnp.transpose, (self, _as_tuple(axes) if axes else None), {})

    permute = transpose

    def __getitem__(self, index: Any) -> "GlobalTensor":
        return call(GlobalTensor, _take, (self, _fixed(index)), {}, name="x[index]")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError(
            "global tensors are immutable, as jax.Arrays are: use x = x.at[index].set(value), or .add, .max, ..."
        )

    def __iter__(self) -> Iterator["GlobalTensor"]:
        return (self[k] for k in range(len(self)))

    @property
    def at(self) -> "_At":
        """``x.at[index].set(value)`` and its kin: a new tensor with elements replaced."""
        return _At(self)


def _as_tuple(args: tuple[Any, ...]) -> tuple[int, ...]:
    if len(args) == 1 and isinstance(args[0], list | tuple):
        args = tuple(args[0])
    return tuple(map(int, args))


def _fixed(index: Any) -> Any:
    """An index in which slices are hashable: JAX's trees do not open them, so they are part of the step."""
    if isinstance(index, tuple):
        return tuple(map(_fixed, index))
    if isinstance(index, list):
        return jnp.asarray(index)
    return _Slice(index.start, index.stop, index.step) if isinstance(index, slice) else index


class _Slice(tuple):
    """A slice as a leaf that can be hashed (slices cannot before Python 3.12)."""

    def __new__(cls, *ends: Any) -> "_Slice":
        return super().__new__(cls, ends)


jax.tree_util.register_pytree_node(_Slice, lambda s: ((), tuple(s)), lambda ends, _: _Slice(*ends))


def _plain_index(index: Any) -> Any:
    if isinstance(index, _Slice):
        return slice(*index)
    return tuple(map(_plain_index, index)) if isinstance(index, tuple) else index


def _take(x: Any, index: Any) -> Any:
    return x[_plain_index(index)]


def _update(x: Any, index: Any, values: Any, how: str, **options: Any) -> Any:
    return getattr(x.at[_plain_index(index)], how)(values, **options)


def _look_up(x: Any, index: Any, **options: Any) -> Any:
    return x.at[_plain_index(index)].get(**options)


class _At:
    """``x.at``: takes an index."""

    def __init__(self, x: GlobalTensor) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> "_AtIndex":
        return _AtIndex(self._x, _fixed(index))


class _AtIndex:
    """``x.at[index]``: the updates that ``jax.Array.at`` has, on a global tensor."""

    def __init__(self, x: GlobalTensor, index: Any) -> None:
        self._x, self._index = x, index

    def _update(self, how: str, values: Any, options: dict[str, Any]) -> GlobalTensor:
        return call(GlobalTensor, _update, (self._x, self._index, values, how), options, name=f"x.at[index].{how}")

    def set(self, values: Any, **options: Any) -> GlobalTensor:
        """Elements replaced."""
        return self._update("set", values, options)

    def add(self, values: Any, **options: Any) -> GlobalTensor:
        """Elements added to."""
        return self._update("add", values, options)

    def multiply(self, values: Any, **options: Any) -> GlobalTensor:
        """Elements multiplied."""
        return self._update("multiply", values, options)

    def min(self, values: Any, **options: Any) -> GlobalTensor:
        """The smaller of element and value."""
        return self._update("min", values, options)

    def max(self, values: Any, **options: Any) -> GlobalTensor:
        """The larger of element and value."""
        return self._update("max", values, options)

    def get(self, **options: Any) -> GlobalTensor:
        """The elements, with a choice of what an index out of bounds gives."""
        return call(GlobalTensor, _look_up, (self._x, self._index), options, name="x.at[index].get")


def _flatten(x: GlobalTensor) -> tuple[tuple[Any], Spec]:
    return (x.storage,), x.spec


def _unflatten(spec: Spec, children: tuple[Any]) -> GlobalTensor:
    (storage,) = children
    if is_tracer(storage):
        if tuple(storage.shape) != spec.storage_shape:
            raise SbpError(
                f"a global tensor {spec} cannot be mapped over or reshaped as a whole (its storage became "
                f"{tuple(storage.shape)}): use sbp.apply(jax.vmap(fn), x), which plans the mapped function"
            )
        if is_differentiated(storage) and any(isinstance(c, Partial) for c in spec.sbp):
            raise SbpError(
                f"the gradient with respect to a partial tensor, {spec}, would belong to its terms, not to its value: "
                "redistribute first, x.to_global(sbp=...) to B or S(dim), or use sbp.apply(jax.grad(fn), x). Where it "
                "is what a jitted function returns: redistribute in that function, or return x.array"
            )
    return GlobalTensor(spec, storage)


jax.tree_util.register_pytree_node(GlobalTensor, _flatten, _unflatten)


def _check_type(x: GlobalTensor) -> None:
    """Refuse what JAX cannot take for one array: it compares the result that ``jax.grad`` differentiates as a tree."""
    if x.shape == ():
        raise SbpError(
            f"a function that jax.grad differentiates returns one array, and this is a global tensor, {x.spec}: return "
            "loss.array, its value as a jax.Array. For other functions of jax.lax: sbp.apply(fn, x), or fn(x.array)"
        )


take_as_array(GlobalTensor, lambda x: x.array, _check_type)
