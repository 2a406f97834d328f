"""What only moves elements, or looks them up."""

import math

from .scope import DIMS, MAX_ELEMENTS, Scope, Shape, Var


def like(w: Var, v: Var) -> str:
    """A value in another one's type: updates must have it."""
    return f"jnp.asarray({w.name}, {v.name}.dtype)"


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
    v = s.pick("fibc", lambda v: v.rank >= 1)
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
        text = f"lax.pad(jnp.asarray({v.name}), jnp.asarray(0.25, {v.name}.dtype), {inner})"
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
        text = f"{v.name}.at[{a}:{b}].set({like(w, v)})"
        s.let(text, v.shape, v.kind, max(v.bound, w.bound), v.exact and w.exact)
        return
    if how == "set":
        where = s.rng.sample(range(n), s.rng.randint(1, n))
        w = s.need((len(where), *v.shape[1:]), v.kind)
        text = f"{v.name}.at[np.array({where})].set({like(w, v)}, unique_indices=True)"
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
        text, shape = f"jnp.asarray({v.name}).at[{inside}].{how}({like(w, v)})", v.shape
    s.let(text, shape, v.kind, bound, v.kind == "i" or (how == "max" and v.exact and w.exact))


def dynamic_slices(s: Scope) -> None:
    v = s.pick("fi", lambda v: v.rank >= 1)
    if v is None:
        return
    start = [
        f"jnp.asarray({s.need((), 'i').name}, jnp.int32)" if s.rng.random() < 0.5 else str(s.rng.randrange(n))
        for n in v.shape
    ]  # clamped
    sizes = tuple(s.rng.randint(1, n) if s.rng.random() < 0.6 else n for n in v.shape)
    if any("(" in x for x in start):
        start = [x if "(" in x else f"jnp.int32({x})" for x in start]
    at = f"({', '.join(start)},)"
    if s.rng.random() < 0.5:
        s.let(f"lax.dynamic_slice({v.name}, {at}, {sizes})", sizes, v.kind, v.bound, v.exact)
    else:
        w = s.need(sizes, v.kind)
        s.let(
            f"lax.dynamic_update_slice({v.name}, {like(w, v)}, {at})", v.shape, v.kind, max(v.bound, w.bound),
            v.exact and w.exact,
        )  # fmt: skip
