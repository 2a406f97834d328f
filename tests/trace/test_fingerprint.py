"""A fingerprint tells programs apart by all that a plan hangs on, and is the same for the same program everywhere."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fingerprint_case import Held, Pair, Tag, X, all_of_them, host, of, scanned, tagged
from jax import lax

from sbp_jax.calls import capture
from sbp_jax.rules import user
from sbp_jax.trace import fingerprint

INDEX = jnp.array([[0], [3]])
WEAK = jax.ShapeDtypeStruct((), jnp.float32, weak_type=True)
STRONG = jax.ShapeDtypeStruct((), jnp.float32)


def holding(number: float):
    return lambda x: tagged(x, f=functools.partial(host, add=number))


def gathered(x, mode):
    return x.at[INDEX[:, 0]].get(mode=mode)


def test_it_is_the_same_when_traced_again() -> None:
    assert all_of_them() == all_of_them()


def test_it_is_the_same_in_another_process() -> None:
    case = Path(__file__).with_name("fingerprint_case.py")
    env = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    # This process imported the case by its name, where that one is the main module.
    run = f"import sys, json; sys.path.insert(0, {str(case.parent)!r}); import fingerprint_case as c; "
    out = subprocess.run(
        [sys.executable, "-c", run + "print(json.dumps(c.all_of_them()))"], env=env, capture_output=True, text=True,
        check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(out.stdout) == all_of_them()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (lambda x: lax.cumsum(x, axis=0), lambda x: lax.cumsum(x, axis=1)),
        (lambda x: lax.cumsum(x, axis=0), lambda x: lax.cumsum(x, axis=0, reverse=True)),
        (lambda x: lax.rev(x, (0,)), lambda x: lax.rev(x, (1,))),
        (lambda x: lax.sort(x, dimension=0), lambda x: lax.sort(x, dimension=1)),
        (lambda x: lax.argmax(x, 0, jnp.int32)[:8], lambda x: lax.argmin(x, 0, jnp.int32)[:8]),
        (lambda x: x.T @ x, lambda x: jnp.matmul(x.T, x, precision="highest")),
        (lambda x: x + 1.0, lambda x: x + 2.0),
        (lambda x: x + 0.0, lambda x: x + -0.0),
        (lambda x: lax.pad(x, 0.0, ((1, 0, 0), (0, 0, 0))), lambda x: lax.pad(x, 0.0, ((0, 1, 0), (0, 0, 0)))),
        (lambda x: gathered(x, "clip"), lambda x: gathered(x, "fill")),
        (lambda x: lax.reduce(x, 1.0, lax.mul, (0,)), lambda x: lax.reduce(x, 1.0, lambda a, b: a + b * a, (0,))),
        (scanned, functools.partial(scanned, reverse=True)),
        (lambda x: lax.fori_loop(0, 3, lambda _, c: c * x, x), lambda x: lax.fori_loop(0, 4, lambda _, c: c * x, x)),
        (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), lambda x: lax.cond(x[0, 0] > 0, jnp.cos, jnp.sin, x)),
        (scanned, functools.partial(scanned, by=3.0)),
        (holding(1.0), holding(2.0)),
        (lambda x: tagged(x, f=lambda y: y + 1), lambda x: tagged(x, f=lambda y: y + 2)),
        (lambda x: tagged(x, tag=Tag("a")), lambda x: tagged(x, tag=Tag("b"))),
        (lambda x: tagged(x, tag=1), lambda x: tagged(x, tag=True)),
        (lambda x: tagged(x, tag=1), lambda x: tagged(x, tag=1.0)),
        (lambda x: tagged(x, tag=(1, 2)), lambda x: tagged(x, tag=Pair(1, 2))),
        (lambda x: tagged(x, tag=0.0), lambda x: tagged(x, tag=-0.0)),
        (lambda x: tagged(x, tag=Held(np.arange(3))), lambda x: tagged(x, tag=Held(np.arange(3) + 1))),
        (lambda x: tagged(x, tag=Held(np.zeros(2, np.int32))), lambda x: tagged(x, tag=Held(np.zeros(2, np.float32)))),
        (lambda x: tagged(x, tag=jnp.float32), lambda x: tagged(x, tag=jnp.bfloat16)),
        (lambda x: (x, x + 1), lambda x: (x + 1, x)),
        (lambda x: x.astype(jnp.bfloat16), lambda x: x.astype(jnp.float16)),
    ],
)  # fmt: skip
def test_programs_that_differ(a, b) -> None:
    assert of(a) != of(b)
    assert of(a) == of(a) and of(b) == of(b)


def test_donation_weak_types_and_static_arguments_count() -> None:
    def step(w, s):
        return w * s, s + 1

    assert of(step, X, STRONG) != of(step, X, STRONG, donate=(0,))
    assert of(step, X, STRONG) != of(step, X, WEAK)
    assert of(step, X, 2, static=(1,)) != of(step, X, 3, static=(1,))
    assert of(step, X, STRONG) == of(step, jnp.ones(X.shape), jnp.ones(()))


def test_what_the_rules_say_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from sbp_jax.rules import base

    before, plain = of(lambda x: tagged(x, tag=1)), of(jnp.sin)
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    monkeypatch.setattr(user, "REGISTERED", set())
    user.register_rule("tests.tagged", "a b -> a b")
    with_rule = of(lambda x: tagged(x, tag=1))
    user.register_rule("tests.tagged", "a b -> a b", whole=("b",))
    assert len({before, with_rule, of(lambda x: tagged(x, tag=1))}) == 3
    assert of(jnp.sin) == plain


def test_values_of_closed_over_arrays_are_arguments() -> None:
    def closed(table):
        return of(lambda x: x @ table)

    assert closed(jnp.ones((16, 4))) == closed(jnp.zeros((16, 4))) != closed(jnp.zeros((16, 5)))


def test_it_is_fast() -> None:
    """A fraction of a second for GPT-3; here, no more than a part of tracing."""
    import time

    from zoo import gpt

    case = gpt.build("tiny", layers=12)
    shapes = jax.eval_shape(case.init), case.batch(0)
    start = time.process_time()
    program, _, _ = capture.trace(case.step, shapes, {}, (), ())
    traced = time.process_time()
    fingerprint(program)
    assert time.process_time() - traced < 0.5 * (traced - start)
