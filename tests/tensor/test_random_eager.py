"""Random programs as eager calls: uneven and partial operands, any signature; the value is plain JAX's."""

import math
import os
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from random_programs import PLAIN, generate

COUNT = int(os.environ.get("SBP_EAGER_PROGRAMS", "8"))


def a_signature(rng: random.Random, x: np.ndarray, where: sbp.Placement) -> str:
    """Any that the tensor can have, uneven splits more often than not."""
    while True:
        parts = [
            rng.choice([f"S({d})" for d in range(x.ndim)] * 2 + ["B", "P", "P(max)", "P(min)"]) for _ in where.shape
        ]
        try:
            sbp.boxing.route(", ".join(parts), ", ".join(parts), where, x.shape, x.dtype)
        except sbp.SignatureError:
            continue
        return ", ".join(parts)


@pytest.mark.parametrize("seed", range(COUNT))
def test_equal_to_plain_jax(seed: int) -> None:
    program, rng = generate(seed, wide=False), random.Random(seed)
    where = sbp.placement("cpu", np.arange(math.prod(program.mesh)).reshape(program.mesh))
    fn = program.function()
    expected = jax.tree.leaves(jax.jit(fn, compiler_options=PLAIN)(*program.args))
    given = []
    for x in program.args:
        is_key = jnp.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.extended)
        data = None if is_key else np.asarray(x)
        given.append(x if data is None else sbp.tensor(data, placement=where, sbp=a_signature(rng, data, where)))
    told = f"{program}\n# given {[str(g.sbp) if isinstance(g, sbp.GlobalTensor) else 'key' for g in given]}"
    found = jax.tree.leaves(sbp.apply(fn, *given), is_leaf=lambda y: isinstance(y, sbp.GlobalTensor))
    for k, (ours, plain) in enumerate(zip(found, expected, strict=True)):
        plain = np.asarray(plain)
        assert ours.shape == plain.shape and ours.dtype == plain.dtype, f"result {k}\n{told}"
        if plain.dtype != np.float32:
            np.testing.assert_array_equal(ours.numpy(), plain, f"result {k}\n{told}")
            continue
        scale = np.abs(plain).max(initial=0.0)
        np.testing.assert_allclose(ours.numpy(), plain, rtol=1e-3, atol=1e-3 * scale + 1e-5, err_msg=f"{k}\n{told}")
