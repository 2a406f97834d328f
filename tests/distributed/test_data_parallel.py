"""Data parallelism in one line: the results of one device, every gradient reduced once."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import sbp_jax as sbp
from sbp_jax.distributed import DistributedDataParallel


def place(*shape: int) -> sbp.Placement:
    names = ("dp", "tp")[: len(shape)]
    return sbp.placement("cpu", ranks=np.arange(int(np.prod(shape))).reshape(shape), axis_names=names)


def params(width: int = 16, layers: int = 2) -> Any:
    key = jax.random.key(0)
    return [
        {"w": 0.3 * jax.random.normal(jax.random.fold_in(key, i), (width, width)), "b": jnp.zeros(width)}
        for i in range(layers)
    ]


def loss(params: Any, batch: Any) -> jax.Array:
    x = batch["x"]
    for layer in params:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.mean((x - batch["y"]) ** 2)


def batch(n: int = 16, width: int = 16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {k: rng.normal(size=(n, width)).astype(np.float32) for k in ("x", "y")}


def same(a: Any, b: Any, atol: float = 1e-6) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol, rtol=1e-5), a, b)


@pytest.mark.parametrize("shape", [(8,), (2, 4), (1,)])
@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_are_those_of_one_device_reduced_once(shape: tuple[int, ...], parts: int) -> None:
    ddp = DistributedDataParallel(loss, placement=place(*shape), grad_accumulation=parts)
    value, grads = ddp.value_and_grad(params(), batch())
    same((value, grads), jax.value_and_grad(loss)(params(), batch()))
    assert all(g.sharding.is_fully_replicated for g in jax.tree.leaves(grads))
    plan = ddp.gradient_plan(params(), batch())
    moves = [b for b in plan.boxings() if b.collective != "none"]
    if shape != (1,):
        # Each of the 4 gradients and the loss once, after the loop; nothing else moves.
        assert Counter(b.collective for b in moves) == {"all_reduce": 5}
        assert all(b.times == 1 for b in moves)
        plan.verify()
    same(ddp.grad(params(), batch()), grads)
    same(ddp(params(), batch()), value)


def test_the_gradient_of_the_mean() -> None:
    """Case 27 of the behaviour with known answers: x is 1 on the first device and 2 on the second."""
    ddp = DistributedDataParallel(lambda w, x: jnp.mean(x @ w[None]), placement=place(2))
    grads = ddp.grad(jnp.ones(2), np.array([[1.0], [2.0]], np.float32))
    assert [np.asarray(s.data).tolist() for s in grads.addressable_shards] == [[0.75, 0.75]] * 2
    ddp = DistributedDataParallel(lambda w, x: jnp.mean(jnp.sum(x * w, axis=-1)), placement=place(2))
    grads = ddp.grad(jnp.ones(2), np.array([[1.0], [2.0]], np.float32))
    assert [np.asarray(s.data).tolist() for s in grads.addressable_shards] == [[1.5, 1.5]] * 2


def test_oneflows_linear_regression_converges_to_its_weights() -> None:
    x = np.array([[1, 2], [2, 3], [4, 6], [3, 1]], np.float32)
    y = np.array([[8], [13], [26], [9]], np.float32)

    # There each of two processes adds up its two examples' squares, and gradients are averaged over the processes.
    def squares(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sum((x @ w - y) ** 2) / 2

    ddp = DistributedDataParallel(squares, placement=place(2))
    w = jnp.zeros((2, 1))
    for _ in range(500):
        w = w - 0.01 * ddp.grad(w, x, y)
    np.testing.assert_allclose(w, [[2.0], [3.0]], atol=1e-4)


@pytest.mark.parametrize("donate", [(), 0])
def test_a_step_gives_what_the_step_gives(donate: Any) -> None:
    tx = optax.adam(1e-2)

    def step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        updates, opt = tx.update(grads, state["opt"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value

    def start() -> Any:
        return {"params": params(), "opt": tx.init(params())}

    ddp = DistributedDataParallel(step, placement=place(8), donate_argnums=donate)
    mine, theirs = start(), start()
    for _ in range(3):
        mine, value = ddp(mine, batch())
        theirs, expected = jax.jit(step)(theirs, batch())
        same(value, expected)
    same(mine, theirs, 1e-5)
    assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(mine))
    moved = Counter(b.collective for b in ddp.plan(start(), batch()).boxings() if b.collective != "none")
    assert set(moved) == {"all_reduce"} and moved["all_reduce"] == 5


def test_state_in_two_arguments_and_a_batch_in_two() -> None:
    tx = optax.adam(1e-2)

    def step(params: Any, opt: Any, x: Any, y: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, {"x": x, "y": y})
        updates, opt = tx.update(grads, opt)
        return optax.apply_updates(params, updates), opt, value

    given = params(), tx.init(params()), batch()["x"], batch()["y"]
    ddp = DistributedDataParallel(step, placement=place(4))
    same(ddp(*given), jax.jit(step)(*given), 1e-5)
    named = {leaf.path: str(leaf.signature) for leaf in ddp.plan(*given).inputs}
    assert {v for k, v in named.items() if k[0] in "01"} == {"B"} and named["2"] == named["3"] == "S(0)"


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up, self.down = nnx.Linear(16, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(nnx.relu(self.up(x)))


def mse(model: Any, batch: Any) -> jax.Array:
    return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)


@pytest.mark.parametrize("parts", [1, 2])
def test_an_nnx_model(parts: int) -> None:
    model = Mlp(nnx.Rngs(0))
    expected = nnx.value_and_grad(mse)(model, batch())
    out = model(batch()["x"])
    ddp = DistributedDataParallel(model, placement=place(8), grad_accumulation=parts)
    same(ddp(batch()["x"]), out)
    value, grads = ddp.value_and_grad(mse, batch())
    same(value, expected[0])
    same(jax.tree.leaves(grads), jax.tree.leaves(expected[1]))
    optimizer = nnx.Optimizer(ddp.module, optax.sgd(0.1), wrt=nnx.Param)
    for _ in range(3):
        value, grads = ddp.value_and_grad(mse, batch())
        optimizer.update(ddp.module, grads)
    assert value < expected[0]
    moves = Counter(b.collective for b in ddp.gradient_plan(mse, batch()).boxings() if b.collective != "none")
    assert moves == {"all_reduce": 5}


def test_a_step_on_nnx_objects() -> None:
    @sbp.flax.jit(placement=place(1))
    def alone(model: Any, optimizer: Any, batch: Any) -> Any:
        value, grads = nnx.value_and_grad(mse)(model, batch)
        optimizer.update(model, grads)
        return value

    def run(step: Any) -> list[float]:
        model = Mlp(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        return [float(step(model, optimizer, batch())) for _ in range(4)]

    ddp = DistributedDataParallel(alone.__wrapped__, placement=place(2, 4))
    np.testing.assert_allclose(run(ddp), run(alone), rtol=1e-5)


def test_a_linen_model() -> None:
    model = linen.Dense(4)
    variables = model.init(jax.random.key(0), batch()["x"])
    ddp = DistributedDataParallel(model, placement=place(8))
    same(ddp(variables, batch()["x"]), model.apply(variables, batch()["x"]))


def test_random_keys_and_settings_beside_the_batch_are_whole() -> None:
    def noisy(w: jax.Array, batch: Any, key: jax.Array, scale: float) -> jax.Array:
        noise = jax.random.normal(key, batch["x"].shape)
        return jnp.mean(((batch["x"] + scale * noise) @ w) ** 2)

    w = jnp.ones((16, 2))
    for key in (jax.random.key(1), jax.random.PRNGKey(1)):
        found = DistributedDataParallel(noisy, placement=place(8)).value_and_grad(w, batch(), key, 0.5)
        same(found, jax.value_and_grad(noisy)(w, batch(), key, 0.5), 1e-5)


def test_global_tensors_and_parameters_that_are_numbers() -> None:
    x = sbp.tensor(batch()["x"], placement=place(2, 4), sbp="S(0), B")
    for scale in (2.0, {"t": jnp.float32(2)}):
        ddp = DistributedDataParallel(lambda s, x: jnp.mean((x * jax.tree.leaves(s)[0]) ** 2), placement=place(2, 4))
        same(ddp.grad(scale, x), jax.tree.map(lambda s: 2 * s * np.mean(batch()["x"] ** 2), scale))
        assert str(ddp.gradient_plan(scale, x).inputs[1].signature) == "S(0), S(0)"


def test_other_results_of_a_loss() -> None:
    def with_logits(w: jax.Array, x: jax.Array) -> Any:
        return jnp.mean((x @ w) ** 2), {"out": x @ w}

    w, x = jnp.ones((16, 2)), batch()["x"]
    ddp = DistributedDataParallel(with_logits, placement=place(4), has_aux=True)
    same(ddp.value_and_grad(w, x), jax.value_and_grad(with_logits, has_aux=True)(w, x), 1e-5)
    grads, other = ddp.grad(w, x)
    assert grads.shape == w.shape and other["out"].shape == (16, 2)


def test_batches_of_the_pipeline_are_taken_as_they_lie() -> None:
    p = place(8)
    ddp = DistributedDataParallel(loss, placement=p)
    pipe = sbp.data.pipeline(batch(64), placement=p, sbp="S(0)", batch=16, seed=0)
    state = jax.device_put(params(), sbp.to_sharding("B", p, 0))
    ddp.value_and_grad(state, next(pipe))
    one = next(pipe)
    with jax.transfer_guard("disallow"):
        ddp.value_and_grad(state, one)
    pipe.close()


@pytest.mark.parametrize(("make", "call", "words"), [
    (lambda: DistributedDataParallel(3), None, "takes a function or a Flax model, got a int"),
    (lambda: DistributedDataParallel(loss, placement=place(8)), (batch(12),),
     "batch of 12 does not divide by the 8 devices.*Use a batch of 16"),
    (lambda: DistributedDataParallel(loss, placement=place(8), grad_accumulation=4), (batch(16),),
     "batch of 16 cannot be cut into grad_accumulation=4 parts.*multiple of 32"),
    (lambda: DistributedDataParallel(loss, grad_accumulation=0), None, "grad_accumulation is a number"),
    (lambda: DistributedDataParallel(loss, grad_accumulation=2, has_aux=True), None, "cannot join has_aux"),
    (lambda: DistributedDataParallel(lambda p: 0.0, placement=place(8)), (), "no argument is a batch"),
    (lambda: DistributedDataParallel(loss, placement=place(8), batch_argnums=3), (batch(),), r"positions \[3\]"),
])  # fmt: skip
def test_what_cannot_be_is_refused(make: Any, call: Any, words: str) -> None:
    with pytest.raises(sbp.PlanError, match=words):
        ddp = make()
        assert call is not None
        ddp.value_and_grad(params(), *call)
