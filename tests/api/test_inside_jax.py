"""Planned functions among JAX's own: debug_nans, vmap, set_mesh, global tensors, placements without devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

import sbp_jax as sbp


def place(*shape: int) -> sbp.Placement:
    size = int(np.prod(shape))
    return sbp.placement("cpu", np.arange(size).reshape(shape), axis_names=("dp", "tp")[: len(shape)])


P = place(2, 4)
W, X = jnp.linspace(-1, 1, 128).reshape(16, 8), jnp.linspace(0, 1, 128).reshape(8, 16)


def f(w, x):
    return jnp.tanh(x @ w), (x @ w).sum()


def close(a, b) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("donate", [(), (0,)])
def test_debug_nans_names_the_op(warm: bool, donate: tuple[int, ...]) -> None:
    def step(w, x):
        return w - jnp.log(x.sum() - 1e9), x.sum()

    pins = ("S(0), B", "S(0), S(1)")
    planned = sbp.auto_parallel(step, placement=P, donate_argnums=donate, in_sbp=pins)
    if warm:
        planned(W + 0, X)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"nan.* in log") as caught:
        planned(W + 0, X)
    assert len(str(caught.value).splitlines()) < 5
    with jax.debug_nans(True):
        planned = sbp.auto_parallel(f, placement=P)
        close(planned(W, X), f(W, X))


def test_vmap() -> None:
    planned, xs = sbp.auto_parallel(f, placement=P), jnp.stack([X, 2 * X, 3 * X])
    wanted = jax.vmap(f, in_axes=(None, 0))(W, xs)
    close(jax.vmap(planned, in_axes=(None, 0))(W, xs), wanted)
    close(jax.jit(jax.vmap(planned, in_axes=(None, 0)))(W, xs), wanted)
    close(jax.vmap(planned, in_axes=(None, 0), axis_name="i")(W, xs), wanted)

    def loss(fn):
        return jax.vmap(jax.grad(lambda w, x: fn(w, x)[1]), in_axes=(None, 0))

    close(loss(planned)(W, xs), loss(f)(W, xs))
    close(sbp.auto_parallel(jax.vmap(f, in_axes=(None, 0)), placement=P)(W, xs), wanted)


@pytest.mark.parametrize("rows", [3, 8, 16])
def test_vmap_over_values_that_are_split(rows: int) -> None:
    xs = jnp.arange(rows * 8 * 16.0).reshape(rows, 8, 16)
    planned = sbp.auto_parallel(lambda x: jnp.sin(x) * 2, placement=P)
    close(jax.vmap(planned)(xs), jnp.sin(xs) * 2)
    close(jax.vmap(jax.vmap(planned))(xs[:, None]), jnp.sin(xs[:, None]) * 2)
    close(jax.vmap(planned, in_axes=1)(xs), jnp.sin(xs.swapaxes(0, 1)) * 2)
    close(jax.vmap(jax.grad(lambda x: planned(x).sum()))(xs), 2 * jnp.cos(xs))
    close(jax.grad(lambda x: jax.vmap(planned)(x).sum())(xs), 2 * jnp.cos(xs))
    close(jax.jit(jax.vmap(planned))(xs), jnp.sin(xs) * 2)


def test_a_planned_function_in_a_planned_one_is_planned_with_it() -> None:
    inner = sbp.auto_parallel(f, placement=place(8), in_sbp=("B", "S(0)"))
    outer = sbp.auto_parallel(lambda w, x: jax.grad(lambda w: inner(w, x)[1] ** 2)(w), placement=P)
    close(outer(W, X), jax.grad(lambda w: f(w, X)[1] ** 2)(W))
    assert outer.plan(W, X).placement == P and not inner._entries


MESHES = {
    "same": P.mesh,
    "explicit": jax.make_mesh((2, 4), ("dp", "tp")),
    "other": jax.make_mesh((8,), ("x",)),
    "automatic": jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,)),
}


@pytest.mark.parametrize("name", MESHES)
def test_set_mesh(name: str) -> None:
    before = sbp.auto_parallel(f, placement=P)
    before(W, X)
    with jax.set_mesh(MESHES[name]):
        inside = jnp.asarray(np.asarray(X))
        for planned in (before, sbp.auto_parallel(f, placement=P)):
            close(planned(W, inside), f(W, X))
            close(jax.jit(planned)(W, X), f(W, X))
        assert sbp.plan(f, W, X, placement=P).verify().ok
        x = sbp.ones(8, 16, placement=P, sbp="S(0), B")
        np.testing.assert_array_equal((x + x).numpy(), np.full((8, 16), 2.0))
    close(before(W, X), f(W, X))


def test_set_mesh_of_another_number_of_devices() -> None:
    x = sbp.ones(8, 16, placement=P, sbp="S(0), B")
    with jax.set_mesh(jax.make_mesh((4,), ("x",))):
        for run in (lambda: sbp.auto_parallel(f, placement=P)(W, X), lambda: x * x * x):
            with pytest.raises(sbp.PlacementError, match=r"8 devices, and is called inside jax.set_mesh of .* 4 dev"):
                run()


@pytest.mark.parametrize("signature", ["S(0), B", "P, S(1)", "B, B", "S(1), P"])
@pytest.mark.parametrize("rows", [8, 9])
def test_global_tensors_are_arguments(signature: str, rows: int) -> None:
    data = np.asarray(jnp.linspace(0, 1, rows * 16).reshape(rows, 16))
    x = sbp.tensor(data, placement=P, sbp=signature)
    planned = sbp.auto_parallel(lambda w, x, *, scale: f(w, x * scale["by"]), placement=P)
    wanted = f(W, data)
    for _ in range(2):
        close(planned(W, x, scale={"by": 1.0}), wanted)
    tensors = sbp.tensor(np.ones(16, np.float32), placement=P, sbp="B, S(0)")
    close(planned(W, x, scale={"by": tensors}), wanted)
    again = sbp.auto_parallel(f, placement=P)
    for given in (x, data, x, x):
        close(again(W, given), wanted)
    close(jax.grad(lambda w: again(w, x)[1])(W), jax.grad(lambda w: f(w, data)[1])(W))
    assert again.plan(W, x) is again.plan(W, data) and len(again._entries) == 1


def test_global_tensors_of_another_placement_and_donated() -> None:
    data = np.asarray(X)
    x = sbp.tensor(data, placement=place(8), sbp=sbp.split(0))
    step = sbp.auto_parallel(lambda a, b: (a + b, b.sum()), placement=P, donate_argnums=0)
    close(step(x, X), (2 * X, X.sum()))
    assert sbp.plan(f, W, x, placement=P).placement == P


def test_a_call_on_a_placement_without_devices() -> None:
    nowhere = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="h100")
    planned = sbp.auto_parallel(f, placement=nowhere)
    assert planned.plan(W, X).step_seconds > 0
    many = sbp.auto_parallel(f, placement=64, config=sbp.AutoParallelConfig(cluster="h100"))
    module = sbp.flax.jit(lambda m, x: m(x), placement=nowhere)
    for run in (
        lambda: planned(W, X),
        lambda: jax.jit(planned)(W, X),
        lambda: planned.lower(W, X),
        lambda: sbp.plan(f, W, X, placement=nowhere).verify(),
        lambda: many(W, X),
        lambda: module(nnx.Linear(16, 8, rngs=nnx.Rngs(0)), X),
    ):
        with pytest.raises(sbp.PlanError, match=r"abstract: .* not compiled or run here\. To run .*sbp\.placement"):
            run()
