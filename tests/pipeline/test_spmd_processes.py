"""A pipeline as one program in two processes, a stage in each: the numbers of one process, and of no pipeline."""

import os
import socket
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
import jax
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
import numpy as np
import optax
import sbp_jax as sbp
from pipeline.steps import batch, mlp_loss, mlp_state

optimizer = optax.adam(1e-2)  # its count of steps is read by all stages, and kept by one

def step(state, data):
    loss, g = jax.value_and_grad(mlp_loss)(state[0], data)
    updates, moments = optimizer.update(g, state[1])
    return (optax.apply_updates(state[0], updates), moments), {"loss": loss, "norm": optax.tree.norm(g)}

where = sbp.placement("cpu", ranks=np.arange(8).reshape(2, 4), axis_names=("stage", "data"))
config = sbp.AutoParallelConfig(pipeline=sbp.Pipeline(2, 4, execution="spmd"))
run = sbp.auto_parallel(step, placement=where, donate_argnums=0, config=config)
params = mlp_state()["params"]
state = params, optimizer.init(params)
right = jax.tree.map(np.asarray, state)
for _ in range(3):
    state, told = run(state, batch())
    right, expected = jax.jit(step)(right, batch())
    for key in told:
        np.testing.assert_allclose(told[key], expected[key], rtol=1e-5)
own = 0
for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(right), strict=True):
    for shard in a.addressable_shards:
        np.testing.assert_allclose(shard.data, np.asarray(b)[shard.index], rtol=1e-4, atol=1e-5)
        own += 1
print("RESULT", float(told["loss"]).hex(), own > 0)
"""


@pytest.mark.slow
def test_two_processes_run_one_pipeline() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM, port, rank], env=env, text=True, stdout=-1, stderr=-1)
        for rank in "01"
    ]
    told = [process.communicate(timeout=240) for process in running]
    assert all(process.returncode == 0 for process in running), told
    first, second = ([line for line in out.splitlines() if line.startswith("RESULT")] for out, _ in told)
    assert first == second and first[0].endswith("True")
