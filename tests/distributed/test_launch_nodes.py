"""Two launchers as two nodes, here on one machine: started together, ended together, started again together."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from launching import REPOSITORY, Running

from world import free_port

EXAMPLE = str(REPOSITORY / "examples" / "elastic.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes as Linux has them"),
]


def nodes(folder: Path, *more: str, steps: int) -> list[Running]:
    """The launchers of both nodes, with two processes each."""
    port, found = str(free_port()), []
    for node in ("0", "1"):
        options = ("--nnodes", "2", "--node_rank", node, "--nproc_per_node", "2", "--devices_per_proc", "1")
        program = (EXAMPLE, "--folder", str(folder), "--steps", str(steps), "--pause", "0.05")
        found.append(Running(folder, *options, "--master_port", port, *more, *program))
    return found


def until_step(run: Running, folder: Path, line: str) -> None:
    diary = folder / "diary.txt"
    run.until(lambda run: diary.exists() and line in diary.read_text(), 180)


def test_start_and_end(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, steps=5)
    assert (first.end(180).code, second.end(60).code) == (0, 0)
    assert "rank 1 of 4" in first.out() and "rank 2 of 4" in second.out()


def test_the_death_of_a_launcher_ends_the_other_node(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, steps=100_000)
    until_step(first, tmp_path, "loss 5 ")
    second.signal(signal.SIGKILL)
    second.process.wait()
    begin = time.monotonic()
    ran = first.end(120)
    assert ran.code != 0 and time.monotonic() - begin < 60
    assert "may have failed first" in ran.err


def test_a_failure_starts_both_nodes_again(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, "--max_restarts", "1", "--spares", "0", steps=40)
    until_step(first, tmp_path, "loss 13 ")
    pid = re.search(r"rank 3 of 4 is process (\d+), generation 0", second.out())
    assert pid is not None
    os.kill(int(pid[1]), signal.SIGKILL)
    assert (first.end(240).code, second.end(60).code) == (0, 0)
    assert re.findall(r"^start (\d) (\d) (\d+)", (tmp_path / "diary.txt").read_text(), re.MULTILINE) == [
        ("0", "4", "0"), ("1", "4", "10"),
    ]  # fmt: skip


def test_sigterm_to_one_launcher_stops_both_at_one_step(tmp_path: Path) -> None:
    first, second = nodes(tmp_path, steps=100_000)
    until_step(first, tmp_path, "loss 5 ")
    second.signal(signal.SIGTERM)
    assert (first.end(120).code, second.end(60).code) == (75, 75)
    assert (tmp_path / "checkpoints").is_dir()
