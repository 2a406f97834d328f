"""``jax.sharding``'s meshes and shardings wherever a placement or a signature is taken, and back."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import sbp_jax as sbp

AUTO = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Explicit,) * 2)
PLAIN = Mesh(np.array(jax.devices()).reshape(2, 4), ("dp", "tp"))
ABSTRACT = AbstractMesh((2, 4), ("dp", "tp"))
PLACE = sbp.placement("cpu", ranks=np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
X = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def wrong(x: Any) -> Any:
    """What no annotation allows."""
    return x


def matmul(x, w):
    return x @ w


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT, PLAIN], ids=["auto", "explicit", "plain"])
def test_a_mesh_is_a_placement(mesh: Mesh) -> None:
    step = sbp.auto_parallel(matmul, placement=mesh, in_sbp=(P("dp"), NamedSharding(mesh, P(None, "tp"))))
    plan = step.plan(X, X)
    assert plan.placement == PLACE and plan.placement.mesh.shape == mesh.shape
    assert [str(leaf.signature) for leaf in plan.inputs] == ["S(0), B", "B, S(1)"]
    np.testing.assert_allclose(step(X, X), X @ X, rtol=1e-6)
    placed = jax.device_put(X, NamedSharding(mesh, P("dp", "tp")))
    np.testing.assert_allclose(step(placed, placed), X @ X, rtol=1e-6)


def test_an_abstract_mesh_is_an_abstract_placement() -> None:
    config = sbp.AutoParallelConfig(cluster="a100-80")
    plan = sbp.plan(matmul, X, X, placement=ABSTRACT, config=config, out_sbp=NamedSharding(ABSTRACT, P("dp", "tp")))
    assert plan.placement.is_abstract and str(plan.outputs[0].signature) == "S(0), S(1)"


def test_pins_may_leave_dimensions_open() -> None:
    open_ = P("dp", P.UNCONSTRAINED)
    for given in (open_, NamedSharding(AUTO, open_)):
        plan = sbp.plan(matmul, X, X, placement=AUTO, in_sbp=(given, None), out_sbp=(given))
        assert str(plan.inputs[0].signature) in ("S(0), B", "S(0), S(1)")
        assert str(plan.outputs[0].signature) in ("S(0), B", "S(0), S(1)")
    again = sbp.auto_parallel(matmul, plan=plan, in_sbp=(open_, None))
    np.testing.assert_allclose(again(X, X), X @ X, rtol=1e-6)
    with pytest.raises(sbp.PlanError, match=r"disagree.*in_sbp of 0"):
        sbp.auto_parallel(matmul, plan=plan, in_sbp=(P("tp", P.UNCONSTRAINED), None))(X, X)


def test_to_global_inside_a_function() -> None:
    inside: Any = sbp.to_global
    for given in (P("dp", "tp"), NamedSharding(AUTO, P("dp", "tp"))):

        def f(x, w, given=given):
            return jnp.sum(inside(x @ w, given) ** 2)

        step = sbp.auto_parallel(jax.grad(f), placement=AUTO)
        np.testing.assert_allclose(step(X, X), jax.grad(lambda x, w: jnp.sum((x @ w) ** 2))(X, X), rtol=1e-5)
        assert {d.op for d in step.plan(X, X).insight.decisions} & {"sbp.pin", "to_global"}
        plan = sbp.plan(lambda x, g=given: inside(x * 2, g), X, placement=PLACE)
        assert str(plan.outputs[0].signature) == "S(0), S(1)"
    plan = sbp.plan(jax.vmap(lambda x: inside(x * 2, P("tp"))), X, placement=PLACE)
    assert str(plan.outputs[0].signature) == "B, S(1)"
    assert sbp.plan(lambda x: inside(x, P("tp"), placement=AUTO), X, placement=PLACE).outputs
    with pytest.raises(sbp.SignatureError, match="has rank 2"):
        sbp.plan(lambda x: inside(x, P(None, None, "tp"), placement=AUTO), X, placement=PLACE)


def test_constructors_and_redistribution() -> None:
    by_mesh = sbp.tensor(X, placement=EXPLICIT, sbp=P("dp", "tp"))
    by_sharding = sbp.tensor(X, sbp=NamedSharding(AUTO, P("dp", "tp")))
    by_name = sbp.tensor(X, placement=PLACE, sbp="S(0), S(1)")
    for x in (by_mesh, by_sharding, by_name):
        assert x.placement == PLACE and str(x.sbp) == "S(0), S(1)" and np.array_equal(x.numpy(), X)
        assert x.sharding == NamedSharding(PLACE.mesh, P("dp", "tp")) and x.array.sharding == x.sharding
    for make in (sbp.zeros, sbp.ones, sbp.empty, sbp.rand, sbp.randn):
        assert str(make(8, 8, sbp=NamedSharding(AUTO, P(None, "tp"))).sbp) == "B, S(1)"
    assert str(sbp.arange(8, placement=AUTO, sbp=P("tp")).sbp) == "B, S(0)"
    assert str(sbp.full((8, 8), 1.0, placement=AUTO).sbp) == "B, B"
    assert str(sbp.randint(0, 9, (8,), placement=AUTO, sbp=P("dp")).sbp) == "S(0), B"
    assert str(sbp.zeros_like(by_name, sbp=P("tp")).sbp) == "B, S(0)"
    assert str(sbp.numpy.zeros((8, 8), placement=AUTO, sbp=P("dp")).sbp) == "S(0), B"
    moved = by_name.to_global(sbp=P("tp"))
    assert str(moved.sbp) == "B, S(0)" and np.array_equal(moved.numpy(), X)
    other = jax.make_mesh((8,), ("all",))
    there = by_name.to_global(sbp=NamedSharding(other, P(None, "all")))
    assert there.placement.shape == (8,) and np.array_equal(there.numpy(), X)
    assert str(sbp.to_global(by_name, placement=other, sbp=P("all")).sbp) == "S(0)"
    pieces = [X[k * 4 : (k + 1) * 4] for k in (0, 0, 0, 0, 1, 1, 1, 1)]
    assert np.array_equal(sbp.local_to_global(pieces, placement=AUTO, sbp=P("dp")).numpy(), X)


def test_a_signature_asked_of_a_result_counts_whatever_was_asked_before() -> None:
    """The quick way of a call with tensors alone forgot it."""
    x = sbp.tensor(X, placement=PLACE, sbp="S(0), B")
    free = sbp.numpy.sin(x)
    assert str(free.sbp) == "S(0), B"
    assert str(sbp.numpy.sin(x, sbp=P(None, "tp")).sbp) == "B, S(1)"
    assert str(sbp.numpy.sin(x, sbp="B, B").sbp) == "B, B"


def test_conversions_and_routes() -> None:
    assert sbp.to_partition_spec("S(0), S(1)", AUTO, 2) == P("dp", "tp")
    assert sbp.to_sharding(P("dp"), AUTO, 2) == NamedSharding(PLACE.mesh, P("dp", None))
    one = sbp.boxing.route(P("dp"), NamedSharding(AUTO, P(None, "tp")), AUTO, shape=(64, 64))
    assert one == sbp.boxing.route("S(0), B", "B, S(1)", PLACE, shape=(64, 64))
    assert "S(0)" in str(sbp.visualize(P("dp"), EXPLICIT, (8, 8)))


def test_flax() -> None:
    @sbp.flax.parallel(placement=EXPLICIT, sbp={"layer/kernel": P(None, "tp")})
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layer = nnx.Linear(8, 8, rngs=rngs)

        def __call__(self, x):
            return self.layer(x)

    model = Model(nnx.Rngs(0))
    assert model.layer.kernel[...].sharding.spec == P(None, "tp")
    assert "cpu[dp=2, tp=4]" in repr(sbp.flax.jit(lambda model, x: model(x), placement=AUTO))
    step = sbp.flax.jit(lambda model, x: model(x), placement=AUTO, sbp={"**/bias": NamedSharding(AUTO, P("tp"))})
    np.testing.assert_allclose(step(model, X), model(X), rtol=1e-5, atol=1e-5)
    variables = jax.eval_shape(nn.Dense(8).init, jax.random.key(0), X)
    pins = sbp.flax.pins(variables, {"kernel": P("dp", "tp")}, placement=AUTO)
    assert str(pins["params"]["kernel"]) == "S(0), S(1)"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: sbp.tensor(X, placement=PLACE, sbp=NamedSharding(jax.make_mesh((8,), ("a",)), P("a"))),
         r"P\('a',\) is on a mesh \[a=8\], the placement is cpu\[dp=2, tp=4\].*give this mesh as the placement"),
        (lambda: sbp.tensor(X, placement=PLACE, sbp=P("nope")), r"names axes \['nope'\]; the mesh has \('dp', 'tp'\)"),
        (lambda: sbp.tensor(X, placement=PLACE, sbp=P("dp", P.UNCONSTRAINED)), "leaves dimension 1 open"),
        (lambda: sbp.tensor(X, sbp=P("dp")), "needs placement="),
        (lambda: sbp.tensor(X, placement=wrong((2, 4))), r"must be a sbp.placement.*jax.sharding.Mesh.*\(2, 4\)"),
        (lambda: sbp.auto_parallel(matmul, placement=wrong(jax.devices())), r"jax.sharding.Mesh, a number of devices"),
        (lambda: sbp.plan(matmul, X, X, placement=PLACE, in_sbp=(NamedSharding(PLAIN, P("tp", None, "dp")), None)),
         r"in_sbp of 0: .*rank 2"),
        (lambda: sbp.plan(matmul, X, X, placement=sbp.placement("cpu", ranks=np.arange(8).reshape(4, 2)),
                          in_sbp=(NamedSharding(AUTO, P("dp")), None)), r"in_sbp of 0: .*mesh \[dp=2, tp=4\]"),
        (lambda: sbp.plan(matmul, X[:6], X, placement=AUTO, in_sbp=(P("tp", P.UNCONSTRAINED), None)),
         r"in_sbp of 0: .*6 is not a multiple of 4"),
        (lambda: sbp.tensor(X, sbp=NamedSharding(AUTO, P("dp"), memory_kind="pinned_host")), "pinned_host"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(ask, message: str) -> None:
    with pytest.raises(sbp.SbpError, match=message):
        ask()


def values() -> list[sbp.GlobalTensor]:
    """The same numbers in several ways: split evenly and not, partial."""
    line = sbp.placement("cpu", ranks=[0, 1, 2])
    ways = [(PLACE, "S(0), S(1)"), (PLACE, "P, S(0)"), (line, "S(1)"), (line, "P(max)")]
    return [sbp.tensor(X, placement=where, sbp=s) for where, s in ways]


FUNCTIONS = [
    jnp.sum, jnp.mean, jnp.sin, jnp.sort, jnp.cumsum, jnp.argmax, jnp.ravel, jnp.transpose, jnp.linalg.norm,
    jnp.asarray, jnp.max, jnp.any, jnp.ones_like, jnp.zeros_like, jnp.squeeze, jnp.diag,
    lambda x: jnp.matmul(x, x), lambda x: jnp.add(x, 1), lambda x: jnp.where(x > 3, x, 0), lambda x: jnp.dot(x, X),
    lambda x: jnp.concatenate([x, x]), lambda x: jnp.stack([x, X]), lambda x: jnp.einsum("ij,kj->ik", x, x),
    lambda x: jnp.reshape(x, (4, 16)), lambda x: jnp.take(x, 3, axis=0), lambda x: jnp.clip(x, 1, 5),
    jax.nn.relu, jax.nn.softmax, jax.nn.gelu, jax.nn.silu, jax.nn.logsumexp, jax.nn.standardize, jax.nn.sigmoid,
    lambda x: jax.nn.one_hot(jnp.asarray(x).astype(int), 4), lambda x: jax.scipy.special.logsumexp(x, axis=1),
    lambda x: jax.jit(lambda v: jnp.sum(v, axis=0))(x), lambda x: jnp.asarray(X) + x, lambda x: jnp.float32(2) * x,
    jax.lax.exp, lambda x: jax.lax.dot(x, x), lambda x: jax.lax.reduce_sum(x, (0,)), lambda x: jax.lax.add(x, 1.0),
    lambda x: jax.lax.cumsum(x), lambda x: jax.lax.top_k(x, 2)[0], lambda x: jax.vmap(jnp.sum)(x),
    lambda x: jax.device_put(x), lambda x: jnp.vectorize(jnp.sum, signature="(n)->()")(x),
]  # fmt: skip


# A tensor is mapped over by sbp.apply(jax.vmap(fn), x).
VMAPPED = len(FUNCTIONS) - 3


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_jaxs_own_functions_give_the_right_numbers_or_say_how(number: int) -> None:
    fn = FUNCTIONS[number]
    want = np.asarray(fn(jnp.asarray(X)))
    worked = 0
    for x in values():
        try:
            got = fn(x)
        except (TypeError, ValueError, sbp.SbpError) as error:
            assert "sbp.apply" in str(error), error
            continue
        worked += 1
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)
    assert worked == (0 if number == VMAPPED else len(values()))


def test_the_gradient_of_a_global_scalar() -> None:
    """jax.grad compares trees, so that it takes no object for the scalar: said by name."""
    x, w = (sbp.tensor(X, placement=PLACE, sbp=s) for s in ("S(0), S(1)", "B, S(1)"))
    got = jax.grad(lambda w: (x @ w).sum().array)(w)
    np.testing.assert_allclose(got.numpy(), np.repeat(X.sum(0)[:, None], 8, 1), rtol=1e-5)
    got = jax.grad(lambda w: jnp.sum(jax.nn.sigmoid(x @ w)))(w)
    want = jax.grad(lambda w: jnp.sum(jax.nn.sigmoid(X @ w)))(jnp.asarray(X))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(sbp.SbpError, match=r"jax.grad differentiates returns one array.*return loss.array"):
        jax.grad(lambda w: (x @ w).sum())(w)


def test_an_array_and_a_tensor_give_a_tensor() -> None:
    """Whichever stands first, outside and inside of jit; functions of jax.numpy give arrays."""
    x, a = sbp.tensor(X, placement=PLACE, sbp="P, S(0)"), jnp.ones((8, 8))
    for got in (a + x, x + a, a - x, 1.0 - x, np.ones((8, 8), np.float32) + x, a @ x, a < x, a == x):
        assert isinstance(got, sbp.GlobalTensor)
    np.testing.assert_allclose((a - x).numpy(), 1 - X)
    inside = jax.jit(lambda a, x: a - x)(a, x)
    assert isinstance(inside, sbp.GlobalTensor)
    np.testing.assert_allclose(inside.numpy(), 1 - X)
    like_an_array: Any = x
    assert isinstance(jnp.subtract(a, like_an_array), jax.Array)


def test_what_arrays_have() -> None:
    x = sbp.tensor(X, placement=PLACE, sbp="S(0), S(1)")
    assert x.block_until_ready() is x and x.nbytes == 256 and x.itemsize == 4 and not x.is_deleted()
    assert x.sharding.spec == P("dp", "tp")
    for y in values():
        assert y.sharding == y.array.sharding
    x.delete()
    assert x.is_deleted() and "deleted" in repr(x)
