"""What the models of the zoo share: ``Case``, hand-written shardings, dropout, norms, the optimizer."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Tree: TypeAlias = Any
Rules: TypeAlias = Sequence[tuple[str, int]]
ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True, slots=True)
class Case:
    """One training step, complete.

    ``init()`` makes the state, a dict of pytrees; ``step(state, batch)`` is pure and returns the new
    state and the mean loss, a float32 scalar; ``batch(seed)`` makes a batch of numpy arrays.
    ``megatron_rules`` are (regular expression, dimension) pairs, tried in order against a state leaf's
    path ("params/blocks/0/w_in"): the first that matches says which dimension, counted from the end,
    the last mesh axis splits. Optimizer states have their parameter's path as a suffix, so one rule
    covers both.
    """

    name: str
    init: Callable[[], Tree]
    step: Callable[[Tree, Tree], tuple[Tree, jax.Array]]
    batch: Callable[[int], Tree]
    layers: int
    optimizer: str
    megatron_rules: Rules = ()
    batch_dim: int = 0

    def abstract_state(self) -> Tree:
        """The state as ``jax.ShapeDtypeStruct`` leaves; nothing is computed."""
        return jax.eval_shape(self.init)

    def hand_shardings(self, mesh_axis_names: Sequence[str]) -> dict[str, tuple[Tree, Tree]]:
        """(state specs, batch specs) for the two shardings that a user writes by hand for ``jax.jit``.

        "data_parallel": the state whole on every device, the batch over all mesh axes. "megatron":
        column- and row-parallel weights, with their optimizer states, on the last axis (Shoeybi et al.,
        arXiv:1909.08053), the batch over the axes before it, if there are any.
        """
        names = tuple(mesh_axis_names)
        state, batch = self.abstract_state(), jax.eval_shape(lambda: jax.tree.map(jnp.asarray, self.batch(0)))

        def of_batch(axes: tuple[str, ...]) -> Tree:
            entry = axes[0] if len(axes) == 1 else axes or None
            return jax.tree.map(lambda _: PartitionSpec(*(None,) * self.batch_dim, entry), batch)

        whole = jax.tree.map(lambda _: PartitionSpec(), state)
        pieces = jax.tree_util.tree_map_with_path(
            lambda path, leaf: _megatron_spec(_path(path), leaf.ndim, self.megatron_rules, names[-1]), state
        )
        return {"data_parallel": (whole, of_batch(names)), "megatron": (pieces, of_batch(names[:-1]))}


def named_shardings(mesh: Mesh, specs: Tree) -> Tree:
    """A tree of ``PartitionSpec`` as a tree of ``NamedSharding`` on ``mesh``."""
    is_spec = lambda leaf: isinstance(leaf, PartitionSpec)  # noqa: E731
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def _path(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _megatron_spec(path: str, ndim: int, rules: Rules, axis: str) -> PartitionSpec:
    for pattern, dim in rules:
        if re.search(pattern, path):
            return PartitionSpec(*(axis if d == ndim + dim else None for d in range(ndim)))
    return PartitionSpec()


def configure(sizes: Mapping[str, ConfigT], size: str, overrides: Mapping[str, Any]) -> ConfigT:
    """``sizes[size]`` with ``overrides`` in place of its fields; names that do not exist raise."""
    if size not in sizes:
        raise ValueError(f"there is no size {size!r}; there are {', '.join(sizes)}")
    config: Any = sizes[size]
    fields = [f.name for f in dataclasses.fields(config)]
    unknown = sorted(set(overrides) - set(fields))
    if unknown:
        raise ValueError(f"{type(config).__name__} has no field {', '.join(unknown)}; it has {', '.join(fields)}")
    return dataclasses.replace(config, **overrides)


def apply_optimizer(tx: optax.GradientTransformation, state: Tree, grads: Tree, **other: Tree) -> Tree:
    """The state after one update of its ``params`` and ``opt_state``; ``other`` replaces further entries."""
    updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
    return {**state, "params": optax.apply_updates(state["params"], updates), "opt_state": opt_state, **other}


def trained(
    name: str, tx: optax.GradientTransformation, init_params: Callable[[], Tree],
    loss_fn: Callable[[Tree, Tree], jax.Array], batch: Callable[[int], Tree], layers: int, optimizer: str, rules: Rules,
) -> Case:  # fmt: skip
    """The case of a model without state of its own: ``loss_fn(params, batch)`` is made smaller by ``tx``."""

    def init() -> Tree:
        params = init_params()
        return {"params": params, "opt_state": tx.init(params)}

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        loss, grads = jax.value_and_grad(loss_fn)(state["params"], batch)
        return apply_optimizer(tx, state, grads), loss

    return Case(name, init, step, batch, layers, optimizer, rules)


def through(blocks: Tree, block: Callable[[jax.Array, Tree], jax.Array], x: jax.Array, remat: bool) -> jax.Array:
    """x through every block: a list of their parameters, or one tree of them stacked, which a scan goes through."""
    one = jax.checkpoint(block) if remat else block
    if isinstance(blocks, list):
        for p in blocks:
            x = one(x, p)
        return x
    return jax.lax.scan(lambda h, p: (one(h, p), None), x, blocks)[0]


def adamw(learning_rate: float, clip_norm: float = 1.0, weight_decay: float = 0.1) -> optax.GradientTransformation:
    """AdamW (arXiv:1711.05101) after clipping by global norm, as GPT-2 and its successors are trained."""
    return optax.chain(
        optax.clip_by_global_norm(clip_norm), optax.adamw(learning_rate, b2=0.95, weight_decay=weight_decay)
    )


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zero each element with probability ``rate`` and scale the others up; ``key`` None or rate 0: x itself."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def normal(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """float32 normal numbers of standard deviation ``std``."""
    return std * jax.random.normal(key, shape, jnp.float32)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy in nats, in float32; logits (..., classes), labels (...) integers."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -jnp.mean(jnp.take_along_axis(log_p, labels[..., None], axis=-1))
