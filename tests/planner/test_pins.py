"""Users' pins: obeyed wherever they can be, explained where they cannot."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.planner.pins import conflict_message, ops_between

to_global: Any = sbp.to_global


def place(*shape: int) -> sbp.Placement:
    return sbp.placement.abstract(shape, axis_names=("dp", "tp")[: len(shape)], cluster="a100-80")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def train_step(w, x):
    loss, g = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
    return w - 0.1 * g, loss


def plan(fn, *args, where=None, donate=(), **options) -> sbp.Plan:
    return sbp.plan(fn, *args, placement=where or place(4), donate_argnums=donate, **options)


def moved(p: sbp.Plan) -> list[tuple[str, str]]:
    return [(str(b.src), str(b.dst)) for b in p.boxings()]


def test_a_donated_pair_that_contradicts_itself() -> None:
    message = (
        r"two pins contradict each other: in_sbp of 0 asks for \(S\(0\)\), out_sbp of 0 for \(S\(1\)\), but a donated "
        r"argument and the result that replaces it share one signature\. Between them: sub \[test_pins\.py:\d+ "
        r"\(train_step\)\]\. Give both the same, or do not donate the argument"
    )
    with pytest.raises(sbp.PlanError, match=message):
        plan(train_step, f32(8, 8), f32(16, 8), donate=0, in_sbp=("S(0)", None), out_sbp=("S(1)", None))
    free = plan(train_step, f32(8, 8), f32(16, 8), in_sbp=("S(0)", None), out_sbp=("S(1)", None))
    assert str(free.inputs[0].signature) == "S(0)" and str(free.outputs[0].signature) == "S(1)"


def test_to_global_twice_is_two_signatures_one_after_the_other() -> None:
    def f(x):
        return to_global(to_global(jnp.sin(x), "S(0)"), "S(1)").sum()

    assert ("S(0)", "S(1)") in moved(plan(f, f32(8, 8)))


def test_a_result_leaves_in_another_signature_than_it_was_pinned_to_inside() -> None:
    p = plan(lambda x: to_global(jnp.sin(x), "S(0)"), f32(8, 8), out_sbp="S(1)")
    assert ("S(0)", "S(1)") in moved(p) and str(p.outputs[0].signature) == "S(1)"


def test_pins_in_loops() -> None:
    def f(x):
        def body(c, _):
            return jnp.tanh(to_global(to_global(c, "S(0)") * 2.0, "S(1)")), None

        return jax.lax.scan(body, x, None, length=3)[0]

    p = plan(f, f32(8, 8), in_sbp=("B",), out_sbp="B")
    turned = [b for b in p.boxings() if (str(b.src), str(b.dst)) == ("S(0)", "S(1)")]
    assert [b.times for b in turned] == [3.0]


@pytest.mark.parametrize(
    ("fn", "args", "options", "message"),
    [
        (lambda x: x + 1, (f32(6, 8),), {"in_sbp": ("S(0)",)}, r"in_sbp of 0: .*6 is not a multiple of 4"),
        (lambda x: to_global(x + 1, "S(0)"), (f32(6, 8),), {}, r"to_global at test_pins.py.*6 is not a multiple"),
        (lambda x: x + 1, (f32(8),), {"in_sbp": ("S(1)",)}, r"in_sbp of 0: .*rank 1"),
        (lambda x: x + 1, (f32(8),), {"in_sbp": ("P",)}, r"in_sbp of 0: \(P\) is not possible for 0:float32\[8\]; "
         r"possible: \['B', 'S\(0\)'\]"),
        (lambda x: jnp.exp(x), (f32(8),), {"out_sbp": "P"}, r"out_sbp of the result: \(P\) is not possible"),
        (lambda x: to_global(x > 0, "P"), (f32(8),), {}, r"to_global at .*\(P\) is not possible for .*bool\[8\]"),
        (lambda x: x + 1, (f32(8),), {"in_sbp": ("S(0), B",)}, r"in_sbp of 0: .*1"),
    ],
)  # fmt: skip
def test_a_pin_that_cannot_be(fn, args, options, message: str) -> None:
    with pytest.raises(sbp.SbpError, match=message):
        plan(fn, *args, **options)


def test_a_sum_pinned_on_an_op_that_cannot_make_one_is_made_from_the_whole() -> None:
    """``to_global`` may always make a term of what is whole: the op before it is not asked to."""
    p = plan(lambda x: to_global(jnp.exp(x), "P") * 2.0, f32(8, 8))
    assert any(dst == "P" for _, dst in moved(p))


def traced(fn, *args):
    return capture.trace(fn, args, {}, (), ())[0]


def test_a_smallest_set_of_pins_is_named_with_the_ops_between() -> None:
    def f(x, y):
        a = to_global(x, "S(0)")
        b = to_global(jnp.tanh(a) @ y, "S(1)")
        return to_global(b + 1.0, "B")

    program = traced(f, f32(8, 8), f32(8, 8))
    nodes = [op.index for op in program.nodes if op.name == "sbp.pin"]
    pins = {k: (sbp.Signature.parse(s), f"to_global {n}") for n, (k, s) in enumerate(
        zip(nodes, ("S(0)", "S(1)", "B"), strict=True))}  # fmt: skip
    message = conflict_message(program, pins, lambda some: not {nodes[0], nodes[1]} <= set(some))
    assert message.startswith(
        "no plan satisfies all pins at once. These contradict each other: to_global 0 asks for (S(0)); "
        "to_global 1 asks for (S(1)). Between them: tanh [test_pins.py:"
    )
    assert "-> dot_general [test_pins.py:" in message and "ignore_user_sbp=True" in message
    assert "to_global 2" not in message


def test_long_ways_between_ops_are_shortened() -> None:
    def f(x):
        for _ in range(20):
            x = jnp.tanh(x @ x)
        return x

    program = traced(f, f32(8, 8))
    told = ops_between(program, program.input_ops[0], program.output_ops[0])
    assert told.count("->") == 8 and " more ops -> " in told
    assert ops_between(program, program.output_ops[0], program.input_ops[0]) == told
    other = traced(lambda a, b: (a + 1, b + 1), f32(8), f32(8))
    assert "neither depends" in ops_between(other, other.input_ops[0], other.output_ops[1])


def test_pins_are_kept_by_every_solver() -> None:
    args = f32(64, 64), f32(128, 64)
    for solver in sbp.planner.solvers().of("signatures"):
        if solver in ("exhaustive", "neo"):  # for a few decisions only; for embedding tables, which there are none of
            continue
        # Moving from this one to the pins costs seconds; they are kept all the same.
        options = {"earlier": plan(train_step, *args, donate=0, where=place(2, 4)), "steps": 1}
        config = sbp.AutoParallelConfig(
            solver=solver, solver_options=options if solver == "adaptive_paddle" else None
        )  # fmt: skip
        p = plan(train_step, *args, donate=0, where=place(2, 4), in_sbp=("B, S(1)", "S(0), S(1)"), config=config)
        assert [str(leaf.signature) for leaf in p.inputs] == ["B, S(1)", "S(0), S(1)"]


def test_metadata_has_a_place_to_go() -> None:
    """Pins are by argument: whatever knows a leaf's signature can hand it over as ``in_sbp``, a tree like the state."""
    state = {"a": f32(8, 8), "b": f32(8)}
    p = plan(lambda s: jax.tree.map(lambda v: v * 2, s), state, donate=0, in_sbp=({"a": "S(1)", "b": None},))
    assert np.array_equal([str(leaf.signature) for leaf in p.inputs if leaf.path == "0/a"], ["S(1)"])
