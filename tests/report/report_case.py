"""The plan that the tests of reports look at: a two-layer MLP whose best plan on 8 devices is known."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import sbp_jax as sbp

BATCH, FEATURES, HIDDEN = 16, 1024, 8192


def model(params: Any, x: jax.Array) -> jax.Array:
    """Megatron's pair: a wide hidden layer between two narrow ones."""
    h = jax.nn.relu(x @ params["up"]["w"] + params["up"]["b"])  # the first product
    return h @ params["down"]["w"] + params["down"]["b"]  # the second product


def step(state: Any, batch: Any) -> Any:
    """SGD with momentum."""

    def loss(params: Any) -> jax.Array:
        return jnp.mean((model(params, batch["x"]) - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


def line_of(words: str, fn: Callable[..., Any] = model) -> str:
    """``report_case.py:17`` of the line of a function that holds some words."""
    lines, first = inspect.getsourcelines(fn)
    return f"report_case.py:{first + next(k for k, line in enumerate(lines) if words in line)}"


def shapes(batch: int = BATCH) -> tuple[Any, Any]:
    """The step's arguments."""
    f = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)  # noqa: E731
    params = {
        "up": {"w": f(FEATURES, HIDDEN), "b": f(HIDDEN)},
        "down": {"w": f(HIDDEN, FEATURES), "b": f(FEATURES)},
    }
    return {"params": params, "momentum": params}, {"x": f(batch, FEATURES), "y": f(batch, FEATURES)}


def make(batch: int = BATCH, **options: Any) -> sbp.Plan:
    """The step's plan."""
    where = options.pop("placement", None) or sbp.placement.abstract((8,), axis_names=("tp",), cluster="h100")
    return sbp.plan(step, *shapes(batch), placement=where, donate_argnums=0, **options)
