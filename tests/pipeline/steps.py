"""Small training steps, and a pipelined run of them against plain ``jax.jit``."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sbp_jax as sbp

Params = Any


def mlp_state(layers: int = 4, width: int = 8) -> Params:
    """Weights of a stack of layers, and momentum."""
    rng = np.random.default_rng(0)
    w = [jnp.asarray(rng.normal(size=(width, width)) / width**0.5, jnp.float32) for _ in range(layers)]
    return {
        "params": {"layers": w, "scale": jnp.ones(())},
        "momentum": {"layers": [0 * x for x in w], "scale": 0.0 * jnp.ones(())},
    }


def batch(size: int = 16, width: int = 8) -> dict[str, np.ndarray]:
    """Examples with a weight each, some of them 0."""
    rng = np.random.default_rng(1)
    weight = (np.arange(size) % 3 > 0).astype(np.float32)
    return {"x": rng.normal(size=(size, width)).astype(np.float32),
            "y": rng.normal(size=(size, width)).astype(np.float32), "weight": weight}  # fmt: skip


def mlp_loss(params: Params, data: Any) -> jax.Array:
    """The mean over weighted examples, whose number is known only from the whole batch."""
    h = data["x"]
    for w in params["layers"]:
        h = h + jnp.tanh(h @ w)
    error = jnp.square(params["scale"] * h - data["y"]).sum(-1)
    return (error * data["weight"]).sum() / data["weight"].sum()


def mlp_step(state: Params, data: Any) -> tuple[Params, dict[str, jax.Array]]:
    """Momentum after clipping by the global norm, which all stages have a part in."""
    loss, g = jax.value_and_grad(mlp_loss)(state["params"], data)
    norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(g)))
    m = jax.tree.map(lambda m, g: 0.9 * m + g / jnp.maximum(norm, 1.0), state["momentum"], g)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], m)
    return {"params": params, "momentum": m}, {"loss": loss, "norm": norm}


def check(
    step: Callable[..., Any], state: Callable[[], Any], data: Any, pipeline: sbp.Pipeline, where: Any, steps: int = 2,
    tolerance: float = 2e-5,
) -> Any:  # fmt: skip
    """Run a step on a pipeline and by ``jax.jit``; their results must agree. The pipelined function."""
    run = sbp.auto_parallel(step, placement=where, donate_argnums=0, config=sbp.AutoParallelConfig(pipeline=pipeline))
    plain = jax.jit(step)
    mine, right = state(), state()
    for _ in range(steps):
        mine, told = run(mine, data)
        right, expected = plain(right, data)
        for (path, a), b in zip(
            jax.tree_util.tree_leaves_with_path((mine, told)), jax.tree.leaves((right, expected)), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=jax.tree_util.keystr(path))
    return run
