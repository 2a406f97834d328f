"""Global tensors beside JAX: jit, grad, trees, conversion; moves between placements; printing."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sbp_jax as sbp

LINE4 = sbp.placement("cpu", [0, 1, 2, 3])


def test_through_jit() -> None:
    x = sbp.randn(7, 4, placement=LINE4, sbp="S(0)", seed=0)
    w = sbp.randn(4, 6, placement=LINE4, seed=1)
    y = jax.jit(lambda x, w: {"y": sbp.numpy.tanh(x @ w), "s": x.sum()})(x, w)
    assert str(y["y"].sbp) == "S(0)" and str(y["s"].sbp) == "P"
    np.testing.assert_allclose(y["y"].numpy(), np.tanh(x.numpy() @ w.numpy()), rtol=1e-5, atol=1e-6)
    assert float(y["s"]) == pytest.approx(float(x.numpy().sum()), rel=1e-4)


@pytest.mark.parametrize(("rows", "signature"), [(8, "S(0)"), (7, "S(0)"), (8, "S(1)"), (7, "B")])
def test_gradients(rows: int, signature: str) -> None:
    x = sbp.randn(rows, 4, placement=LINE4, sbp=signature, seed=0)
    w = sbp.randn(4, 8, placement=LINE4, sbp="S(1)", seed=1)

    def loss(x, w):
        return (sbp.numpy.tanh(x @ w) ** 2).mean().array

    gx, gw = jax.grad(loss, argnums=(0, 1))(x, w)
    ex, ew = jax.grad(lambda x, w: (jnp.tanh(x @ w) ** 2).mean(), argnums=(0, 1))(x.numpy(), w.numpy())
    assert gx.sbp == x.sbp and gw.sbp == w.sbp
    np.testing.assert_allclose(gx.numpy(), ex, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gw.numpy(), ew, rtol=1e-4, atol=1e-6)


def test_a_training_loop_of_eager_ops() -> None:
    """Trees of global tensors go through optax."""
    x = sbp.randn(16, 4, placement=LINE4, sbp="S(0)", seed=0)
    params = {"w": sbp.zeros(4, 1, placement=LINE4), "b": sbp.zeros(1, placement=LINE4)}
    target = x.sum(1, keepdims=True) + 1.0
    tx = optax.sgd(0.3)
    state = tx.init(jax.tree.map(lambda p: p, params))

    @jax.jit
    def step(params, state):
        def loss(params):
            return ((x @ params["w"] + params["b"] - target) ** 2).mean().array

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state)
        return jax.tree.map(lambda p, u: p + u, params, updates), state, value

    for _ in range(60):
        params, state, value = step(params, state)
    assert value < 1e-3 and np.allclose(params["w"].numpy(), 1, atol=0.05) and str(params["w"].sbp) == "B"


def test_vmap_inside_apply() -> None:
    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)
    y = sbp.apply(jax.vmap(lambda row: row / row.max()), x)
    assert str(y.sbp) == "S(0)"
    np.testing.assert_allclose(y.numpy(), x.numpy() / x.numpy().max(1, keepdims=True), rtol=1e-5)


def test_trees() -> None:
    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)
    leaves, tree = jax.tree.flatten({"a": x, "b": [x]})
    assert len(leaves) == 2 and leaves[0] is x.storage
    back = jax.tree.unflatten(tree, leaves)
    assert back["a"].sbp == x.sbp
    assert jax.block_until_ready(x) is x
    both = sbp.apply(lambda t: {"sum": t["a"] + t["b"][0]}, {"a": x, "b": [x]})
    np.testing.assert_array_equal(both["sum"].numpy(), 2 * x.numpy())


@pytest.mark.parametrize("signature", ["S(0)", "P", "P(max)", "B", "S(1)"])
def test_conversion(signature: str) -> None:
    data = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    for source in (data, jnp.asarray(data), data.tolist(), sbp.tensor(data, placement=LINE4, sbp="S(0)")):
        x = sbp.tensor(source, placement=LINE4, sbp=signature)
        assert str(x.sbp) == signature and isinstance(x.array, jax.Array) and x.array.shape == (6, 5)
        np.testing.assert_allclose(np.asarray(x.array), data, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(x), data, rtol=1e-6)
        assert x.array is x.array, "reduced once"
    assert x.astype("bfloat16").dtype == jnp.bfloat16


PLACES = {
    "one": sbp.placement("cpu", [0]),
    "two": sbp.placement("cpu", [0, 1]),
    "disjoint": sbp.placement("cpu", [4, 5, 6, 7]),
    "overlapping": sbp.placement("cpu", [2, 3, 4]),
    "reversed": sbp.placement("cpu", [3, 2, 1, 0]),
    "square": sbp.placement("cpu", [[0, 1], [2, 3]]),
    "turned": sbp.placement("cpu", [[0, 2], [1, 3]]),
    "wide": sbp.placement("cpu", [[0, 1, 2, 3], [4, 5, 6, 7]]),
}


@pytest.mark.parametrize("name", PLACES)
def test_between_placements(name: str) -> None:
    there = PLACES[name]
    for signature in ("S(0)", "S(1)", "B", "P", "P(min)"):
        x = sbp.randn(9, 8, placement=LINE4, sbp=signature, seed=0)
        for other in itertools.product(("S(0)", "S(1)", "B", "P"), repeat=there.ndim):
            y = x.to_global(placement=there, sbp=other)
            assert y.placement == there and y.sbp == sbp.Signature.of(other)
            assert {d.id for d in y.storage.devices()} == set(there.flat_ranks)
            np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-5, atol=1e-6)
        back = y.to_global(placement=LINE4, sbp=signature)
        np.testing.assert_allclose(back.numpy(), x.numpy(), rtol=1e-5, atol=1e-6)


def test_only_what_is_missing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = sbp.boxing.parts((8, 4), 4, (LINE4, sbp.Signature.of("S(0)")), (PLACES["two"], sbp.Signature.of("S(0)")))
    assert sum(p.bytes for p in parts) == 3 * 2 * 4 * 4  # rank 0 keeps its rows
    whole = sbp.boxing.parts((8, 4), 4, (LINE4, sbp.Signature.of("B")), (PLACES["two"], sbp.Signature.of("B")))
    assert sum(p.bytes for p in whole) == 0
    x = sbp.randn(8, 4, placement=LINE4, sbp="S(0)", seed=0)

    def refuse(_):
        raise AssertionError("through the host")

    # How a jax.Array gives its value to the host.
    monkeypatch.setattr(type(x.storage), "_value", property(refuse))
    with pytest.raises(AssertionError, match="through the host"):
        x.numpy()
    y = x.to_global(placement=PLACES["disjoint"], sbp="S(1)")
    monkeypatch.undo()
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_printing() -> None:
    x = sbp.ones(2, 2, placement=sbp.placement("cpu", [0, 1], axis_names="dp"), sbp="P")
    text = repr(x)
    assert "[1., 1.]" in text and "sbp=(P)" in text and "placement=cpu[dp=2]" in text and "float32" in text
    big = repr(sbp.zeros(100, 100, placement=LINE4, sbp="S(0)"))
    assert len(big) < 700 and "..." in big
    inside: list[str] = []
    jax.make_jaxpr(lambda t: inside.append(repr(t)))(x)
    assert len(inside) == 1 and inside[0].endswith("sbp=(P), traced)")


def test_shapes_and_formats() -> None:
    x = sbp.ones(4, 4, placement=LINE4, sbp="S(0)")
    shape = jax.eval_shape(lambda t: t @ t.T, x)
    assert shape.shape == (4, 4) and "no values" in repr(shape)
    assert f"{x.sum():.1f}" == "16.0" and "sbp=(S(0))" in f"{x}"
    with pytest.raises(sbp.SbpError, match=r"x\[index\] needs values"):
        x[x > 0]


def test_constructors() -> None:
    kw = {"placement": LINE4, "sbp": sbp.split(0)}
    for found, expected in (
        (sbp.zeros((5, 2), **kw), np.zeros((5, 2))), (sbp.ones(4, **kw), np.ones(4)),
        (sbp.full((4, 2), 3, **kw), np.full((4, 2), 3)), (sbp.arange(6, **kw), np.arange(6)),
        (sbp.arange(1, 12, 2, **kw), np.arange(1, 12, 2)), (sbp.eye(5, **kw), np.eye(5)),
        (sbp.linspace(0, 1, 7, **kw), np.linspace(0, 1, 7)),
    ):  # fmt: skip
        assert str(found.sbp) == "S(0)"
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    x = sbp.randn(8, 2, seed=1, **kw)
    assert sbp.zeros_like(x).sbp == x.sbp and sbp.ones_like(x, sbp="B").numpy().sum() == 16
    assert sbp.full_like(x, 2).numpy().sum() == 32 and sbp.randn_like(x).shape == x.shape
    assert sbp.empty_like(x, dtype="int32").dtype == np.int32
    assert not np.array_equal(sbp.rand(4, **kw).numpy(), sbp.rand(4, **kw).numpy())
    key = jax.random.key(5)
    np.testing.assert_array_equal(sbp.randn(8, seed=key, **kw).numpy(), jax.random.normal(key, (8,)))
    np.testing.assert_array_equal(sbp.numpy.tri(4, placement=LINE4, sbp=sbp.split(0)).numpy(), np.tri(4))
