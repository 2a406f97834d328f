"""What may not be put off: results that would hold more memory than they take."""

import re

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.trace import Graph, Structured, waits


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def traced(fn, *args) -> Graph:
    return capture.trace(fn, args, {}, (), ())[0].graph


def train(w1, w2, x):
    """Two products forward, three backward: each weight's gradient, and the cotangent between them."""
    return jax.grad(lambda w: jnp.sum(jnp.sin(jnp.sin(x @ w[0]) @ w[1])))([w1, w2])


def barriers(fn, *args) -> int:
    """In the lowered program."""
    step = sbp.auto_parallel(fn, placement=sbp.placement.all("cpu", axis_names=("dp",)))
    return step.lower(*args).as_text().count("optimization_barrier")


def test_a_gradient_waits_before_the_next_product_and_names_what_it_holds() -> None:
    graph = traced(train, f32(64, 64), f32(64, 64), f32(4096, 64))
    names = {v.id: op.name for op in graph.nodes() for v in op.outs}
    ((position, wait),) = waits(graph).items()
    (early,) = wait.results
    assert names[early.value.id] == "dot_general" and early.value.shape == (64, 64)
    assert early.turned is not None and names[early.turned.id] == "transpose"
    assert early.holds and position > [v.id for op in graph.nodes() for v in op.outs].index(early.value.id)


def test_a_gradient_waits_as_the_optimizer_reads_it() -> None:
    """A barrier between a product and its transpose made XLA turn the gradient apart, and copy the weights for that."""

    def update(w1, w2, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, [w1, w2], train(w1, w2, x))

    def copies(step) -> int:
        text = step.lower(*args).compile().as_text()
        return len(re.findall(r"= f32\[(?:301,517|517,203|517,301|203,517)\]\S* copy\(", text))

    args = f32(301, 517), f32(517, 203), f32(1031, 301)  # nothing divides by 8: every device runs it whole
    where = sbp.placement.all("cpu", axis_names=("dp",))
    step = sbp.auto_parallel(update, placement=where, donate_argnums=(0, 1))
    assert barriers(update, *args) > 0
    assert copies(step) <= copies(jax.jit(update, donate_argnums=(0, 1)))


def test_of_two_reductions_in_a_row_the_first_waits_too() -> None:
    """A bias that is broadcast twice is summed twice; the second alone holds next to nothing."""

    def biased(b, w, x):
        return jax.grad(lambda b: jnp.sum(jnp.sin(jnp.sin(x @ w + b[None, None, :]) @ w)))(b), x @ w @ w

    graph = traced(biased, f32(64), f32(64, 64), f32(32, 128, 64))
    shapes = {v.id: op.ins[0].shape for op in graph.nodes() for v in op.outs if op.name == "reduce_sum"}
    late = [shapes[e.value.id] for wait in waits(graph).values() for e in wait.results if e.value.id in shapes]
    assert (32, 128, 64) in late


def test_nothing_waits_for_reductions_where_they_share_a_kernel() -> None:
    """On GPUs, where a barrier would take a bias's gradient out of the kernel that makes what it sums."""

    def biased(b, w, x):
        return jax.grad(lambda b, w: jnp.sum(jnp.sin(jnp.sin(x @ w + b) @ w)), (0, 1))(b, w)

    graph = traced(biased, f32(64), f32(64, 64), f32(4096, 64))
    names = {v.id: op.name for op in graph.nodes() for v in op.outs}

    def awaited(for_reductions: bool) -> set[str]:
        found = waits(graph, for_reductions=for_reductions).values()
        return {names[e.value.id] for wait in found for e in wait.results}

    assert awaited(True) == {"reduce_sum", "dot_general"}
    assert awaited(False) == {"dot_general"}


def test_what_the_next_product_reads_does_not_wait() -> None:
    assert not waits(traced(lambda x, w: jnp.sin(jnp.sin(x @ w) @ w) @ w, f32(64, 64), f32(64, 64)))


@pytest.mark.parametrize(("batch", "expected"), [(4096, 1), (1, 0)])
def test_only_what_holds_more_than_it_takes_is_worth_a_barrier(batch: int, expected: int) -> None:
    assert barriers(train, f32(64, 64), f32(64, 64), f32(batch, 64)) == expected


def test_a_softmax_waits_for_a_few_elements_that_are_gathered() -> None:
    """XLA computes the gather in the loss, which nothing waits for, and keeps the logits until then."""

    def loss(w, x, labels):
        logits = x @ w
        picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)
        return (jax.nn.logsumexp(logits, axis=-1) - picked[:, 0]).mean()

    def early(width: int) -> list[str]:
        args = f32(64, width), f32(256, 64), jax.ShapeDtypeStruct((256,), jnp.int32)
        graph = traced(jax.value_and_grad(loss), *args)
        names = {v.id: op.name for op in graph.nodes() for v in op.outs}
        return [names[e.value.id] for wait in waits(graph).values() for e in wait.results if e.picks]

    assert early(1024) == ["gather"]
    assert early(8) == []  # an eighth of the logits: no matter where it is computed


def test_a_loop_waits_as_well() -> None:
    def run(x, w):
        total = jnp.sum(jnp.sin(x @ w))  # read at the end only
        y, _ = jax.lax.scan(lambda c, _: (jnp.cos(c @ w), None), w, None, length=3)
        return total, y

    graph = traced(run, f32(4096, 64), f32(64, 64))
    ((position, wait),) = waits(graph).items()
    assert isinstance(graph.ops[position], Structured) and wait.results[0].value.shape == ()


def test_a_loop_is_waited_for_whose_result_nobody_needs_soon() -> None:
    """A loss over chunks is read at the end only. Put off, the loop holds what it reads (1.18 times the memory of a
    small GPT's step, measured)."""

    def run(x, w, goes_on):
        total = jax.lax.scan(lambda c, h: (c + jnp.sum(jnp.sin(h @ w)), None), 0.0, x @ w)[0]
        for _ in range(2):
            w = jnp.cos(w @ w)
        return (w * total) @ w if goes_on else (total, w)

    def early(goes_on: bool) -> list[tuple[int, ...]]:
        graph = traced(lambda x, w: run(x, w, goes_on), f32(64, 64, 64), f32(64, 64))
        loop = next(op for op in graph.ops if isinstance(op, Structured))
        made = {v.id for link in loop.links for v in link.outs}
        found = [(k, e) for k, wait in waits(graph).items() for e in wait.results if e.value.id in made]
        assert [e.value.shape for _, e in found] == [()] and "dot_general" in str(graph.ops[found[0][0]])
        return [x.shape for _, e in found for x in loop.reads if x.id in e.holds]

    assert early(goes_on=False) == early(goes_on=True) == [(64, 64, 64)]  # the products in between would come first


def test_what_the_plan_decides_nothing_for_does_not_wait() -> None:
    """A scatter of constants is made where it is read, as constants are."""

    def run(x, w):
        total = jnp.sum(jnp.sin(x @ w))
        return total, jnp.zeros(8).at[0].add(1.0)

    args = [jnp.ones((4096, 64)) / 64, jnp.ones((64, 64)) / 64]
    total, mask = sbp.auto_parallel(run, placement=sbp.placement.all("cpu", axis_names=("dp",)))(*args)
    assert jnp.allclose(total, run(*args)[0], rtol=1e-4) and mask.tolist() == [1.0] + [0.0] * 7


def test_results_are_those_of_plain_jax() -> None:
    args = [jax.random.normal(jax.random.key(k), s) / 8 for k, s in enumerate([(64, 64), (64, 64), (512, 64)])]
    step = sbp.auto_parallel(train, placement=sbp.placement.all("cpu", axis_names=("dp",)))
    for ours, plain in zip(step(*args), train(*args), strict=True):
        assert jnp.allclose(ours, plain, rtol=1e-4, atol=1e-4)


def conditioned(p, x, t):
    """Each layer adds what it makes of a few numbers, as a U-Net of the time: their gradients are small products."""

    def total(p):
        h = x
        for w, u in p:
            h = jnp.tanh(h @ w + (t @ u)[:, None])
        return (h**2).sum()

    return jax.grad(total)(p)


CONDITIONED = [(f32(128, 128), f32(32, 128))] * 3, f32(16, 512, 128), f32(16, 32)


def test_what_a_small_gradient_is_made_of_waits_where_that_is_put_off() -> None:
    """The cotangent is held for the sum over rows, the sum for the product that only the optimizer reads."""
    graph = traced(conditioned, *CONDITIONED)
    made = {v.id: op for op in graph.nodes() for v in op.outs}
    held = {v.id for op in graph.nodes() for v in op.outs if v.shape == (16, 512, 128)}
    early = [e for wait in waits(graph).values() for e in wait.results if not held.isdisjoint(e.holds)]
    sums = [e for e in early if made[e.value.id].name == "reduce_sum"]
    assert len(sums) == 3
    for e in sums:
        assert e.value.shape == (16, 128)
        (product,) = [v for v in e.within if made[v].name == "dot_general"]
        assert made[product].outs[0].shape == (128, 32)


def test_a_gradient_is_boxed_to_less_before_the_next_product() -> None:
    """Its optimizer reads pieces of its sum, and only after all gradients: until then it was held whole."""

    def step(ws, x):
        def total(ws):
            h = x
            for w in ws:
                h = jnp.tanh(w @ h)
            return (h**2).mean()

        g = jax.grad(total)(ws)
        norm = jnp.sqrt(sum((d * d).sum() for d in g))
        return [w - d / norm for w, d in zip(ws, g, strict=True)]

    arguments = [f32(512, 512)] * 4, f32(512, 1024)
    where = sbp.placement.all("cpu", axis_names=("dp",))
    planned = sbp.auto_parallel(step, placement=where, donate_argnums=0, config=sbp.AutoParallelConfig(solver="zero2"))
    names = re.findall(r"stablehlo\.(dot_general|reduce_scatter)", planned.lower(*arguments).as_text())
    assert names.count("reduce_scatter") == 4 and names.index("reduce_scatter") < len(names) - 5
    first = names.index("reduce_scatter")
    assert names[first:].count("dot_general") > 3
