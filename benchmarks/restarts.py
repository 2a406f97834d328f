"""How long a run stands still when a process is killed, and that it loses no step.

    python benchmarks/restarts.py [--kills 20] [--spares 4]

4 processes with 2 simulated devices each, under the launcher. A random one gets SIGKILL, again and again. First a
program that does one small collective in each step: the time from the kill to the end of the first collective of the
new start, without and with the compilation of that collective. Then `examples/elastic.py`, which makes a plan,
restores a checkpoint and trains: the same time to its first step, and its losses against a run that nobody disturbed.
"""

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ELASTIC = ROOT / "examples" / "elastic.py"
LAUNCH = [sys.executable, "-m", "sbp_jax.distributed.launch", "--devices_per_proc", "2"]
BOUND_SECONDS = 2.0


def environment() -> dict[str, str]:
    """This process's variables, without those of another simulation."""
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    return kept | {"PYTHONPATH": str(ROOT / "src")}


@dataclass(frozen=True)
class Kill:
    """A process killed: which, when, in which generation, after which step."""

    generation: int
    rank: int
    step: int
    unix_seconds: float


@dataclass(frozen=True)
class Kills:
    """A run with kills, and how it ended."""

    code: int
    kills: tuple[Kill, ...]
    out: str
    err: str


def run_with_kills(
    command: Sequence[str],
    diary: Path,
    kills: int,
    seed: int,
    folder: Path,
    least_steps: int = 3,
    spares: int = 0,
    limit: float = 1200.0,
) -> Kills:
    """Run a command, and kill a random process some time after each start has made ``least_steps`` steps, and
    ``spares`` processes wait with their imports done.

    The program prints ``rank R of N is process P, generation G`` from each process, and writes ``start G ...`` and
    ``loss STEP ...`` lines to its diary.
    """
    chance, done, idle = random.Random(seed), [], Idle()
    files = [folder / "out.txt", folder / "err.txt"]
    with files[0].open("w") as out, files[1].open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment())
        try:
            end = time.monotonic() + limit
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
                if len(done) == kills or not diary.exists():
                    continue
                # Of the last generation that has begun, the steps so far and the processes.
                begun = diary.read_text().rpartition("start ")[2]
                steps = re.findall(r"^loss (\d+) .*\n", begun, re.MULTILINE)
                generation = int((begun.split() or ["-1"])[0])
                if len(steps) < least_steps or generation != len(done):
                    continue
                found = re.findall(
                    rf"rank (\d+) of \d+ is process (\d+), generation {generation}\n", files[0].read_text()
                )
                if len(idle.children(process.pid, {int(pid) for _, pid in found})) < spares:
                    continue
                time.sleep(chance.uniform(0.0, 0.5))
                rank, pid = chance.choice(found)
                last = re.findall(r"^loss (\d+) .*\n", diary.read_text(), re.MULTILINE)[-1]
                now = time.time()
                os.kill(int(pid), signal.SIGKILL)
                done.append(Kill(generation, int(rank), int(last), now))
            return Kills(
                process.wait(max(1.0, end - time.monotonic())), tuple(done), files[0].read_text(), files[1].read_text()
            )
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


class Idle:
    """Which children of the launcher wait: they have used no processor time for a while."""

    def __init__(self) -> None:
        self.ticks: dict[int, tuple[int, float]] = {}

    def children(self, launcher: int, workers: set[int]) -> list[int]:
        """The launcher's idle children that are no workers."""
        found, now = [], time.monotonic()
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                words = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(path.parent.name)
            if int(words[1]) != launcher or pid in workers:
                continue
            ticks = int(words[11]) + int(words[12])
            if self.ticks.get(pid, (-1, 0.0))[0] != ticks:
                self.ticks[pid] = (ticks, now)
            elif ticks > 20 and now - self.ticks[pid][1] > 0.5:
                found.append(pid)
        return found


def losses(diary: Path) -> dict[int, set[float]]:
    """All losses that the diary has of each step, from all generations."""
    found: dict[int, set[float]] = {}
    for step, loss in re.findall(r"^loss (\d+) (\S+)", diary.read_text(), re.MULTILINE):
        found.setdefault(int(step), set()).add(float(loss))
    return found


def worker(folder: Path) -> None:
    """The small program: one collective in each step, until there have been enough generations."""
    begun = time.time()
    import jax
    import jax.numpy as jnp
    import numpy as np

    import sbp_jax as sbp

    imported = time.time()
    world = sbp.distributed.initialize()
    connected = time.time()
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.make_array_from_callback((len(jax.devices()),), split, lambda i: np.ones(1, np.float32))
    ready = time.time()
    total = jax.jit(jnp.sum).lower(x).compile()
    compiled = time.time()
    print(f"rank {world.rank} of {world.size} is process {os.getpid()}, generation {world.generation}", flush=True)
    for step in range(10_000):
        sbp.distributed.heartbeat(step)
        if float(total(x)) != len(jax.devices()):
            raise RuntimeError("the sum of ones is not the number of devices")
        if world.rank:
            continue
        with (folder / "diary.txt").open("a") as diary:
            if step == 0:
                times = (begun, imported, connected, ready, compiled, time.time())
                diary.write(f"start {world.generation} {' '.join(map(str, times))}\n")
            diary.write(f"loss {step} 0\n")
        time.sleep(0.02)


def collective(kills: int, spares: int, seed: int) -> list[list[float]]:
    """For each kill the seconds at the ends of: the processes are there, imports, connection, devices, compilation,
    first collective."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ["--nproc_per_node", "4", "--max_restarts", str(kills - 1), "--spares", str(spares)]
        command = [*LAUNCH, *options, str(Path(__file__).resolve()), "--worker", name]
        # As many as there are restarts, and one to end it.
        ran = run_with_kills(command, folder / "diary.txt", kills, seed, folder, least_steps=10, spares=spares)
        starts = re.findall(r"^start (\d+) (.*)$", (folder / "diary.txt").read_text(), re.MULTILINE)
        if len(ran.kills) != kills or len(starts) != kills:
            raise RuntimeError(f"{len(ran.kills)} kills and {len(starts)} starts of {kills}:\n{ran.err[-3000:]}")
        times = {int(generation): [float(t) for t in rest.split()] for generation, rest in starts}
        return [[t - kill.unix_seconds for t in times[kill.generation + 1]] for kill in ran.kills[:-1]]


def elastic(kills: int, spares: int, seed: int) -> tuple[list[float], bool]:
    """For each kill the seconds to the end of the first training step; whether no step was lost, nor a loss changed."""
    with tempfile.TemporaryDirectory() as name:
        whole, killed = Path(name) / "whole", Path(name) / "killed"
        steps = str(200 * (kills + 1))
        for folder in (whole, killed):
            folder.mkdir()
        options = ["--nproc_per_node", "4", "--max_restarts", str(kills), "--spares", str(spares)]
        program = [str(ELASTIC), "--steps", steps, "--every", "5"]
        subprocess.run(
            [*LAUNCH, *options, *program, "--folder", str(whole)], env=environment(), check=True, capture_output=True
        )
        command = [*LAUNCH, *options, *program, "--pause", "0.1", "--folder", str(killed)]
        ran = run_with_kills(command, killed / "diary.txt", kills, seed, killed, least_steps=3, spares=spares)
        if ran.code or len(ran.kills) != kills:
            raise RuntimeError(f"exit code {ran.code} after {len(ran.kills)} kills:\n{ran.err[-3000:]}")
        text = (killed / "diary.txt").read_text()
        seconds = []
        for kill in ran.kills:
            part = text.partition(f"start {kill.generation + 1} ")[2]
            first = re.search(r"^loss \d+ \S+ (\S+)", part, re.MULTILINE)
            assert first is not None
            seconds.append(float(first[1]) - kill.unix_seconds)
        return seconds, same(whole / "diary.txt", killed / "diary.txt")


def same(whole: Path, killed: Path) -> bool:
    """Whether a run with kills has the losses of one without, in every step and every generation."""
    expected, found = losses(whole), losses(killed)
    if expected.keys() != found.keys():
        return False
    return all(abs(loss - next(iter(expected[step]))) <= 1e-5 * abs(loss) for step in found for loss in found[step])


def main() -> int:
    """Print the times; 1 if the median to the first collective is over 2 s, or a loss differs."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--spares", type=int, default=4)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=("collective", "elastic"))
    options.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker is not None:
        worker(args.worker)
        return 0
    good = True
    if args.only != "elastic":
        times = collective(args.kills, args.spares, args.seed)
        ends = [statistics.median(column) for column in zip(*times, strict=True)]
        apart = [row[5] - (row[4] - row[3]) for row in times]
        print(f"4 processes x 2 devices, {len(times)} kills, {args.spares} spares; load {os.getloadavg()[0]:.1f} on "
              f"{os.cpu_count()} cores; medians, seconds from the kill")  # fmt: skip
        names = ("new processes run the script", "imports", "connected", "devices", "compiled", "first collective")
        for name, value in zip(names, ends, strict=True):
            print(f"  {name:30} {value:6.2f}")
        print(f"  {'first collective, without compiling it':30} {statistics.median(apart):6.2f}  "
              f"(least {min(apart):.2f}, most {max(apart):.2f})")  # fmt: skip
        slowest = max(times, key=lambda row: row[5])
        print(f"  the slowest: {', '.join(f'{name} {value:.2f}' for name, value in zip(names, slowest, strict=True))}")
        good = statistics.median(apart) <= BOUND_SECONDS
    if args.only != "collective":
        seconds, equal = elastic(args.kills, args.spares, args.seed)
        print(f"examples/elastic.py, {len(seconds)} kills: to the end of the first step (plan, restore, compilation): "
              f"median {statistics.median(seconds):.2f} s; losses {'equal' if equal else 'DIFFERENT'}")  # fmt: skip
        good = good and equal
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
