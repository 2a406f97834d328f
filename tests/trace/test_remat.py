"""Programs that make values again compute what they did."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.cluster import CPU
from sbp_jax.planner import Request, make_plan
from sbp_jax.step.jitted import lower_step, lowered_step
from sbp_jax.step.plan import Plan
from sbp_jax.trace import Op, Program, Structured, recompute
from zoo import gpt


def traced(**options):
    case = gpt.build("tiny", dropout=0.0, layers=2, **options)
    state, batch = case.init(), jax.tree.map(jnp.asarray, case.batch(0))
    program, _, out_shape = capture.trace(case.step, (state, batch), {}, (), ())
    # A node in the loss, where the forward part has read all that it reads of the layers.
    turn = max(op.index for op in program.nodes if op.name == "log")
    logits = max(op.index for op in program.nodes if op.name == "reduce_max")
    layers = {op.index for op in program.nodes if op.index < logits - 1 and op.primitive is not None}
    return case, (state, batch), program, out_shape, *recompute(program, turn, layers)


def count(program: Program, name: str) -> int:
    return sum(op.name == name for op in program.nodes)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"scan_layers": True}, marks=pytest.mark.slow),
        {"grad_accumulation": 2, "scan_layers": True},
    ],
    ids=str,
)
def test_a_training_step_that_makes_everything_again_computes_the_same(options) -> None:
    case, args, program, out_shape, again, origin = traced(**options)
    assert count(again, "dot_general") > count(program, "dot_general")
    assert all(k < 0 or program.nodes[k].name == op.name for op, k in zip(again.nodes, origin, strict=True))
    p = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    plan = Plan.of(make_plan(again, Request(placement=p, cluster=CPU)))
    entry = lowered_step(again, plan, (args, {}), jax.tree.structure(out_shape), ())
    want, got = jax.jit(case.step)(*args), entry.jitted(*args, ({}, entry.constants))
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    for a, b in zip(jax.tree.leaves(got[0]["params"]), jax.tree.leaves(want[0]["params"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)  # AdamW's first step is a sign
    assert plan.verify(lower_step(entry, args, {}).compile()).ok


def test_arguments_are_read_anew_by_what_computes_with_them_beyond_the_turn() -> None:
    _, _, program, _, _, _ = traced()
    turn = max(op.index for op in program.nodes if op.name == "log")
    again, _ = recompute(program, turn, ())
    named = [v for op in again.nodes for v in op.outs if v.name == "0/params/blocks/1/w_in"]
    assert len(named) == 2 and count(again, "dot_general") == count(program, "dot_general")
    first, second = (op.reads for op in again.nodes if op.name == "dot_general" and set(op.reads) & set(named))
    assert named[0] in first and named[1] in second


def test_what_copies_are_made_of_is_read_behind_their_barrier_by_all_that_come_later() -> None:
    """In front of it XLA holds it in other forms, too, for products of the forward part and of the backward one."""

    def loss(w, v, x):
        q = x @ w
        b = q @ v  # the gradient of v reads q after that of the sine has read its cosine
        return jnp.sum(jnp.sin(q) * b)

    arguments = jnp.ones((8, 8)), jnp.ones((8, 8)), jnp.ones((4, 8))
    program, _, _ = capture.trace(jax.grad(loss, argnums=(0, 1)), arguments, {}, (), ())
    cosine = next(op for op in program.nodes if op.name == "cos")
    again, _ = recompute(program, cosine.index, {cosine.index})
    early, late = (op.reads[0] for op in again.nodes if op.name in ("sin", "cos"))
    (wait,) = (op for op in again.nodes if op.name == "sbp.barrier" and op.reads == [early])
    assert wait.outs == (late,)
    readers = [[op.name for op in again.nodes if v in op.reads] for v in (early, late)]
    assert readers == [["dot_general", "sin", "sbp.barrier"], ["cos", "dot_general"]]


def test_copies_made_of_a_key_alone_are_made_again_by_xla_too() -> None:
    """Random bits come from scalars: where those are not behind the barrier, XLA holds the first ones."""

    def loss(w, key, x):
        for k in jax.random.split(key, 8):
            x = jnp.where(jax.random.bernoulli(k, 0.5, x.shape), x @ w, 0.0)
        return jnp.sum(x**2)

    arguments = jnp.ones((64, 64)), jax.random.key(0), jnp.ones((512, 64))
    program, _, out_shape = capture.trace(jax.value_and_grad(loss), arguments, {}, (), ())
    turn = max(op.index for op in program.nodes if op.name == "reduce_sum")
    early = [op for op in program.nodes if op.index < turn and op.primitive is not None]
    bits = {op.index for op in early if op.name not in ("dot_general", "select_n")}
    again, _ = recompute(program, turn, bits)
    assert count(again, "threefry2x32") >= count(program, "threefry2x32") + 7
    plan = Plan.of(make_plan(again, Request(placement=sbp.placement("cpu", [0]), cluster=CPU)))
    entry = lowered_step(again, plan, (arguments, {}), jax.tree.structure(out_shape), ())
    m = lower_step(entry, arguments, {}).compile().memory_analysis()
    needed = m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
    assert needed < 1.1 * plan.memory_per_device
    got, want = entry.jitted(*arguments, ({}, entry.constants)), jax.grad(loss)(*arguments)
    np.testing.assert_allclose(got[1], want, rtol=1e-5)


def test_the_program_given_is_left_as_it_is() -> None:
    _, _, program, _, again, origin = traced()
    assert [op.index for op in program.nodes] == list(range(len(program.nodes)))
    assert [op.index for op in again.nodes] == list(range(len(again.nodes))) and len(origin) == len(again.nodes)
    assert not {op for op in again.nodes} & {op for op in program.nodes}


def test_a_scan_collects_only_what_the_copies_start_from() -> None:
    _, _, program, _, again, _ = traced(scan_layers=True)

    def stacks(p: Program) -> list[tuple[int, ...]]:
        scans = [op for op in p.graph.ops if isinstance(op, Structured) and op.kind == "scan"]
        return [link.outs[0].shape for link in scans[0].roles["stack"]]

    assert stacks(again) == [(2, 16, 32, 64)]  # what each layer is given
    assert len(stacks(program)) > 8


def test_copies_wait_behind_a_barrier_for_what_their_reader_waits_for() -> None:
    *_, again, _ = traced()
    barriers = [op for op in again.graph.ops if isinstance(op, Structured) and op.kind == "barrier"]
    made = {v.id: op.index for op in again.nodes for v in op.outs}
    late = max(op.index for op in again.nodes if op.name == "log")
    waits = [max(made[link.reads[0].id] for link in b.links) for b in barriers]
    assert len(barriers) > 4 and sum(w > late for w in waits) >= len(barriers) - 1


def test_copies_wait_for_what_is_late_though_that_went_through_a_barrier_before() -> None:
    """The product that hands the cotangent on reads its weight anew, the next one reads the cotangent again."""

    def step(w, x):
        def total(w):
            h = x
            for u in w:
                h = jnp.tanh(u @ jnp.sin(h))
            return (h**2).sum()

        return jax.grad(total)(w)

    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(64, 64)] * 4 + [(64, 256)]]
    program = capture.trace(step, (arguments[:4], arguments[4]), {}, (), ())[0]
    turn = max(op.index for op in program.nodes if op.name == "tanh")
    made, _ = recompute(program, turn, [op.index for op in program.nodes if op.name == "sin" and op.index < turn])
    maker = {v.id: op for op in made.nodes for v in op.outs}
    turn = max(op.index for op in made.nodes if op.name == "tanh")

    def is_late(op: Op) -> bool:
        while op.name == "sbp.barrier":
            op = maker[op.reads[0].id]
        return op.index > turn

    barriers = [op.links for op in made.graph.ops if not isinstance(op, Op)]
    assert len(barriers) == 7
    assert all(any(is_late(link) for link in links) for links in barriers)
