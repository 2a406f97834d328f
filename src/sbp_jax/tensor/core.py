"""A global tensor without its operators: what it holds, its logical value, its components, its redistribution."""

import copy
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import NamedSharding

from .._compat import called_by_operator, is_tracer
from ..errors import PlacementError, SbpError, SignatureError
from ..placement import Placement
from ..shardings import PlacementLike, SbpLike, placement_for, signature_on, to_sharding
from ..signature import Signature, Split, broadcast
from . import storage as stores
from .packing import packed, unpacked
from .redistribute import box, move
from .spec import Spec


class Stored:
    """A value spread over the devices of a placement. See ``GlobalTensor``, the only kind there is."""

    __slots__ = ("_array", "spec", "storage")
    # numpy arrays leave operators to us
    __array_ufunc__ = None

    def __init__(self, spec: Spec, storage: Any) -> None:
        self.spec, self.storage = spec, storage
        self._array: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return self.spec.shape

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.spec.dtype

    @property
    def placement(self) -> Placement:
        """The devices."""
        return self.spec.placement

    @property
    def sbp(self) -> Signature:
        """The signature."""
        return self.spec.sbp

    @property
    def is_global(self) -> bool:
        """True: a component alone is a ``jax.Array``."""
        return True

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.spec.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.spec.shape, dtype=np.int64))

    @property
    def array(self) -> jax.Array:
        """The logical value as a ``jax.Array`` on the same devices; what is partial or uneven becomes whole, once."""
        if self.spec.is_plain:
            return self.storage
        if is_tracer(self.storage):  # belongs to one trace: not kept
            return box(self.spec, self.storage, self._plain())[1]
        if self._array is None:
            self._array = box(self.spec, self.storage, self._plain())[1]
        return self._array

    @property
    def sharding(self) -> NamedSharding:
        """That of ``array``: whole along axes where the tensor is partial, or cut in unequal pieces. ``sbp`` has no
        such gaps."""
        return to_sharding(self._plain(), self.placement, self.ndim)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return int(np.dtype(self.dtype).itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the logical value."""
        return self.size * self.itemsize

    def block_until_ready(self) -> Self:
        """This tensor, when its devices hold it."""
        self._refuse_tracer("block_until_ready")
        jax.block_until_ready(self.storage)
        return self

    def is_deleted(self) -> bool:
        """Whether its buffers are gone: donated to a jitted function, or deleted."""
        return self.storage.is_deleted()

    def delete(self) -> None:
        """Free its buffers now."""
        self.storage.delete()

    def __jax_array__(self) -> Any:
        # Of ``array + tensor`` JAX asks for an array first; what is none leaves the operator to the tensor.
        return self if called_by_operator() else self.array

    def _plain(self) -> Signature:
        sizes = self.placement.shape

        def keeps(c: object) -> bool:
            return isinstance(c, Split) and self.shape[c.dim] % int(
                np.prod([sizes[a] for a in self.sbp.split_axes(c.dim)])
            ) == 0  # fmt: skip

        return Signature(tuple(c if keeps(c) else broadcast for c in self.sbp))

    def numpy(self) -> np.ndarray:
        """The logical value on the host. Where it lies on devices of several processes, all of these must call it.

        Raises ``PlacementError`` on a process that has none of the placement's devices.
        """
        if self.size == 0:
            return np.zeros(self.shape, self.dtype)
        self._refuse_elsewhere("numpy()")
        x = self.array
        if not x.is_fully_addressable:  # whole on every device: each process reads its own copy
            whole = Signature((broadcast,) * self.placement.ndim)
            x = box(self.spec, self.storage, whole)[1].addressable_shards[0].data
        return np.asarray(x)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def item(self) -> Any:
        """The one element of a tensor of size 1, as a Python number: the logical value, reduced if it is partial."""
        if self.size != 1:
            raise SbpError(f"item() is for tensors with one element, this one has shape {self.shape}")
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return self.item().__index__()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise SbpError(
                f"the truth value of a tensor of shape {self.shape} is ambiguous; use (x > 0).all() or .any()"
            )
        return bool(self.item())

    def tolist(self) -> Any:
        """The logical value as nested lists."""
        return self.numpy().tolist()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def to_global(
        self, placement: PlacementLike | None = None, sbp: SbpLike | None = None,
        grad_sbp: SbpLike | None = None,
    ) -> Self:  # fmt: skip
        """The same value on another placement, in another signature, or both, by the cheapest route.

        Args:
            placement: where to, a placement or a ``jax.sharding.Mesh``; None: stay.
            sbp: the signature there, one component for each axis, or a ``PartitionSpec``, or a ``NamedSharding``, which
                says where as well; None: the present one.
            grad_sbp: the signature of the gradient where this runs inside a planned function (OneFlow's argument); on
                an eager tensor it is checked only, for a gradient's value does not depend on it.

        Raises:
            SignatureError: a signature of the wrong length, a dim out of range or shorter than its axes.
            PlacementError: devices that do not exist.
        """
        if placement is None and not isinstance(sbp, NamedSharding):
            placement = self.placement
        target = placement_for(placement, sbp)
        if sbp is None and target.ndim != self.placement.ndim:
            raise SignatureError(
                f"({self.sbp}) is for the {self.placement.ndim} axis/axes of {self.placement}; {target} has "
                f"{target.ndim}: give sbp= as well, one component for each"
            )
        if grad_sbp is not None:
            signature_on(grad_sbp, self.ndim, target)
        spec = self.spec.with_(target, self.sbp if sbp is None else signature_on(sbp, self.ndim, target))
        if spec.placement == self.placement:
            return type(self)(*box(self.spec, self.storage, spec.sbp))
        return type(self)(*move(self.spec, self.storage, spec))

    def to_local(self, rank: int | None = None) -> Any:
        """This process's components, exact, as a tuple in the placement's order; or the one of ``rank``.

        Raises ``PlacementError`` for a rank that is not in the placement, or that another process holds.
        """
        self._refuse_tracer("to_local")
        held = stores.components(self.spec, self.storage)
        if rank is None:
            return tuple(held.values())
        if rank not in held:
            everyone = list(self.placement.flat_ranks)
            where = "is held by another process" if rank in everyone else f"is not in {self.placement}"
            raise PlacementError(f"rank {rank} {where}; the placement's ranks are {everyone}, here: {list(held)}")
        return held[rank]

    def _refuse_elsewhere(self, what: str) -> None:
        if is_tracer(self.storage) or self.storage.is_fully_addressable or self.storage.addressable_shards:
            return
        raise PlacementError(
            f"{what} needs the values, and process {jax.process_index()} of {jax.process_count()} has none of the "
            f"devices of {self.placement}: they belong to {_processes(self.placement)}. Let these call it, or bring "
            "the tensor to devices of every process first, on all processes: "
            f"x.to_global(placement=sbp.placement.all({self.placement.type!r}), sbp=sbp.broadcast)"
        )

    def _refuse_tracer(self, what: str) -> None:
        if is_tracer(self.storage):
            raise SbpError(
                f"{what} needs the values, and inside a traced function (jit, grad, vmap) there are none yet"
            )

    def __repr__(self) -> str:
        head = f"shape={self.shape}, dtype={np.dtype(self.dtype).name}, placement={self.placement}, sbp=({self.sbp})"
        shown = ""
        if is_tracer(self.storage):
            head += ", traced"
        elif not isinstance(self.storage, jax.Array):  # a shape, or whatever a tree function put there
            head += ", no values"
        elif self.storage.is_deleted():
            head += ", donated or deleted"
        elif (value := self._here()) is None:  # gathering it takes all processes, and who prints may be one of them
            head += f", held by {_processes(self.placement)}"
        else:
            text = np.array2string(value, prefix="GlobalTensor(", separator=", ", threshold=100)
            shown = f"{text}, " if "\n" not in text else f"{text},\n             "
        return f"GlobalTensor({shown}{head})"

    def _here(self) -> np.ndarray | None:
        """The logical value, if this process has it without asking others."""
        if self.storage.is_fully_addressable:
            return self.numpy()
        is_whole = self.spec.is_plain and self.storage.is_fully_replicated and self.storage.addressable_shards
        return np.asarray(self.storage.addressable_shards[0].data) if is_whole else None

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __hash__(self) -> int:
        return id(self)

    def __copy__(self) -> Self:
        return type(self)(self.spec, self.storage)

    def __deepcopy__(self, memo: Any) -> Self:
        return type(self)(self.spec, copy.deepcopy(self.storage, memo))  # buffers of its own, as of a jax.Array

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        self._refuse_tracer("pickle")
        if not isinstance(self.storage, jax.Array):  # a shape, or whatever a tree function put there
            return type(self), (self.spec, self.storage)
        if self.storage.is_deleted():
            raise SbpError(f"cannot pickle {self!r}: its buffers are gone")
        return _unpickled, (type(self), self.spec, packed(self.spec, self.storage))


def _processes(placement: Placement) -> str:
    """The processes whose devices a placement has, in words."""
    found = sorted({d.process_index for d in placement.mesh.devices.flat})
    return f"process {found[0]}" if len(found) == 1 else f"processes {', '.join(map(str, found))}"


def _unpickled(kind: type[Stored], spec: Spec, parts: Any) -> Stored:
    return kind(spec, unpacked(spec, parts))
