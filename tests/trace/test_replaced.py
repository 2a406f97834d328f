"""Donated arguments: which are read late, what keeps XLA from copying them, and how early they are replaced."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.trace import Op, Program, arranged, joined, late_reads
from sbp_jax.trace.order import is_kernel


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def traced(fn, *args) -> Program:
    program = capture.trace(fn, args, {}, (), ())[0]
    program.donated = list(zip(range(len(program.output_ops)), range(len(program.output_ops)), strict=True))
    return program


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def momentum(ws, ms, x):
    g = jax.grad(loss)(ws, x)
    ms = [0.9 * m + d for m, d in zip(ms, g, strict=True)]
    return [w - 0.1 * m for w, m in zip(ws, ms, strict=True)], ms


def arguments(batch: int, layers: int = 4):
    ws = [f32(203, 203)] * layers
    return ws, ws, f32(batch, 203)


def is_free(op: Op) -> bool:
    return False


def late(program: Program, together=None) -> list[int]:
    """Which arguments are read late, by number."""
    inputs = [op.outs[0] for op in program.input_ops]
    return [inputs.index(x.argument) for x in late_reads(program, is_kernel, is_free, together or {})]


def copies(step, *args) -> int:
    return len(re.findall(r"= f32\[203,203\]\S* copy\(%param", step.lower(*args).compile().as_text()))


def test_all_weights_but_the_first_are_read_late_and_none_once_gradients_wait() -> None:
    program = traced(momentum, *arguments(1031))
    assert late(program) == [1, 2, 3]  # of the first no cotangent is handed on
    together = joined(program, is_free)
    assert late(program, together) == [] and all(len(values) == 2 for values in together.values())


@pytest.mark.parametrize(
    ("change", "batch"),
    [(lambda w, g: w - 0.1 * g, 16), (lambda w, g: w - 0.1 * g / jnp.sqrt(sum((d * d).sum() for d in g)), 1031)],
    ids=["larger than what it is made of", "waits for all"],
)
def test_what_had_better_be_late_or_waits_anyway_is_not_joined(change, batch) -> None:
    def step(ws, x):
        g = jax.grad(loss)(ws, x)
        return [change(w, d if batch == 16 else jnp.stack(g)) for w, d in zip(ws, g, strict=True)]

    ws, _, x = arguments(batch)
    assert joined(traced(step, ws, x), is_free) == {}


def test_biases_are_copied_rather_than_waited_for() -> None:
    """A copy of one is small beside the weight's gradient that reads it to know where the activation was."""

    def step(ws, bs, x):
        def total(p):
            h = x
            for w, b in zip(*p, strict=True):
                h = jax.nn.relu(h @ w + b)
            return (h**2).mean()

        return jax.tree.map(lambda p, g: p - 0.1 * g, (ws, bs), jax.grad(total)((ws, bs)))

    ws, _, x = arguments(1031)
    program = traced(step, ws, [f32(203)] * 4, x)
    assert {v.shape for values in joined(program, is_free).values() for v in values} == {(203, 203), (1031, 203)}


def test_xla_copies_no_weight_and_the_step_is_the_same() -> None:
    where = sbp.placement.all("cpu", axis_names=("dp",))
    step = sbp.auto_parallel(momentum, placement=where, donate_argnums=(0, 1))
    assert copies(step, *arguments(1031)) == 0
    random = np.random.default_rng(0)
    ws, ms, x = jax.tree.map(lambda s: jnp.asarray(random.normal(size=s.shape) / 14, s.dtype), arguments(1031))
    expected = momentum(ws, ms, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), step(ws, ms, x), expected)


def test_each_weight_is_replaced_before_the_next_gradient() -> None:
    program = traced(momentum, *arguments(1031))
    found = arranged(program, is_free)
    names = [op.name for op in found.graph.ops if isinstance(op, Op)]
    assert sorted(op.index for op in found.graph.nodes()) == sorted(op.index for op in program.graph.nodes())
    assert len(found.replacements) == 8
    made: set[int] = {op.outs[0].id for op in program.input_ops}
    for op in found.graph.ops:
        assert {v.id for v in op.reads} <= made
        made |= {v.id for v in op.results}
    products = [k for k, name in enumerate(names) if name == "dot_general"]
    updates = [k for k, name in enumerate(names) if name == "sub" and k > products[4]]
    assert updates[0] < products[-1]  # traced, all of them come last


def test_what_is_returned_too_is_no_update_and_runs_where_it_was() -> None:
    def step(ws, x):
        g = jax.grad(loss)(ws, x)
        new = [w - 0.1 * d for w, d in zip(ws, g, strict=True)]
        return new, [jnp.sin(w) for w in new[:2]] + new[2:]

    ws, _, x = arguments(1031)
    program = capture.trace(step, (ws, x), {}, (), ())[0]
    program.donated = [(k, k) for k in range(4)]
    assert not arranged(program, is_free).replacements
    program.donated = []
    assert arranged(program, is_free).graph.ops == program.graph.ops and joined(program, is_free) == {}


_TURNED = "transpose", (307, 64)


def test_what_is_made_of_a_gradient_in_part_waits_for_the_rest() -> None:
    """A table that is looked up and, turned, the head: the head's gradient is in memory early, what is made of it alone
    is not. What is made before the ops that wait for the gradient would be read past their barrier."""

    def step(table, ws, rows):
        def loss(table, ws):
            h = table[rows]
            for w in ws:
                h = jnp.tanh(h @ w)
            return jnp.mean((h @ table.T) ** 2)

        g = jax.grad(loss, (0, 1))(table, ws)
        return jax.tree.map(lambda p, g: p - 0.1 * g, (table, ws), g)

    program = traced(step, f32(307, 64), [f32(64, 64)] * 2, jax.ShapeDtypeStruct((1024,), jnp.int32))
    program.donated = [(i, i) for i in range(3)]
    names = [op.name if isinstance(op, Op) else "" for op in arranged(program, is_free).graph.ops]
    shapes = [op.results[0].shape for op in arranged(program, is_free).graph.ops]
    turned = [k for k, (name, shape) in enumerate(zip(names, shapes, strict=True)) if (name, shape) == _TURNED]
    assert len(turned) == 1 and names.index("scatter-add") < turned[0] < names.index("add_any", turned[0])
