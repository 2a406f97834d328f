"""What the rules are tried on: small functions with operands whose dims divide by 2 and 4.

Used by the tests and by ``docs/rules_table.py``.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.extend.core.primitives as primitives
import jax.numpy as jnp
import numpy as np
from jax import lax

from sbp_jax.trace import Lit, Op, build

R = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return R.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    """Symmetric, positive definite: the last dim twice."""
    x = f32(*shape, shape[-1])
    return x @ np.swapaxes(x, -1, -2) + 4 * np.eye(shape[-1], dtype=np.float32)


def ids(high: int, *shape: int) -> np.ndarray:
    return R.integers(0, high, size=shape).astype(np.int32)


def conv(x: Any, w: Any, **kw: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **kw)


def pool(x: Any, start: Any, reduce: Any, padding: str) -> Any:
    return lax.reduce_window(x, start, reduce, (1, 2, 2, 1), (1, 2, 2, 1), padding)


def select_and_scatter(x: Any, source: Any) -> Any:
    """Max pooling's gradient, but the gradients that meet are multiplied."""
    zero = np.float32(0)
    select, scatter = jax.make_jaxpr(lax.ge)(zero, zero), jax.make_jaxpr(lambda a, b: a * b + 1)(zero, zero)
    return primitives.select_and_scatter_p.bind(
        x, source, zero, select_jaxpr=select.jaxpr, select_consts=(), scatter_jaxpr=scatter.jaxpr, scatter_consts=(),
        window_dimensions=(1, 2, 2, 1), window_strides=(1, 2, 2, 1), padding=((0, 0),) * 4,
    )  # fmt: skip


def beyond(*shape: int) -> np.ndarray:
    """Indices of which some are out of bounds."""
    return R.integers(-3, 12, size=shape).astype(np.int32)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "add": (jnp.add, (f32(8, 4), f32(8, 4))),
    "add size 1": (lambda x, y: lax.add_p.bind(x, jnp.broadcast_to(y, (8, 4))), (f32(8, 4), f32(1, 4))),
    "mul": (jnp.multiply, (f32(8, 4), f32(8, 4))),
    "div": (jnp.divide, (f32(8, 4), f32(8, 4))),
    "neg": (jnp.negative, (f32(8, 4),)),
    "max": (jnp.maximum, (f32(8, 4), f32(8, 4))),
    "exp": (jnp.exp, (f32(8, 4),)),
    "tanh": (jnp.tanh, (f32(8, 4),)),
    "select": (lambda c, x, y: lax.select(c > 0, x, y), (f32(8, 4), f32(8, 4), f32(8, 4))),
    "convert": (lambda x: x.astype(jnp.int32).astype(jnp.float32), (f32(8, 4),)),
    "dot": (lambda x, y: x @ y, (f32(8, 4), f32(4, 16))),
    "dot batch": (lambda x, y: jnp.einsum("bhik,bhjk->bhij", x, y), (f32(4, 4, 8, 4), f32(4, 4, 8, 4))),
    "dot two": (lambda x, y: jnp.einsum("abij,aijc->abc", x, y), (f32(4, 4, 4, 8), f32(4, 4, 8, 4))),
    "conv": (conv, (f32(4, 5, 5, 8), f32(3, 3, 8, 4))),
    "conv groups": (lambda x, w: conv(x, w, feature_group_count=4), (f32(4, 5, 5, 8), f32(3, 3, 2, 8))),
    "conv depthwise": (lambda x, w: conv(x, w, feature_group_count=8), (f32(4, 5, 5, 8), f32(3, 3, 1, 8))),
    "conv filter gradient": (
        lambda x, g: jax.vjp(lambda w: conv(x, w), jnp.zeros((3, 3, 8, 4)))[1](g)[0],
        (f32(4, 5, 5, 8), f32(4, 5, 5, 4)),
    ),
    "conv grouped filter gradient": (
        lambda x, g: jax.vjp(lambda w: conv(x, w, feature_group_count=4), jnp.zeros((3, 3, 2, 8)))[1](g)[0],
        (f32(4, 5, 5, 8), f32(4, 5, 5, 8)),
    ),
    "sum": (lambda x: x.sum(1), (f32(8, 4, 8),)),
    "max over": (lambda x: x.max(0), (f32(8, 4),)),
    "min over": (lambda x: x.min((0, 1)), (f32(8, 4),)),
    "prod": (lambda x: x.prod(0), (f32(8, 4),)),
    "argmax": (lambda x: jnp.argmax(x, 0), (f32(8, 4),)),
    "cumsum": (lambda x: jnp.cumsum(x, 1), (f32(8, 4),)),
    "cummax": (lambda x: lax.cummax(x, 1), (f32(8, 4),)),
    "sort": (lambda x: jnp.sort(x, 0), (f32(8, 4),)),
    "top_k": (lambda x: lax.top_k(x, 2), (f32(8, 4),)),
    "reshape merge": (lambda x: x.reshape(32, 8), (f32(8, 4, 8),)),
    "reshape split": (lambda x: x.reshape(2, 4, 4), (f32(8, 4),)),
    "reshape reordered": (lambda x: lax.reshape(x, (8, 4, 8), (1, 0)), (f32(8, 32),)),
    "reshape odd": (lambda x: x.reshape(4, 9), (f32(6, 6),)),
    "transpose": (lambda x: x.transpose(2, 0, 1), (f32(8, 4, 8),)),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None], (8, 4, 4)), (f32(8, 4),)),
    "slice": (lambda x: x[1:7, :, ::2], (f32(8, 4, 8),)),
    "pad": (lambda x: jnp.pad(x, ((1, 1), (0, 0))), (f32(8, 4),)),
    "pad with one": (lambda x: jnp.pad(x, ((1, 1), (0, 0)), constant_values=1.0), (f32(8, 4),)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 1), (f32(8, 4), f32(8, 8))),
    "split": (lambda x: tuple(jnp.split(x, 2, 1)), (f32(8, 4),)),
    "rev": (lambda x: x[::-1], (f32(8, 4),)),
    "stack": (lambda x, y: jnp.stack([x, y], 1), (f32(8, 4), f32(8, 4))),
    "unstack": (lambda x: tuple(jnp.unstack(x, axis=1)), (f32(8, 2, 4),)),
    "tile": (lambda x: lax.tile(x, (4, 2)), (f32(2, 4),)),
    "iota": (lambda: lax.broadcasted_iota(jnp.int32, (8, 4), 0), ()),
    "gather rows": (lambda t, i: t[i], (f32(8, 4), ids(8, 4, 4))),
    "gather fill": (lambda t, i: t.at[i].get(mode="fill"), (f32(8, 4), beyond(8, 4))),
    "gather clip": (lambda t, i: t.at[i].get(mode="clip"), (f32(8, 4), beyond(8))),
    "gather integers": (lambda t, i: t.at[i].get(mode="fill"), (ids(50, 8, 4), beyond(8))),
    "take along": (lambda x, i: jnp.take_along_axis(x, i[:, None], 1), (f32(8, 4), ids(4, 8))),
    "scatter add rows": (lambda i, u: jnp.zeros((8, 4)).at[i].add(u), (beyond(8), f32(8, 4))),
    "scatter add clip": (lambda i, u: jnp.zeros((8, 4)).at[i].add(u, mode="clip"), (beyond(8), f32(8, 4))),
    "scatter add to": (lambda t, i, u: t.at[i].add(u), (f32(8, 4), ids(8, 4), f32(4, 4))),
    "scatter set": (lambda t, i, u: t.at[i].set(u), (f32(8, 4), np.array([1, 5, 3, 7]), f32(4, 4))),
    "scatter apply": (lambda t: t.at[np.array([1, 5])].apply(jnp.cos), (f32(8, 4),)),
    "scatter max": (lambda t, i, u: t.at[i].max(u), (f32(8, 4), ids(8, 4), f32(4, 4))),
    "take along gradient": (
        lambda x, i, g: jax.vjp(lambda x: jnp.take_along_axis(x, i[:, None], 1), x)[1](g)[0],
        (f32(8, 4), ids(4, 8), f32(8, 1)),
    ),
    "dynamic slice": (lambda x, i: lax.dynamic_slice(x, (i[0], i[1]), (2, 4)), (f32(8, 4), np.array([3, 0]))),
    "dynamic update": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i[0], i[1])), (f32(8, 4), f32(2, 4), np.array([3, 0])),
    ),
    "max pool": (lambda x: pool(x, -np.inf, lax.max, "VALID"), (f32(4, 4, 4, 8),)),
    "avg pool": (lambda x: pool(x, 0.0, lax.add, "SAME"), (f32(4, 4, 4, 8),)),
    "max pool gradient": (jax.grad(lambda x: (pool(x, -np.inf, lax.max, "VALID") ** 2).sum()), (f32(4, 4, 4, 8),)),
    "threefry": (lambda k: jax.random.bits(jax.random.wrap_key_data(k), (8, 4)), (np.array([1, 2], np.uint32),)),
}  # fmt: skip

LINALG: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "cholesky": (lambda x: lax.linalg.cholesky(x, symmetrize_input=False), (positive(8, 4),)),
    "triangular solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), (positive(4, 4), f32(4, 4, 8)),
    ),
    "triangular solve right": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=False, lower=False), (positive(4, 4), f32(4, 8, 4)),
    ),
    "lu": (lambda x: lax.linalg.lu(x), (positive(8, 4),)),
    "lu pivots": (lambda x: lax.linalg.lu_pivots_to_permutation(x, 4), (np.tile(ids(4, 1, 4), (8, 1)),)),
    "qr": (lambda x: jnp.linalg.qr(x), (f32(8, 4, 3),)),
    "qr pivoted": (lambda x: lax.linalg.qr(x, pivoting=True), (f32(8, 4, 3),)),
    "eig": (lambda x: lax.linalg.eig(x), (f32(4, 4, 4),)),
    "eigh": (lambda x: lax.linalg.eigh(x, symmetrize_input=False), (positive(8, 4),)),
    "svd": (lambda x: lax.linalg.svd(x), (f32(8, 4, 3),)),
    "schur": (lambda x: lax.linalg.schur(x), (f32(4, 4, 4),)),
    "hessenberg": (lambda x: lax.linalg.hessenberg(x), (f32(4, 4, 4),)),
    "tridiagonal": (lambda x: lax.linalg.tridiagonal(x), (positive(4, 4),)),
    "tridiagonal solve": (
        lambda a, d, c, b: lax.linalg.tridiagonal_solve(a, d, c, b),
        (f32(4, 8) / 9, f32(4, 8) + 9, f32(4, 8) / 9, f32(4, 8, 4)),
    ),
    "symmetric product": (
        lambda a, c: lax.linalg.symmetric_product(a, c, alpha=2.0, beta=3.0), (f32(4, 4, 6), positive(4, 4)),
    ),
    "householder": (lax.linalg.householder_product, (f32(4, 4, 3), f32(4, 3))),
    "fft": (lambda x: jnp.fft.fft(x, axis=-1), (f32(4, 8, 8).astype(np.complex64),)),
    "rfft2": (lambda x: jnp.fft.rfft2(x), (f32(8, 4, 6),)),
    "irfft": (lambda x: jnp.fft.irfft(x), (f32(8, 5).astype(np.complex64),)),
}  # fmt: skip

OTHER: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "complex": (lambda x, y: lax.complex(x, y), (f32(8, 4), f32(8, 4))),
    "real": (lambda x: lax.real(x), (f32(8, 4) + 1j * f32(8, 4),)),
    "imag": (lambda x: lax.imag(x), (f32(8, 4) + 1j * f32(8, 4),)),
    "conj": (lambda x: lax.conj(x), (f32(8, 4) + 1j * f32(8, 4),)),
    "neg unsigned": (jnp.negative, (np.arange(32, dtype=np.uint32).reshape(8, 4),)),
    "neg integers": (jnp.negative, (ids(9, 8, 4),)),
    "logistic": (jax.nn.sigmoid, (f32(8, 4),)),
    "expm1": (jnp.expm1, (f32(8, 4),)),
    "sinh": (jnp.sinh, (f32(8, 4),)),
    "asinh": (jnp.arcsinh, (f32(8, 4),)),
    "atan": (jnp.arctan, (f32(8, 4),)),
    "erf": (jax.scipy.special.erf, (f32(8, 4),)),
    "cbrt": (jnp.cbrt, (f32(8, 4),)),
    "floor": (jnp.floor, (f32(8, 4),)),
    "sign": (jnp.sign, (f32(8, 4),)),
    "log": (jnp.log, (np.abs(f32(8, 4)),)),
    "sqrt": (jnp.sqrt, (np.abs(f32(8, 4)),)),
    "clamp": (lambda x: lax.clamp(-0.5, x, 0.5), (f32(8, 4),)),
    "div integers": (lambda x, y: lax.div(x, y), (ids(50, 8, 4), 1 + ids(5, 8, 4))),
    "convert to wider": (lambda x: x.astype(jnp.float32), (f32(8, 4).astype(jnp.bfloat16),)),
    "convert to narrower": (lambda x: x.astype(jnp.bfloat16), (f32(8, 4),)),
    "convert integers": (lambda x: x.astype(jnp.int32), (ids(99, 8, 4).astype(np.uint8),)),
    "convert to fewer bits": (lambda x: x.astype(jnp.int8), (ids(999, 8, 4),)),
    "convert to float": (lambda x: x.astype(jnp.float32), (ids(999, 8, 4),)),
    "convert bools": (lambda x: x.astype(jnp.int32), (ids(2, 8, 4).astype(bool),)),
    "bitcast": (lambda x: lax.bitcast_convert_type(x, jnp.uint8), (f32(8, 4),)),
    "bitcast back": (lambda x: lax.bitcast_convert_type(x, jnp.float32), (ids(255, 8, 4, 4).astype(np.uint8),)),
    "dot narrow integers": (
        lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32),
        (ids(99, 8, 4).astype(np.int8), ids(99, 4, 8).astype(np.int8)),
    ),
    "ragged dot": (lax.ragged_dot, (f32(8, 4), f32(2, 4, 8), np.array([3, 5], np.int32))),
    "ragged dot gradient": (
        lambda x, w, g, s: jax.vjp(lambda w: lax.ragged_dot(x, w, s), w)[1](g)[0],
        (f32(8, 4), f32(2, 4, 8), f32(8, 8), np.array([3, 5], np.int32)),
    ),
    "reduce and": (lambda x: jnp.all(x, 1), (ids(2, 8, 4).astype(bool),)),
    "reduce or": (lambda x: jnp.any(x, 0), (ids(2, 8, 4).astype(bool),)),
    "reduce xor": (lambda x: lax.reduce_xor(x, (0,)), (ids(99, 8, 4),)),
    "reduce": (lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * b + 1, (1,)), (f32(8, 4),)),
    "argmin": (lambda x: jnp.argmin(x, 1), (f32(8, 4),)),
    "cumprod": (lambda x: jnp.cumprod(x, 1), (f32(8, 4),)),
    "cummin": (lambda x: lax.cummin(x, 0), (f32(8, 4),)),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), (f32(8, 4),)),
    "approx top k": (lambda x: lax.approx_max_k(x, 2), (f32(8, 4),)),
    "min pool": (lambda x: pool(x, np.inf, lax.min, "VALID"), (f32(4, 4, 4, 8),)),
    "pool of any kind": (lambda x: pool(x, np.float32(1), lambda a, b: a * b + 1, "VALID"), (f32(4, 4, 4, 8),)),
    "max pool second gradient": (
        lambda x, v: jax.jvp(jax.grad(lambda x: (pool(x, -np.inf, lax.max, "VALID") ** 3).sum()), (x,), (v,))[1],
        (f32(4, 4, 4, 8), f32(4, 4, 4, 8)),
    ),
    "select and scatter": (
        lambda x, s: jax.vjp(lambda x: pool(x, -np.inf, lax.max, "VALID"), x)[1](s)[0],
        (f32(4, 4, 4, 8), f32(4, 2, 2, 8)),
    ),
    "select and scatter of any kind": (select_and_scatter, (f32(4, 4, 4, 8), f32(4, 2, 2, 8))),
    "add any": (lambda x, y: primitives.add_jaxvals_p.bind(x, y), (f32(8, 4), f32(8, 4))),
    "pad with a value": (lambda x, v: lax.pad(x, v, ((1, 0, 0), (0, 0, 0))), (f32(8, 4), f32())),
    "crop": (lambda x: lax.pad(x, np.float32(2), ((-1, 0, 0), (0, 0, 0))), (f32(8, 4),)),
    "iota bfloat16": (lambda: lax.broadcasted_iota(jnp.bfloat16, (1032, 2), 0), ()),
    "gather two": (
        lambda t, i, j: t.at[i, j].get(mode="fill"), (f32(8, 4, 8), beyond(8), beyond(8)),
    ),
    "gather two clip": (lambda t, i, j: t.at[i, j].get(mode="clip"), (f32(8, 4, 8), beyond(8), beyond(8))),
    "gather with five": (lambda t, i: t.at[i].get(mode="fill", fill_value=5.0), (f32(8, 4), beyond(8))),
    "gather with zero": (lambda t, i: t.at[i].get(mode="fill", fill_value=0.0), (f32(8, 4), beyond(8))),
    "gather unsigned": (
        lambda t, i: t.at[i].get(mode="clip"), (f32(8, 4), np.array([1, 2**32 - 5, 9, 0], np.uint32)),
    ),
    "scatter add two": (lambda t, i, j, u: t.at[i, j].add(u), (f32(8, 4, 8), beyond(8), beyond(8), f32(8, 8))),
    "scatter add two clip": (
        lambda t, i, j, u: t.at[i, j].add(u, mode="clip"), (f32(8, 4, 8), beyond(8), beyond(8), f32(8, 8)),
    ),
    "scatter sub": (lambda t, i, u: t.at[i].subtract(u), (f32(8, 4), ids(8, 4), f32(4, 4))),
    "scatter min": (lambda t, i, u: t.at[i].min(u), (f32(8, 4), ids(8, 4), f32(4, 4))),
    "scatter mul": (lambda t, i, u: t.at[i].multiply(u, unique_indices=True), (f32(8, 4), np.arange(4), f32(4, 4))),
    "dynamic slice of P": (lambda x, i: lax.dynamic_slice_in_dim(x, i[0], 4, 1), (f32(8, 8), beyond(1))),
    "sort pairs": (lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), (f32(8, 4), f32(8, 4))),
}  # fmt: skip


def _pointwise() -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """The element-wise ops that have no case above, each on numbers within its domain."""
    small, whole = np.abs(f32(8, 4)) / 5 + 0.1, 1 + ids(9, 8, 4)
    floats = ("acos asin atanh bessel_i0e bessel_i1e ceil cos cosh digamma erf_inv erfc exp2 is_finite lgamma log1p "
              "round rsqrt sin square tan")  # fmt: skip
    found: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]
    found = {n: (getattr(lax, n), (small,)) for n in floats.split()}
    found |= {
        n: (getattr(lax, n), (small, small[::-1]))
        for n in "atan2 eq ge gt igamma igamma_grad_a igammac le lt ne nextafter pow rem".split()
    }
    found |= {n: (getattr(lax, n), (small + 2, small)) for n in ("zeta", "sub", "min")}
    found |= {n: (getattr(lax, n), (whole, whole[::-1])) for n in
              ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right_arithmetic",
               "shift_right_logical", "mulhi") if hasattr(lax, n)}  # fmt: skip
    found |= {n: (getattr(lax, n), (whole,)) for n in ("bitwise_not", "clz", "population_count")}
    found["abs"] = (lax.abs, (f32(8, 4),))
    found["acosh"] = (lax.acosh, (small + 1,))
    found["integer_pow"] = (lambda x: lax.integer_pow(x, 3), (small,))
    found["polygamma"] = (lax.polygamma, (np.ones_like(small), small))
    found["betainc"] = (lax.betainc, (small, small[::-1], small))
    found["reduce_precision"] = (lambda x: lax.reduce_precision(x, 5, 4), (small,))
    return {f"pointwise {n}": case for n, case in found.items()}


def _newer() -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """Ops that not every supported version of JAX has: checked where it does, not shown in the table."""
    small, newest = np.abs(f32(8, 4)) / 5 + 0.1, cast(Any, lax)
    found: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
        "log2": (lambda x: newest.log2(x), (small,)),
        "one_minus_square": (lambda x: newest.one_minus_square(x), (small,)),
        "polynomial": (lambda x: newest.polynomial(x, (1.0, -2.0, 0.5)), (small,)),
        "polynomial of arrays": (lambda x, *c: newest.polynomial(x, c), (small, f32(8, 4), f32(1, 4), f32(8, 1))),
        "polynomial of many": (lambda x, *c: newest.polynomial(x, c), (small, *(f32(8, 4) for _ in range(10)))),
    }
    return {name: case for name, case in found.items() if hasattr(lax, name.split()[0])}


CASES |= LINALG | OTHER | _pointwise()
NEWER = _newer()


def whole_values(function: Callable[..., Any], args: tuple[np.ndarray, ...]) -> list[tuple[Op, list[np.ndarray]]]:
    """Every op of a function with the values of its operands, computed whole."""
    program = build(jax.make_jaxpr(function)(*args))
    values: dict[int, Any] = {}
    for op, x in zip(program.input_ops, [*args, *program.constants], strict=True):
        values[op.outs[0].id] = jnp.asarray(x)
    steps = []
    for op in program.graph.ops:
        assert isinstance(op, Op)
        operands = [jnp.asarray(x.literal, x.dtype) if isinstance(x, Lit) else values[x.id] for x in op.ins]
        results = (
            jnp.asarray(op.params["value"]) if op.name == "constant" else op.primitive.bind(*operands, **op.params)
        )
        results = results if op.primitive is not None and op.primitive.multiple_results else [results]
        values.update((v.id, r) for v, r in zip(op.outs, results, strict=True))
        steps.append((op, operands))
    return steps


def is_key(x: Any) -> bool:
    """Keys stay whole; numpy cannot hold them."""
    return bool(jnp.issubdtype(x.dtype, jax.dtypes.extended))
