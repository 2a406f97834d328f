"""A Flax nnx model and optimizer as a pure training step."""

from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx

from .common import Case, Rules, Tree


def case_of_module(
    name: str,
    make: Callable[[], nnx.Module],
    tx: optax.GradientTransformation,
    loss_fn: Callable[[Any, Tree], jax.Array],
    batch: Callable[[int], Tree],
    *,
    layers: int,
    optimizer: str,
    megatron_rules: Rules,
) -> Case:
    """The ``Case`` whose state is {"model", "optimizer"}, the ``nnx.State`` of ``make()`` and its optimizer.

    Everything that the model keeps is in the state: parameters, running statistics, random keys and counts.
    ``loss_fn(model, batch)`` may change them.
    """

    def create() -> tuple[nnx.Module, nnx.Optimizer]:
        model = make()
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    graph_model, graph_optimizer = (nnx.graphdef(part) for part in nnx.eval_shape(create))

    def init() -> Tree:
        model, optimizer = create()
        return {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        model = nnx.merge(graph_model, state["model"])
        optimizer = nnx.merge(graph_optimizer, state["optimizer"])
        loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
        optimizer.update(model, grads)
        return {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}, loss

    return Case(name, init, step, batch, layers, optimizer, megatron_rules)
