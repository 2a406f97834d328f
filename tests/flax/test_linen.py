"""linen modules: variables born sharded, train states planned, everything as without."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.training.train_state import TrainState

import sbp_jax as sbp
import sbp_jax.flax

P = sbp.placement("cpu", np.arange(4).reshape(2, 2), axis_names=("dp", "tp"))
X = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)


class Plain(nn.Module):
    """A net of two layers, the first annotated."""

    features: int = 1024

    @nn.compact
    def __call__(self, x, train: bool = True):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "tp"))
        x = nn.relu(nn.Dense(self.features, name="wide")(x))
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        x = nn.Dense(16, kernel_init=init, name="narrow")(x)
        return nn.Dense(8, name="head")(x)


@sbp.flax.parallel(placement=P, sbp={"head/kernel": ("S(1)", "B")})
class Net(Plain):
    """A net, born sharded."""


def plain(tree):
    return jax.tree.map(lambda x: np.asarray(x), nn.unbox(tree))


def test_variables_are_born_sharded_and_equal() -> None:
    variables, wanted = Net().init(jax.random.key(0), X, train=False), Plain().init(jax.random.key(0), X)
    assert jax.tree.structure(variables) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), variables, wanted)
    lies = {path: str(s) for path, s in sbp.flax.signatures(variables).items()}
    assert lies["params/head/kernel"] == "S(1), B" and lies["params/narrow/kernel"] == "B, S(1)"
    assert lies["params/wide/kernel"] == "S(1), S(1)" and lies["batch_stats/norm/mean"] == "B, B"
    assert Net.__name__ == "Net" and isinstance(Net(features=8), Plain) and Net(features=8) == Net(features=8)
    y, _ = Net().apply(nn.unbox(variables), X, mutable=["batch_stats"])
    np.testing.assert_allclose(y, Plain().apply(nn.unbox(wanted), X, mutable=["batch_stats"])[0], rtol=1e-4, atol=1e-5)


def test_the_sample_may_be_a_shape_and_traces_place_nothing() -> None:
    variables = Net(64).init({"params": jax.random.key(0)}, jax.ShapeDtypeStruct(X.shape, X.dtype))
    jax.tree.map(np.testing.assert_array_equal, plain(variables), plain(Net(64).init(jax.random.key(0), X)))
    assert isinstance(jax.tree.leaves(jax.eval_shape(Net(64).init, jax.random.key(0), X))[0], jax.ShapeDtypeStruct)
    inside = jax.jit(Net(64).init)(jax.random.key(0), X)
    assert all(len(x.sharding.device_set) == 1 for x in jax.tree.leaves(inside))


def test_a_train_state_is_planned_once_and_keeps_its_pins() -> None:
    # Rounding is all there is to some gradients before the norm: without the epsilon Adam takes whole steps by it.
    net, tx = Net(64), optax.adam(1e-2, eps=1e-4)

    def step(state, x):
        def loss_fn(params):
            y, _ = state.apply_fn({"params": params, "batch_stats": stats}, x, mutable=["batch_stats"])
            return (y**2).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    variables = net.init(jax.random.key(0), X)
    stats = plain(variables["batch_stats"])
    state = TrainState.create(apply_fn=net.apply, params=variables["params"], tx=tx)
    alone = TrainState.create(apply_fn=net.apply, params=jax.tree.map(jnp.array, plain(variables["params"])), tx=tx)
    pins = sbp.flax.pins(state, {"head/kernel": ("S(1)", "B")}, P)
    parallel = sbp.auto_parallel(step, placement=P, donate_argnums=0, in_sbp=(pins, None))
    plan, reference = parallel.plan(state, X), jax.jit(step)
    for _ in range(3):
        state, loss = parallel(state, X)
        alone, wanted = reference(alone, X)
        np.testing.assert_allclose(loss, wanted, rtol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), plain(state.params), plain(alone.params)
    )
    lies = {leaf.path: str(leaf.signature) for leaf in plan.inputs}
    for start in ("params", "opt_state/0/mu", "opt_state/0/nu"):
        assert lies[f"0/{start}/head/kernel"] == "S(1), B" and lies[f"0/{start}/narrow/kernel/value"] == "B, S(1)"
    assert str(sbp.flax.signatures(state)["params/head/kernel"]) == "S(1), B"


def test_logical_names_are_translated_at_birth() -> None:
    @sbp.flax.parallel(placement=P)
    class Logical(nn.Module):
        @nn.compact
        def __call__(self, x):
            init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
            return nn.Dense(8, kernel_init=init)(x)

    def lies():
        return str(sbp.flax.signatures(Logical().init(jax.random.key(0), X))["params/Dense_0/kernel"])

    assert lies() == "B, B"
    with nn.logical_axis_rules([("in", "tp"), ("out", "dp")]):
        assert lies() == "S(1), S(0)"


def test_bad_init() -> None:
    with pytest.raises(sbp.PlanError, match=r"Net.init needs a sample input .*missing a required argument: 'x'"):
        Net().init(jax.random.key(0))
    with pytest.raises(sbp.PlanError, match=r"Net.init takes a random key and a sample input"):
        Net().init()

    @sbp.flax.parallel(placement=P, sbp={"haed/kernel": "B, B"})
    class Typo(Plain):
        pass

    with pytest.raises(sbp.PlanError, match=r"sbp of Typo: no variable matches 'haed/kernel' \(did you mean head/ker"):
        Typo(8).init(jax.random.key(0), X)
    with pytest.raises(sbp.PlanError, match="argument model of <lambda> is a Plain: neither an nnx object nor an"):
        sbp.flax.jit(lambda model, x: x, placement=P)(Plain(), X)
