"""Data parallelism over four processes of two devices: whole batches, local ones, and what does not fit together."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.distributed import DistributedDataParallel
from world import World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=4, devices=2) as started:
        yield started


def on(n: int) -> sbp.Placement:
    return sbp.placement("cpu", ranks=range(n), axis_names="dp")


def loss(params: Any, x: Any, y: Any) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2)


def data(n: int = 32) -> tuple[Any, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(6, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}
    return params, rng.normal(size=(n, 6)).astype(np.float32), rng.normal(size=(n, 3)).astype(np.float32)


def train(ddp: DistributedDataParallel, params: Any, x: Any, y: Any) -> tuple[list[float], Any]:
    values = []
    for _ in range(5):
        value, grads = ddp.value_and_grad(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        values.append(float(value))
    return values, jax.tree.map(lambda p: np.asarray(p.addressable_data(0)), params)


def case_train(local: bool, parts: int) -> tuple[list[float], Any]:
    params, x, y = data()
    if local:
        mine = slice(sbp.env.get_rank() * 8, sbp.env.get_rank() * 8 + 8)
        x, y = x[mine], y[mine]
    return train(
        DistributedDataParallel(loss, placement=on(8), local_batch=local, grad_accumulation=parts), params, x, y
    )


def case_a_model(loss_name: str) -> tuple[float, np.ndarray]:
    """Every process makes another model: process 0's is trained."""
    from flax import nnx

    model = nnx.Linear(6, 3, rngs=nnx.Rngs(sbp.env.get_rank()))
    ddp = DistributedDataParallel(model, placement=on(8), local_batch=True)
    _, x, y = data()
    mine = slice(sbp.env.get_rank() * 8, sbp.env.get_rank() * 8 + 8)
    value, grads = ddp.value_and_grad(lambda m, x, y: jnp.mean((m(x) - y) ** 2), x[mine], y[mine])
    return float(value), np.asarray(grads["kernel"].get_value().addressable_data(0))


def case_regression() -> np.ndarray:
    """OneFlow's example: rank k has the k-th two examples; sums of squares, gradients averaged over two ranks."""
    rank = sbp.env.get_rank()
    xs = [[[1, 2], [2, 3]], [[4, 6], [3, 1]]] * 2
    ys = [[[8], [13]], [[26], [9]]] * 2
    ddp = DistributedDataParallel(lambda w, x, y: jnp.sum((x @ w - y) ** 2) / 4, placement=on(8), local_batch=True)
    w: Any = np.zeros((2, 1), np.float32)
    for _ in range(30):
        w = w - 0.01 * ddp.grad(w, np.array(xs[rank], np.float32), np.array(ys[rank], np.float32))
    return np.asarray(w.addressable_data(0))


def case_unlike_parts() -> None:
    params, x, y = data()
    n = 4 if sbp.env.get_rank() == 2 else 8
    DistributedDataParallel(loss, placement=on(8), local_batch=True).value_and_grad(params, x[:n], y[:n])


@pytest.mark.parametrize(("local", "parts"), [(False, 1), (True, 1), (True, 2)])
def test_training_is_that_of_one_device(world: World, local: bool, parts: int) -> None:
    expected, weights = train(DistributedDataParallel(loss, placement=on(1)), *data())
    for values, params in world.run(case_train, local, parts):
        np.testing.assert_allclose(values, expected, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), params, weights)


def test_a_model_is_process_0s_in_every_process(world: World) -> None:
    from flax import nnx

    model = nnx.Linear(6, 3, rngs=nnx.Rngs(0))
    _, x, y = data()
    value, grads = nnx.value_and_grad(lambda m, x, y: jnp.mean((m(x) - y) ** 2))(model, x, y)
    for found, kernel in world.run(case_a_model, "mse"):
        np.testing.assert_allclose(found, value, rtol=1e-5)
        np.testing.assert_allclose(kernel, grads["kernel"].get_value(), rtol=1e-4, atol=1e-6)


def test_oneflows_linear_regression_in_processes(world: World) -> None:
    """The first of its 500 steps; ``test_data_parallel.py`` goes on to the weights (2, 3)."""
    x = np.array([[1, 2], [2, 3], [4, 6], [3, 1]])
    y = np.array([[8], [13], [26], [9]])
    expected = np.zeros((2, 1))
    for _ in range(30):
        of_ranks = [2 * x[k : k + 2].T @ (x[k : k + 2] @ expected - y[k : k + 2]) for k in (0, 2)]
        expected = expected - 0.01 * np.mean(of_ranks, axis=0)
    for w in world.run(case_regression):
        np.testing.assert_allclose(w, expected, rtol=1e-5)


def test_parts_of_other_shapes_are_an_error_in_every_process(world: World) -> None:
    for rank, error in enumerate(world.errors(case_unlike_parts)):
        assert error is not None and error[0] == "PlanError"
        assert (
            f"this process (rank {rank})" in error[1]
            and "every process must pass a part of the same shapes" in error[1]
        )
