"""Values that take far more than what they are made of are made once more for each product that reads them."""

import jax
import jax.numpy as jnp
import numpy as np

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.trace import Graph, Op, expanded


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def dispatched(w, x, indices, slots: int = 64):
    """Rows go to slots, through a product there, and back: both dispatches read one one-hot."""
    chosen = jax.nn.one_hot(indices, slots)
    h = jnp.tanh((chosen.T @ x) @ w)
    return jnp.sin(chosen @ jnp.tanh(h @ w))


def found(fn, *args) -> tuple[Graph, list]:
    graph = capture.trace(fn, args, {}, (), ())[0].graph
    return graph, [(graph.ops[k], x) for k, several in expanded(graph, lambda op: False).items() for x in several]


ARGUMENTS = f32(16, 16), f32(512, 16), jax.ShapeDtypeStruct((512,), jnp.int32)


def test_a_one_hot_is_made_of_the_indices_once_more_for_the_later_product() -> None:
    graph, ((reader, x),) = found(dispatched, *ARGUMENTS)
    assert isinstance(reader, Op) and reader.name == "dot_general" and reader is [
        op for op in graph.ops if isinstance(op, Op) and op.name == "dot_general"
    ][-1]  # fmt: skip
    assert x.value in reader.ins and x.through in reader.ins and x.through is not x.value
    assert x.value.shape == (512, 64) and all(16 * v.size_bytes <= x.value.size_bytes for v in x.made_of)
    assert x.ops[-1].outs == (x.value,) and "dot_general" not in [op.name for op in x.ops]


def test_nothing_is_where_it_is_as_small_where_it_came_or_read_at_once() -> None:
    assert not found(lambda *a: dispatched(*a, slots=4), *ARGUMENTS)[1]  # four times its indices
    assert not found(lambda c, x, w: jnp.tanh((c.T @ x) @ w) @ (c.T @ x).T, f32(512, 64), f32(512, 16), f32(16, 16))[1]
    assert not found(lambda w, x, i: (jax.nn.one_hot(i, 64).T @ x) @ w, *ARGUMENTS)[1]


def test_random_numbers_are_made_once() -> None:
    """They are made of a key alone, but not at no cost."""

    def project(w, x, key):
        noise = jax.random.normal(key, (64, 512))
        return jnp.sin(jnp.tanh((x @ noise.T) @ w) @ noise)

    assert not found(project, f32(64, 64), f32(32, 512), jax.random.key(0))[1]


def test_the_step_is_the_same() -> None:
    random = np.random.default_rng(0)
    w, x = (jnp.asarray(random.normal(size=s.shape), s.dtype) for s in ARGUMENTS[:2])
    indices = jnp.asarray(random.integers(0, 64, 512), jnp.int32)
    step = sbp.auto_parallel(dispatched, placement=sbp.placement("cpu", range(8)))
    np.testing.assert_allclose(step(w, x, indices), dispatched(w, x, indices), rtol=1e-4, atol=1e-4)
    assert step.lower(w, x, indices).as_text().count("optimization_barrier") > 0
