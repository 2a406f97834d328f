"""One function body while it is written: its lines, and the values that it may use."""

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

DIMS = (1, 2, 2, 3, 4, 4, 6, 8, 8, 16)
MAX_ELEMENTS = 2048
MAX_BOUND = 6.0
MAX_ARGUMENTS = 8
# The relative rounding of one op, by the words that name its type in a program.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "complex64": 2.0**-24, "float64": 2.0**-53}
_NAMES = re.compile(r"[A-Za-z_]\w*")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Var:
    """A live value: what the generator knows of it.

    ``kind`` is f, i, b, c (complex) or k (a random key); ``exact``: no rounding has touched it.
    """

    name: str
    shape: Shape
    kind: str = "f"
    bound: float = 1.0
    exact: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass
class Shared:
    """What all scopes of a program share.

    ``floats`` is the type of most floats, ``others`` the types that some arguments have instead, ``whole`` those of
    integers. ``rounding`` is by name of a value or function the coarsest rounding on the way to it.
    """

    rng: random.Random
    mesh: Shape
    differentiable: bool
    budget: int
    ops: Sequence["Write"]
    weights: Sequence[float]
    nested: Sequence["Write"]
    floats: str = "float32"
    others: Sequence[str] = ()
    whole: Sequence[str] = ("int32",)
    depth: int = 2
    effects: bool = False
    rounding: dict[str, float] = field(default_factory=dict)
    args: list[Any] = field(default_factory=list)
    inputs: list[Var] = field(default_factory=list)
    key: str | None = None
    count: int = 0

    def coarsest(self, text: str) -> float:
        """The rounding of what an expression is made of."""
        found = 2.0**-53
        for word in _NAMES.findall(text):
            found = max(found, self.rounding.get(word, ROUNDING.get(word, 0.0)))
        return found


class Scope:
    """One function body while it is written: its lines and its pool of live values."""

    def __init__(self, shared: Shared, parent: "Scope | None" = None) -> None:
        self.g, self.rng, self.parent = shared, shared.rng, parent
        self.depth = 0 if parent is None else parent.depth + 1
        self.effects = shared.effects if parent is None else False
        self.lines: list[str] = []
        self.pool: list[Var] = []

    # -- writing ---------------------------------------------------------------------------------------------------

    def name(self, prefix: str = "v") -> str:
        self.g.count += 1
        return f"{prefix}{self.g.count}"

    def emit(self, line: str) -> None:
        """A line; what it assigns to is as coarse as the coarsest of what it reads."""
        self.lines.append(line)
        names, equals, text = line.partition(" = ")
        if equals and not line.startswith(("def ", "@", " ")):
            coarse = self.g.coarsest(text)
            for name in _NAMES.findall(names):
                self.g.rounding[name] = max(coarse, self.g.rounding.get(name, 0.0))

    def param(self, prefix: str, like: Var, shape: Shape | None = None, **known: Any) -> Var:
        """A parameter of a nested function. It is as coarse as anything so far: a loop may carry that into it."""
        v = Var(self.name(prefix), like.shape if shape is None else shape, like.kind, like.bound, like.exact)
        v = replace(v, **known)
        self.g.rounding[v.name] = max(self.g.rounding.values(), default=2.0**-24)
        return v

    def add(self, var: Var) -> Var:
        self.pool.append(var)
        return var

    def let(self, text: str, shape: Sequence[int], kind: str = "f", bound: float = 1.0, exact: bool = False) -> Var:
        """A new value; scaled down where its bound has grown."""
        if kind in "fc" and bound > MAX_BOUND:
            squash = kind == "f" and self.rng.random() < 0.3
            text = f"jnp.tanh({text})" if squash else f"({text}) * {2 / bound:.3g}"
            bound, exact = 2.0, False
        if kind == "i" and bound > 1000:
            text, bound = f"({text}) % 17", 16
        var = Var(self.name(), tuple(shape), kind, bound, exact)
        self.emit(f"{var.name} = {text}")
        return self.add(var)

    def child(self, title: str, params: Sequence[Var], close: Callable[["Scope"], str], effects: bool = False) -> str:
        """A nested function with a body of its own; ``close`` gives what it returns. Its name.

        ``effects``: whether effects in it are allowed where they are around it.
        """
        inner = Scope(self.g, self)
        inner.effects = effects and self.effects
        inner.pool = [v for v in self.pool if self.rng.random() < 0.3] + list(params) * 2
        name = self.name(title)
        inner.steps(self.rng.randint(1, 5))
        result = close(inner)
        self.lines.append(f"def {name}({', '.join(v.name for v in params)}):")
        self.g.rounding[name] = max(map(self.g.coarsest, [*inner.lines, result]))
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
        if len(self.g.inputs) < MAX_ARGUMENTS and self.rng.random() < 0.8:
            return self.argument(shape, kind)
        return self.literal(shape, kind)

    def argument(self, shape: Shape, kind: str = "f") -> Var:
        k = len(self.g.args)
        n = math.prod(shape)
        numbers = np.random.default_rng((self.rng.randrange(2**31), k))
        if kind == "f":
            dtype = self.rng.choice(self.g.others) if self.g.others and self.rng.random() < 0.3 else self.g.floats
            if ROUNDING[dtype] > 1e-6:  # what a narrow type holds exactly, for casting may or may not round
                x = (2 * (numbers.permutation(n) % 48) - 47) / 32
            else:
                x = (numbers.permutation(n) + 0.5 - n / 2) * (3.0 / max(n, 2))  # all different: no ties
            value: Any = x.reshape(shape).astype(jnp.dtype(dtype))
        elif kind == "i":
            dtype = self.rng.choice(self.g.whole)
            value = numbers.integers(0, 9, shape).astype(dtype)
        else:
            dtype = "bool"
            value = numbers.integers(0, 2, shape).astype(bool)
        if shape == () and kind != "b" and self.rng.random() < 0.4:
            value, dtype = value.item(), self.g.floats  # a Python number: weakly typed
        self.g.args.append(value)
        self.g.rounding[f"a{k}"] = ROUNDING.get(dtype, 0.0)
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
            f"jnp.broadcast_to(0.75, {shape})",  # weakly typed
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
        return self.g.differentiable and any(word in text for word in KINKS)

    # -- the program -----------------------------------------------------------------------------------------------

    def steps(self, n: int) -> None:
        done = tries = 0
        while done < n and tries < 20 * n and self.g.budget > 0:
            tries += 1
            (write,) = self.rng.choices(self.g.ops, self.g.weights)
            if write in self.g.nested and self.depth >= self.g.depth:
                continue
            before = len(self.pool)
            write(self)
            if len(self.pool) > before:
                done += 1
                self.g.budget -= 1
        if self.rng.random() < 0.5:
            pin(self)

    def subset(self, rank: int) -> tuple[int, ...]:
        axes = tuple(d for d in range(rank) if self.rng.random() < 0.5)
        return axes or (self.rng.randrange(rank),)


def signature(rng: random.Random, shape: Shape, mesh: Shape, partial: bool) -> str:
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


def pin(s: Scope) -> None:
    v = s.pick("fic")
    if v is not None:
        text = signature(s.rng, v.shape, s.g.mesh, v.kind == "f")
        s.let(f"sbp.to_global(jnp.asarray({v.name}), {text!r})", v.shape, v.kind, v.bound, v.exact and "P" not in text)


KINKS = ("max", "min", "relu", "abs", "clip", "sort", "top_k")

Write = Callable[[Scope], None]
