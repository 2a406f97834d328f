"""Two processes of two devices each: born sharded, planned and run, nothing gathered."""

import os
import socket
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
import jax
if len(sys.argv) > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
import numpy as np
import optax
from flax import linen as nn
from flax import nnx
import sbp_jax as sbp

p = sbp.placement("cpu", np.arange(4).reshape(2, 2), axis_names=("dp", "tp"))

@sbp.flax.parallel(placement=p, sbp={"b/kernel": "S(1), B"})
class Net(nnx.Module):
    def __init__(self, rngs):
        self.a, self.b = nnx.Linear(64, 512, rngs=rngs), nnx.Linear(512, 64, rngs=rngs)
        self.dropout, self.rngs = nnx.Dropout(0.5, rngs=rngs), rngs

    def __call__(self, x):
        return self.b(self.dropout(self.a(x)))

@sbp.flax.jit
def step(model, optimizer, x):
    loss, grads = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, grads)
    return loss

@sbp.flax.parallel(placement=p)
class Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(512)(x)

model = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
losses = [f"{float(step(model, optimizer, x)):.4g}" for _ in range(2)]
kernel = optimizer.opt_state[0].mu["b"]["kernel"].get_value()
assert kernel.is_fully_addressable == (len(sys.argv) == 1) and kernel.addressable_shards[0].data.shape == (512, 32)
lies = sbp.flax.signatures(Dense().init(jax.random.key(0), x))
print("RESULT", losses, sbp.flax.signatures(model)["b/kernel"], lies["params/Dense_0/kernel"])
"""


@pytest.mark.slow
def test_two_processes_train_one_model() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    flags = "--xla_force_host_platform_device_count={} --xla_backend_optimization_level=0"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.format(2)}
    running = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM, port, rank], env=env, text=True, stdout=-1, stderr=-1)
        for rank in "01"
    ]
    told = [process.communicate(timeout=240) for process in running]
    results = [[line for line in out.splitlines() if line.startswith("RESULT")] for out, _ in told]
    assert all(process.returncode == 0 for process in running), told
    env["XLA_FLAGS"] = flags.format(4)
    one = subprocess.run([sys.executable, "-c", _PROGRAM], env=env, text=True, capture_output=True, timeout=240)
    assert one.returncode == 0, one.stderr
    wanted = [line for line in one.stdout.splitlines() if line.startswith("RESULT")]
    assert results == [wanted, wanted] and "S(1), B S(1), S(1)" in wanted[0]
