"""Collectives by PyTorch's names, between devices: of plain arrays, of global tensors, and inside ``shard_map``.

JAX's arrays do not change, so results are returned where PyTorch fills a tensor that it is given.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._compat import is_tracer, is_tracing
from ..errors import SbpError
from ..processes import start_devices, store
from ..shardings import PlacementLike
from ..tensor import GlobalTensor
from . import members, of_global, point_to_point
from .group import GroupLike, axis_names, group_of, layout, root_in
from .kernels import Kernel, bound_axes, on_tracer
from .reduce_op import ReduceOp, reduce_op
from .same_call import agree, lock

TIMEOUT_SECONDS = 60.0


def all_reduce(
    tensor: Any, op: ReduceOp | str = "sum", group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """The tensors of all members reduced, on every member.

    A member is a device. What ``tensor`` may be, here and in the other collectives:

    - a plain array (or number): the tensor of each of this process's devices. A result that is the same on all of them
      comes back as one array; one that differs by rank as a tuple in rank order, or as one array if the process has
      one device;
    - a tuple of one array for each of this process's devices, in rank order: results are such tuples;
    - a global tensor: each rank's component is its tensor, and the result is a global tensor (P becomes B);
    - inside ``jax.shard_map``, this device's array: the result is one as well, and the call differentiates and compiles
      as JAX's own collectives do.

    Args:
      tensor: see above; all of one shape and dtype.
      op: "sum", "max", "min", "mean", "product", or a ``ReduceOp``, which says what dtypes become.
      group: mesh axes of the placement: each group is the devices along them. None: all devices are one group.
      placement: the devices; None: all there are. Not for global tensors, which have their own.
      timeout_seconds: how long to wait for the other processes to make the same call.
      check: whether processes first compare what they call. Without it a call that another process does not make waits
        for ever; it saves one or two milliseconds a call between processes, and nothing in one process.

    Raises:
      SbpError: shapes, dtypes or options that the collective cannot take.
      ProcessError: another process makes another call, or none within the limit: on all that came.
    """
    return _call(Kernel("all_reduce", (), reduce_op(op)), tensor, group, placement, timeout_seconds, check)


def all_gather(
    tensor: Any, group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """The tensors of all members as a list in rank order, on every member. See ``all_reduce`` for the rest."""
    return _call(Kernel("all_gather", ()), tensor, group, placement, timeout_seconds, check)


def all_gather_into_tensor(
    tensor: Any, group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """The tensors of all members one after the other along dim 0, on every member: (n, ...) gives (size * n, ...), a
    number gives (size,). See ``all_reduce`` for arguments and errors.
    """
    return _call(Kernel("all_gather_into_tensor", ()), tensor, group, placement, timeout_seconds, check)


def all_to_all(
    tensors: Any, group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """Every member sends every member its own: rank r gets what each has for rank r, in rank order.

    A member's tensor is an array whose dim 0 is cut into one part for each rank, giving an array of the same shape; or
    a list of one array for each rank, giving such a list. A tuple has one of either for each of this process's devices.
    See ``all_reduce`` for the rest.
    """
    return _call(Kernel("all_to_all", ()), tensors, group, placement, timeout_seconds, check)


def broadcast(
    tensor: Any, src: int = 0, group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """The tensor of rank ``src`` of the group, bit by bit, on every member. The others' have its shape and dtype.
    See ``all_reduce`` for the rest.
    """
    return _call(Kernel("broadcast", (), root=src), tensor, group, placement, timeout_seconds, check, "src")


def gather(
    tensor: Any, dst: int = 0, group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """The tensors of all members as a list in rank order on rank ``dst``; None on the others.

    Inside ``shard_map``, where all devices run the same program, every member gets the list. Of a global tensor the
    results are P along the group: ``dst`` has the values, the others zeros. See ``all_reduce`` for the rest.
    """
    return _call(Kernel("gather", (), root=dst), tensor, group, placement, timeout_seconds, check, "dst")


def reduce(
    tensor: Any, dst: int = 0, op: ReduceOp | str = "sum", group: GroupLike = None, *,
    placement: PlacementLike | None = None, timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """The tensors of all members reduced on rank ``dst``; the others get their own back, in the result's dtype.

    Of a global tensor the result is P along the group: ``dst`` has the value, the others zeros. See ``all_reduce`` for
    the rest.
    """
    kernel = Kernel("reduce", (), reduce_op(op), dst)
    return _call(kernel, tensor, group, placement, timeout_seconds, check, "dst")


def reduce_scatter(
    tensors: Any, op: ReduceOp | str = "sum", group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """The members' tensors reduced, and rank r has part r of it.

    A member's tensor is an array whose dim 0 is cut into one part for each rank, or a list of one array for each rank.
    A tuple has one of either for each of this process's devices. ``SbpError`` where dim 0 does not divide. A global
    tensor that is P becomes S(0). See ``all_reduce`` for the rest.
    """
    return _call(Kernel("reduce_scatter", (), reduce_op(op)), tensors, group, placement, timeout_seconds, check)


def reduce_scatter_tensor(
    tensor: Any, op: ReduceOp | str = "sum", group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """``reduce_scatter`` of one array a member: (size * n, ...) gives (n, ...)."""
    if isinstance(tensor, list):
        raise SbpError("reduce_scatter_tensor takes one array for a member; reduce_scatter takes lists")
    return reduce_scatter(tensor, op, group, placement=placement, timeout_seconds=timeout_seconds, check=check)


def scatter(
    tensors: Any = None, src: int = 0, group: GroupLike = None, *, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS, check: bool = True,
) -> Any:  # fmt: skip
    """Part r of rank ``src``'s tensor on rank r. The others pass None, or anything of the same shape and dtype.

    The tensor is an array whose dim 0 is cut into one part for each rank, or a list of one array for each rank. A tuple
    has one of either, or None, for each of this process's devices. See ``all_reduce`` for the rest.
    """
    return _call(Kernel("scatter", (), root=src), tensors, group, placement, timeout_seconds, check, "src")


def barrier(
    group: GroupLike = None, *, placement: PlacementLike | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """Wait until all processes that have devices in the placement are here.

    Raises ``ProcessError`` naming those that do not come within the limit; and where a tensor was sent within this
    process that nobody has received.
    """
    if is_tracing():
        raise SbpError("barrier() waits for processes, and inside a traced function nothing runs yet: call it outside")
    point_to_point.check_all_received(0.0)
    if group is None and placement is None:  # All processes: no devices are needed, so none are started.
        everyone = tuple(range(store().size))
    else:
        start_devices(timeout_seconds)
        here = layout(group_of(group, placement))
        everyone = here.processes if here.devices else ()
    if len(everyone) > 1:
        with lock():
            agree("barrier()", everyone, timeout_seconds)


def _call(
    kernel: Kernel, x: Any, group: GroupLike, placement: PlacementLike | None, timeout_seconds: float, check: bool,
    root: str = "",
) -> Any:  # fmt: skip
    """A collective of whatever ``x`` is. ``kernel`` is without its axes; ``root``: the argument that is its root."""
    if isinstance(x, GlobalTensor):
        found = of_global.group_for(x, group, placement)
        return of_global.run(_with(kernel, found.axes, found, root), found, x, timeout_seconds, check)
    if is_tracing() or any(is_tracer(leaf) for leaf in jax.tree.leaves(x)):
        return _traced(kernel, x, group, placement)
    start_devices(timeout_seconds)
    found = group_of(group, placement)
    kernel = _with(kernel, found.axes, found, root)
    point_to_point.check_all_received(timeout_seconds)
    return members.run(kernel, found, x, timeout_seconds, check)


def _with(kernel: Kernel, axes: tuple[str, ...], group: Any, root: str) -> Kernel:
    rank = root_in(group, kernel.root, root) if root else 0
    return Kernel(kernel.name, axes, kernel.op, rank, kernel.listed)


def _traced(kernel: Kernel, x: Any, group: GroupLike, placement: PlacementLike | None) -> Any:
    axes = axis_names(group) or (group_of(None, placement).axes if placement is not None else bound_axes())
    if not axes:
        raise SbpError(
            f"{kernel.name}: the value is traced, and there is no shard_map around, so no devices to communicate: "
            "inside jit and auto_parallel there is one logical value. Call it inside jax.shard_map, or "
            "outside of the function"
        )
    listed = isinstance(x, Sequence)
    if listed and kernel.name not in ("all_to_all", "reduce_scatter", "scatter"):
        raise SbpError(f"{kernel.name}: inside shard_map a member's tensor is one array, got a {type(x).__name__}")
    if x is None:
        raise SbpError(f"{kernel.name}: inside shard_map all members pass a tensor, of one shape and dtype")
    stacked = jnp.stack([jnp.asarray(one) for one in x]) if listed else jnp.asarray(x)
    found = on_tracer(Kernel(kernel.name, axes, kernel.op, kernel.root, listed), stacked)
    return list(found) if isinstance(found, tuple) else found
