"""Random JAX programs from a seed, as source text: planned, run, compared with plain JAX, verified.

``python tests/random_programs.py SEED`` runs one and prints it. Whatever one seed gives is fixed, so a failure can be
shrunk by deleting lines of what is printed.

Results are compared with a tolerance, so no value may depend on another by a jump: comparisons, orders, positions of
maxima and roundings are taken of *exact* values only, those that no rounding has touched (arguments, and what moves,
selects or negates their elements). Values are kept small: each knows a bound, and is scaled when that grows.
"""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import sbp_jax as sbp

DIMS = (1, 2, 2, 3, 4, 4, 6, 8, 8, 16)
MESHES = (*(((2,), (4,), (8,), (2, 2), (2, 4), (4, 2), (3,), (2, 3)) * 2), (2, 2, 2))
MAX_ELEMENTS = 2048
MAX_BOUND = 6.0

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Var:
    """A live value: what the generator knows of it. ``kind`` is f, i or b; ``exact``: no rounding has touched it."""

    name: str
    shape: Shape
    kind: str = "f"
    bound: float = 1.0
    exact: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Generated:
    """A program: its source, arguments, and how to run it."""

    seed: int
    source: str
    args: tuple[Any, ...]
    mesh: Shape
    cluster: str
    in_sbp: list[str | None]
    out_sbp: list[str | None]

    def function(self) -> Callable[..., Any]:
        scope: dict[str, Any] = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "sbp": sbp}
        exec(compile(self.source, f"random_program_{self.seed}.py", "exec"), scope)
        return scope["program"]

    def __str__(self) -> str:
        lines = [f"# program {self.seed}: mesh {self.mesh}, cluster {self.cluster}", *self.source.splitlines()]
        lines += [
            f"# a{k}: {getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x))}, pinned {s}"
            for k, (x, s) in enumerate(zip(self.args, self.in_sbp, strict=True))
        ]
        return "\n".join([*lines, f"# results pinned {self.out_sbp}"])


@dataclass
class Shared:
    """What all scopes of a program share."""

    rng: random.Random
    mesh: Shape
    differentiable: bool
    budget: int
    args: list[Any] = field(default_factory=list)
    inputs: list[Var] = field(default_factory=list)
    key: str | None = None
    count: int = 0
    in_gradient: bool = False


class Scope:
    """One function body while it is written: its lines and its pool of live values."""

    def __init__(self, shared: Shared, parent: "Scope | None" = None) -> None:
        self.g, self.rng, self.parent = shared, shared.rng, parent
        self.depth = 0 if parent is None else parent.depth + 1
        self.lines: list[str] = []
        self.pool: list[Var] = []

    # -- writing ---------------------------------------------------------------------------------------------------

    def name(self, prefix: str = "v") -> str:
        self.g.count += 1
        return f"{prefix}{self.g.count}"

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def add(self, var: Var) -> Var:
        self.pool.append(var)
        return var

    def let(self, text: str, shape: Sequence[int], kind: str = "f", bound: float = 1.0, exact: bool = False) -> Var:
        """A new value; scaled down where its bound has grown."""
        if kind == "f" and bound > MAX_BOUND:
            text = f"jnp.tanh({text})" if self.rng.random() < 0.3 else f"({text}) * {2 / bound:.3g}"
            bound, exact = 2.0, False
        if kind == "i" and bound > 1000:
            text, bound = f"({text}) % 17", 16
        var = Var(self.name(), tuple(shape), kind, bound, exact)
        self.emit(f"{var.name} = {text}")
        return self.add(var)

    def child(self, title: str, params: Sequence[Var], close: Callable[["Scope"], str]) -> str:
        """A nested function with a body of its own; ``close`` gives what it returns. Its name."""
        inner = Scope(self.g, self)
        inner.pool = [v for v in self.pool if self.rng.random() < 0.3] + list(params) * 2
        name = self.name(title)
        inner.steps(self.rng.randint(1, 5))
        result = close(inner)
        self.emit(f"def {name}({', '.join(v.name for v in params)}):")
        self.lines += [f"    {line}" for line in [*inner.lines, f"return {result}"]]
        return name

    # -- choosing --------------------------------------------------------------------------------------------------

    def pick(self, kind: str = "f", test: Callable[[Var], bool] = lambda _: True) -> Var | None:
        found = [v for v in self.pool if v.kind in kind and test(v)]
        if not found:
            return None
        return found[-1 - int(len(found) * self.rng.random() ** 1.7)]  # late ones more often: programs grow deep

    def shape(self, rank: int | None = None) -> Shape:
        rank = self.rng.choice((0, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            shape = tuple(self.rng.choice(DIMS) for _ in range(rank))
            if math.prod(shape) <= MAX_ELEMENTS:
                return shape

    def need(self, shape: Sequence[int], kind: str = "f", exact: bool = False) -> Var:
        """A value of exactly this shape: one that is there, one reshaped or resized, or a new argument."""
        shape = tuple(shape)
        there = self.pick(kind, lambda v: v.shape == shape and (v.exact or not exact))
        if there is not None and self.rng.random() < 0.8:
            return there
        other = self.pick(kind, lambda v: v.exact or not exact)
        if other is not None and math.prod(other.shape) > 0 and self.rng.random() < 0.5:
            return self.let(self.fit(other, shape, only_moves=exact), shape, kind, other.bound, other.exact and exact)
        if len(self.g.inputs) < 8 and self.rng.random() < 0.8:
            return self.argument(shape, kind)
        return self.literal(shape, kind)

    def argument(self, shape: Shape, kind: str = "f") -> Var:
        k = len(self.g.args)
        n = math.prod(shape)
        numbers = np.random.default_rng((self.rng.randrange(2**31), k))
        if kind == "f":
            x = (numbers.permutation(n) + 0.5 - n / 2) * (3.0 / max(n, 2))  # all different: no ties
            value: Any = x.reshape(shape).astype(np.float32)
        elif kind == "i":
            value = numbers.integers(0, 9, shape).astype(np.int32)
        else:
            value = numbers.integers(0, 2, shape).astype(bool)
        if shape == () and kind != "b" and self.rng.random() < 0.4:
            value = value.item()  # a Python number: weakly typed
        self.g.args.append(value)
        var = Var(f"a{k}", shape, kind, {"f": 1.5, "i": 8, "b": 1}[kind], True)
        self.g.inputs.append(var)
        scope: Scope | None = self
        while scope is not None:  # a closure in every scope around
            scope.add(var)
            scope = scope.parent
        return var

    def literal(self, shape: Shape, kind: str) -> Var:
        n = math.prod(shape)
        if kind == "b":
            return self.let(f"(jnp.arange({n}) % 3 == 1).reshape({shape})", shape, "b", 1, True)
        if kind == "i":
            return self.let(f"(jnp.arange({n}) * 5 % 7).reshape({shape})", shape, "i", 6, True)
        text = self.rng.choice((
            f"jnp.full({shape}, 0.75, jnp.float32)",
            f"jnp.ones({shape})",
            f"(np.arange({n}, dtype=np.float32) * 7 % 32 / 32 - 0.5).reshape({shape})",
            f"(jnp.arange({n}) * 7 % 32 / 32 - 0.5).reshape({shape})",
        ))  # fmt: skip
        if text.startswith("(np") and shape == ():
            text = f"jnp.asarray({text})"
        return self.let(f"jnp.asarray({text})", shape, "f", 1, True)

    def fit(self, v: Var, shape: Shape, only_moves: bool = False) -> str:
        """The value made to have a shape."""
        if v.shape == shape:
            return v.name
        if math.prod(v.shape) == math.prod(shape):
            return f"{v.name}.reshape({shape})"
        try:
            if np.broadcast_shapes(v.shape, shape) == shape:
                return f"jnp.broadcast_to({v.name}, {shape})"
        except ValueError:
            pass
        if v.kind == "f" and not only_moves and self.rng.random() < 0.5:
            return f"jnp.broadcast_to({v.name}.mean(), {shape})"
        return f"jnp.resize({v.name}, {shape})"

    def axis(self, v: Var) -> int:
        return self.rng.randrange(v.rank)

    def has_kink(self, text: str) -> bool:
        """Whether the gradient of what is written would jump: it then depends on the roundings before it."""
        return self.g.differentiable and any(word in text for word in _KINKS)

    # -- the program -----------------------------------------------------------------------------------------------

    def steps(self, n: int) -> None:
        done = tries = 0
        while done < n and tries < 20 * n and self.g.budget > 0:
            tries += 1
            (write,) = self.rng.choices(OPS, WEIGHTS)
            if write in NESTED and self.depth >= 2:
                continue
            before = len(self.pool)
            write(self)
            if len(self.pool) > before:
                done += 1
                self.g.budget -= 1
        if self.rng.random() < 0.5:
            _pin(self)

    def subset(self, rank: int) -> tuple[int, ...]:
        axes = tuple(d for d in range(rank) if self.rng.random() < 0.5)
        return axes or (self.rng.randrange(rank),)


def _signature(rng: random.Random, shape: Shape, mesh: Shape, partial: bool) -> str:
    """A random signature that fits: splits where the dimension divides."""
    left, parts = list(shape), []
    for n in mesh:
        possible = [d for d, size in enumerate(left) if size % n == 0 and size >= n]
        kind = rng.random()
        if possible and kind < 0.65:
            d = rng.choice(possible)
            left[d] //= n
            parts.append(f"S({d})")
        elif partial and kind < 0.8:
            parts.append(rng.choice(("P", "P", "P", "P(max)", "P(min)")))
        else:
            parts.append("B")
    return ", ".join(parts)


# -- ops: each writes one line or more, or nothing where it has no operands ---------------------------------------


def _pin(s: Scope) -> None:
    v = s.pick("fi")
    if v is not None:
        text = _signature(s.rng, v.shape, s.g.mesh, v.kind == "f")
        s.let(f"sbp.to_global(jnp.asarray({v.name}), {text!r})", v.shape, v.kind, v.bound, v.exact and "P" not in text)


_KINKS = ("max", "min", "relu", "abs", "clip", "sort", "top_k")

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
        ("{0} + {1}", v.bound + w.bound), ("{0} * {1}", v.bound * w.bound), ("abs({0} - {1})", v.bound + w.bound),
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
    w = s.pick(v.kind, lambda w: w.exact and _broadcasts(v, w))
    if w is not None:
        text = s.rng.choice(("{0} > {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}"))
        s.let(text.format(v.name, w.name), np.broadcast_shapes(v.shape, w.shape), "b", 1, True)


def _broadcasts(v: Var, w: Var) -> bool:
    try:
        shape = np.broadcast_shapes(v.shape, w.shape)
    except ValueError:
        return False
    return math.prod(shape) <= MAX_ELEMENTS and len(shape) <= 4


def where(s: Scope) -> None:
    v = s.pick()
    if v is not None:
        w, shape = _partner(s, v, "f")
        m = s.pick("b", lambda m: _broadcasts(m, Var("", shape)))
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
        w = s.pick("b", lambda w: _broadcasts(v, w)) or v
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


def matmul(s: Scope) -> None:
    v = s.pick("f", lambda v: v.rank >= 1)
    if v is None:
        return
    k, batch = v.shape[-1], v.shape[:-2]
    batch = tuple(n if s.rng.random() < 0.6 else 1 for n in batch) if s.rng.random() < 0.6 else ()
    other = (k,) if s.rng.random() < 0.15 else (*batch, k, s.rng.choice(DIMS))
    w = s.need(other)
    shape = np.broadcast_shapes(v.shape[:-2], other[:-2]) + v.shape[-2:-1] + other[-1:] * (len(other) > 1)
    if math.prod(shape) <= MAX_ELEMENTS:
        s.let(f"{v.name} @ {w.name}", shape, "f", k * v.bound * w.bound)


def einsum(s: Scope) -> None:
    v = s.pick("f", lambda v: 1 <= v.rank <= 4)
    if v is None:
        return
    sizes = dict(zip("abcd", v.shape, strict=False))
    left = "".join(sizes)
    right = [c for c in left if s.rng.random() < 0.6]
    for c in "xy"[: s.rng.randint(0, 2)]:
        sizes[c] = s.rng.choice(DIMS)
        right.append(c)
    s.rng.shuffle(right)
    right = right[:4]
    if math.prod(sizes[c] for c in right) > MAX_ELEMENTS:
        return
    w = s.need([sizes[c] for c in right])
    every = list(dict.fromkeys([*left, *right]))
    out = [c for c in every if s.rng.random() < 0.6][:4]
    s.rng.shuffle(out)
    if math.prod(sizes[c] for c in out) > MAX_ELEMENTS or math.prod(sizes.values()) > 2**16:
        return
    n = math.prod(sizes[c] for c in every if c not in out)
    s.let(
        f"jnp.einsum('{left},{''.join(right)}->{''.join(out)}', {v.name}, {w.name})", [sizes[c] for c in out], "f",
        n * v.bound * w.bound,
    )  # fmt: skip


def reduction(s: Scope) -> None:
    v = s.pick("f", lambda v: v.rank >= 1)
    if v is None:
        return
    axes = s.subset(v.rank)
    n = math.prod(v.shape[d] for d in axes)
    keep = s.rng.random() < 0.4
    name = s.rng.choice(("sum", "sum", "max", "min", "mean", "mean", "var", "prod", "logsumexp", "std"))
    shape = [1 if d in axes else k for d, k in enumerate(v.shape) if keep or d not in axes]
    if not v.exact and s.has_kink(name):
        return
    if name == "prod" and (v.bound > 1.6 or n > 8):
        return
    bound = {"sum": n * v.bound, "var": v.bound**2, "prod": v.bound ** min(n, 8), "logsumexp": v.bound + math.log(n)}
    text = {
        "logsumexp": f"jax.nn.logsumexp({v.name}, axis={axes}, keepdims={keep})",
        "std": f"jnp.sqrt(jnp.var({v.name}, {axes}, keepdims={keep}) + 0.1)",
    }.get(name, f"jnp.{name}({v.name}, {axes}, keepdims={keep})")
    s.let(text, shape, "f", bound.get(name, v.bound), v.exact and name in ("max", "min"))


def integer_reduction(s: Scope) -> None:
    v = s.pick("ib", lambda v: v.rank >= 1)
    if v is None:
        return
    axes = s.subset(v.rank)
    n = math.prod(v.shape[d] for d in axes)
    name = s.rng.choice(("sum", "max", "min")) if v.kind == "i" else "sum"
    shape = [k for d, k in enumerate(v.shape) if d not in axes]
    s.let(f"{v.name}.{name}({axes})", shape, "i", v.bound * (n if name == "sum" else 1), True)


def position_of_extreme(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1 and v.exact)
    if v is None:
        return
    name = s.rng.choice(("argmax", "argmin"))
    if s.rng.random() < 0.2:
        s.let(f"jnp.{name}({v.name})", (), "i", math.prod(v.shape), True)
    else:
        d = s.axis(v)
        s.let(f"jnp.{name}({v.name}, {d})", v.shape[:d] + v.shape[d + 1 :], "i", v.shape[d], True)


def along_axis(s: Scope) -> None:
    v = s.pick("f", lambda v: v.rank >= 1)
    if v is None:
        return
    d = s.axis(v)
    n = v.shape[d]
    reverse = s.rng.random() < 0.3
    text, bound, exact = s.rng.choice((
        (f"jax.nn.softmax({v.name}, {d})", 1.0, False),
        (f"jax.nn.log_softmax({v.name}, {d})", 2 * v.bound + math.log(n), False),
        (f"lax.cumsum({v.name}, {d}, reverse={reverse})", n * v.bound, False),
        (f"jnp.cumsum({v.name}, {d})", n * v.bound, False),
        (f"lax.cummax({v.name}, {d}, reverse={reverse})", v.bound, True),
        (f"lax.cumlogsumexp({v.name}, {d}, reverse={reverse})", v.bound + math.log(n), False),
        (f"jnp.cumprod(jnp.tanh({v.name}), {d})", 1.0, False),
        (f"jnp.sort({v.name}, {d})", v.bound, True),
        (f"-jnp.sort(-{v.name}, {d})", v.bound, True),
        (f"lax.associative_scan(jnp.add, {v.name}, axis={d})", n * v.bound, False),
        (f"jax.nn.standardize({v.name}, {d}, epsilon=0.1)", 3.0 * v.bound + 1, False),
    ))  # fmt: skip
    if v.exact or not s.has_kink(text.split("(")[0]):
        s.let(text, v.shape, "f", bound, exact and v.exact)


def order(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1 and v.exact)
    if v is None:
        return
    d = s.axis(v)
    how = s.rng.random()
    if how < 0.4:
        s.let(f"jnp.argsort({v.name}, {d})", v.shape, "i", v.shape[d], True)
    elif how < 0.7:
        w = s.need(v.shape)
        first, second = s.name(), s.name()
        s.emit(f"{first}, {second} = lax.sort(({v.name}, {w.name}), dimension={d}, num_keys=1)")
        s.add(Var(first, v.shape, v.kind, v.bound, True))
        s.add(Var(second, v.shape, "f", w.bound, w.exact))
    else:
        top_k(s, v)


def top_k(s: Scope, v: Var | None = None) -> None:
    v = v or s.pick("f", lambda v: v.rank >= 1 and (v.exact or not s.has_kink("top_k")))
    if v is None or v.rank == 0:
        return
    k = s.rng.randint(1, v.shape[-1])
    first, second = s.name(), s.name()
    s.emit(f"{first}, {second} = lax.top_k({v.name}, {k})")
    s.add(Var(first, (*v.shape[:-1], k), v.kind, v.bound, v.exact))
    if v.exact:
        s.add(Var(second, (*v.shape[:-1], k), "i", v.shape[-1], True))


def _factored(s: Scope, n: int) -> Shape:
    dims: list[int] = []
    while n > 1 and len(dims) < 3:
        f = s.rng.choice([d for d in (2, 3, 4, 6, 8, 16, n) if n % d == 0])
        dims.append(f)
        n //= f
    if n > 1 or s.rng.random() < 0.15:
        dims.append(n)
    s.rng.shuffle(dims)
    return tuple(dims)


def move(s: Scope) -> None:
    """Transpose, reshape, flip, roll, tile: what only moves elements."""
    v = s.pick("fib", lambda v: v.rank >= 1)
    if v is None:
        return
    d = s.axis(v)
    n = v.shape[d]
    axes = list(range(v.rank))
    s.rng.shuffle(axes)
    shape = _factored(s, math.prod(v.shape))
    r = s.rng.randint(1, 3)
    times = [s.rng.choice((1, 1, 2, 3)) for _ in v.shape]
    bigger = lambda d, m: (*v.shape[:d], m, *v.shape[d + 1 :])  # noqa: E731
    text, out = s.rng.choice((
        (f"{v.name}.transpose({axes})", [v.shape[a] for a in axes]),
        (f"{v.name}.transpose({axes})", [v.shape[a] for a in axes]),
        (f"{v.name}.reshape({shape})", shape),
        (f"{v.name}.reshape({shape})", shape),
        (f"{v.name}.ravel()", (math.prod(v.shape),)),
        (f"jnp.expand_dims({v.name}, {d})", (*v.shape[:d], 1, *v.shape[d:])),
        (f"jnp.squeeze({v.name})", [k for k in v.shape if k != 1]),
        (f"jnp.flip({v.name}, {d})", v.shape),
        (f"jnp.roll({v.name}, {r}, {d})", v.shape),
        (f"jnp.tile({v.name}, {times})", [a * b for a, b in zip(v.shape, times, strict=True)]),
        (f"jnp.repeat({v.name}, {r}, {d})", bigger(d, n * r)),
        (f"jnp.broadcast_to({v.name}, {(r, *v.shape)})", (r, *v.shape)),
        (f"jnp.stack([{v.name}] * {r}, {d})", (*v.shape[:d], r, *v.shape[d:])),
        (f"jnp.swapaxes({v.name}, 0, {d})", [v.shape[{0: d, d: 0}.get(k, k)] for k in range(v.rank)]),
    ))  # fmt: skip
    if math.prod(out) <= MAX_ELEMENTS and len(out) <= 4:
        s.let(text, out, v.kind, v.bound, v.exact)


def triangle(s: Scope) -> None:
    v = s.pick("f", lambda v: v.rank >= 2)
    if v is None:
        return
    rows, columns = v.shape[-2:]
    text, shape, bound = s.rng.choice((
        (f"jnp.tril({v.name})", v.shape, v.bound),
        (f"jnp.triu({v.name}, 1)", v.shape, v.bound),
        (f"jnp.diagonal({v.name}, axis1=-2, axis2=-1)", (*v.shape[:-2], min(rows, columns)), v.bound),
        (f"jnp.trace({v.name}, axis1=-2, axis2=-1)", v.shape[:-2], v.bound * min(rows, columns)),
        (f"{v.name} + jnp.eye({rows}, {columns})", v.shape, v.bound + 1),
    ))  # fmt: skip
    s.let(text, shape, "f", bound, v.exact and ("tri" in text or "diagonal" in text))


def slices(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1)
    if v is None:
        return
    parts, shape = [], []
    for n in v.shape:
        if s.rng.random() < 0.5:
            parts.append(":")
            shape.append(n)
        elif s.rng.random() < 0.3:
            parts.append(str(s.rng.randrange(n)))
        else:
            a = s.rng.randrange(n)
            b = s.rng.randint(a + 1, n)
            step = s.rng.choice((1, 1, 2, -1))
            kept = slice(a, b, step) if step > 0 else slice(b - 1, a - 1 if a else None, -1)
            parts.append(f"{kept.start}:{'' if kept.stop is None else kept.stop}:{step}")
            shape.append(len(range(n)[kept]))
    s.let(f"{v.name}[{', '.join(parts)}]", shape, v.kind, v.bound, v.exact)


def pad(s: Scope) -> None:
    v = s.pick("f", lambda v: v.rank >= 1)
    if v is None:
        return
    low = [(s.rng.randint(0, 2), s.rng.randint(0, 2)) for _ in v.shape]
    mode = s.rng.choice(("constant", "constant", "edge", "wrap", "reflect", "lax"))
    if mode == "lax":
        inner = [(a - 1, b - 1, s.rng.choice((0, 0, 1))) for a, b in low]
        shape = [n + a + b + (n - 1) * i for n, (a, b, i) in zip(v.shape, inner, strict=True)]
        text = f"lax.pad(jnp.asarray({v.name}), jnp.float32(0.25), {inner})"
    else:
        if mode == "reflect" and min(v.shape) < 3:
            return
        if mode == "wrap" and min(v.shape) < 2:
            return
        shape = [n + a + b for n, (a, b) in zip(v.shape, low, strict=True)]
        text = f"jnp.pad({v.name}, {low}, mode={mode!r})"
    if 0 < math.prod(shape) <= MAX_ELEMENTS:
        s.let(text, shape, "f", v.bound, v.exact)


def concatenate(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1)
    if v is None:
        return
    d = s.axis(v)
    found = [w for w in s.pool if w.kind == v.kind and w.rank == v.rank and
             all(a == b for k, (a, b) in enumerate(zip(v.shape, w.shape, strict=True)) if k != d)]  # fmt: skip
    if len(found) < 2:
        found.append(s.need((*v.shape[:d], s.rng.choice(DIMS), *v.shape[d + 1 :]), v.kind))
    chosen = [s.rng.choice(found) for _ in range(s.rng.randint(1, 3))] + [v]
    n = sum(w.shape[d] for w in chosen)
    if n * math.prod(v.shape) // v.shape[d] <= MAX_ELEMENTS:
        s.let(
            f"jnp.concatenate([{', '.join(w.name for w in chosen)}], {d})", (*v.shape[:d], n, *v.shape[d + 1 :]),
            v.kind, max(w.bound for w in chosen), all(w.exact for w in chosen),
        )  # fmt: skip


def split_up(s: Scope) -> None:
    v = s.pick("f", lambda v: any(n % 2 == 0 for n in v.shape))
    if v is None:
        return
    d = s.rng.choice([d for d, n in enumerate(v.shape) if n % 2 == 0])
    first, second = s.name(), s.name()
    s.emit(f"{first}, {second} = jnp.split({v.name}, 2, {d})")
    for name in (first, second):
        s.add(Var(name, (*v.shape[:d], v.shape[d] // 2, *v.shape[d + 1 :]), "f", v.bound, v.exact))


def lookup(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1)
    if v is None:
        return
    d = s.axis(v)
    n = v.shape[d]
    how = s.rng.random()
    if how < 0.25:
        i = s.need((*v.shape[:d], s.rng.choice(DIMS), *v.shape[d + 1 :]), "i")
        if math.prod(i.shape) <= MAX_ELEMENTS:
            s.let(f"jnp.take_along_axis({v.name}, {i.name} % {n}, {d})", i.shape, v.kind, v.bound, v.exact)
        return
    i = s.pick("i") or s.need(s.shape(s.rng.randint(0, 2)), "i")
    if how < 0.4 and v.rank >= 2:
        shape = i.shape + v.shape[2:]
        text = f"{v.name}[{i.name} % {v.shape[0]}, {i.name} % {v.shape[1]}]"
    elif how < 0.55:
        shape = i.shape + v.shape[1:]
        text = f"jnp.asarray({v.name}).at[{i.name} - 2].get(mode='fill', fill_value={1 if v.kind == 'i' else 0.5})"
    else:
        shape = v.shape[:d] + i.shape + v.shape[d + 1 :]
        mode = s.rng.choice(("clip", "wrap", None))
        inside = f"{i.name} % {n}" if mode is None else i.name
        text = f"jnp.take({v.name}, {inside}, {d}{'' if mode is None else f', mode={mode!r}'})"
    if math.prod(shape) <= MAX_ELEMENTS and len(shape) <= 4:
        s.let(text, shape, v.kind, max(v.bound, 1), v.exact)


def scatter(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1)
    if v is None:
        return
    n = v.shape[0]
    how = s.rng.choice(("add", "add", "max", "set", "slice"))
    if how == "max" and s.g.differentiable:
        how = "add"
    if how == "slice":
        a = s.rng.randrange(n)
        b = s.rng.randint(a + 1, n)
        w = s.need((b - a, *v.shape[1:]), v.kind)
        text = f"{v.name}.at[{a}:{b}].set({w.name})"
        s.let(text, v.shape, v.kind, max(v.bound, w.bound), v.exact and w.exact)
        return
    if how == "set":
        where = s.rng.sample(range(n), s.rng.randint(1, n))
        w = s.need((len(where), *v.shape[1:]), v.kind)
        text = f"{v.name}.at[np.array({where})].set({w.name}, unique_indices=True)"
        s.let(text, v.shape, v.kind, max(v.bound, w.bound), v.exact and w.exact)
        return
    i = s.pick("i", lambda i: i.rank == 1) or s.need((s.rng.choice(DIMS),), "i")
    w = s.need((*i.shape, *v.shape[1:]), v.kind)
    if math.prod(w.shape) > MAX_ELEMENTS:
        return
    inside = f"{i.name} % {n}" if s.rng.random() < 0.6 else f"{i.name} - 1"
    bound = v.bound + math.prod(i.shape) * w.bound if how == "add" else max(v.bound, w.bound)
    if how == "add" and s.rng.random() < 0.3:
        text, shape = f"jax.ops.segment_sum({w.name}, {inside}, {n})", v.shape
    else:
        text, shape = f"jnp.asarray({v.name}).at[{inside}].{how}({w.name})", v.shape
    s.let(text, shape, v.kind, bound, v.kind == "i" or (how == "max" and v.exact and w.exact))


def dynamic_slices(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1)
    if v is None:
        return
    start = [s.need((), "i").name if s.rng.random() < 0.5 else str(s.rng.randrange(n)) for n in v.shape]  # clamped
    sizes = tuple(s.rng.randint(1, n) if s.rng.random() < 0.6 else n for n in v.shape)
    at = f"({', '.join(start)},)"
    if s.rng.random() < 0.5:
        s.let(f"lax.dynamic_slice({v.name}, {at}, {sizes})", sizes, v.kind, v.bound, v.exact)
    else:
        w = s.need(sizes, v.kind)
        s.let(
            f"lax.dynamic_update_slice({v.name}, {w.name}, {at})", v.shape, v.kind, max(v.bound, w.bound),
            v.exact and w.exact,
        )  # fmt: skip


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
        (f"jax.random.normal({key}, {shape})", "f", 4.0, False),
        (f"jax.random.bernoulli({key}, 0.5, {shape})", "b", 1.0, True),
        (f"jax.random.randint({key}, {shape}, 0, 9)", "i", 8, True),
    ))  # fmt: skip
    s.let(text, shape, kind, bound, exact)


def convolution(s: Scope) -> None:
    v = s.pick("f", lambda v: v.rank in (3, 4))
    if v is None:
        return
    channels = v.shape[1]
    groups = s.rng.choice([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    features = groups * s.rng.choice((1, 2, 4))
    window = [s.rng.randint(1, min(3, n)) for n in v.shape[2:]]
    strides = [s.rng.choice((1, 1, 2)) for _ in window]
    padding = s.rng.choice(("SAME", "VALID"))
    w = s.need((features, channels // groups, *window))
    spatial = [
        -(-n // t) if padding == "SAME" else (n - k) // t + 1
        for n, k, t in zip(v.shape[2:], window, strides, strict=True)
    ]
    shape = (v.shape[0], features, *spatial)
    if math.prod(shape) <= MAX_ELEMENTS:
        s.let(
            f"lax.conv_general_dilated({v.name}, {w.name}, {strides}, {padding!r}, feature_group_count={groups})",
            shape, "f", v.bound * w.bound * channels // groups * math.prod(window) + 1,
        )  # fmt: skip


def windows(s: Scope) -> None:
    v = s.pick("f", lambda v: v.rank >= 1)
    if v is None:
        return
    window = tuple(s.rng.choice((1, min(2, n), min(3, n))) for n in v.shape)
    strides = tuple(s.rng.choice((1, 1, 2)) for _ in window)
    padding = s.rng.choice(("SAME", "VALID"))
    shape = [
        -(-n // t) if padding == "SAME" else (n - k) // t + 1 for n, k, t in zip(v.shape, window, strides, strict=True)
    ]
    start, op = s.rng.choice((("0.", "lax.add"), ("-jnp.inf", "lax.max"), ("jnp.inf", "lax.min")))
    if not v.exact and s.has_kink(op):
        return
    s.let(
        f"lax.reduce_window({v.name}, {start}, {op}, {window}, {strides}, {padding!r})", shape, "f",
        v.bound * (math.prod(window) if op == "lax.add" else 1), v.exact and op != "lax.add",
    )  # fmt: skip


# -- functions within functions -----------------------------------------------------------------------------------


def _result(s: Scope, shape: Shape | None = None) -> tuple[str, Var]:
    """What a body returns: one of its floats, of the shape asked for and at most 1 where one is asked for."""
    v = s.pick() or s.need(())
    if shape is None:
        return f"jnp.asarray({v.name})", v
    return f"jnp.tanh({s.fit(v, shape)})", Var("", shape, "f", 1.0)


def _next(s: Scope, carry: Var, times: int) -> str:
    """A carry's next value: as it was before in shape, dtype and bound."""
    if carry.kind == "i":
        other = s.pick("i", lambda v: v is not carry) or carry
        return f"({carry.name} + {s.fit(other, carry.shape)}) % 11"
    v = s.pick("f", lambda v: v.name != carry.name) or carry
    text = s.fit(v, carry.shape)
    how = s.rng.random()
    if how < 0.4:
        return f"{carry.name} + {1 / max(1, times):.3g} * jnp.tanh({text})"
    if how < 0.7:
        return f"jnp.tanh({carry.name} + {text})"
    return f"0.5 * ({carry.name} + jnp.sin({text}))"


def _carries(s: Scope, n: int) -> tuple[list[Var], list[Var]]:
    """Initial values, and the names that they have inside."""
    initial = [s.pick() or s.need(s.shape()) for _ in range(n)]
    if s.rng.random() < 0.3:
        initial.append(s.pick("i") or s.need((), "i"))
    inner = [Var(s.name("c"), v.shape, v.kind, max(v.bound, 10.0 if v.kind == "i" else v.bound + 1)) for v in initial]
    return initial, inner


def _as_carry(v: Var) -> str:
    return f"jnp.asarray({v.name}, jnp.{'float32' if v.kind == 'f' else 'int32'})"


def _after(s: Scope, names: Sequence[str], inner: Sequence[Var]) -> None:
    for name, v in zip(names, inner, strict=True):
        s.add(Var(name, v.shape, v.kind, v.bound, v.kind == "i"))


def scan(s: Scope) -> None:
    xs = s.pick("f", lambda v: v.rank >= 1)
    length = xs.shape[0] if xs is not None and s.rng.random() < 0.8 else s.rng.choice((2, 3, 4))
    takes = xs is not None and xs.shape[0] == length
    initial, inner = _carries(s, s.rng.randint(1, 2))
    inner = [v if v.kind == "f" else Var(v.name, v.shape, "i", 16, True) for v in inner]
    params = list(inner)
    if takes and xs is not None:
        params.append(Var(s.name("x"), xs.shape[1:], "f", xs.bound, xs.exact))
    made: list[Var] = []

    def close(b: Scope) -> str:
        new = [_next(b, c, length) for c in inner]
        text, y = _result(b)
        made.append(y)
        return f"[{', '.join(new)}], {text}"

    body = s.child("body", params, close)
    carried = ", ".join(v.name for v in inner)
    x = params[-1].name if takes else "_"
    names = [s.name() for _ in inner]
    ys = s.name()
    options = s.rng.choice(("", "", ", reverse=True", ", unroll=2"))
    s.emit(
        f"({', '.join(names)},), {ys} = lax.scan(lambda c, {x}: (lambda {carried}: "
        f"{body}({', '.join(v.name for v in params)}))(*c), [{', '.join(map(_as_carry, initial))}], "
        f"{xs.name if takes and xs is not None else None}, length={length}{options})"
    )
    _after(s, names, inner)
    (y,) = made
    if math.prod(y.shape) * length <= MAX_ELEMENTS and y.rank < 4:
        s.add(Var(ys, (length, *y.shape), "f", y.bound, False))


def loop(s: Scope) -> None:
    """``fori_loop`` with a static or dynamic end, or a ``while_loop``."""
    kind = s.rng.choice(("static", "dynamic", "while")) if not s.g.differentiable else "static"
    initial, inner = _carries(s, s.rng.randint(1, 2))
    inner = [v if v.kind == "f" else Var(v.name, v.shape, "i", 16, True) for v in inner]
    n = s.rng.randint(0, 4)
    i = Var(s.name("c"), (), "i", 5, True)
    body = s.child("body", [i, *inner], lambda b: f"[{', '.join(_next(b, c, 4) for c in inner)}]")
    start = f"[{', '.join(map(_as_carry, initial))}]"
    names = [s.name() for _ in inner]
    if kind == "while":
        floats = [k for k, v in enumerate(inner) if v.kind == "f"]
        test = s.rng.choice(("", f" & (jnp.abs(c[1][{floats[0]}]).max() < 1e6)", f" & (c[1][{floats[0]}].sum() < 1e6)"))
        bound = s.need((), "i").name + " % 5" if s.rng.random() < 0.5 else str(n)
        s.emit(
            f"_, ({', '.join(names)},) = lax.while_loop(lambda c: (c[0] < {bound}){test}, "
            f"lambda c: (c[0] + 1, {body}(c[0], *c[1])), (0, {start}))"
        )
    else:
        end = str(n) if kind == "static" else f"{s.need((), 'i').name} % 5"
        s.emit(f"{', '.join(names)}, = lax.fori_loop(0, {end}, lambda i, c: {body}(i, *c), {start})")
    _after(s, names, inner)


def conditional(s: Scope) -> None:
    operands = [s.pick() or s.need(s.shape()) for _ in range(s.rng.randint(1, 2))]
    shapes = [operands[0].shape] if s.rng.random() < 0.6 else [s.shape(), ()]
    count = s.rng.choice((2, 2, 3))
    branches = []
    for _ in range(count):
        params = [Var(s.name("x"), v.shape, "f", v.bound, v.exact) for v in operands]
        branches.append(s.child("branch", params, lambda b: f"[{', '.join(_result(b, x)[0] for x in shapes)}]"))
    names = [s.name() for _ in shapes]
    arguments = ", ".join(f"jnp.asarray({v.name})" for v in operands)
    test = s.pick("fb", lambda v: v.exact and v.rank == 0)
    if count == 2 and test is not None:
        text = test.name if test.kind == "b" else f"{test.name} > 0.125"
        call = f"lax.cond({text}, {branches[0]}, {branches[1]}, {arguments})"
    else:
        call = f"lax.switch({s.need((), 'i').name}, [{', '.join(branches)}], {arguments})"
    s.emit(f"{', '.join(names)}, = {call}")
    for name, shape in zip(names, shapes, strict=True):
        s.add(Var(name, shape, "f", 1.0))


def wrapped(s: Scope) -> None:
    """A part of the program under ``checkpoint``, ``jit``, a gradient or a rule for its gradient."""
    operands = [s.pick() or s.need(s.shape()) for _ in range(s.rng.randint(1, 2))]
    params = [Var(s.name("x"), v.shape, "f", v.bound, v.exact) for v in operands]
    arguments = ", ".join(f"jnp.asarray({v.name}, jnp.float32)" for v in operands)
    made: list[Var] = []
    how = s.rng.choice(("checkpoint", "checkpoint", "jit", "grad", "custom_vjp", "custom_jvp"))
    if how.startswith("custom"):
        v = operands[0]
        f = s.name("f")
        s.emit(f"@jax.{how}")
        s.emit(f"def {f}(x): return jnp.sin(x) * 0.5")
        if how == "custom_vjp":
            s.emit(f"{f}.defvjp(lambda x: ({f}(x), x), lambda x, g: (jnp.clip(g, -2, 2) * jnp.cos(x),))")
        else:
            s.emit(f"{f}.defjvp(lambda p, t: ({f}(p[0]), jnp.cos(p[0]) * t[0]))")
        s.let(f"{f}({v.name})", v.shape, "f", 0.5)
        return
    if how == "grad":
        before, s.g.differentiable = s.g.differentiable, True
        f = s.child("f", params, lambda b: f"jnp.sum({_result(b)[0]})")
        s.g.differentiable = before
        s.let(f"jnp.tanh(jax.grad({f})({arguments}))", operands[0].shape, "f", 1.0)
        return

    def close(b: Scope) -> str:
        text, y = _result(b)
        made.append(y)
        return text

    f = s.child("f", params, close)
    s.let(f"jax.{how}({f})({arguments})", made[0].shape, "f", made[0].bound)


def mapped(s: Scope) -> None:
    """``vmap`` or ``lax.map`` of a part of the program."""
    v = s.pick("f", lambda v: v.rank >= 1)
    if v is None:
        return
    d = s.axis(v)
    n = v.shape[d]
    params = [Var(s.name("x"), v.shape[:d] + v.shape[d + 1 :], "f", v.bound, v.exact)]
    axes, arguments = [d], [v.name]
    w = s.pick()
    if w is not None and s.rng.random() < 0.4:
        params.append(Var(s.name("x"), w.shape, "f", w.bound, w.exact))
        axes.append(-1)
        arguments.append(f"jnp.asarray({w.name})")
    made: list[Var] = []

    def close(b: Scope) -> str:
        text, y = _result(b)
        made.append(y)
        return text

    f = s.child("f", params, close)
    (y,) = made
    if math.prod(y.shape) * n > MAX_ELEMENTS or y.rank >= 4:
        return
    if len(params) == 1 and d == 0 and s.rng.random() < 0.3:
        s.let(f"lax.map({f}, {v.name})", (n, *y.shape), "f", y.bound)
        return
    out = s.rng.randint(0, y.rank)
    given = tuple(None if a < 0 else a for a in axes)
    text = f"jax.vmap({f}, {given}, {out})({', '.join(arguments)})"
    s.let(text, (*y.shape[:out], n, *y.shape[out:]), "f", y.bound)


NESTED = (scan, loop, conditional, wrapped, mapped)
_WEIGHTED: tuple[tuple[Callable[[Scope], None], float], ...] = (
    (unary, 3), (binary, 4), (integers, 0.7), (compare, 0.5), (where, 1), (booleans, 0.4), (cast, 0.7), (matmul, 3),
    (einsum, 3), (reduction, 3), (integer_reduction, 0.5), (position_of_extreme, 0.6), (along_axis, 2), (order, 0.7),
    (top_k, 0.4), (move, 4), (triangle, 0.7), (slices, 1.5), (pad, 1), (concatenate, 1.2), (split_up, 0.5),
    (lookup, 1.5), (scatter, 1.5), (dynamic_slices, 1), (one_hot, 0.6), (randoms, 0.4), (convolution, 0.8),
    (windows, 0.8), (scan, 1), (loop, 1), (conditional, 0.8), (wrapped, 0.8), (mapped, 0.8),
)  # fmt: skip
OPS = [op for op, _ in _WEIGHTED]
WEIGHTS = [weight for _, weight in _WEIGHTED]


def generate(seed: int) -> Generated:
    """The program of a seed."""
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    gradient = rng.random() < 0.25
    size = rng.randint(10, 40)
    shared = Shared(rng, mesh, gradient, size)
    top = Scope(shared)
    for rank in (2, rng.randint(1, 4), rng.randint(0, 3)):
        top.argument(top.shape(rank))
    if rng.random() < 0.5:
        top.argument(top.shape(rng.randint(0, 2)), "i")
    top.steps(size)
    first = len(shared.inputs)
    later = [v for v in top.pool if not v.name.startswith("a")] or top.pool
    results = [v for v in later[:-3] if rng.random() < 0.4] + later[-3:]
    if rng.random() < 0.2:
        results.append(rng.choice(top.pool))
    arguments = ", ".join(f"a{k}" for k in range(first))
    body = [*top.lines, f"return [{', '.join(v.name for v in results)}]"]
    lines = [f"def {'forward' if gradient else 'program'}({arguments}):", *(f"    {line}" for line in body)]
    shapes: list[Var | None] = list(results)
    if gradient:
        wanted = [k for k, v in enumerate(shared.inputs) if v.kind == "f" and rng.random() < 0.6] or [0]
        lines += [
            "def loss(*args):",
            "    floats = [y for y in forward(*args) if jnp.issubdtype(jnp.asarray(y).dtype, jnp.floating)]",
            "    return sum(jnp.sin(y).mean() for y in floats)",
            f"program = jax.grad(loss, {tuple(wanted)})",
        ]  # fmt: skip
        shapes = [shared.inputs[k] for k in wanted]

    def pins(values: Sequence[Var | None], chance: float) -> list[str | None]:
        return [
            _signature(rng, v.shape, mesh, False) if v is not None and v.kind != "k" and rng.random() < chance else None
            for v in values
        ]

    few = rng.choice((0.0, 0.3, 0.6))
    cluster = rng.choice(("eager to split", "eager to split", "eager to split", "cpu", "h100"))
    return Generated(
        seed, "\n".join(lines), tuple(shared.args), mesh, cluster, pins(shared.inputs, few), pins(shapes, few)
    )


# Compiled as it is: quick, and without the simplifier, which merges a slice of a slice without the clamping in between
# (JAX 0.10.2: jit of dynamic_slice(dynamic_slice(x, (8,), (2,)), (0,), (1,)) is not what it is without jit).
PLAIN: Any = {"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "algsimp"}

_CPU = sbp.cluster.CPU
CLUSTERS: dict[str, Any] = {
    "cpu": _CPU,
    # No op is too small to split here, and moving data costs little: as many signatures as possible are tried.
    "eager to split": sbp.Cluster("eager to split", _CPU.device, (sbp.cluster.Level("fast", None, 1e12, 0.0),)),
    "h100": "h100",
}


def run(program: Generated) -> sbp.Plan:
    """Plan, run, compare with plain JAX, verify. Raises at the first difference; gives the plan."""
    function = program.function()
    placement = sbp.placement("cpu", np.arange(math.prod(program.mesh)).reshape(program.mesh))
    config = sbp.AutoParallelConfig(cluster=CLUSTERS[program.cluster], time_limit=2)
    results = jax.tree.leaves(jax.eval_shape(function, *program.args))
    outs: Any = program.out_sbp if len(results) > 1 else program.out_sbp[:1]
    out_sbp: Any = tuple(outs) if program.source.rstrip().endswith(")") else list(outs)
    parallel = sbp.auto_parallel(
        function, placement=placement, config=config, in_sbp=tuple(program.in_sbp), out_sbp=out_sbp
    )
    plainly = jax.jit(function, compiler_options=PLAIN)
    expected = jax.tree.leaves(plainly(*program.args))
    found = jax.tree.leaves(parallel(*program.args))
    for k, (ours, plain) in enumerate(zip(found, expected, strict=True)):
        assert ours.shape == plain.shape and ours.dtype == plain.dtype, f"result {k}: {ours.aval}, plain {plain.aval}"
        ours, plain = np.asarray(ours), np.asarray(plain)
        if plain.dtype != np.float32:
            np.testing.assert_array_equal(ours, plain, f"result {k}")
            continue
        assert np.isfinite(plain).all(), f"result {k} of plain JAX is not finite: the generator's fault"
        scale = np.abs(plain).max(initial=0.0)
        np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-3 * scale + 1e-5, err_msg=f"result {k}")
    plan = parallel.plan(*program.args)
    plan.verify()
    return plan


def check(seed: int) -> sbp.Plan:
    """Generate and run one; a failure carries the listing."""
    program = generate(seed)
    try:
        return run(program)
    except Exception as error:
        error.add_note(str(program))
        raise


def main() -> None:
    for seed in map(int, sys.argv[1:]):
        print(generate(seed))
        print(check(seed))


if __name__ == "__main__":
    main()
