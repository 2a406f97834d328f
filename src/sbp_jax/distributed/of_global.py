"""Collectives of a global tensor: every rank's component is its tensor, and the result is a global tensor."""

import functools
import math
from typing import Any

import jax.numpy as jnp

from .._compat import is_tracer
from ..ahead import cannot_run_ahead
from ..errors import PlacementError, SbpError
from ..shardings import PlacementLike, placement_for
from ..signature import Broadcast, Partial, Signature, Split
from ..tensor import GlobalTensor
from ..tensor.engine import invoke, on_storages
from ..tensor.spec import Spec, make_spec
from .group import Group, GroupLike, group_of, layout
from .kernels import AT_ROOT, SAME, Kernel
from .same_call import agree, lock


def group_for(x: GlobalTensor, group: GroupLike, placement: PlacementLike | None) -> Group:
    """The group that a call on a global tensor means: axes of the tensor's own placement."""
    if placement is not None and placement_for(placement, None) != x.placement:
        raise PlacementError(
            f"placement={placement_for(placement, None)}: a global tensor's collective runs on its own placement, "
            f"{x.placement}; move it first, x.to_global(placement=..., sbp=...)"
        )
    return group_of(group, x.placement)


def run(kernel: Kernel, group: Group, x: GlobalTensor, timeout_seconds: float, check: bool) -> Any:
    """The collective of the components: a global tensor, or a list of one for each rank of the group.

    Results that are the same on all ranks are B along the group's axes, those of which each rank has its own S(0), and
    those that only the root has P: its component is the value, the others' are zeros.
    """
    spec = x.spec
    processes = layout(group).processes
    with lock():
        try:
            jitted, outs = _compiled(kernel, group, spec)
            error = None
        except SbpError as wrong:
            if len(processes) == 1 or is_tracer(x.storage):
                raise
            jitted, outs, error = None, (), wrong
        if len(processes) > 1 and (check or error) and not is_tracer(x.storage):
            agree(f"{kernel.name}{_options(kernel)} of {spec} over {group}", processes, timeout_seconds, error)
        results = invoke(jitted, [x.storage], kernel.name)  # type: ignore[arg-type]
    found = [GlobalTensor(out, result) for out, result in zip(outs, results, strict=True)]
    return found if kernel.is_list() else found[0]


def _options(kernel: Kernel) -> str:
    return f"({kernel.op.value if kernel.op else ''}, rank {kernel.root})"


@functools.lru_cache(maxsize=4096)
def _compiled(kernel: Kernel, group: Group, spec: Spec) -> Any:
    """The program on storages, and the results' specs."""
    if not spec.is_even:
        raise SbpError(
            f"{kernel.name}: the components of {spec} have different shapes, because a split does not divide: "
            "redistribute it first (x.to_global), or pad it"
        )
    kernel.check(spec.local_shape, spec.dtype, group.size)
    out = _result(kernel, group, spec)
    is_roots = kernel.gives is AT_ROOT or kernel.name == "reduce"

    def local(x: Any) -> list[Any]:
        y = kernel(x)
        results = list(y) if kernel.is_list() else [y]
        if is_roots:
            results = [jnp.where(kernel.rank() == kernel.root, one, jnp.zeros_like(one)) for one in results]
        return results

    outs = (out,) * (group.size if kernel.is_list() else 1)
    return _Jitted(
        on_storages(local, [spec], outs, kernel.name), cannot_run_ahead(spec.placement.mesh.devices.flat)
    ), outs


class _Jitted:
    """A program without constants, as ``invoke`` takes a step."""

    __slots__ = ("constants", "jitted", "waits")

    def __init__(self, jitted: Any, waits: bool) -> None:
        self.jitted, self.constants, self.waits = jitted, (), waits


def _result(kernel: Kernel, group: Group, spec: Spec) -> Spec:
    where = spec.placement
    if kernel.gives is SAME:
        inside: Any = Broadcast()
    elif kernel.gives is AT_ROOT or kernel.name == "reduce":
        inside = Partial("sum")
    else:
        inside = Split(0)
    signature = Signature(
        tuple(inside if name in group.axes else c for name, c in zip(where.axis_names, spec.sbp, strict=True))
    )
    shape = kernel.shape(spec.local_shape, group.size)
    logical = tuple(n * math.prod(where.shape[a] for a in signature.split_axes(d)) for d, n in enumerate(shape))
    return make_spec(logical, kernel.dtype(spec.dtype), where, signature)
