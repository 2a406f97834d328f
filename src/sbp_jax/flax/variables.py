"""The variables of nnx objects, linen trees and train states, by path; what their metadata asks for; where they lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import linen, nnx
from flax.core import meta
from flax.linen import spmd
from jax.sharding import NamedSharding, PartitionSpec

from ..calls.values import aval
from ..paths import spellings
from ..shardings import from_sharding
from ..signature import Signature

# What nnx calls a variable's annotation, today and before 0.12.
_ANNOTATIONS = ("out_sharding", "sharding_names", "sharding")
# Below this part of a path lies an optimizer's state, in ``nnx.Optimizer`` and linen's ``TrainState``.
_OPTIMIZER = "opt_state"


@dataclass(frozen=True, slots=True)
class Entry:
    """One variable: its path, shape, the ``PartitionSpec`` that its metadata asks for (None: none), and whether it is
    an optimizer's, kept for a parameter."""

    path: str
    shape: tuple[int, ...]
    dtype: Any
    annotation: PartitionSpec | None
    is_moment: bool

    def spellings(self, is_rooted: bool) -> tuple[str, ...]:
        """The path, and what of it may be left out: the argument's name (``is_rooted``), then ``params``."""
        return spellings(self.path, is_rooted)


def is_object(x: Any) -> bool:
    """Whether a value is one of nnx's, with variables that are updated in place."""
    return isinstance(x, nnx.Pytree | nnx.Variable)


def is_leaf(x: Any) -> bool:
    """Whether a value in a tree is one variable: nnx's ``Variable``, a box of linen's, or an array."""
    return isinstance(x, nnx.Variable | meta.AxisMetadata)


def path_of(path: Sequence[Any]) -> str:
    """``head/kernel``: the parts of a path in a tree."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def pure(tree: Any) -> Any:
    """A tree in which every nnx object is replaced by its state."""
    return jax.tree.map(
        lambda x: nnx.state(x) if isinstance(x, nnx.Pytree) else x, tree,
        is_leaf=lambda x: is_leaf(x) or isinstance(x, nnx.Pytree),
    )  # fmt: skip


def entries(tree: Any) -> tuple[list[Entry], Any]:
    """The variables of a tree (of states, boxes or arrays), and the tree's structure with one leaf for each."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [_entry(path_of(path), leaf) for path, leaf in leaves], structure


def _entry(path: str, leaf: Any) -> Entry:
    arrays = jax.tree.leaves(leaf)
    shape = np.shape(arrays[0]) if len(arrays) == 1 else ()
    dtype = dtype_of(arrays[0]) if len(arrays) == 1 else None
    is_moment = isinstance(leaf, nnx.OptState) or _OPTIMIZER in path.split("/")[:-1]
    return Entry(path, tuple(shape), dtype, annotation(leaf), is_moment)


def dtype_of(x: Any) -> Any:
    """The dtype that a value has on devices: a Python int's or a float64 numpy array's is JAX's own."""
    return x.dtype if isinstance(x, jax.Array | jax.ShapeDtypeStruct) else aval(x).dtype


def annotation(leaf: Any) -> PartitionSpec | None:
    """The ``PartitionSpec`` that a variable's metadata asks for; None where it asks for none.

    That is how ``nnx.with_partitioning``, ``nn.with_partitioning`` and ``nn.with_logical_partitioning`` annotate
    parameters. Logical names are translated by the rules that are given with them or by ``logical_axis_rules``.
    """
    if isinstance(leaf, nnx.Variable):
        metadata = leaf.get_metadata()
        asked = next((metadata[name] for name in _ANNOTATIONS if metadata.get(name) is not None), None)
        if isinstance(asked, NamedSharding):
            return asked.spec
        return None if asked is None else nnx.get_partition_spec(leaf).get_value()
    if isinstance(leaf, linen.LogicallyPartitioned):
        rules = leaf.rules if leaf.rules is not None else linen.get_logical_axis_rules()
        return spmd.logical_to_mesh_axes(leaf.names, rules) if rules else None
    if isinstance(leaf, meta.Partitioned):
        return leaf.get_partition_spec()
    return None


def shardings(objects: Any) -> dict[str, jax.sharding.Sharding]:
    """By path, the ``jax.sharding.Sharding`` of every variable of an nnx object or a tree: where it lies now."""
    leaves = jax.tree_util.tree_flatten_with_path(pure(objects), is_leaf=is_leaf)[0]
    found = {}
    for path, leaf in leaves:
        arrays = [x for x in jax.tree.leaves(leaf) if isinstance(x, jax.Array)]
        if len(arrays) == 1:
            found[path_of(path)] = arrays[0].sharding
    return found


def signatures(objects: Any) -> dict[str, Signature]:
    """By path, the signature of every variable that lies on a mesh: what ``sbp=`` takes to leave it where it is.

    ``sbp.flax.jit(evaluate, placement=p, sbp=sbp.flax.signatures(model))`` evaluates a model as training left it,
    so that neither function moves it for the other. Variables on one device, or none, are left out.
    """
    leaves = jax.tree_util.tree_flatten_with_path(pure(objects), is_leaf=is_leaf)[0]
    ranks = {path_of(path): len(np.shape(x)) for path, leaf in leaves for x in jax.tree.leaves(leaf)}
    return {
        path: from_sharding(sharding, ranks[path])
        for path, sharding in shardings(objects).items()
        if isinstance(sharding, NamedSharding)
    }
