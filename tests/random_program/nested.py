"""Functions within functions: loops, conditionals, gradients, maps."""

import math
from collections.abc import Sequence

from .scope import MAX_ELEMENTS, Scope, Shape, Var


def _result(s: Scope, shape: Shape | None = None) -> tuple[str, Var]:
    """What a body returns: one of its floats, of the shape asked for and at most 1 where one is asked for."""
    v = s.pick() or s.need(())
    if shape is None:
        return f"jnp.asarray({v.name})", v
    return f"jnp.tanh({s.fit(v, shape)}).astype(jnp.{s.g.floats})", Var("", shape, "f", 1.0)


def _next(s: Scope, carry: Var, times: int) -> str:
    """A carry's next value: as it was before in shape, dtype and bound."""
    return f"({_changed(s, carry, times)}).astype({carry.name}.dtype)"


def _changed(s: Scope, carry: Var, times: int) -> str:
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
    inner = [s.param("c", v, bound=16 if v.kind == "i" else v.bound + 1, exact=v.kind == "i") for v in initial]
    return initial, inner


def _as_carry(s: Scope, v: Var) -> str:
    return f"jnp.asarray({v.name}, jnp.{s.g.floats if v.kind == 'f' else 'int32'})"


def _after(s: Scope, names: Sequence[str], inner: Sequence[Var]) -> None:
    for name, v in zip(names, inner, strict=True):
        s.add(Var(name, v.shape, v.kind, v.bound, v.kind == "i"))


def scan(s: Scope) -> None:
    xs = s.pick("f", lambda v: v.rank >= 1)
    length = xs.shape[0] if xs is not None and s.rng.random() < 0.8 else s.rng.choice((2, 3, 4))
    takes = xs is not None and xs.shape[0] == length
    initial, inner = _carries(s, s.rng.randint(1, 2))
    params = list(inner)
    if takes and xs is not None:
        params.append(s.param("x", xs, xs.shape[1:]))
    made: list[Var] = []

    def close(b: Scope) -> str:
        new = [_next(b, c, length) for c in inner]
        text, y = _result(b)
        made.append(y)
        return f"[{', '.join(new)}], {text}"

    body = s.child("body", params, close, effects=True)
    carried = ", ".join(v.name for v in inner)
    x = params[-1].name if takes else "_"
    names = [s.name() for _ in inner]
    ys = s.name()
    options = s.rng.choice(("", "", ", reverse=True", ", unroll=2"))
    s.emit(
        f"({', '.join(names)},), {ys} = lax.scan(lambda c, {x}: (lambda {carried}: "
        f"{body}({', '.join(v.name for v in params)}))(*c), [{', '.join(_as_carry(s, v) for v in initial)}], "
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
    n = s.rng.randint(0, 4)
    i = s.param("c", Var("", (), "i", 5, True))
    body = s.child("body", [i, *inner], lambda b: f"[{', '.join(_next(b, c, 4) for c in inner)}]", effects=True)
    start = f"[{', '.join(_as_carry(s, v) for v in initial)}]"
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
        end = str(n) if kind == "static" else f"jnp.asarray({s.need((), 'i').name}, jnp.int32) % 5"
        first = "0" if kind == "static" else "jnp.int32(0)"
        s.emit(f"{', '.join(names)}, = lax.fori_loop({first}, {end}, lambda i, c: {body}(i, *c), {start})")
    _after(s, names, inner)


def conditional(s: Scope) -> None:
    operands = [s.pick() or s.need(s.shape()) for _ in range(s.rng.randint(1, 2))]
    shapes = [operands[0].shape] if s.rng.random() < 0.6 else [s.shape(), ()]
    count = s.rng.choice((2, 2, 3))
    branches = []
    for _ in range(count):
        params = [s.param("x", v) for v in operands]
        branches.append(
            s.child("branch", params, lambda b: f"[{', '.join(_result(b, x)[0] for x in shapes)}]", effects=True)
        )
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
    params = [s.param("x", v) for v in operands]
    arguments = ", ".join(f"jnp.asarray({v.name}, jnp.{s.g.floats})" for v in operands)
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
    params = [s.param("x", v, v.shape[:d] + v.shape[d + 1 :])]
    axes, arguments = [d], [v.name]
    w = s.pick()
    if w is not None and s.rng.random() < 0.4:
        params.append(s.param("x", w))
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
