"""Ops on elements."""

import math
from collections.abc import Callable

import jax
import numpy as np

from .scope import DIMS, MAX_ELEMENTS, Scope, Shape, Var

_UNARY: tuple[tuple[str, Callable[[float], float], bool], ...] = (
    ("jnp.tanh({0})", lambda b: min(b, 1.0), False),
    ("jnp.sin({0})", lambda b: 1.0, False),
    ("jnp.cos({0})", lambda b: 1.0, False),
    ("jax.nn.sigmoid({0})", lambda b: 1.0, False),
    ("jax.nn.relu({0})", lambda b: b, True),
    ("jax.nn.gelu({0})", lambda b: b, False),
    ("jax.nn.silu({0})", lambda b: b, False),
    ("jax.nn.softplus({0})", lambda b: b + 0.7, False),
    ("jnp.exp(-jnp.abs({0}))", lambda b: 1.0, False),
    ("jnp.expm1(jnp.tanh({0}))", lambda b: 1.8, False),
    ("jnp.log1p({0} * {0})", lambda b: math.log1p(b * b), False),
    ("jnp.sqrt(1 + {0} * {0})", lambda b: math.sqrt(1 + b * b), False),
    ("lax.rsqrt(1.5 + {0} * {0})", lambda b: 1.0, False),
    ("{0} ** 2", lambda b: b * b, False),
    ("{0} ** 3", lambda b: b**3, False),
    ("-{0}", lambda b: b, True),
    ("{0} * 0.5", lambda b: b / 2, True),
    ("{0} + 1", lambda b: b + 1, False),
    ("1 - {0}", lambda b: b + 1, False),
    ("jnp.abs({0})", lambda b: b, True),
    ("lax.erf({0})", lambda b: 1.0, False),
    ("lax.stop_gradient({0})", lambda b: b, True),
    ("jnp.clip({0}, -0.75, 1.25)", lambda b: 1.25, True),
    ("jnp.minimum({0}, 0.625)", lambda b: max(b, 0.625), True),
    ("jnp.nan_to_num({0})", lambda b: b, True),
    ("jnp.square({0}) / 2", lambda b: b * b / 2, False),
    ("jnp.sinc({0})", lambda b: 1.0, False),
    ("jnp.arctan({0})", lambda b: 1.6, False),
)

_BINARY: tuple[tuple[str, Callable[[float, float], float], bool], ...] = (
    ("{0} + {1}", lambda a, b: a + b, False),
    ("{0} - {1}", lambda a, b: a + b, False),
    ("{0} * {1}", lambda a, b: a * b, False),
    ("{0} + 2 * {1}", lambda a, b: a + 2 * b, False),
    ("jnp.maximum({0}, {1})", max, True),
    ("jnp.minimum({0}, {1})", max, True),
    ("{0} / (1.5 + {1} * {1})", lambda a, b: a, False),
    ("jnp.arctan2({0}, 1.5 + {1} * {1})", lambda a, b: 1.6, False),
    ("jnp.logaddexp({0}, {1})", lambda a, b: max(a, b) + 0.7, False),
    ("jnp.hypot({0}, 1 + jnp.abs({1}))", lambda a, b: a + b + 1, False),
)


def unary(s: Scope) -> None:
    v = s.pick()
    if v is not None:
        text, bound, exact = s.rng.choice(_UNARY)
        if v.exact or not s.has_kink(text):
            s.let(text.format(v.name), v.shape, "f", bound(v.bound), exact and v.exact)


def _partner(s: Scope, v: Var, kind: str) -> tuple[Var, Shape]:
    """A second operand that broadcasts with the first."""
    for _ in range(8):
        w = s.pick(kind)
        if w is None:
            break
        try:
            shape = np.broadcast_shapes(v.shape, w.shape)
        except ValueError:
            continue
        if math.prod(shape) <= MAX_ELEMENTS and len(shape) <= 4:
            return w, shape
    shape = tuple(n if s.rng.random() < 0.7 else 1 for n in v.shape)[s.rng.randint(0, v.rank // 2) :]
    w = s.need(shape, kind[0])
    return w, np.broadcast_shapes(v.shape, w.shape)


def binary(s: Scope) -> None:
    v = s.pick()
    if v is not None:
        w, shape = _partner(s, v, "f")
        text, bound, exact = s.rng.choice(_BINARY)
        if (v.exact and w.exact) or not s.has_kink(text):
            s.let(text.format(v.name, w.name), shape, "f", bound(v.bound, w.bound), exact and v.exact and w.exact)


def integers(s: Scope) -> None:
    v = s.pick("i") or s.need(s.shape(), "i")
    w, shape = _partner(s, v, "i")
    larger = max(v.bound, w.bound)
    text, bound = s.rng.choice((
        ("{0} + {1}", v.bound + w.bound), ("{0} * {1}", v.bound * w.bound),
        ("jnp.maximum({0}, {1}) - jnp.minimum({0}, {1})", v.bound + w.bound),
        ("{0} // (1 + {1})", v.bound), ("{0} % (1 + {1})", v.bound), ("({0} ^ {1}) & 31", 31), ("{0} | {1}", 1024),
        ("jnp.maximum({0}, {1})", larger), ("jnp.where({0} > {1}, {0}, {1} + 1)", larger + 1),
        ("({0} << 1) + ({1} >> 1)", 3 * larger),
    ))  # fmt: skip
    s.let(text.format(v.name, w.name), shape, "i", bound, True)


def compare(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.exact)
    if v is None:
        return
    if s.rng.random() < 0.4:
        s.let(f"{v.name} > 0.25", v.shape, "b", 1, True)
        return
    w = s.pick(v.kind, lambda w: w.exact and broadcasts(v, w))
    if w is not None:
        text = s.rng.choice(("{0} > {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}"))
        s.let(text.format(v.name, w.name), np.broadcast_shapes(v.shape, w.shape), "b", 1, True)


def broadcasts(v: Var, w: Var) -> bool:
    try:
        shape = np.broadcast_shapes(v.shape, w.shape)
    except ValueError:
        return False
    return math.prod(shape) <= MAX_ELEMENTS and len(shape) <= 4


def where(s: Scope) -> None:
    v = s.pick()
    if v is not None:
        w, shape = _partner(s, v, "f")
        m = s.pick("b", lambda m: broadcasts(m, Var("", shape)))
        if m is None:
            m = s.need(shape, "b")
        s.let(
            f"jnp.where({m.name}, {v.name}, {w.name})", np.broadcast_shapes(m.shape, shape), "f", max(v.bound, w.bound),
            v.exact and w.exact,
        )  # fmt: skip


def booleans(s: Scope) -> None:
    v = s.pick("b")
    if v is None:
        return
    if v.rank and s.rng.random() < 0.5:
        axes = s.subset(v.rank)
        text = s.rng.choice(("any", "all"))
        s.let(f"{v.name}.{text}({axes})", [n for d, n in enumerate(v.shape) if d not in axes], "b", 1, True)
    else:
        w = s.pick("b", lambda w: broadcasts(v, w)) or v
        text = s.rng.choice(("{0} & {1}", "{0} | ~{1}", "{0} ^ {1}"))
        s.let(text.format(v.name, w.name), np.broadcast_shapes(v.shape, w.shape), "b", 1, True)


def cast(s: Scope) -> None:
    v = s.pick("ib") if s.rng.random() < 0.6 else s.pick("f", lambda v: v.exact)
    if v is None:
        return
    if v.kind == "f":
        s.let(f"jnp.floor({v.name} * 4).astype(jnp.int32) & 15", v.shape, "i", 15, True)
    elif s.rng.random() < 0.7:
        s.let(f"{v.name} * jnp.float32(0.125)", v.shape, "f", v.bound / 8, True)
    else:
        to = s.rng.choice(("int8", "uint8", "int16")) if v.bound < 100 else "int16"
        s.let(f"jnp.asarray({v.name}).astype(jnp.{to}).astype(jnp.int32)", v.shape, "i", v.bound, True)


def one_hot(s: Scope) -> None:
    i = s.pick("i", lambda v: v.rank <= 3)
    if i is not None:
        n = s.rng.choice(DIMS)
        if n * math.prod(i.shape) <= MAX_ELEMENTS:
            s.let(f"jax.nn.one_hot({i.name}, {n})", (*i.shape, n), "f", 1, True)


def randoms(s: Scope) -> None:
    shape = s.shape()
    if s.g.key is None:
        seed = s.rng.randrange(1000)
        s.g.key = f"a{len(s.g.args)}"
        s.g.args.append(jax.random.key(seed) if s.rng.random() < 0.7 else jax.random.PRNGKey(seed))
        s.g.inputs.append(Var(s.g.key, (), "k"))
    key = f"jax.random.fold_in({s.g.key}, {s.rng.randrange(100)})"
    text, kind, bound, exact = s.rng.choice((
        (f"jax.random.uniform({key}, {shape})", "f", 1.0, True),
        (f"jax.random.uniform({key}, {shape}, jnp.{s.g.floats})", "f", 1.0, True),
        (f"jax.random.normal({key}, {shape})", "f", 4.0, False),
        (f"jax.random.bernoulli({key}, 0.5, {shape})", "b", 1.0, True),
        (f"jax.random.randint({key}, {shape}, 0, 9)", "i", 8, True),
    ))  # fmt: skip
    s.let(text, shape, kind, bound, exact)
