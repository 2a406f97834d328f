"""Random programs of one op for each family of rules: shapes, types and parameters drawn by Hypothesis."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

Case = tuple[Callable[..., Any], list[np.ndarray]]

FLOATS = ("float32", "bfloat16")
NUMBERS = (*FLOATS, "int32", "uint32", "int8", "complex64")
ANYTHING = (*NUMBERS, "bool")
LENGTHS = st.sampled_from((1, 2, 3, 4, 4, 6, 8))


def array(draw: Any, shape: tuple[int, ...], dtype: str, extremes: bool = False) -> np.ndarray:
    """Numbers of a type; with ``extremes`` some are infinite, nan, or a type's first and last."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype == "bool":
        return random.integers(0, 2, size=shape).astype(bool)
    if dtype in ("int32", "uint32", "int8"):
        info = np.iinfo(dtype)
        x = random.integers(0 if dtype == "uint32" else -9, 10, size=shape).astype(dtype)
        return np.where(random.random(shape) < 0.2, random.choice([info.min, info.max], size=shape), x).astype(dtype)
    x = random.normal(size=shape) * 3
    if dtype == "complex64":
        return (x + 1j * random.normal(size=shape)).astype(dtype)
    if extremes:
        x = np.where(random.random(shape) < 0.2, random.choice([np.inf, -np.inf, np.nan, 0.0], size=shape), x)
    return np.asarray(x).astype(jnp.dtype(dtype))


def shape(draw: Any, low: int = 1, high: int = 3) -> tuple[int, ...]:
    return tuple(draw(st.lists(LENGTHS, min_size=low, max_size=high)))


@st.composite
def unary(draw: Any) -> Case:
    names = ("exp", "exp2", "expm1", "tanh", "logistic", "sinh", "asinh", "atan", "erf", "cbrt", "floor", "ceil",
             "round", "sign", "neg", "abs", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "square", "is_finite",
             "erf_inv", "erfc", "lgamma", "digamma", "acos", "asin", "atanh", "log2", "one_minus_square")  # fmt: skip
    f = getattr(lax, draw(st.sampled_from([n for n in names if hasattr(lax, n)])))
    return f, [array(draw, shape(draw), draw(st.sampled_from(FLOATS)), extremes=True)]


@st.composite
def integer_unary(draw: Any) -> Case:
    names = ("neg", "abs", "sign", "population_count", "clz", "bitwise_not")
    name = draw(st.sampled_from(names))
    types = ("int32", "int8") if name == "abs" else ("int32", "uint32", "int8")
    return getattr(lax, name), [array(draw, shape(draw), draw(st.sampled_from(types)))]


@st.composite
def complex_unary(draw: Any) -> Case:
    f = getattr(lax, draw(st.sampled_from(("neg", "real", "imag", "conj", "exp", "tanh", "sign", "abs", "square"))))
    return f, [array(draw, shape(draw), "complex64")]


@st.composite
def binary(draw: Any) -> Case:
    """With numpy's broadcasting, and with scalars written in the program."""
    names = ("add", "sub", "mul", "max", "min", "div", "rem", "eq", "lt", "pow", "atan2", "nextafter")
    name = draw(st.sampled_from(names))
    dtype = draw(st.sampled_from(NUMBERS if name in ("add", "sub", "mul", "max", "min", "eq") else ("float32",)))
    x = array(draw, shape(draw), dtype)
    f = getattr(lax, name)
    kind = draw(st.sampled_from(("same", "ones", "scalar")))
    if kind == "scalar":
        number = 3 if dtype in ("int32", "uint32", "int8") else 2.5
        swap = draw(st.booleans())
        return (lambda x: f(np.asarray(number).astype(x.dtype), x) if swap else f(x, jnp.asarray(number, x.dtype))), [x]
    other = tuple(1 if kind == "ones" and draw(st.booleans()) else n for n in x.shape)
    return (lambda x, y: f(x, jnp.broadcast_to(y, x.shape))), [x, array(draw, other, dtype)]


@st.composite
def select(draw: Any) -> Case:
    dims, dtype = shape(draw), draw(st.sampled_from(ANYTHING))
    cases = [array(draw, dims, dtype) for _ in range(2)]
    return lax.select, [array(draw, dims, "bool"), *cases]


@st.composite
def convert(draw: Any) -> Case:
    source = draw(st.sampled_from((*ANYTHING, "float16", "uint8", "int16")))
    target = draw(st.sampled_from((*ANYTHING, "float16", "uint8", "int16", "float8_e4m3fn", "float8_e5m2")))
    if source == "complex64" and target != "complex64":
        target = "complex64"  # numpy and lax disagree on the way down only in warnings
    x = array(draw, shape(draw), source if source not in ("float16", "uint8", "int16") else "int8")
    x = x.astype(jnp.dtype(source))
    if np.issubdtype(x.dtype, np.floating) or source == "bfloat16":
        x = np.clip(x, 0, 100).astype(x.dtype)  # beyond its range a float has no integer
    return (lambda x: lax.convert_element_type(x, jnp.dtype(target))), [x]


@st.composite
def dot(draw: Any) -> Case:
    """Any batch and contracting dims, in any places."""
    batch, contract = shape(draw, 0, 2), shape(draw, 0, 2)
    dtype = draw(st.sampled_from(("float32", "float32", "bfloat16", "int32", "int8", "complex64")))
    groups = {"b": batch, "k": contract, "m": shape(draw, 0, 2), "n": shape(draw, 0, 2)}
    lengths = {f"{name}{i}": n for name, dims in groups.items() for i, n in enumerate(dims)}
    names = {name: [x for x in lengths if x[0] == name] for name in groups}
    left = draw(st.permutations(names["b"] + names["k"] + names["m"]))
    right = draw(st.permutations(names["b"] + names["k"] + names["n"]))
    numbers = (
        ([left.index(x) for x in names["k"]], [right.index(x) for x in names["k"]]),
        ([left.index(x) for x in names["b"]], [right.index(x) for x in names["b"]]),
    )
    wide = jnp.int32 if dtype == "int8" and draw(st.booleans()) else None
    operands = [array(draw, tuple(lengths[x] for x in side), dtype) for side in (left, right)]
    return (lambda x, y: lax.dot_general(x, y, numbers, preferred_element_type=wide)), operands


@st.composite
def conv(draw: Any) -> Case:
    groups, batches = draw(st.sampled_from(((1, 1), (2, 1), (4, 1), (1, 2))))
    n, c, o = (draw(st.sampled_from((1, 2, 4))) for _ in range(3))
    length, window = draw(st.integers(4, 7)), draw(st.integers(1, 3))
    layouts = ("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW"), ("CWN", "IWO", "WNC")
    lhs, rhs, out = draw(st.sampled_from(layouts))
    sizes = {"N": n * batches, "C": c * groups, "W": length}
    filters = {"O": o * groups * batches, "I": c, "W": window}
    options: dict[str, Any] = {
        "window_strides": (draw(st.integers(1, 2)),), "padding": draw(st.sampled_from(("SAME", "VALID"))),
        "rhs_dilation": (draw(st.integers(1, 2)),), "dimension_numbers": (lhs, rhs, out),
        "feature_group_count": groups, "batch_group_count": batches,
    }  # fmt: skip
    operands = [array(draw, tuple(s[k] for k in spec), "float32") for s, spec in ((sizes, lhs), (filters, rhs))]
    return (lambda x, w: lax.conv_general_dilated(x, w, **options)), operands


@st.composite
def reduction(draw: Any) -> Case:
    name = draw(st.sampled_from(("sum", "max", "min", "prod", "argmax", "argmin", "and", "or", "xor")))
    types = {"sum": NUMBERS, "prod": ("float32", "int32"), "and": ("bool", "int32"), "or": ("bool", "uint32"),
             "xor": ("bool", "int32")}  # fmt: skip
    dtype = draw(st.sampled_from(types.get(name, (*FLOATS, "int32", "uint32", "bool"))))
    if name.startswith("arg") and dtype == "bool":
        dtype = "int32"
    x = array(draw, shape(draw), dtype, extremes=name in ("max", "min"))
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1, max_size=x.ndim))
    if name.startswith("arg"):
        return (lambda x: getattr(lax, name)(x, axes[0], np.int32)), [x]
    return (lambda x: getattr(lax, f"reduce_{name}")(x, tuple(axes))), [x]


@st.composite
def cumulative(draw: Any) -> Case:
    name = draw(st.sampled_from(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")))
    dtype = "float32" if name in ("cumprod", "cumlogsumexp") else draw(st.sampled_from(("float32", "int32", "uint32")))
    x = array(draw, shape(draw), dtype)
    axis, reverse = draw(st.integers(0, x.ndim - 1)), draw(st.booleans())
    return (lambda x: getattr(lax, name)(x, axis, reverse)), [x]


@st.composite
def reshape(draw: Any) -> Case:
    dims = shape(draw, 1, 4)
    x = array(draw, dims, draw(st.sampled_from(ANYTHING)), extremes=True)
    primes = [p for n in draw(st.permutations(dims)) for p in {4: (2, 2), 6: (2, 3), 8: (2, 2, 2)}.get(n, (n,))]
    target: list[int] = []
    for p in primes:
        if target and draw(st.booleans()):
            target[-1] *= p
        else:
            target.append(p)
    order = draw(st.none() | st.permutations(range(x.ndim)))
    return (lambda x: lax.reshape(x, tuple(target), order)), [x]


@st.composite
def movement(draw: Any) -> Case:
    """transpose, rev, slice, pad, broadcast, expand and squeeze, concatenate, split, tile."""
    x = array(draw, shape(draw), draw(st.sampled_from(ANYTHING)), extremes=True)
    d = draw(st.integers(0, x.ndim - 1))
    kind = draw(st.sampled_from(("transpose", "rev", "slice", "pad", "broadcast", "expand", "concatenate", "split",
                                 "tile")))  # fmt: skip
    if kind == "transpose":
        order = draw(st.permutations(range(x.ndim)))
        return (lambda x: lax.transpose(x, order)), [x]
    if kind == "rev":
        return (lambda x: lax.rev(x, (d,))), [x]
    if kind == "slice":
        bounds = [sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) if draw(st.booleans()) else (0, n)
                  for n in x.shape]  # fmt: skip
        strides = [draw(st.integers(1, 2)) for _ in x.shape]
        return (lambda x: lax.slice(x, [a for a, _ in bounds], [b for _, b in bounds], strides)), [x]
    if kind == "pad":
        edges = [(draw(st.integers(-1, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 1))) if draw(st.booleans())
                 else (0, 0, 0) for _ in x.shape]  # fmt: skip
        value = draw(st.sampled_from((0, 1)))
        return (lambda x: lax.pad(x, jnp.asarray(value, x.dtype), edges)), [x]
    if kind == "broadcast":
        out = tuple(draw(st.integers(2, 4)) if n == 1 else n for n in x.shape)
        return (lambda x: lax.broadcast_in_dim(x, (4, *out, 2), tuple(range(1, x.ndim + 1)))), [x]
    if kind == "expand":
        return (lambda x: lax.squeeze(lax.expand_dims(x, (d,)), (d,))), [x]
    if kind == "concatenate":
        other = array(draw, (*x.shape[:d], draw(LENGTHS), *x.shape[d + 1 :]), str(x.dtype))
        return (lambda x, y: lax.concatenate((x, y), d)), [x, other]
    if kind == "split":
        cut = draw(st.integers(0, x.shape[d]))
        return (lambda x: tuple(lax.split(x, (cut, x.shape[d] - cut), d))), [x]
    return (lambda x: jnp.tile(x, tuple(1 + k % 2 for k in range(x.ndim)))), [x]


MODES = st.sampled_from(("fill", "clip", "promise_in_bounds"))


def indices(draw: Any, n: int, dims: tuple[int, ...], mode: str) -> np.ndarray:
    """Some out of bounds, but where their absence is promised."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low, high = (0, n) if mode == "promise_in_bounds" else (-n - 2, n + 3)
    dtype = draw(st.sampled_from(("int32", "int32", "int8", "uint32")))
    return random.integers(low, high, size=dims).astype(np.int32).astype(dtype)


@st.composite
def gather(draw: Any) -> Case:
    """Indexing of one or two dims, neighbours or not, in every mode; along a dim with a batch."""
    x, mode = array(draw, shape(draw, 2, 3), draw(st.sampled_from(NUMBERS))), draw(MODES)
    fill = draw(st.sampled_from((None, 0, 5))) if mode == "fill" else None
    if draw(st.integers(0, 3)) == 0:
        d = draw(st.integers(0, x.ndim - 1))
        i = indices(draw, x.shape[d], (*x.shape[:d], draw(LENGTHS), *x.shape[d + 1 :]), mode)
        return (lambda x, i: jnp.take_along_axis(x, i, d, mode=mode, fill_value=fill)), [x, i]
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1, max_size=2))
    dims = shape(draw, 0, 2)
    at = [indices(draw, x.shape[a], dims, mode) for a in axes]

    def f(x: Any, *at: Any) -> Any:
        where: list[Any] = [slice(None)] * x.ndim
        for a, i in zip(axes, at, strict=True):
            where[a] = i
        return x.at[tuple(where)].get(mode=mode, fill_value=fill)

    return f, [x, *at]


@st.composite
def scatter(draw: Any) -> Case:
    kind = draw(st.sampled_from(("set", "add", "subtract", "max", "min", "multiply")))
    x, mode = array(draw, shape(draw, 2, 3), draw(st.sampled_from(("float32", "int32", "uint32")))), draw(MODES)
    axes = draw(st.lists(st.integers(0, x.ndim - 1), unique=True, min_size=1, max_size=2))
    dims = shape(draw, 0, 2)
    at = [indices(draw, x.shape[a], dims, mode) for a in axes]

    def target(x: Any, at: Any) -> Any:
        where: list[Any] = [slice(None)] * x.ndim
        for a, i in zip(axes, at, strict=True):
            where[a] = i
        return x.at[tuple(where)]

    updates = array(draw, tuple(np.shape(target(jnp.zeros(x.shape), at).get(mode="clip"))), str(x.dtype))
    if kind == "multiply" and x.dtype != np.float32:
        kind = "add"
    return (lambda x, u, *at: getattr(target(x, at), kind)(u, mode=mode)), [x, updates, *at]


@st.composite
def dynamic(draw: Any) -> Case:
    x = array(draw, shape(draw), draw(st.sampled_from(ANYTHING)))
    sizes = tuple(draw(st.integers(1, n)) if draw(st.booleans()) else n for n in x.shape)
    starts = [np.asarray(draw(st.integers(-2, 9)), np.int32) for _ in x.shape]
    if draw(st.booleans()):
        return (lambda x, *s: lax.dynamic_slice(x, s, sizes)), [x, *starts]
    update = array(draw, sizes, str(x.dtype))
    return (lambda x, u, *s: lax.dynamic_update_slice(x, u, s)), [x, update, *starts]


@st.composite
def ordering(draw: Any) -> Case:
    x = array(draw, shape(draw), draw(st.sampled_from(("float32", "bfloat16", "int32", "uint32"))))
    d = draw(st.integers(0, x.ndim - 1))
    if draw(st.booleans()):
        k = draw(st.integers(1, x.shape[d]))
        return (lambda x: lax.top_k(x, k, axis=d)), [x]
    return (lambda x, y: lax.sort((x, y), dimension=d, num_keys=1)), [x, array(draw, x.shape, "int32")]


@st.composite
def window(draw: Any) -> Case:
    dtype = draw(st.sampled_from(("float32", "int32")))
    x = array(draw, shape(draw, 2, 3), dtype)
    lengths = tuple(draw(st.integers(1, min(n, 3))) for n in x.shape)
    strides = tuple(draw(st.integers(1, 2)) for _ in x.shape)
    start, f = draw(st.sampled_from(((0, lax.add), ("least", lax.max), ("most", lax.min))))
    info: Any = jnp.finfo(dtype) if dtype == "float32" else jnp.iinfo(dtype)
    edge = np.inf if dtype == "float32" else info.max
    value = {"least": -np.inf if dtype == "float32" else info.min, "most": edge}.get(str(start), 0)
    padding = draw(st.sampled_from(("SAME", "VALID")))
    return (lambda x: lax.reduce_window(x, np.asarray(value, dtype), f, lengths, strides, padding)), [x]


@st.composite
def iota(draw: Any) -> Case:
    dims, dtype = shape(draw), draw(st.sampled_from(("float32", "bfloat16", "int32", "uint32", "int8", "complex64")))
    d = draw(st.integers(0, len(dims) - 1))
    dims = tuple(n * draw(st.sampled_from((1, 100))) if k == d else n for k, n in enumerate(dims))
    return (lambda: lax.broadcasted_iota(jnp.dtype(dtype), dims, d)), []


@st.composite
def fft(draw: Any) -> Case:
    kind = draw(st.sampled_from(("fft", "ifft", "rfft", "irfft", "fft2")))
    x = array(draw, (*shape(draw, 1, 2), draw(st.integers(2, 6))), "float32" if kind == "rfft" else "complex64")
    return (lambda x: getattr(jnp.fft, kind)(x)), [x]


@st.composite
def linalg(draw: Any) -> Case:
    batch, n = shape(draw, 0, 2), draw(st.integers(1, 4))
    m = array(draw, (*batch, n, n), "float32")
    m = (m @ np.swapaxes(m, -1, -2) + 4 * np.eye(n)).astype(np.float32)
    kind = draw(st.sampled_from(("cholesky", "lu", "qr", "eigh", "svd", "solve", "solve right", "householder")))
    if kind.startswith("solve"):
        left = kind == "solve"
        k = draw(LENGTHS)
        rhs = array(draw, (*batch, n, k) if left else (*batch, k, n), "float32")
        options = {"left_side": left, "lower": draw(st.booleans()), "transpose_a": draw(st.booleans())}
        return (lambda a, b: lax.linalg.triangular_solve(a, b, **options)), [m, rhs]
    if kind == "householder":
        return lax.linalg.householder_product, [m, array(draw, (*batch, n), "float32")]
    return getattr(lax.linalg, kind), [m]


FAMILIES: dict[str, Any] = {
    "unary": unary(), "integer unary": integer_unary(), "complex unary": complex_unary(), "binary": binary(),
    "select": select(), "convert": convert(), "dot": dot(), "conv": conv(), "reduction": reduction(),
    "cumulative": cumulative(), "reshape": reshape(), "movement": movement(), "gather": gather(),
    "scatter": scatter(), "dynamic": dynamic(), "ordering": ordering(), "window": window(), "iota": iota(),
    "fft": fft(), "linalg": linalg(),
}  # fmt: skip
