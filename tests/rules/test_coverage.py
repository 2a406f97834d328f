"""Every primitive that JAX, Flax and Optax are met with has a rule, or a stated reason to stay whole."""

from collections.abc import Callable
from typing import Any

import flax.nnx as nnx
import jax
import jax.extend.core as jex
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import optax
import pytest
from jax import lax
from jax.experimental import xla_metadata
from jax.experimental.xla_metadata import set_xla_metadata

from sbp_jax.rules import lookup, names
from sbp_jax.rules.check import describe
from sbp_jax.rules.widen import strategies
from sbp_jax.trace import Op, Value, build, handled

X = jnp.linspace(0.1, 0.9, 32).reshape(8, 4)
SQUARE = X[:4] @ X[:4].T + 4 * jnp.eye(4)
KEY = jax.random.key(0)
metadata_call: Any = getattr(xla_metadata, "xla_metadata_call", None)  # newer than the oldest JAX supported

# name by name: what takes the arguments given; all that is differentiable is also traced with its gradient
NUMPY: dict[str, tuple[tuple[Any, ...], str]] = {
    "one": ((X,), "abs absolute angle arccos arccosh arcsin arcsinh arctan arctanh argmax argmin argsort around "
     "asarray atleast_1d atleast_2d atleast_3d average cbrt ceil clip conj corrcoef cos cosh count_nonzero cov "
     "cumprod cumsum deg2rad degrees diag diagonal diff ediff1d exp exp2 expm1 fabs flip fliplr flipud "
     "floor frexp gradient i0 imag isfinite isinf isnan isneginf isposinf log log10 log1p log2 matrix_transpose max "
     "mean median min modf nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod "
     "nanstd nansum nanvar negative ones_like positive prod ptp rad2deg radians ravel real reciprocal rint "
     "rot90 round sign signbit sin sinc sinh sort sqrt square squeeze std sum tan tanh trace transpose tril triu "
     "trunc unwrap var zeros_like all any histogram"),
    "two": ((X, X), "add arctan2 array_equal array_equiv copysign divide divmod "
     "equal float_power floor_divide fmax fmin fmod greater greater_equal heaviside hypot inner isclose kron "
     "less less_equal logaddexp logaddexp2 maximum minimum mod multiply nextafter not_equal outer power remainder "
     "subtract true_divide vdot vecdot"),
    "square": ((SQUARE,), "linalg.cholesky linalg.cond linalg.det linalg.eigh linalg.eigvalsh linalg.inv linalg.norm "
     "linalg.pinv linalg.qr linalg.slogdet linalg.svd linalg.svdvals linalg.matrix_rank linalg.eig linalg.eigvals"),
    "solve": ((SQUARE, SQUARE[:, :2]), "linalg.solve linalg.lstsq matmul dot"),
    "fft": ((X,), "fft.fft fft.ifft fft.rfft fft.irfft fft.hfft fft.ihfft fft.fft2 fft.ifft2 fft.rfft2 fft.irfft2 "
     "fft.fftn fft.ifftn fft.rfftn fft.irfftn fft.fftshift fft.ifftshift"),
}  # fmt: skip
NN = ("relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu swish log_sigmoid leaky_relu hard_sigmoid "
      "hard_silu hard_swish hard_tanh elu celu selu gelu glu squareplus mish identity log_softmax logmeanexp logsumexp "
      "softmax standardize").split()  # fmt: skip
SPECIAL = ("digamma entr erf erfc erfcx erfinv exp1 expi expit expm1 gammaln gamma i0 i0e i1 i1e log1p "
           "log_ndtr log_softmax logit logsumexp ndtr ndtri softmax spence").split()  # fmt: skip
SPECIAL_TWO = "beta betaln gammainc gammaincc rel_entr kl_div xlog1py xlogy zeta poch".split()
DRAWS: dict[str, tuple[Any, ...]] = {
    "ball": (3,), "bernoulli": (), "beta": (2.0, 3.0), "binomial": (5.0, 0.5), "bits": (), "categorical": (X,),
    "cauchy": (), "chisquare": (3.0,), "dirichlet": (jnp.ones(3),), "double_sided_maxwell": (1.0, 1.0),
    "exponential": (), "f": (2.0, 3.0), "gamma": (2.0,), "generalized_normal": (1.5,), "geometric": (0.5,),
    "gumbel": (), "laplace": (), "loggamma": (2.0,), "logistic": (), "lognormal": (), "maxwell": (),
    "multivariate_normal": (jnp.zeros(4), SQUARE), "normal": (), "orthogonal": (3,), "pareto": (2.0,),
    "permutation": (X,), "poisson": (2.0,), "rademacher": (), "randint": ((8, 4), 0, 9), "rayleigh": (1.0,),
    "t": (3.0,), "triangular": (0.0, 0.5, 1.0), "truncated_normal": (-1.0, 1.0), "uniform": (),
    "wald": (1.0,), "weibull_min": (1.0, 1.0), "choice": (X,), "split": (), "fold_in": (3,),
}  # fmt: skip


def image(*shape: int) -> jax.Array:
    return jnp.linspace(-1, 1, int(np.prod(shape))).reshape(shape)


def attention(q: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, q[:, :, :2], q[:, :, :2], is_causal=True, implementation="xla")


def pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "einsum": (lambda x, y: jnp.einsum("ik,jk->ij", x, y), (X, X)),
    "where": (lambda x: jnp.where(x > 0.5, x, 0), (X,)),
    "take": (lambda x: jnp.take(x, jnp.array([1, 9]), axis=0), (X,)),
    "take_along_axis": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 0), 0), (X,)),
    "index": (lambda x: x[jnp.array([0, 3]), 1:3].at[0].set(2.0).at[1].add(1).at[0].mul(2).at[0].max(3).at[0].min(1),
              (X,)),
    "dynamic": (lambda x: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (2, 1), (2, 2)), (0, 0)), (X,)),
    "interp": (lambda x: jnp.interp(x, jnp.arange(4.0), jnp.arange(4.0) ** 2), (X,)),
    "searchsorted": (lambda x: jnp.searchsorted(jnp.arange(4.0), x), (X,)),
    "percentile": (lambda x: jnp.percentile(x, 30), (X,)),
    "unique": (lambda x: jnp.unique(x, size=8), (X,)),
    "pad": (lambda x: jnp.pad(x, 2, mode="reflect"), (X,)),
    "roll": (lambda x: jnp.roll(x, 3), (X,)),
    "repeat": (lambda x: jnp.repeat(x, 3, 0), (X,)),
    "tile": (lambda x: jnp.tile(x, (2, 3)), (X,)),
    "split": (lambda x: jnp.split(x, 2), (X,)),
    "convolve": (lambda x: jnp.convolve(x[:, 0], x[0]), (X,)),
    "bincount": (lambda x: jnp.bincount(x, length=4), (jnp.arange(8) % 4,)),
    "segment_sum": (lambda x: jax.ops.segment_sum(x, jnp.arange(8) % 4, 4), (X,)),
    "segment_max": (lambda x: jax.ops.segment_max(x, jnp.arange(8) % 4, 4), (X,)),
    "bits": (lambda x: (x & 3) | (x << 2) ^ ~x >> 1, (jnp.arange(8),)),
    "bit counts": (lambda x: lax.population_count(x) + lax.clz(x), (jnp.arange(8),)),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.uint16), (X,)),
    "complex": (lambda x: jnp.abs(lax.complex(x, x) * 1j), (X,)),
    "clamp": (lambda x: lax.clamp(0.2, x, 0.4), (X,)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 8, 7), (X,)),
    "optimization_barrier": (lambda x: lax.optimization_barrier((x, x * 2)), (X,)),
    "top_k": (lambda x: lax.top_k(x, 2), (X,)),
    "approx_max_k": (lambda x: lax.approx_max_k(x, 2), (X,)),
    "cumulative": (lambda x: lax.cummax(x) + lax.cummin(x) + lax.cumlogsumexp(x) + lax.cumprod(x), (X,)),
    "scan": (lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x), (X,)),
    "associative_scan": (lambda x: lax.associative_scan(jnp.multiply, x), (X,)),
    "fori": (lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x), (X,)),
    "cond": (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (X,)),
    "switch": (lambda x: lax.switch(jnp.int32(x[0, 0]), [jnp.sin, jnp.cos], x), (X,)),
    "map": (lambda x: lax.map(jnp.sin, x), (X,)),
    "checkpoint": (jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), (X,)),
    "ragged_dot": (lambda x, w: lax.ragged_dot(x, w, jnp.array([3, 5])), (X, image(2, 4, 6))),
    "conv": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
             (image(2, 6, 6, 4), image(3, 3, 4, 8))),
    "conv_transpose": (lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), (image(2, 6, 6, 4), image(3, 3, 4, 8))),
    "max pool": (pool, (X,)),
    "attention": (attention, (image(2, 8, 4, 6),)),
    "one_hot": (lambda x: jax.nn.one_hot(x, 5), (jnp.arange(4),)),
    "resize": (lambda x: jax.image.resize(x, (16, 6), "bilinear"), (X,)),
    "cho_solve": (lambda a: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), a), (SQUARE,)),
    "lu_solve": (lambda a: jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), a), (SQUARE,)),
    "solve_triangular": (lambda a: jax.scipy.linalg.solve_triangular(a, a, lower=True), (SQUARE,)),
    "expm": (jax.scipy.linalg.expm, (SQUARE,)),
    "schur": (lambda a: jax.scipy.linalg.schur(a), (SQUARE,)),
    "hessenberg": (lambda a: lax.linalg.hessenberg(a), (SQUARE,)),
    "tridiagonal": (lambda a: lax.linalg.tridiagonal(a), (SQUARE,)),
    "tridiagonal_solve": (lambda a: lax.linalg.tridiagonal_solve(a[0], a[1], a[2], a), (SQUARE,)),
    "householder": (lambda a: lax.linalg.householder_product(a, a[0]), (SQUARE,)),
    "stacks": (lambda x: [f([x, x]) for f in (jnp.stack, jnp.hstack, jnp.vstack, jnp.dstack, jnp.column_stack)], (X,)),
    "tensordot": (lambda x: jnp.tensordot(x, x, 2), (X,)),
    "cross": (lambda x: jnp.cross(x[:, :3], x[:, :3]), (X,)),
    "roots": (lambda x: jnp.roots(x[:, 0], strip_zeros=False), (X,)),
    "cg": (lambda a: jax.scipy.sparse.linalg.cg(a, a[0])[0], (SQUARE,)),
    "betainc": (lambda x: special.betainc(x, x, x), (X,)),
    "polygamma": (lambda x: special.polygamma(1, x), (X,)),
    "pure_callback": (lambda x: jax.pure_callback(np.sin, x, x), (X,)),
    "debug": (lambda x: jax.debug.print("{}", x[0, 0]) or x, (X,)),
    "rng_bit_generator": (lambda x: lax.rng_bit_generator(x, (8, 4)), (jnp.zeros(4, jnp.uint32),)),
    "traced": (lambda x: jax.jit(jnp.sin).trace(x)(x), (X,)),
    "metadata": (lambda x: set_xla_metadata(jnp.sin(x), tag="sine"), (X,)),
    "metadata of a call": (lambda x: metadata_call(jnp.sin, tag="sine")(x) if metadata_call else x, (X,)),
    "stop_gradient": (lambda x: lax.stop_gradient(x) * x, (X,)),
    "custom_vjp": (lambda x: optax.safe_norm(x, 1e-3), (X,)),
    "entropy": (lambda x: optax.softmax_cross_entropy_with_integer_labels(x, jnp.arange(8) % 4), (X,)),
    "ctc": (lambda x: optax.ctc_loss(x[None], jnp.zeros((1, 8)), jnp.ones((1, 3), int), jnp.zeros((1, 3))), (X,)),
}  # fmt: skip


def resolve(module: Any, path: str) -> Callable[..., Any]:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def all_functions() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    found = dict(FUNCTIONS)
    for args, text in NUMPY.values():
        found.update({f"jnp.{n}": (resolve(jnp, n), args) for n in text.split()})
    found.update({f"nn.{n}": (getattr(jax.nn, n), (X,)) for n in NN if hasattr(jax.nn, n)})
    found.update({f"special.{n}": (getattr(special, n), (X,)) for n in SPECIAL if hasattr(special, n)})
    found.update({f"special.{n}": (getattr(special, n), (X, X)) for n in SPECIAL_TWO if hasattr(special, n)})
    for n, args in DRAWS.items():
        if n in ("split", "fold_in", "ball", "orthogonal", "randint"):
            found[f"random.{n}"] = (lambda k, n=n, args=args: getattr(jax.random, n)(k, *args), (KEY,))
        else:
            found[f"random.{n}"] = (lambda k, *a, n=n: getattr(jax.random, n)(k, *a), (KEY, *args))
    return found


def met(function: Callable[..., Any], *args: Any) -> set[str]:
    """The primitives of a function and, where it has one, of its gradient."""
    found = {op.name for op in build(jax.make_jaxpr(function)(*args)).nodes}
    real = [i for i, a in enumerate(args) if jnp.issubdtype(jnp.result_type(a), jnp.floating)] if args else []

    def loss(*args: Any) -> Any:
        leaves = [x for x in jax.tree.leaves(function(*args)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum((jnp.abs(x).sum() for x in leaves), jnp.float32(0))

    try:
        gradient = jax.make_jaxpr(jax.grad(loss, real))(*args) if real else None
    except (NotImplementedError, ValueError, TypeError):  # has none
        gradient = None
    return found | ({op.name for op in build(gradient).nodes} if gradient is not None else set())


def without_rule(found: set[str]) -> set[str]:
    return {name for name in found if lookup(name) is None}


@pytest.mark.parametrize("name", all_functions())
def test_functions_meet_rules_only(name: str) -> None:
    function, args = all_functions()[name]
    assert without_rule(met(function, *args)) == set()


LAYERS: dict[str, tuple[Callable[[nnx.Rngs], Any], tuple[int, ...]]] = {
    "Linear": (lambda r: nnx.Linear(4, 8, rngs=r), (8, 4)),
    "LinearGeneral": (lambda r: nnx.LinearGeneral((4,), (2, 3), rngs=r), (8, 4)),
    "Einsum": (lambda r: nnx.Einsum("ab,bc->ac", (4, 8), (8,), rngs=r), (8, 4)),
    "Conv": (lambda r: nnx.Conv(4, 8, (3, 3), rngs=r), (2, 8, 8, 4)),
    "ConvTranspose": (lambda r: nnx.ConvTranspose(4, 8, (3, 3), rngs=r), (2, 8, 8, 4)),
    "BatchNorm": (lambda r: nnx.BatchNorm(4, rngs=r), (8, 4)),
    "LayerNorm": (lambda r: nnx.LayerNorm(4, rngs=r), (8, 4)),
    "RMSNorm": (lambda r: nnx.RMSNorm(4, rngs=r), (8, 4)),
    "GroupNorm": (lambda r: nnx.GroupNorm(4, 2, rngs=r), (8, 4)),
    "MultiHeadAttention": (
        lambda r: nnx.MultiHeadAttention(2, 4, decode=False, deterministic=False, dropout_rate=0.1, rngs=r), (2, 8, 4),
    ),
    "LSTM": (lambda r: nnx.RNN(nnx.LSTMCell(4, 8, rngs=r)), (2, 8, 4)),
    "GRU": (lambda r: nnx.RNN(nnx.GRUCell(4, 8, rngs=r)), (2, 8, 4)),
    "Dropout": (lambda r: nnx.Dropout(0.5, rngs=r), (8, 4)),
    "LoRA": (lambda r: nnx.LoRA(4, 2, 8, rngs=r), (8, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_flax_layers_meet_rules_only(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make(nnx.Rngs(0))
    definition, state = nnx.split(layer)

    def loss(state: Any, x: jax.Array) -> Any:
        model = nnx.merge(definition, state)
        y = model(x)
        return jnp.sum(y**2), nnx.state(model)

    gradient = jax.make_jaxpr(jax.grad(loss, has_aux=True, allow_int=True))(state, image(*shape))
    initial = jax.make_jaxpr(lambda k: nnx.state(make(nnx.Rngs(k))))(KEY)
    assert without_rule({op.name for j in (gradient, initial) for op in build(j).nodes}) == set()


def test_embedding_meets_rules_only() -> None:
    definition, state = nnx.split(nnx.Embed(8, 4, rngs=nnx.Rngs(0)))
    gradient = jax.grad(lambda s, i: (nnx.merge(definition, s)(i) ** 2).sum())
    assert without_rule({op.name for op in build(jax.make_jaxpr(gradient)(state, jnp.arange(4))).nodes}) == set()


@pytest.mark.parametrize(
    "name", ["adam", "adamw", "sgd", "lamb", "lars", "adafactor", "lion", "rmsprop", "adagrad", "adadelta", "radam",
             "nadam", "novograd", "yogi", "sm3", "fromage", "adabelief", "adamax", "sign_sgd"]
)  # fmt: skip
def test_optimizers_meet_rules_only(name: str) -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), getattr(optax, name)(0.1))
    parameters = {"w": image(256, 128), "b": jnp.zeros(4)}
    state = optimizer.init(parameters)

    def step(p: Any, s: Any, g: Any) -> Any:
        updates, s = optimizer.update(g, s, p)
        return optax.apply_updates(p, updates), s

    program = build(jax.make_jaxpr(step)(parameters, state, parameters))
    assert without_rule({op.name for op in program.nodes}) == set()


def test_every_public_primitive_has_a_rule_or_a_reason() -> None:
    public = {p.name for p in vars(primitives).values() if isinstance(p, jex.Primitive)}
    assert public - set(names()) - handled() == set()


def test_what_stays_whole_says_why() -> None:
    assert lookup("random_seed").reason.startswith("keys are a few words")  # pyright: ignore[reportOptionalMemberAccess]
    assert lookup("dot_general").reason == ""  # pyright: ignore[reportOptionalMemberAccess]


def attention_op(name: str, operands: list[tuple[int, ...]], outs: list[tuple[int, ...]], **params: Any) -> Op:
    values = [Value(i, s, jnp.dtype(jnp.bfloat16), 1.0) for i, s in enumerate((*operands, *outs))]
    given = {"dropout_rate": 0.0, "layout": 0} | params
    return Op(name, tuple(values[: len(operands)]), tuple(values[len(operands) :]), given)


UNUSED = [(0,)] * 6
Q, K, BIAS, STATISTIC = (8, 16, 12, 4), (8, 32, 6, 4), (1, 12, 16, 32), (8, 12, 16)


def attention_ways(op: Op) -> set[str]:
    rule = lookup(op.name)
    assert rule is not None
    return {describe(way) for way in strategies(rule.factors(op), (2,), ())}


def test_fused_attention_splits_batch_and_groups_of_heads() -> None:
    forward = attention_op("dot_product_attention_fwd_wrapper", [Q, K, K, BIAS, *UNUSED], [Q, STATISTIC])
    rest = ", ".join(["(B)"] * 6)
    assert attention_ways(forward) == {
        f"(B), (B), (B), (B), {rest} -> (B), (B)",
        f"(S(0)), (S(0)), (S(0)), (B), {rest} -> (S(0)), (S(0))",
        f"(S(2)), (S(2)), (S(2)), (S(1)), {rest} -> (S(2)), (S(1))",
    }
    backward = attention_op(
        "dot_product_attention_bwd_wrapper", [Q, K, K, BIAS, *UNUSED, STATISTIC, Q, Q], [Q, K, K, BIAS]
    )
    assert attention_ways(backward) == {  # the bias's gradient is a sum over the batch, so that stays whole
        f"(B), (B), (B), (B), {rest}, (B), (B), (B) -> (B), (B), (B), (B)",
        f"(S(2)), (S(2)), (S(2)), (S(1)), {rest}, (S(1)), (S(2)), (S(2)) -> (S(2)), (S(2)), (S(2)), (S(1))",
    }


def test_fused_attention_with_dropout_stays_whole() -> None:
    op = attention_op("dot_product_attention_fwd_wrapper", [Q, K, K, *[(0,)] * 7], [Q, STATISTIC], dropout_rate=0.1)
    assert len(attention_ways(op)) == 1
