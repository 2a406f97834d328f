"""JAX's sharding constraints inside a planned function: pins, dims left free, and what is refused by name."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.planner.constraints import among
from sbp_jax.rules.widen import signature_of
from sbp_jax.trace.constraint import constraint_of

constrain = jax.lax.with_sharding_constraint
Free = P.UNCONSTRAINED


def mesh_of(shape=(2, 4), names=("dp", "tp"), kind=AxisType.Auto, devices=None) -> Mesh:
    every = np.array(jax.devices() if devices is None else devices)
    return Mesh(every[: int(np.prod(shape))].reshape(shape), names, axis_types=(kind,) * len(names))


MESH = mesh_of()
PLACE = sbp.placement.from_mesh(MESH)
EXPLICIT = mesh_of(kind=AxisType.Explicit)
X, W = jnp.arange(64.0).reshape(8, 8) / 64, jnp.ones((8, 8)) * 0.5


def on(*spec: Any, mesh: Any = MESH, **options: Any) -> NamedSharding:
    return NamedSharding(mesh, P(*spec, **options))


def pinned(plan: sbp.Plan, program_of: Callable[..., Any], *args: Any) -> list[str]:
    """The signatures that the plan gives to the pins of the program."""
    program = capture.trace(program_of, args, {}, (), ())[0]
    found = [plan.nodes[op.index] for op in program.nodes if op.name == "sbp.pin"]
    return [str(plan.strategies[k][1][0]) for k in found]


def check(fn: Callable[..., Any], *args: Any, want: list[str], plain: Any = None, **options: Any) -> sbp.Plan:
    """The pins lie as wanted, the results are those of ``jax.jit`` (of ``plain``), XLA adds nothing."""
    step = sbp.auto_parallel(fn, placement=PLACE, **options)
    got, plan = step(*args), step.plan(*args)
    assert pinned(plan, fn, *args) == want
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, jax.jit(plain or fn)(*args))
    plan.verify()
    return plan


def test_a_constraint_is_obeyed_and_ignored_when_asked() -> None:
    def f(x, w):
        return constrain(x @ w, on("dp", None))

    plan = check(f, X, W, want=["S(0), B"])
    assert str(plan.outputs[0].signature) == "S(0), B"
    ignored = sbp.plan(f, X, W, placement=PLACE, out_sbp="S(0), S(1)",
                       config=sbp.AutoParallelConfig(ignore_user_sbp=True))  # fmt: skip
    free = sbp.plan(lambda x, w: x @ w, X, W, placement=PLACE)
    assert [str(s.signature) for s in ignored.outputs] == [str(s.signature) for s in free.outputs]
    assert ignored.step_seconds <= plan.step_seconds


@pytest.mark.parametrize(
    ("spec", "possible"),
    [
        (("dp", "tp"), ["S(0), S(1)"]),
        ((("dp", "tp"),), ["S(0), S(0)"]),
        ((), ["B, B"]),
        (("tp",), ["B, S(0)"]),
        (("dp", Free), ["S(0), B", "S(0), S(1)"]),
        ((Free, "tp"), ["B, S(1)", "S(0), S(1)"]),
        ((Free, None), ["B, B", "B, S(0)", "S(0), B", "S(0), S(0)"]),
    ],
)
def test_what_a_spec_leaves(spec, possible) -> None:
    every = [(a, b) for a in (-4, -3, -2, -1, 0, 1) for b in (-4, -3, -2, -1, 0, 1)]
    pin = among(constraint_of(on(*spec), 2, "with_sharding_constraint"), (8, 8), PLACE)
    assert pin is not None
    assert sorted(str(signature_of(c)) for c in every if pin.allows(c)) == sorted(possible)


def test_free_dims_are_the_planners() -> None:
    def f(x, w, spec):
        return jnp.sum(jnp.tanh(constrain(x @ w, on(*spec))) @ w)

    for spec in (("dp", Free), (Free, None), (Free, Free)):
        plan = sbp.plan(lambda x, w, spec=spec: f(x, w, spec), X, W, placement=PLACE)
        exact = sbp.plan(lambda x, w, spec=spec: f(x, w, [None if e is Free else e for e in spec]), X, W,
                         placement=PLACE)  # fmt: skip
        assert plan.step_seconds <= exact.step_seconds


def test_a_partial_sum_is_reduced_where_a_constraint_stands() -> None:
    def f(x, w):
        return constrain(x @ w, on(Free, None)) * 2.0

    step = sbp.auto_parallel(f, placement=PLACE, in_sbp=("S(0), S(1)", "B, S(0)"))
    assert pinned(step.plan(X, W), f, X, W) in (["S(0), B"], ["S(0), S(0)"])
    np.testing.assert_allclose(step(X, W), f(X, W), rtol=1e-6)


def test_in_control_flow_and_derivatives() -> None:
    row, column = on("dp", None), on(None, "tp")

    def scan(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(constrain(c @ w, row)), c.sum()), x, None, length=3)

    def branches(x, w):
        return jax.lax.cond(x.sum() > 0, lambda: constrain(x @ w, row), lambda: constrain(x - w, column))

    def loop(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, c: constrain(c @ w, column), x)

    @jax.checkpoint
    def block(x, w):
        return jnp.sin(constrain(x @ w, row))

    def loss(x, w):
        return jnp.sum(block(x, w) ** 2)

    check(scan, X, W, want=["S(0), B"])
    check(branches, X, W, want=["B, S(1)", "S(0), B"], plain=lambda x, w: x @ w)  # XLA refuses to
    check(loop, X, W, want=["B, S(1)"])
    check(jax.grad(loss, argnums=1), X, W, want=["S(0), B"] * 3)


def test_vmapped() -> None:
    def one(x, w):
        return constrain(x @ w, on(None, "tp"))

    xs = jnp.stack([X, X + 1, X - 1, X * 2])
    over = jax.vmap(one, in_axes=(0, None))
    named = jax.vmap(one, in_axes=(0, None), spmd_axis_name="dp")
    assert pinned(sbp.plan(over, xs, W, placement=PLACE), over, xs, W)[0] in ("B, S(2)", "S(0), S(2)")
    check(named, xs, W, want=["S(0), S(2)"])


def test_device_put_nested_jit_and_asarray() -> None:
    def put(x, w):
        a, b = jax.device_put((x @ w, x + w), (on("dp", None), on(None, "tp")))
        return a + jax.device_put(b)

    inner = jax.jit(lambda x, w: x @ w, in_shardings=(on("dp"), None), out_shardings=on("dp", "tp"))

    def nested(x, w):
        return inner(jnp.sin(x), w) * 2.0

    def made(x, w):
        return jnp.asarray(x, device=on("dp")) @ w

    check(put, X, W, want=["S(0), B", "B, S(1)"])
    check(nested, X, W, want=["S(0), B", "S(0), S(1)"])
    check(made, X, W, want=["S(0), B"])


def test_a_bare_spec_under_a_mesh() -> None:
    def f(x, w):
        return constrain(x @ w, P("dp", None))

    with jax.set_mesh(MESH):
        check(f, X, W, want=["S(0), B"])
    with pytest.warns(DeprecationWarning), MESH:
        assert str(sbp.plan(f, X, W, placement=PLACE).outputs[0].signature) == "S(0), B"
    abstract = AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    with jax.sharding.use_abstract_mesh(abstract):
        there = sbp.placement.abstract((2, 4), ("dp", "tp"), cluster="a100-80")
        assert str(sbp.plan(f, X, W, placement=there).outputs[0].signature) == "S(0), B"


def test_explicit_axes() -> None:
    def moved(x, w):
        return jax.sharding.reshard(x, P("dp", None)) @ w

    def asked(x, w):
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("dp", "tp")) + jnp.zeros((8, 8), out_sharding=P("dp", "tp"))

    def looked_up(x, w):
        return x.at[jnp.arange(4)].get(out_sharding=P("dp", None)) * 2.0

    def automatic(x, w):
        matmul: Any = jax.sharding.auto_axes(jnp.matmul, out_sharding=P("dp", None))
        return matmul(x, w)

    with jax.set_mesh(EXPLICIT):
        check(moved, X, W, want=["S(0), B"])
        check(asked, X, W, want=["S(0), S(1)", "S(0), S(1)"])
        assert "S(0), B" in pinned(sbp.plan(looked_up, X, W, placement=PLACE), looked_up, X, W)
        check(automatic, X, W, want=["S(0), B"])
        grad = jax.grad(lambda x, w: jnp.sum(moved(x, w) ** 2))
        assert np.allclose(sbp.auto_parallel(grad, placement=PLACE)(X, W), jax.jit(grad)(X, W), rtol=1e-5)


def test_axes_in_another_order_are_the_same_mesh() -> None:
    turned = Mesh(MESH.devices.T, ("tp", "dp"))

    def f(x, w):
        return constrain(x @ w, on("dp", "tp", mesh=turned))

    check(f, X, W, want=["S(0), S(1)"])


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda x: constrain(x, on("a", mesh=mesh_of((8,), ("a",)))),
         r"with_sharding_constraint at test_constraints.py.*P\('a', None\) is on a mesh \[a=8\], the placement is "
         r"cpu\[dp=2, tp=4\].*Use the placement's mesh"),
        (lambda x: constrain(x, on("dp", mesh=mesh_of((4, 2)))), r"mesh \[dp=4, tp=2\], the placement is cpu\[dp=2"),
        (lambda x: constrain(x, on("dp", mesh=mesh_of(devices=jax.devices()[::-1]))),
         r"on a mesh of devices \[7, 6.*has \[0, 1, 2.*the same order"),
        (lambda x: constrain(x, on(("tp", "dp"))), r"against the order of the mesh axes"),
        (lambda x: jax.device_put(x, jax.devices()[1]), r"device_put at .*one device \(id 1\).*cpu\[dp=2, tp=4\]"),
        (lambda x: jax.device_put(x, NamedSharding(MESH, P("dp"), memory_kind="pinned_host")),
         r"test_constraints.py.*device_put asks for memory kind 'pinned_host'.*remat='auto'"),
        (lambda x: jax.device_put(x, jax.memory.Space.Host), r"device_put.*memory kind 'pinned_host'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(ask, message: str) -> None:
    with pytest.raises(sbp.SbpError, match=message):
        sbp.plan(lambda x: ask(x) * 2.0, X, placement=PLACE)


def test_one_device() -> None:
    alone = sbp.placement("cpu", ranks=[1])
    fn = lambda x: jax.device_put(x, jax.devices()[1]) + 1  # noqa: E731
    assert np.array_equal(sbp.auto_parallel(fn, placement=alone)(X), X + 1)
    with pytest.raises(sbp.SbpError, match=r"one device \(id 1\)"):
        sbp.plan(fn, X, placement=sbp.placement("cpu", ranks=[0]))


def test_a_constraint_that_does_not_divide() -> None:
    """JAX refuses those that it meets; what it maps over (``vmap``) may still come here."""
    asked = constraint_of(on(None, "tp"), 2, "with_sharding_constraint")
    with pytest.raises(sbp.SbpError, match=r"\(B, S\(1\)\) splits dimension 1 .*6 is not a multiple of 4"):
        among(asked, (8, 6), PLACE)


def test_in_eager_code_a_constraint_counts_too() -> None:
    x = sbp.tensor(np.asarray(X), placement=PLACE, sbp="B, B")
    y = sbp.apply(lambda a: constrain(a + 1, on("dp", None)), x)
    assert str(y.sbp) == "S(0), B" and np.array_equal(y.numpy(), np.asarray(X) + 1)


def test_every_solver_keeps_them_and_reports_name_them() -> None:
    def step(w, x):
        loss, g = jax.value_and_grad(lambda w: jnp.mean(constrain(jnp.tanh(x @ w), on("dp", "tp")) ** 2))(w)
        return w - 0.1 * g, loss

    for solver in ("ilp", "greedy", "data_parallel"):
        config = sbp.AutoParallelConfig(solver=solver)
        plan = sbp.plan(step, W, X, placement=PLACE, donate_argnums=0, config=config)
        assert set(pinned(plan, step, W, X)) == {"S(0), S(1)"}
    assert "with_sharding_constraint" in str(plan.explain("with_sharding_constraint"))
