"""What is written out when it is traced: random bits as counting and hashing, outer products, known branches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.trace import build
from sbp_jax.trace.expand import row_major


@pytest.mark.parametrize("shape", [(), (5,), (7, 3), (7, 3, 70001, 65537), (2**17, 2**31), (2**16, 2**16)])
def test_positions_are_row_major(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    indices = [np.append(random.integers(0, n, 200), [0, n - 1]).astype(np.uint32) for n in shape]
    high, low = row_major([jnp.asarray(i) for i in indices], shape)
    together = (np.asarray(high).astype(np.uint64) << np.uint64(32)) | np.asarray(low)
    expected = np.ravel_multi_index(indices, shape) if shape else 0
    np.testing.assert_array_equal(together, expected)


def test_bits_of_over_4_billion_elements_are_split() -> None:
    """Every device makes its own, however many there are in all."""

    def f(key, x):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0).sum()

    args = jax.eval_shape(lambda: jax.random.key(0)), jax.ShapeDtypeStruct((2**14, 2**19), jnp.float32)
    plan = sbp.plan(f, *args, placement=sbp.placement.abstract((8,), cluster="h100"), in_sbp=(None, "S(0)"))
    assert plan.unruled == [] and all(b.src.has_partial for b in plan.boxings())


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32])
@pytest.mark.parametrize("batch", [(16,), (2, 8)])
def test_bits_of_keys_in_a_batch(batch: tuple[int, ...], dtype: jnp.dtype) -> None:
    """The same as of ``jax.jit``, made in pieces along the batch."""

    def f(keys):
        draw = lambda key: jax.random.bits(key, (256, 129), dtype)  # noqa: E731
        for _ in batch:
            draw = jax.vmap(draw)
        return draw(keys)

    keys = jax.random.split(jax.random.key(3), batch)
    split = "S(0)" if batch == (16,) else "S(1)"
    step = sbp.auto_parallel(f, placement=sbp.placement("cpu", range(8)), in_sbp=split, out_sbp=split)
    np.testing.assert_array_equal(step(keys), jax.jit(f)(keys))
    plan = step.plan(keys)
    assert plan.unruled == [] and all(np.prod(b.shape) <= 32 for b in plan.boxings())  # words of keys at most


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        (jnp.float32, jnp.float32, None),
        (jnp.bfloat16, jnp.bfloat16, jnp.float32),
        (jnp.int8, jnp.int8, jnp.int32),
        (jnp.bool_, jnp.bool_, None),
        (jnp.complex64, jnp.complex64, None),
    ],
)
def test_products_that_sum_over_nothing(left, right, wanted) -> None:
    """Batch dims come first, then the left's and the right's; they are element by element what ``jax.jit`` gives."""
    random = np.random.default_rng(0)
    x = random.integers(0, 9, (8, 3, 16)).astype(left)
    y = random.integers(0, 9, (5, 16, 8)).astype(right)

    def f(x, y):
        return jax.lax.dot_general(x, y, (((), ()), ((2, 0), (1, 2))), preferred_element_type=wanted)

    step = sbp.auto_parallel(f, placement=sbp.placement("cpu", range(8)))
    found, expected = step(x, y), jax.jit(f)(x, y)
    assert found.dtype == expected.dtype and found.shape == (16, 8, 3, 5)
    np.testing.assert_array_equal(found, expected)
    assert "dot_general" not in {op.name for op in build(jax.make_jaxpr(f)(x, y)).nodes}


@pytest.mark.parametrize("index", [False, True])
def test_a_branch_that_is_known_is_there_alone(index: bool) -> None:
    def f(x):
        return jax.lax.cond(index, jnp.sin, jnp.cos, x)

    x = jnp.arange(16.0)
    names = {op.name for op in build(jax.make_jaxpr(f)(x)).nodes}
    assert len(names & {"sin", "cos"}) == 1 and "sbp.join" not in names
    np.testing.assert_allclose(sbp.auto_parallel(f, placement=sbp.placement("cpu", range(8)))(x), f(x), rtol=1e-6)
