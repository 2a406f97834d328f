"""A state as named leaves: what is known of each without its data, and the tree that they make up.

A leaf is an array (``jax``, ``global``, ``numpy``), a Python number or text (``python``), or a container with nothing
in it (``empty``). Its path is the names on the way to it, joined by "/".
"""

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from .. import paths
from .._compat import is_tracer
from ..errors import CheckpointError, SignatureError
from ..placement import Placement
from ..shardings import from_sharding
from ..signature import Signature
from ..tensor import GlobalTensor

Key = tuple[str, str | int]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a state, without its data.

    ``dtype`` and ``shape`` are those of the data: for typed PRNG keys (``prng`` names their implementation) the words
    that keys are made of, along further dims behind the ``ndim`` of the array of keys. ``value`` is a Python leaf's, as
    JSON. ``placement`` and ``signature`` say where an array was, if that has a name.
    """

    keys: tuple[Key, ...]
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    ndim: int = 0
    weak: bool = False
    scalar: bool = False
    prng: str = ""
    value: Any = None
    placement: Placement | None = None
    signature: Signature | None = None

    @property
    def path(self) -> str:
        """The names on the way to the leaf."""
        return "/".join(str(k).replace("~", "~0").replace("/", "~1") for _, k in self.keys)

    @property
    def has_data(self) -> bool:
        """Whether the data files hold bytes of it."""
        return self.kind in ("jax", "global", "numpy")

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """The shape as a program sees it: of an array of keys that of the array."""
        return self.shape[: self.ndim]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole value on the disk."""
        return int(np.prod(self.shape, dtype=np.int64)) * dtype_of(self.dtype).itemsize if self.has_data else 0

    def __str__(self) -> str:
        if self.kind == "python":
            return f"a Python {next(iter(self.value))}"
        if self.kind == "empty":
            return "nothing"
        if self.prng:
            return f"key<{self.prng}>{list(self.logical_shape)}"
        return f"{dtype_of(self.dtype).name}{list(self.shape)}"


def flatten(tree: Any) -> tuple[list[tuple[tuple[Key, ...], Any]], Any]:
    """The leaves with the keys on the way to them, and the tree's structure. Global tensors, None and empty containers
    are leaves."""
    found, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_leaf)
    return [(_keys(tree, path), x) for path, x in found], structure


def _keys(tree: Any, path: Sequence[Any]) -> tuple[Key, ...]:
    """The keys of a path, from which ``nest`` knows a tuple ("item") from a list ("index")."""
    keys: list[Key] = []
    at: Any = tree
    for entry in path:
        kind, name = _key(entry)
        keys.append(("item" if kind == "index" and type(at) is tuple else kind, name))
        at = _child(at, name)
    return tuple(keys)


def _child(x: Any, name: str | int) -> Any:
    """What a container holds under a name; None where that is not known. No properties are run."""
    if type(x) in (tuple, list):
        return x[name]
    if hasattr(x, "_fields"):
        return x._asdict().get(name)
    return x.get(name) if type(x) is dict else getattr(x, "__dict__", {}).get(name)


def _is_leaf(x: Any) -> bool:
    if x is None or isinstance(x, GlobalTensor):
        return True
    return not isinstance(x, jax.Array | np.ndarray) and not jax.tree_util.tree_leaves(x, is_leaf=_is_kept)


def _is_kept(x: Any) -> bool:
    return x is None or isinstance(x, GlobalTensor)


def _key(entry: Any) -> Key:
    if isinstance(entry, jax.tree_util.SequenceKey):
        return "index", entry.idx
    if isinstance(entry, jax.tree_util.DictKey):
        return "key", entry.key if type(entry.key) in (str, int) else str(entry.key)
    if isinstance(entry, jax.tree_util.GetAttrKey):
        return "name", entry.name
    if isinstance(entry, jax.tree_util.FlattenedIndexKey):
        return "index", entry.key
    return "key", str(getattr(entry, "key", entry))


def describe(keys: tuple[Key, ...], x: Any) -> Leaf:
    """What is kept of a leaf besides its data. Raises ``CheckpointError`` for what a checkpoint cannot hold."""
    if isinstance(x, GlobalTensor):
        leaf = _array(keys, "global", x.storage.dtype, x.shape, x)
        return dataclasses.replace(leaf, placement=x.placement, signature=x.sbp)
    if is_tracer(x):
        raise CheckpointError(f"{_named(keys)} is being traced and has no value: save outside of jit, grad and vmap")
    if isinstance(x, jax.Array):
        leaf = _array(keys, "jax", x.dtype, x.shape, x)
        where, how = _place(x.sharding, x.ndim)
        weak = bool(getattr(x, "weak_type", False))
        return dataclasses.replace(leaf, weak=weak, placement=where, signature=how)
    if isinstance(x, np.ndarray | np.generic):
        _check_dtype(keys, x.dtype)
        scalar = isinstance(x, np.generic)
        return Leaf(keys, "numpy", dtype_name(x.dtype), tuple(x.shape), x.ndim, scalar=scalar)
    value = to_json(x)
    if value is not None:
        return Leaf(keys, "python", value=value)
    if not jax.tree_util.tree_leaves(x):
        kinds = ((Mapping, "dict"), (tuple, "tuple"), (Sequence, "list"))
        kind = next((name for kind, name in kinds if isinstance(x, kind)), "none")
        return Leaf(keys, "empty", value=kind)
    raise CheckpointError(
        f"{_named(keys)} is {type(x).__name__}, which a checkpoint cannot hold; possible: jax.Array, numpy arrays, "
        "global tensors, numbers, texts, bytes, None, and trees of them. Leave it out, or keep what it is made of"
    )


def _array(keys: tuple[Key, ...], kind: str, dtype: Any, shape: tuple[int, ...], x: Any) -> Leaf:
    if not jnp.issubdtype(dtype, jax.dtypes.extended):
        return Leaf(keys, kind, dtype_name(dtype), tuple(shape), len(shape))
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise CheckpointError(f"{_named(keys)} has dtype {dtype}, which a checkpoint cannot hold")
    keys_array = x.storage if isinstance(x, GlobalTensor) else x
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(keys_array.shape, dtype))
    whole = (*shape, *words.shape[keys_array.ndim :])
    return Leaf(keys, kind, words.dtype.name, whole, len(shape), prng=str(jax.random.key_impl(keys_array)))


def _place(sharding: Any, ndim: int) -> tuple[Placement | None, Signature | None]:
    """Where an array is, in our words; None where they do not say it."""
    if not isinstance(sharding, NamedSharding):
        return None, None
    from ..placement import placement

    try:
        return placement.from_mesh(sharding.mesh), from_sharding(sharding, ndim)  # pyright: ignore[reportArgumentType]
    except SignatureError:
        return None, None


def dtype_name(dtype: Any) -> str:
    """A dtype as text that ``dtype_of`` reads: its name, numpy's code where the name does not say it."""
    known = np.dtype(dtype)
    try:
        return known.name if np.dtype(known.name) == known else known.str
    except TypeError:
        return known.str


def dtype_of(name: str) -> np.dtype:
    """The dtype of a name. Raises ``TypeError`` for what is none, or would hold Python objects."""
    found = np.dtype(name)
    if found.hasobject or found.names is not None or found.type is np.void:
        raise TypeError(f"{name!r} is no dtype of a checkpoint")
    return found


def key_dtype(prng: str) -> Any:
    """The dtype of typed keys of an implementation."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=prng)).dtype


def _check_dtype(keys: tuple[Key, ...], dtype: np.dtype) -> None:
    if dtype.hasobject or dtype.names is not None or dtype.type is np.void:
        raise CheckpointError(f"{_named(keys)} is a numpy array of dtype {dtype}, which a checkpoint cannot hold")


def _named(keys: tuple[Key, ...]) -> str:
    return f"the leaf {Leaf(keys, 'empty').path!r}" if keys else "the state"


def to_json(x: Any) -> dict[str, Any] | None:
    """A Python leaf as JSON that ``from_json`` reads; None for what is none."""
    match x:
        case None:
            return {"none": None}
        case bool() | int() | str() if type(x) in (bool, int, str):
            return {type(x).__name__: str(x) if isinstance(x, int) and not isinstance(x, bool) else x}
        case float() if type(x) is float:
            return {"float": x.hex()}
        case complex() if type(x) is complex:
            return {"complex": [x.real.hex(), x.imag.hex()]}
        case bytes():
            return {"bytes": base64.b64encode(x).decode()}
    return None


def from_json(value: Mapping[str, Any]) -> Any:
    """The Python leaf of ``to_json``. Raises ``ValueError`` or ``TypeError`` for anything else."""
    ((kind, x),) = value.items()
    match kind, x:
        case "none", None:
            return None
        case ("bool", bool()) | ("str", str()):
            return x
        case "int", str():
            return int(x)
        case "float", str():
            return float.fromhex(x)
        case "complex", [str(), str()]:
            return complex(float.fromhex(x[0]), float.fromhex(x[1]))
        case "bytes", str():
            return base64.b64decode(x, validate=True)
    raise ValueError(f"{value!r} is no leaf")


def names(leaves: Sequence[tuple[Key, ...]]) -> list[str]:
    """The paths by which leaves are found again: without a last part that only holds the array (``kernel/value``)."""
    return paths.plain([Leaf(keys, "empty").path for keys in leaves])


def nest(leaves: Sequence[Leaf], values: Sequence[Any]) -> Any:
    """The values as nested dicts, lists and tuples, by the leaves' keys."""
    if len(leaves) == 1 and not leaves[0].keys:
        return values[0]
    root: dict[Any, Any] = {}
    for leaf, name, value in zip(leaves, names([x.keys for x in leaves]), values, strict=True):
        keys = leaf.keys if name == leaf.path else leaf.keys[:-1]
        at = root
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = value
    return _plain(root)


def _plain(node: Any) -> Any:
    if not isinstance(node, dict) or not all(isinstance(key, tuple) for key in node):
        return node
    if node and all(kind in ("index", "item") for kind, _ in node):
        found = [_plain(node[key]) for key in sorted(node)]
        return tuple(found) if next(iter(node))[0] == "item" else found
    return {name: _plain(x) for (_, name), x in node.items()}
