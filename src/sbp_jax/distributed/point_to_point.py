"""``send`` and ``recv``: one device's tensor to another device, of this process or of another."""

import functools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._compat import is_tracer, is_tracing, within_mesh
from ..ahead import cannot_run_ahead, to_its_end
from ..errors import ProcessError, SbpError
from ..processes import start_devices, store
from ..shardings import PlacementLike
from ..tensor import GlobalTensor
from .group import Group, group_of, layout
from .same_call import lock

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pair:
    """From one rank of a placement to another, with a tag; a tensor is received by the same."""

    group: Group
    src: int
    dst: int
    tag: int

    @property
    def devices(self) -> tuple[Any, Any]:
        devices: Any = self.group.placement.mesh.devices.ravel()
        return devices[self.src], devices[self.dst]

    def _ends(self) -> tuple[tuple[int, Any], tuple[int, Any]]:
        sender, receiver = self.devices
        return (self.src, sender), (self.dst, receiver)

    @property
    def name(self) -> str:
        ranks = self.group.placement.flat_ranks
        return f"{self.group.placement.type} {ranks[self.src]} to {ranks[self.dst]} tag {self.tag}"

    def __str__(self) -> str:
        ends = [f"rank {rank} (process {d.process_index})" for rank, d in self._ends()]
        return f"{' to '.join(ends)}{f', tag {self.tag}' if self.tag else ''}"


class _Mail:
    """What devices of this process have sent each other."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: dict[Pair, deque[tuple[float, Any]]] = {}
        self.turns: dict[str, int] = {}

    def put(self, pair: Pair, x: Any) -> None:
        with self.changed:
            self.waiting.setdefault(pair, deque()).append((time.monotonic(), x))
            self.changed.notify_all()

    def take(self, pair: Pair, timeout_seconds: float) -> Any:
        """The oldest tensor; None when the limit is over."""
        with self.changed:
            if not self.changed.wait_for(lambda: pair in self.waiting, timeout_seconds):
                return None
            queue = self.waiting[pair]
            _, x = queue.popleft()
            if not queue:
                del self.waiting[pair]
            return x

    def drop(self, age_seconds: float) -> list[tuple[Pair, Any]]:
        """The tensors that have waited for so long, given up."""
        with self.changed:
            now = time.monotonic()
            old = {p: q for p, q in self.waiting.items() if now - q[0][0] >= age_seconds}
            for pair in old:
                del self.waiting[pair]
        return [(pair, x) for pair, queue in old.items() for _, x in queue]


_mail = _Mail()


def check_all_received(age_seconds: float = TIMEOUT_SECONDS) -> None:
    """Raises ``ProcessError`` for tensors sent within this process so long ago and not received yet; forgets them."""
    lost = _mail.drop(age_seconds) if _mail.waiting else []
    if lost:
        told = "; ".join(f"{pair}: {_type(x)}" for pair, x in lost)
        raise ProcessError(f"send without recv: nobody has received what was sent from {told}. Each send needs a recv")


def send(
    tensor: Any, dst: int, *, src: int | None = None, tag: int = 0, placement: PlacementLike | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> None:  # fmt: skip
    """Send this device's tensor to the device of rank ``dst``, which calls ``recv``. Ranks are those of the placement.

    Between processes it returns when the other one has called ``recv``; between devices of one process at once.

    Args:
      tensor: an array. Its shape and dtype travel with it.
      dst: the rank that receives.
      src: the rank that sends, one of this process's. None: its only device.
      tag: a number that ``recv`` gives too: tensors with different tags do not wait for each other.
      placement: the devices; None: all there are.
      timeout_seconds: how long to wait for ``recv``.

    Raises:
      ProcessError: nobody calls ``recv`` within the limit; both ranks are named. Within one process the next
        ``barrier`` raises, or the next collective after the limit.
      SbpError: ranks that do not exist or are not this process's.
    """
    start_devices(timeout_seconds)
    pair = _pair(src, dst, tag, placement, "send")
    x = _array(tensor, pair.devices[0])
    if pair.devices[1].process_index == pair.devices[0].process_index:
        _mail.put(pair, jax.device_put(x, pair.devices[1]))
        return
    here, key = store(), _key(pair)
    here.set(f"sent/{key}", f"{x.dtype.name} {' '.join(map(str, x.shape))}")
    answer = here.wait(f"taken/{key}", timeout_seconds, of=pair.devices[1].process_index)
    if answer is None:
        here.delete(f"sent/{key}")
        raise ProcessError(
            f"send without recv: {pair}, {_type(x)}: process {pair.devices[1].process_index} has not called "
            f"recv(src={pair.src}) within {timeout_seconds:g} s"
        )
    _next(pair)
    if answer:
        raise ProcessError(f"send, {pair}: {answer}")
    _move(pair, x)
    here.delete(f"taken/{key}")


def recv(
    tensor: Any = None, src: int | None = None, *, dst: int | None = None, tag: int = 0,
    placement: PlacementLike | None = None, timeout_seconds: float = TIMEOUT_SECONDS,
) -> jax.Array:  # fmt: skip
    """The tensor that rank ``src`` sends to this device.

    Args:
      tensor: what is expected, an array or a ``ShapeDtypeStruct``: another shape or dtype is an error. None: anything.
      src: the rank that sends.
      dst: the rank that receives, one of this process's. None: its only device.
      tag: the number that ``send`` gave.
      placement: the devices; None: all there are.
      timeout_seconds: how long to wait for ``send``.

    Raises:
      ProcessError: nobody sends within the limit, or another shape or dtype comes; both ranks are named.
      SbpError: ranks that do not exist or are not this process's.
    """
    if src is None:
        raise SbpError("recv: from which rank? Pass src=")
    start_devices(timeout_seconds)
    pair = _pair(src, dst, tag, placement, "recv")
    if pair.devices[0].process_index == pair.devices[1].process_index:
        x = _mail.take(pair, timeout_seconds)
        if x is None:
            raise ProcessError(f"recv without send: {pair}: nothing was sent within {timeout_seconds:g} s")
        wrong = _unexpected(tensor, x.dtype, x.shape)
        if wrong:
            raise ProcessError(f"recv, {pair}: {wrong}")
        return x
    here, key = store(), _key(pair)
    told = here.wait(f"sent/{key}", timeout_seconds, of=pair.devices[0].process_index)
    if told is None:
        raise ProcessError(
            f"recv without send: {pair}: process {pair.devices[0].process_index} has not called send(dst={pair.dst}) "
            f"within {timeout_seconds:g} s"
        )
    name, *sizes = told.split()
    dtype, shape = jnp.dtype(name), tuple(map(int, sizes))
    wrong = _unexpected(tensor, dtype, shape)
    here.delete(f"sent/{key}")
    here.set(f"taken/{key}", wrong)
    _next(pair)
    if wrong:
        raise ProcessError(f"recv, {pair}: {wrong}")
    return _move(pair, jax.device_put(np.zeros(shape, dtype), pair.devices[1]))


def _pair(src: int | None, dst: int | None, tag: int, where: PlacementLike | None, what: str) -> Pair:
    if is_tracing():
        raise SbpError(f"{what}: inside a traced function all devices run one program: use jax.lax.ppermute there")
    group = group_of(None, where)
    here = layout(group)
    own, name = (src, "src") if what == "send" else (dst, "dst")
    if own is None:
        if len(here.ranks) != 1:
            raise SbpError(
                f"{what}: this process has {len(here.ranks)} devices of {group.placement}, ranks "
                f"{', '.join(map(str, here.ranks))}: say which one with {name}="
            )
        own = here.ranks[0]
    ends = (own, dst) if what == "send" else (src, own)
    for rank in ends:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < group.size:
            raise SbpError(f"{what}: rank {rank!r} is none of {group.placement}: it has ranks 0 to {group.size - 1}")
    if own not in here.ranks:
        raise SbpError(f"{what}: rank {own} is not this process's, which has {', '.join(map(str, here.ranks))}")
    return Pair(group, int(ends[0]), int(ends[1]), int(tag))  # type: ignore[arg-type]


def _array(tensor: Any, device: Any) -> jax.Array:
    if isinstance(tensor, GlobalTensor) or is_tracer(tensor):
        raise SbpError("send takes one device's array; a global tensor is moved with x.to_global(placement=, sbp=)")
    x = tensor if isinstance(tensor, jax.Array) else np.asarray(tensor)
    return jax.device_put(x if isinstance(x, jax.Array) else x.astype(jax.dtypes.canonicalize_dtype(x.dtype)), device)


def _unexpected(wanted: Any, dtype: Any, shape: tuple[int, ...]) -> str:
    """What is wrong with a tensor that has come, empty if nothing is."""
    if wanted is None:
        return ""
    if not hasattr(wanted, "shape") or not hasattr(wanted, "dtype"):
        raise SbpError(f"recv: the first argument is the tensor that is expected, got {wanted!r}; the rank is src=")
    if tuple(wanted.shape) == tuple(shape) and wanted.dtype == dtype:
        return ""
    expected = f"{wanted.dtype.name}[{','.join(map(str, wanted.shape))}]"
    return f"recv expects {expected}, and {dtype.name}[{','.join(map(str, shape))}] was sent"


def _key(pair: Pair) -> str:
    return f"{pair.name}/{_mail.turns.get(pair.name, 0)}"


def _next(pair: Pair) -> None:
    _mail.turns[pair.name] = _mail.turns.get(pair.name, 0) + 1


def _type(x: Any) -> str:
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def _move(pair: Pair, x: jax.Array) -> jax.Array:
    """Both processes run this: the tensor from the first device to the second."""
    if x.size == 0:
        return x
    shape = x.shape
    piece = x.reshape(1) if x.ndim == 0 else x
    sharding, jitted = _mover(*pair.devices)
    with lock():
        whole = jax.make_array_from_single_device_arrays((2 * piece.shape[0], *piece.shape[1:]), sharding, [piece])
        arrived = to_its_end(jitted, whole) if cannot_run_ahead(pair.devices) else jitted(whole)
        moved = arrived.addressable_shards[0].data
    return moved.reshape(shape) if moved.shape != shape else moved


@functools.lru_cache(maxsize=256)
def _mover(src: Any, dst: Any) -> tuple[NamedSharding, Any]:
    mesh = Mesh(np.array([src, dst]), ("pair",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("pair")
    mapped = jax.shard_map(
        lambda x: lax.ppermute(x, "pair", [(0, 1)]), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )

    def point_to_point(x: Any) -> Any:
        with within_mesh(mesh):
            return mapped(x)

    return NamedSharding(mesh, spec), jax.jit(point_to_point)
