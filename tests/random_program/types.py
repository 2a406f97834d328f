"""Ops on other types than most of a program: complex numbers, floats cast to narrower and wider ones."""

import math

from .scope import Scope, Var


def complexes(s: Scope) -> None:
    """A complex number from floats, something made of one, or a float from one."""
    v = s.pick("c")
    if v is None or s.rng.random() < 0.3:
        v = s.pick()
        if v is not None:
            w = s.need(v.shape)
            text = f"lax.complex(jnp.asarray({v.name}, jnp.float32), jnp.asarray({w.name}, jnp.float32))"
            s.let(text, v.shape, "c", 1.5 * max(v.bound, w.bound))
        return
    axes = s.subset(v.rank) if v.rank else ()
    n = math.prod(v.shape[d] for d in axes)
    same = s.pick("c", lambda w: w.shape == v.shape) or v
    made = [
        (f"{v.name} * {same.name}", v.shape, "c", v.bound * same.bound),
        (f"{v.name} - {same.name} * 1j", v.shape, "c", v.bound + same.bound),
        (f"jnp.conj({v.name})", v.shape, "c", v.bound),
        (f"jnp.exp(1j * {v.name}.real)", v.shape, "c", 1.0),
        (f"jnp.sum({v.name}, {axes})", [k for d, k in enumerate(v.shape) if d not in axes], "c", n * v.bound),
        (f"{v.name}.real", v.shape, "f", v.bound),
        (f"{v.name}.imag", v.shape, "f", v.bound),
        (f"({v.name} * jnp.conj({v.name})).real", v.shape, "f", v.bound**2),
    ]
    if v.rank:
        d = s.axis(v)
        made += [(f"jnp.fft.{f}({v.name}, axis={d})", v.shape, "c", v.shape[d] * v.bound) for f in ("fft", "ifft")]
    text, shape, kind, bound = s.rng.choice(made)
    s.let(text, shape, kind, bound)


def recast(s: Scope) -> None:
    """A float in another type; whether that rounds once or not at all is XLA's choice, so it is no longer exact."""
    v = s.pick("f")
    types = [t for t in (*s.g.others, s.g.floats) if t]
    if v is not None and s.g.others:
        s.let(f"jnp.asarray({v.name}).astype(jnp.{s.rng.choice(types)})", v.shape, "f", v.bound)


def accumulated(s: Scope) -> None:
    """A product of narrow floats whose sums are wide."""
    v = s.pick("f", lambda v: v.rank >= 1)
    if v is None or not s.g.others:
        return
    w = s.need((v.shape[-1], s.rng.choice((2, 4, 8))))
    k = v.shape[-1] * v.bound * w.bound
    if math.prod(v.shape[:-1]) * w.shape[1] <= 2048:
        text = f"jnp.matmul({v.name}, {w.name}, preferred_element_type=jnp.float32)"
        s.let(text, (*v.shape[:-1], w.shape[1]), "f", k)


def weak(s: Scope) -> None:
    """A weakly typed value, and what it gives with another."""
    v: Var | None = s.pick("fi")
    if v is not None:
        text = s.rng.choice(("{0} * jnp.asarray(2)", "lax.full({1}, 0.5) + {0}", "jnp.where({0} > 0, 0.5, {0})"))
        if "where" in text and not v.exact:
            return
        s.let(text.format(v.name, v.shape), v.shape, "f", 2 * v.bound + 1)
