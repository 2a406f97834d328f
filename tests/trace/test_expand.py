"""Random bits as counting and hashing: positions beyond 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
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
