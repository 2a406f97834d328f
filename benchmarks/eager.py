"""What an eager op on global tensors costs beyond the same op on plain arrays of the same sharding.

Warm: the same shapes again. Cold: a shape never seen, without XLA's compile time (tracing, planning and lowering
only, JAX's own for the plain op). Plain and global runs take turns, so that noise meets both.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import monitoring

import sbp_jax as sbp

ROUNDS, CALLS, COLD = 40, 100, 12
_compile_seconds = 0.0


def _listen(event: str, duration_secs: float, **kwargs: Any) -> None:
    global _compile_seconds
    if event == "/jax/core/compile/backend_compile_duration":
        _compile_seconds += duration_secs


def softmax(x: Any) -> Any:
    """Of the last dim."""
    return jax.nn.softmax(x, axis=-1)


OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, w: x + x, lambda x, w: x + x),
    "matmul": (lambda x, w: x @ w, lambda x, w: x @ w),
    "view": (lambda x, w: x.view(x.shape[0], 2, x.shape[1] // 2),
             lambda x, w: x.reshape(x.shape[0], 2, x.shape[1] // 2)),
    "softmax": (lambda x, w: sbp.apply(softmax, x), lambda x, w: softmax(x)),
}  # fmt: skip


def tensors(n: int, where: sbp.Placement) -> tuple[Any, Any]:
    """A split batch and a whole weight."""
    x = sbp.randn(8, n, placement=where, sbp=sbp.split(0), seed=0)
    return x, sbp.randn(n, n, placement=where, sbp=sbp.broadcast, seed=1)


def _run(op: Callable[..., Any], x: Any, w: Any, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        y = op(x, w)
    jax.block_until_ready(y)
    return (time.perf_counter() - start) / calls


def _cold(op: Callable[..., Any], x: Any, w: Any) -> float:
    before = _compile_seconds
    return _run(op, x, w, 1) - (_compile_seconds - before)


def main() -> None:
    """Print the table."""
    monitoring.register_event_duration_secs_listener(_listen)
    where = sbp.placement.all("cpu")
    plain_softmax = jax.jit(softmax)
    x, w = tensors(16, where)
    print(f"{where.size} simulated devices, jax {jax.__version__}; medians")
    print(f"{'op':8} {'plain warm':>11} {'more warm':>11} {'plain cold':>11} {'more cold':>11}")
    for name, (ours, plain) in OPS.items():
        plain = (lambda x, w: plain_softmax(x)) if name == "softmax" else plain
        for f, a, b in ((ours, x, w), (plain, x.array, w.array)):
            _run(f, a, b, 20)
        more, base = [], []
        for _ in range(ROUNDS):
            b = _run(plain, x.array, w.array, CALLS)
            a = _run(ours, x, w, CALLS)
            more.append(a - b)
            base.append(b)
        cold, cold_base = [], []
        for k in range(COLD):
            a, b = tensors(18 + 2 * k, where)
            jax.block_until_ready((a.storage, b.storage))
            first = _cold(plain, a.array, b.array)
            cold_base.append(first)
            cold.append(_cold(ours, a, b) - first)
        print(
            f"{name:8} {statistics.median(base) * 1e6:8.1f} µs {statistics.median(more) * 1e6:8.1f} µs "
            f"{statistics.median(cold_base) * 1e3:8.2f} ms {statistics.median(cold) * 1e3:8.2f} ms"
        )
    assert jnp.allclose((x @ w).array, x.array @ w.array, atol=1e-4)


if __name__ == "__main__":
    main()
