"""sbp.distributed's collectives beside jax.lax's own under shard_map: bytes that a device sends, and time.

    python benchmarks/collectives.py                  # one process of 8 devices, then 4 processes of 2
    python benchmarks/collectives.py --mib 4 --calls 40

Both get arrays that lie on the devices, and a call ends when every device of the process has its result. Calls take
turns, so that noise meets both. The times are medians, the ratio is the median of the ratios of neighbours, and "best"
the ratio of the shortest times. For large arrays it must be 1.05 at most. For small ones the difference in microseconds
(of the shortest times) is what matters: a call from Python, and between processes the comparison of what they call
(check=True), which is also shown without.
"""

import argparse
import functools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import sbp_jax as sbp

DEVICES = 8
Call = Callable[[], Any]


def _broadcast(x: Any) -> Any:
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    sent = lax.psum(jnp.where(lax.axis_index("x") == 0, bits, jnp.zeros_like(bits)), "x")
    return lax.bitcast_convert_type(sent, jnp.float32)


# name: ours, and what one writes with jax.lax for the same.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "all_reduce": (sbp.distributed.all_reduce, lambda x: lax.psum(x, "x")),
    "all_reduce max": (functools.partial(sbp.distributed.all_reduce, op="max"), lambda x: lax.pmax(x, "x")),
    "all_gather_into_tensor": (
        sbp.distributed.all_gather_into_tensor, lambda x: lax.all_gather(x, "x", tiled=True)),
    "all_gather": (sbp.distributed.all_gather, lambda x: tuple(lax.all_gather(x, "x")[k] for k in range(DEVICES))),
    "reduce_scatter": (sbp.distributed.reduce_scatter, lambda x: lax.psum_scatter(x, "x", tiled=True)),
    "all_to_all": (sbp.distributed.all_to_all, lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True)),
    "broadcast": (sbp.distributed.broadcast, _broadcast),
}  # fmt: skip


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def _bytes(call: Call) -> float:
    with sbp.count_collectives() as count:
        jax.block_until_ready(call())
    return count.total.bytes


def measure(floats: int, calls: int) -> list[str]:
    """A line for each collective, of arrays of so many floats on each device."""
    mesh = Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    mine = tuple(
        jax.device_put(np.full(floats, device.id, np.float32), device)
        for device in jax.devices() if device.process_index == jax.process_index()
    )  # fmt: skip
    whole = jax.make_array_from_single_device_arrays((floats * DEVICES,), NamedSharding(mesh, spec), list(mine))
    several = jax.process_count() > 1
    lines = []
    for name, (ours, theirs) in CASES.items():
        plain = jax.jit(jax.shard_map(theirs, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        made: list[Call] = [functools.partial(plain, whole), functools.partial(ours, mine)]
        made += [functools.partial(ours, mine, check=False)] if several else []
        for call in made:
            for _ in range(3):
                _seconds(call)
        times = [[_seconds(call) for call in made] for _ in range(calls)]
        sent = [_bytes(call) for call in made[:2]]
        ratios = [statistics.median(row[k] / row[0] for row in times) for k in range(1, len(made))]
        middle = [statistics.median(row[k] for row in times) for k in range(len(made))]
        best = [min(row[k] for row in times) for k in range(len(made))]
        line = f"{name:<23} {sent[0]:>13,.0f} {sent[1]:>13,.0f} {middle[0] * 1e3:>10.3f} {middle[1] * 1e3:>10.3f}"
        line += f" {ratios[0]:>7.3f} {best[1] / best[0]:>7.3f} {(best[1] - best[0]) * 1e6:>+8.0f}"
        line += f" {ratios[1]:>9.3f} {best[2] / best[0]:>7.3f} {(best[2] - best[0]) * 1e6:>+8.0f}" if several else ""
        lines.append(line)
    return lines


def run(mib: float, calls: int) -> None:
    """All sizes in this process, one of the run's; process 0 prints."""
    sbp.distributed.initialize(timeout_seconds=300)
    processes = jax.process_count()
    if jax.process_index() == 0:
        print(f"\n{processes} process{'es' if processes > 1 else ''} of {DEVICES // processes} CPU devices, "
              f"jax {jax.__version__}, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip
    for floats, repeats in ((int(mib * 2**18), calls), (1024, 5 * calls)):
        lines = measure(floats, repeats)
        if jax.process_index() == 0:
            print(f"{floats * 4 / 2**20:g} MiB on each device, {repeats} calls each")
            more = f"{'no check':>10} {'best':>7} {'+us':>8}" if processes > 1 else ""
            print(f"{'':<23} {'bytes lax':>13} {'bytes ours':>13} {'ms lax':>10} {'ms ours':>10} {'ratio':>7} "
                  f"{'best':>7} {'+us':>8}{more}")  # fmt: skip
            print("\n".join(lines), flush=True)
    sbp.distributed.barrier()


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def main() -> None:
    """Start the processes of each run, one run after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=16.0, help="the large array's size on each device")
    parser.add_argument("--calls", type=int, default=15)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4], help="the runs: how many processes each")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        run(args.mib, args.calls)
        return
    for processes in args.processes:
        port, started = _free_port(), []
        for rank in range(processes):
            variables = os.environ | {
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES // processes}",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "WORLD_SIZE": str(processes),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(processes),
            }
            words = [sys.executable, __file__, "--worker", "--mib", str(args.mib), "--calls", str(args.calls)]
            quiet = None if rank == 0 else subprocess.DEVNULL
            started.append(subprocess.Popen(words, env=variables, stdout=quiet))
        if any([process.wait() for process in started]):
            sys.exit(1)


if __name__ == "__main__":
    main()
