"""Programs that make values again compute what they did, hold less, and keep their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax import api, capture
from sbp_jax.cluster import CPU
from sbp_jax.planned import Plan
from sbp_jax.planner import Request, make_plan
from sbp_jax.trace import Program, recompute
from zoo import gpt


def run(program: Program, in_tree, out_shape, args):
    """The program by a plan, on 2x4."""
    p = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    data = make_plan(program, Request(placement=p, cluster=CPU))
    entry = api._entry(program, Plan.of(data), (args, {}), jax.tree.structure(out_shape), ())
    return data, entry.jitted(*args, ({}, entry.constants)), entry


def turn_of(program: Program) -> int:
    """A node in the loss, where the forward part has read all that it reads of the layers."""
    return max(op.index for op in program.nodes if op.name == "log")


@pytest.mark.parametrize("options", [{}, {"scan_layers": True}, {"grad_accumulation": 2},
                                     {"grad_accumulation": 2, "scan_layers": True}], ids=str)  # fmt: skip
def test_a_training_step_that_makes_everything_again_computes_the_same(options) -> None:
    case = gpt.build("tiny", **options)
    state, batch = case.init(), jax.tree.map(jnp.asarray, case.batch(0))
    program, in_tree, out_shape = capture.trace(case.step, (state, batch), {}, (), ())
    turn = turn_of(program)
    logits = max(op.index for op in program.nodes if op.name == "reduce_max")
    layers = {op.index for op in program.nodes if op.index < logits - 1 and op.primitive is not None}
    again, origin = recompute(program, turn, layers)
    count = lambda p, name: sum(op.name == name for op in p.nodes)  # noqa: E731
    assert count(again, "dot_general") > count(program, "dot_general")
    assert len(origin) == len(again.nodes)
    assert all(k < 0 or program.nodes[k].name == again.nodes[i].name for i, k in enumerate(origin))
    _, want, _ = run(program, in_tree, out_shape, (state, batch))
    data, got, entry = run(again, in_tree, out_shape, (state, batch))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-5), got[1], want[1])
    text = api._lower(entry, (state, batch), {}).compile().as_text()
    assert Plan.of(data).verify(type("C", (), {"as_text": lambda self: text})()).ok
