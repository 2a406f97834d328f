"""Collectives in loops, and those beside them: on CPUs they take turns (``lower/turns.py``)."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sbp_jax as sbp

# XLA ends the process, or waits for ever, where they do not: so in a process of its own.
_ROOT = Path(__file__).parents[2]
_RUN = "from tests.lower.test_turns import main; main()"


def lstm_step(p, state, x, y):
    """An LSTM over a sequence and a head: its weights are gathered once the loop, which gathers the state, has run."""

    def loss(p):
        def cell(carry, x):
            h, c = carry
            i, g, f, o = jnp.split(jnp.concatenate([x, h], -1) @ p["w"] + p["b"], 4, -1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], 256))
        _, hs = jax.lax.scan(cell, (zeros, zeros), x)
        return jnp.mean((hs @ p["k"] + p["d"] - y) ** 2)

    value, g = jax.value_and_grad(loss)(p)
    updates, state = optax.adam(1e-3).update(g, state, p)
    return optax.apply_updates(p, updates), state, value


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


WEIGHTS = {"w": f32(352, 1024), "b": f32(1024), "k": f32(256, 64), "d": f32(64)}
ARGUMENTS = WEIGHTS, jax.eval_shape(optax.adam(1e-3).init, WEIGHTS), f32(64, 128, 96), f32(64, 128, 64)
EIGHT = sbp.placement("cpu", range(8), axis_names=("dp",))


def main() -> None:
    """Runs the steps, and compares them with plain ``jax.jit``."""
    draw = np.random.default_rng(0)
    p, x, y = jax.tree.map(
        lambda v: jnp.asarray(draw.normal(size=v.shape) * 0.1, v.dtype), (ARGUMENTS[0], *ARGUMENTS[2:])
    )
    state = optax.adam(1e-3).init(p)
    step = sbp.auto_parallel(lstm_step, placement=EIGHT, donate_argnums=(0, 1))
    wanted = jax.jit(lstm_step)(p, state, x, y)
    for _ in range(5):
        found = jax.block_until_ready(step(*jax.tree.map(jnp.copy, (p, state)), x, y))
    # Adam's step is nearly the sign of a gradient: what gradients and losses are is compared.
    pairs = (found[1][0].mu, found[2]), (wanted[1][0].mu, wanted[2])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-7), *pairs)
    given = jax.tree.map(lambda v: jnp.asarray(draw.normal(size=v.shape) * 0.1, v.dtype), BOTH_WAYS)
    where = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    step, wanted = sbp.auto_parallel(both_ways, placement=where), jax.jit(both_ways)(*given)
    for _ in range(20):
        found = jax.block_until_ready(step(*given))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6), found, wanted)


def test_a_step_with_gathers_in_a_loop_and_beside_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN], capture_output=True, text=True, timeout=300, check=False, cwd=_ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


_SENDS = {"all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"}
_NO_KERNELS = {"tuple", "get-tuple-element", "opt-barrier", "bitcast", "parameter", "constant"}


def side_by_side(text: str) -> dict[tuple[str, str], bool]:
    """Of compiled HLO: each loop with collectives and each collective or such loop beside it; whether one of the two
    hangs on the other in a buffer. A barrier of several arrays makes none of them hang on another when it runs."""
    bodies: dict[str, dict[str, tuple[str, list[str], str]]] = {}
    for line in text.splitlines():
        if head := re.match(r"(?:ENTRY )?%?(\S+) \(.*\{$", line):
            body = bodies[head[1]] = {}
        elif m := re.match(r"\s+(?:ROOT )?%(\S+) = .*? ([a-z\-]+)\((.*)", line):
            body[m[1]] = m[2], re.findall(r"%([\w.\-]+)", m[3].split("), ")[0]), line
    sends = {name for name, body in bodies.items() if any(kind in _SENDS for kind, _, _ in body.values())}

    def behind(body, name, index=None) -> frozenset[str]:
        kind, operands, line = body[name]
        if kind == "get-tuple-element":
            index = int(line.split("index=")[1].split(",")[0])
        elif kind == "tuple" and index is not None:
            operands, index = [operands[index]], None
        elif kind != "opt-barrier":
            index = None
        key = id(body), name, index
        if key not in known:
            before = [behind(body, x, index) for x in operands]
            known[key] = frozenset().union(*before) | ({name} if kind not in _NO_KERNELS else set())
        return known[key]

    found: dict[tuple[str, str], bool] = {}
    known: dict[tuple[int, str, int | None], frozenset[str]] = {}
    for body in bodies.values():
        whiles = [(n, line.split("body=%")[1].split(",")[0]) for n, (kind, _, line) in body.items() if kind == "while"]
        loops = [n for n, of_loop in whiles if of_loop in sends]
        for loop in loops:
            for other in [*loops, *(n for n, (kind, _, _) in body.items() if kind in _SENDS)]:
                if other != loop:
                    found[loop, other] = loop in behind(body, other) or other in behind(body, loop)
    return found


def both_ways(p, x):
    """A sequence read forwards and backwards by loops that do not hang on each other, and what they give together."""

    def read(w, x, b):
        def cell(h, x):
            h = jnp.tanh(jnp.concatenate([x, h], -1) @ w + b)
            return h, h

        return jax.lax.scan(cell, jnp.zeros((64, 128)), x)[1]

    def loss(p):
        hs = jnp.concatenate([read(p["f"], x, p["b"]), read(p["g"], x[::-1], p["c"])[::-1]], -1)
        return jnp.mean(jnp.tanh(hs @ p["o"]) ** 2)

    value, g = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda w, d: w - 0.1 * d, p, g), value


BOTH_WAYS = {"f": f32(256, 128), "g": f32(256, 128), "b": f32(128), "c": f32(128), "o": f32(256, 16)}, f32(40, 64, 128)


@pytest.mark.parametrize("mesh", [(8,), (2, 4)])
def test_loops_that_send_hang_on_what_is_sent_beside_them(mesh) -> None:
    """In buffers: what has none in common may run at the same time."""
    where = sbp.placement("cpu", np.arange(8).reshape(mesh), axis_names=("dp", "tp")[: len(mesh)])
    step = sbp.auto_parallel(both_ways, placement=where, donate_argnums=0)
    found = side_by_side(step.lower(*BOTH_WAYS).compile().as_text())
    assert len(found) > 10 and all(found.values())


def turns(function, *arguments, **options) -> int:
    """How many numbers are False, which XLA does not know."""
    text = sbp.auto_parallel(function, **options).lower(*arguments).compile().as_text()
    return len(re.findall(r"= \(?pred\[\]\)? opt-barrier", text))


def gathered(h, w, v):
    """A loop that gathers what it carries, and a product with gathered weights that hangs on no loop."""
    h = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, length=5)[0]
    return h, jnp.sin(v) @ v.T


ODD = f32(64, 64), f32(64, 64), f32(64, 32)
PINS = {"in_sbp": ("S(1)", "S(1)", "S(0)"), "out_sbp": ("S(1)", "S(0)")}


def test_only_where_something_is_sent_beside_a_loop_that_sends() -> None:
    assert turns(gathered, *ODD, placement=EIGHT, **PINS) == 1
    assert turns(lambda h, w, v: gathered(h, w, v)[1], *ODD, placement=EIGHT, in_sbp=PINS["in_sbp"]) == 0
    assert turns(lambda h, w, v: gathered(h, w, v)[0], *ODD, placement=EIGHT, in_sbp=PINS["in_sbp"]) == 0
    assert turns(gathered, *ODD, placement=sbp.placement("cpu", [0]), **PINS) == 0


def test_in_loops_within_loops_and_in_branches() -> None:
    def nested(h, w, v):
        def outer(h, _):
            h, out = gathered(h, w, v)
            return h + out.sum() * 1e-6, out[0]

        h, rows = jax.lax.scan(outer, h, None, length=3)
        h = jax.lax.cond(rows.sum() > 0, lambda h: jnp.tanh(h @ w), lambda h: h, h)
        return h, rows, v.T @ v

    draw = np.random.default_rng(0)
    given = [jnp.asarray(draw.normal(size=x.shape) * 0.1, x.dtype) for x in ODD]
    wanted = jax.jit(nested)(*given)
    step = sbp.auto_parallel(nested, placement=EIGHT, in_sbp=("S(1)", "S(1)", "S(0)"))
    found = step(*given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, wanted)
