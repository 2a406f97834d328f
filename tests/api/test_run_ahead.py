"""A host that starts steps faster than the devices run them: no step may wait for ever."""

import subprocess
import sys

import pytest

_LOOP = """
import jax, jax.numpy as jnp, numpy as np
import sbp_jax as sbp

where = sbp.placement("cpu", ranks=range(8), axis_names="dp")
x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
if WHAT == "planned":
    run = sbp.auto_parallel(
        jax.grad(lambda w, x: jnp.mean((x @ w) ** 2)), placement=where, in_sbp=("B", "S(0)"), out_sbp="B"
    )
    w = jnp.ones((4, 1))
    for _ in range(400):
        w = w - 0.01 * run(w, x)
else:
    w = sbp.tensor(np.ones((64, 4), np.float32), placement=where, sbp=sbp.partial_sum)
    for _ in range(400):
        w = (w.to_global(sbp=sbp.broadcast) * 0.5 + 1.0).to_global(sbp=sbp.split(0)).to_global(sbp=sbp.broadcast) * 1.0
    w = w.numpy()
jax.block_until_ready(w)
print("done")
"""


@pytest.mark.parametrize("what", ["planned", "eager"])
def test_steps_that_nobody_waits_for(what: str) -> None:
    """Before JAX 0.12 such a loop ran out of XLA's threads on CPUs, and then out of time."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    source = f"import os\nos.environ |= {flags}\nWHAT = {what!r}\n{_LOOP}"
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=240)
    assert ended.stdout.strip() == "done", ended.stderr[-2000:]
