"""What checkpoints cost: bytes a second written and read, against the disk's own; a step's time while one is written.

    python benchmarks/checkpoints.py [--mebibytes 512] [--folder DIR] [--rounds 5]

The disk's own speed is that of one file of as many bytes, written at once and synced, and read again; both are done in
turns in one run, and the system's cache is told to forget the files before they are read. 8 simulated CPU devices.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import sbp_jax as sbp

LEAVES = 16
MIB = 1 << 20


def seconds(run: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def write_plain(path: Path, data: np.ndarray) -> None:
    """One file, written as fast as the disk takes it, and synced."""
    with path.open("wb") as file:
        for start in range(0, data.size, 4 * MIB):
            file.write(data[start : start + 4 * MIB].data)
        file.flush()
        os.fsync(file.fileno())


def read_plain(path: Path) -> None:
    """All of a file."""
    buffer = bytearray(4 * MIB)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def forget(folder: Path) -> None:
    """Tell the system that the files' pages need not stay in memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def report(name: str, values: list[float], amount: int) -> float:
    """Print the median of GB/s."""
    rates = sorted(amount / x / 1e9 for x in values)
    print(f"  {name:<44} {statistics.median(rates):6.2f} GB/s  ({rates[0]:.2f} to {rates[-1]:.2f})")
    return statistics.median(rates)


def speeds(folder: Path, mebibytes: int, rounds: int) -> None:
    """Bytes a second."""
    mesh = sbp.placement.all("cpu", axis_names="dp").mesh
    rows = mebibytes * MIB // LEAVES // 4 // 1024
    rng = np.random.default_rng(0)
    host = [rng.random((rows, 1024), np.float32) for _ in range(LEAVES)]
    state = {f"w{k}": jax.device_put(x, NamedSharding(mesh, PartitionSpec("dp"))) for k, x in enumerate(host)}
    columns = {f"w{k}": NamedSharding(mesh, PartitionSpec(None, "dp")) for k in range(LEAVES)}
    flat = np.concatenate([x.view(np.uint8).ravel() for x in host])
    amount, plain, path = flat.size, folder / "plain", folder / "state"
    found: dict[str, list[float]] = {}

    def note(name: str, run: Callable[[], object]) -> None:
        found.setdefault(name, []).append(seconds(run))

    for _ in range(rounds):
        shutil.rmtree(path, ignore_errors=True)
        plain.unlink(missing_ok=True)
        note("the disk: one file, write and fsync", lambda: write_plain(plain, flat))
        note("sbp.checkpoint.save", lambda: sbp.checkpoint.save(path, state))
        forget(folder)
        note("the disk: one file, read", lambda: read_plain(plain))
        note("sbp.checkpoint.restore, as it was", lambda: jax.block_until_ready(sbp.checkpoint.restore(path, state)))
        forget(folder)
        note("sbp.checkpoint.restore, rows to columns",
             lambda: jax.block_until_ready(sbp.checkpoint.restore(path, columns)))  # fmt: skip
        note("sbp.checkpoint.verify (in the cache)", lambda: sbp.checkpoint.verify(path))
        note("zlib.crc32 of the bytes, one core", lambda: zlib.crc32(flat.data))
    print(f"{amount / MIB:.0f} MiB in {LEAVES} arrays of float32, each in 8 pieces; medians of {rounds}, in turns")
    rates = {name: report(name, values, amount) for name, values in found.items()}
    disk = rates["the disk: one file, write and fsync"], rates["the disk: one file, read"]
    print(
        f"  save {rates['sbp.checkpoint.save'] / disk[0]:.2f} of the disk's own, restore "
        f"{rates['sbp.checkpoint.restore, as it was'] / disk[1]:.2f}"
    )


def orbax(folder: Path, mebibytes: int) -> None:
    """The same state through Orbax, its defaults."""
    import orbax.checkpoint as ocp

    mesh = sbp.placement.all("cpu", axis_names="dp").mesh
    rows = mebibytes * MIB // LEAVES // 4 // 1024
    rng = np.random.default_rng(0)
    state = {
        f"w{k}": jax.device_put(rng.random((rows, 1024), np.float32), NamedSharding(mesh, PartitionSpec("dp")))
        for k in range(LEAVES)
    }
    amount = sum(x.nbytes for x in state.values())
    with ocp.StandardCheckpointer() as checkpointer:
        path = folder / "orbax"

        def save() -> None:
            checkpointer.save(path, state)
            checkpointer.wait_until_finished()

        written = seconds(save)
        read = seconds(lambda: jax.block_until_ready(checkpointer.restore(path, state)))
    print(f"Orbax's StandardCheckpointer, the same state, once: {amount / written / 1e9:.2f} GB/s written, "
          f"{amount / read / 1e9:.2f} GB/s read (compressed with zstd; these bytes are random)")  # fmt: skip


def steps(folder: Path, mebibytes: int, rounds: int) -> None:
    """A training step's time while a checkpoint is written behind it."""
    mesh = sbp.placement.all("cpu", axis_names="dp").mesh
    spread = NamedSharding(mesh, PartitionSpec("dp"))
    rows = mebibytes * MIB // LEAVES // 4 // 1024
    state = {f"w{k}": jax.device_put(jnp.ones((rows, 1024)), spread) for k in range(LEAVES)}
    x = jax.device_put(jnp.ones((2048, 1024)), spread)

    @jax.jit
    def step(w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ (w @ w.T)).T @ x / 2048

    w = jax.block_until_ready(step(jnp.eye(1024)))
    quiet, busy, called, writing = [], [], [], []
    with sbp.checkpoint.Manager(folder / "run", keep=1) as manager:
        for round_number in range(rounds):
            quiet += [seconds(lambda: jax.block_until_ready(step(w))) for _ in range(10)]
            start = time.perf_counter()
            called.append(seconds(lambda k=round_number: manager.save(k, state)))
            thread = manager._thread
            assert thread is not None
            while thread.is_alive():
                busy.append(seconds(lambda: jax.block_until_ready(step(w))))
            writing.append(time.perf_counter() - start)
            manager.wait()
    a, b, blocked, total = map(statistics.median, (quiet, busy, called, writing))
    print(
        f"A step of {a * 1e3:.0f} ms that uses all cores takes {b * 1e3:.0f} ms while {mebibytes} MiB are written "
        f"behind it: x{b / a:.2f}, for the {total:.2f} s that this takes\n"
        f"  (medians of {len(quiet)} and {len(busy)} steps). save() returns after {blocked:.3f} s, when the state is "
        f"copied:\n  a checkpoint costs the training {blocked + (total - blocked) * (1 - a / b):.2f} s in all."
    )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: the system's temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        speeds(Path(name), options.mebibytes, options.rounds)
        orbax(Path(name), options.mebibytes)
        steps(Path(name), options.mebibytes, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
