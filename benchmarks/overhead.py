"""What a call of an ``auto_parallel`` function costs, against the bare jitted function that it holds.

    python benchmarks/overhead.py

A step that does next to nothing on 200 state leaves, 8 simulated devices; both are called in turn, many times, in
one run; medians.
"""

import os
import statistics
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

import sbp_jax as sbp

LEAVES, ROUNDS, CALLS = 200, 30, 20


def main() -> int:
    """Print the ratio; 1 when it is over 1.1."""
    state = {f"leaf{i}": jnp.ones((8, 8)) for i in range(LEAVES)}
    batch = jnp.ones(8)

    @sbp.auto_parallel(placement=sbp.placement.all("cpu"), donate_argnums=0)
    def step(state, batch):
        return jax.tree.map(lambda x: x * 1.0001, state), batch.sum()

    state, _ = step(state, batch)
    bare, extra = step.bare()

    def run(call, state):
        start = time.perf_counter()
        for _ in range(CALLS):
            state, loss = call(state)
        jax.block_until_ready(loss)
        return (time.perf_counter() - start) / CALLS, state

    ours, held = [], []
    for round_number in range(ROUNDS + 3):
        pair = []
        for call in (lambda s: step(s, batch), lambda s: bare(s, batch, extra)):
            seconds, state = run(call, state)
            pair.append(seconds)
        if round_number >= 3:
            ours.append(pair[0])
            held.append(pair[1])
    ratios = [a / b for a, b in zip(ours, held, strict=True)]
    ratio = statistics.median(ratios)
    print(
        f"{LEAVES} leaves: auto_parallel {statistics.median(ours) * 1e6:.0f} µs a call, the bare jitted function "
        f"{statistics.median(held) * 1e6:.0f} µs; ratio {ratio:.3f} (median of {ROUNDS} pairs, "
        f"{min(ratios):.3f} to {max(ratios):.3f})"
    )
    return int(ratio > 1.1)


if __name__ == "__main__":
    sys.exit(main())
