"""Contractions, reductions, what runs along an axis, windows."""

import math

import numpy as np

from .scope import DIMS, MAX_ELEMENTS, Scope, Var


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
        kernel = f"{w.name}.astype({v.name}.dtype)"
        s.let(
            f"lax.conv_general_dilated({v.name}, {kernel}, {strides}, {padding!r}, feature_group_count={groups})",
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
    start, op = s.rng.choice((("0.0", "lax.add"), ("-np.inf", "lax.max"), ("np.inf", "lax.min")))
    if not v.exact and s.has_kink(op):
        return
    first = f"np.asarray({start}, {v.name}.dtype)"
    s.let(
        f"lax.reduce_window({v.name}, {first}, {op}, {window}, {strides}, {padding!r})", shape, "f",
        v.bound * (math.prod(window) if op == "lax.add" else 1), v.exact and op != "lax.add",
    )  # fmt: skip
