"""Runs that survive: examples/elastic.py under the launcher, with plans, data and checkpoints, and disturbances."""

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest
from launching import REPOSITORY, Ran, Running

EXAMPLE = str(REPOSITORY / "examples" / "elastic.py")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes as Linux has them")


def benchmark() -> ModuleType:
    """benchmarks/restarts.py, which kills processes and compares losses."""
    spec = importlib.util.spec_from_file_location("restarts", REPOSITORY / "benchmarks" / "restarts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["restarts"] = module
    spec.loader.exec_module(module)
    return module


def options(folder: Path, *more: str, processes: int = 2, steps: int = 40) -> tuple[str, ...]:
    launcher = ("--nproc_per_node", str(processes), "--devices_per_proc", "2", "--spares", "0")
    return (*launcher, *more, EXAMPLE, "--folder", str(folder), "--steps", str(steps))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The diary of a run of one process that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    ran = Running(folder, *options(folder, processes=1, steps=200)).end(300)
    assert ran.code == 0, ran.err
    return folder / "diary.txt"


def same(whole: Path, folder: Path, steps: int) -> bool:
    """Whether each step's losses, of every start, are those of the whole run."""
    losses = benchmark().losses
    expected, found = losses(whole), losses(folder / "diary.txt")
    if found.keys() != set(range(steps)):
        return False
    return all(abs(loss - next(iter(expected[step]))) <= 1e-4 * abs(loss) for step in found for loss in found[step])


def starts(folder: Path) -> list[tuple[int, int, int]]:
    """(generation, processes, first step) of each start."""
    found = re.findall(r"^start (\d+) (\d+) (\d+)", (folder / "diary.txt").read_text(), re.MULTILINE)
    return [(int(generation), int(size), int(step)) for generation, size, step in found]


def test_a_killed_process_and_preemption(tmp_path: Path, whole: Path) -> None:
    more = ("--max_restarts", "1")
    run = Running(tmp_path, *options(tmp_path, *more), "--pause", "0.1")
    run.until(lambda run: (tmp_path / "checkpoints" / "step-00000010").is_dir(), 180)
    pid = re.search(r"rank 0 of 2 is process (\d+), generation 0", run.out())
    assert pid is not None
    os.kill(int(pid[1]), signal.SIGKILL)
    run.until(
        lambda run: re.search(r"start 1 [^s]*loss \d+ .*\n", (tmp_path / "diary.txt").read_text()) is not None, 180
    )
    run.signal(signal.SIGTERM)
    ran = run.end(120)
    assert ran.code == 75, ran.err
    assert re.search(r"rank 0 .*was killed by SIGKILL at step \d\d", ran.err) and "restart 1 of 1" in ran.err
    # The same command goes on, with another number of processes.
    ran = Running(tmp_path, *options(tmp_path, processes=1)).end(180)
    assert ran.code == 0, ran.err
    (_, _, first), (_, _, again), (_, size, last) = starts(tmp_path)
    assert first == 0 and again in (10, 20, 30) and size == 1
    diary = (tmp_path / "diary.txt").read_text()
    stopped = int(re.findall(r"loss (\d+)", diary.partition("start 0 1")[0])[-1])
    assert last == stopped + 1, "stopped before the step after the last one that was made"
    assert same(whole, tmp_path, 40)


FAILURES = {
    "exception": "raise ValueError('in mid-step')",
    "early exit(0)": "sys.exit(0)",
    "exit(3)": "sys.exit(3)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
    "hang": "time.sleep(1000)",
    "full disk": "raise OSError(28, 'No space left on device')",
    "abort": "os.abort()",
}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1], ids=["process 0", "process 1"])
@pytest.mark.parametrize("how", FAILURES)
def test_failures(tmp_path: Path, whole: Path, how: str, rank: int) -> None:
    """Each in mid-step, of the process that has the coordinator, and of the other."""
    script = tmp_path / "disturbed.py"
    script.write_text(f"""
import os, signal, sys, time
sys.path.insert(0, {str(REPOSITORY / "examples")!r})
import elastic
import sbp_jax as sbp
note = elastic.note
def disturbed(folder, world, text):
    note(folder, world, text)
    if world.generation == 0 and world.rank == {rank} and text.startswith("loss 13 "):
        while not (folder / "checkpoints" / "step-00000010").is_dir(): time.sleep(0.01)
        {FAILURES[how]}
elastic.note = disturbed
elastic.main()
""")
    ran = run_disturbed(tmp_path, script, "--max_restarts", "1", "--heartbeat_timeout", "15")
    assert ran.code == 0, ran.err
    assert [(generation, first) for generation, _, first in starts(tmp_path)] == [(0, 0), (1, 10)]
    assert re.search(rf"rank {rank} \(", ran.err) or how == "hang", ran.err
    assert same(whole, tmp_path, 40)


def run_disturbed(folder: Path, script: Path, *more: str) -> Ran:
    found = [str(script) if word == EXAMPLE else word for word in options(folder, *more)]
    return Running(folder, *found).end(400)


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written(tmp_path: Path, whole: Path) -> None:
    """After its files, before the manifest that makes them a checkpoint."""
    script = tmp_path / "disturbed.py"
    script.write_text(f"""
import os, signal, sys
sys.path.insert(0, {str(REPOSITORY / "examples")!r})
import elastic
import sbp_jax as sbp
from sbp_jax.checkpoint import manager
if os.environ["SBP_GENERATION"] == "0" and os.environ["RANK"] == "1":
    commit = manager.commit
    def killed(prepared, *rest):
        if prepared.folder and "00000020" in str(prepared.folder):
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(prepared, *rest)
    manager.commit = killed
elastic.main()
""")
    ran = run_disturbed(tmp_path, script, "--max_restarts", "1")
    assert ran.code == 0, ran.err
    assert [(generation, first) for generation, _, first in starts(tmp_path)] == [(0, 0), (1, 10)]
    assert same(whole, tmp_path, 40)


@pytest.mark.slow
def test_a_smaller_world_goes_on(tmp_path: Path, whole: Path) -> None:
    script = tmp_path / "disturbed.py"
    script.write_text(f"""
import os, sys, time
generation, slot = os.environ["SBP_GENERATION"], os.environ["SBP_LOCAL_SLOT"]
if generation == "1" and slot == "1":
    sys.exit("its device is broken")
sys.path.insert(0, {str(REPOSITORY / "examples")!r})
import elastic
note = elastic.note
def disturbed(folder, world, text):
    note(folder, world, text)
    if (generation, text[:8]) in (("0", "loss 13 "), ("2", "loss 25 ")) and world.rank == 0:
        newest = "step-00000010" if generation == "0" else "step-00000020"
        while not (folder / "checkpoints" / newest).is_dir(): time.sleep(0.01)
        os._exit(9)
elastic.note = disturbed
elastic.main()
""")
    ran = run_disturbed(tmp_path, script, "--max_restarts", "3", "--min_procs", "1")
    assert ran.code == 0, ran.err
    assert starts(tmp_path) == [(0, 2, 0), (2, 1, 10), (3, 2, 20)]
    assert same(whole, tmp_path, 40)


@pytest.mark.slow
def test_twenty_random_kills(tmp_path: Path, whole: Path) -> None:
    """Of 4 processes, at any moment, spare processes in any state."""
    restarts = benchmark()
    more = ("--nproc_per_node", "4", "--max_restarts", "20", EXAMPLE, "--folder", str(tmp_path), "--steps", "200")
    command = [*restarts.LAUNCH, *more, "--every", "5", "--pause", "0.02"]
    ran = restarts.run_with_kills(command, tmp_path / "diary.txt", 20, 0, tmp_path, least_steps=2)
    assert ran.code == 0, ran.err
    assert len(ran.kills) == 20 and len({kill.rank for kill in ran.kills}) > 1
    found = starts(tmp_path)
    assert [generation for generation, *_ in found] == list(range(21))
    for kill, (_, size, first) in zip(ran.kills, found[1:], strict=True):
        # No further back than the checkpoint before the one that may have been in the making.
        assert size == 4 and first % 5 == 0 and first > kill.step - 10
    assert same(whole, tmp_path, 200)
