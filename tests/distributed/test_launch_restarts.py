"""Restarts, with workers that need no JAX: when, how many, on which port; what counts as a failure."""

import re
import signal
import sys
import time
from pathlib import Path

import pytest
from launching import REPOSITORY, gone, launch, start

import sbp_jax as sbp
from sbp_jax import run_dir
from sbp_jax.distributed.launch.logs import secrets_of
from sbp_jax.distributed.launch.watch import WakingClock
from sbp_jax.processes import launched
from sbp_jax.processes import start as starting

TWO = ("--nproc_per_node", "2")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes as Linux has them")


def starts(said: str) -> list[str]:
    """How many processes the launcher has started again, as which generation."""
    return [" of ".join(found) for found in re.findall(r"starting (\d) processes again: (generation \d)", said)]


def test_a_new_generation_on_another_port(tmp_path: Path) -> None:
    source = "say(generation, os.environ['MASTER_PORT'], rank)\nif generation < 2 and rank == 1: sys.exit(3)\n"
    ran = launch(tmp_path, source + "if generation < 2: time.sleep(100)", *TWO, "--max_restarts", "3")
    assert ran.code == 0
    seen = [line.split() for line in ran.out.splitlines()]
    ports = {generation: {port for g, port, _ in seen if g == generation} for generation in "012"}
    assert [len(found) for found in ports.values()] == [1, 1, 1] and len(set.union(*ports.values())) == 3
    assert "starting 2 processes again: generation 2, restart 2 of 3" in ran.err


def test_restarts_are_used_up(tmp_path: Path) -> None:
    ran = launch(tmp_path, "say('try', generation)\nsys.exit(generation + 3)", "--max_restarts", "2")
    assert ran.code == 5 and re.findall(r"try \d", ran.out) == ["try 0", "try 1", "try 2"]
    assert "no restart is left of 2" in ran.err


def test_logs_of_earlier_generations_stay(tmp_path: Path) -> None:
    options = ("--redirect_stdout_and_stderr", "--logdir", "logs", "--max_restarts", "1")
    assert launch(tmp_path, "say('try', generation)\nif generation == 0: sys.exit(1)", *options).code == 0
    assert (tmp_path / "logs/local_rank_0/stdout").read_text() == "try 0\n--- generation 1\ntry 1\n"


def test_a_stopped_process_has_failed(tmp_path: Path) -> None:
    source = """
beat(None, "joined")
for step in range(5): beat(step)
if generation == 0 and rank == 1: os.kill(os.getpid(), signal.SIGSTOP)
while generation == 0: beat(5); time.sleep(0.05)
"""
    ran = launch(tmp_path, source, *TWO, "--max_restarts", "1", "--heartbeat_timeout", "0.6")
    assert ran.code == 0, ran.err
    assert re.search(r"rank 1 .*has been stopped \(SIGSTOP\) for 0\.\d s at step 4", ran.err)
    ran = launch(tmp_path, source, *TWO, "--heartbeat_timeout", "0.6")
    assert ran.code == 124


def test_a_process_without_heartbeats_hangs_only_after_its_first(tmp_path: Path) -> None:
    source = """
time.sleep(1.0)
if rank == 1:
    beat(7); time.sleep(100)
for i in range(100): beat(8 + i); time.sleep(.05)
"""
    ran = launch(tmp_path, source, *TWO, "--heartbeat_timeout", "0.5")
    assert ran.code == 124 and re.search(r"rank 1 .*has sent no heartbeat for 0\.\d s at step 7", ran.err)
    ran = launch(tmp_path, "time.sleep(1.0)\nbeat(1)", "--heartbeat_timeout", "0.3")
    assert ran.code == 0, "imports and compilation before the first step may take long"


def test_one_that_leaves_early_has_failed(tmp_path: Path) -> None:
    source = """
beat(None, "joined")
for step in range(8):
    beat(step)
    time.sleep(0.05)
    if generation == 0 and rank == 0 and step == 3:
        beat(3, "leaving"); sys.exit(0)
"""
    ran = launch(tmp_path, source, *TWO, "--max_restarts", "1")
    assert ran.code == 0 and re.search(r"rank 0 .*ended at step 3, and rank 1 is at step [4-7]: too early", ran.err)
    assert launch(tmp_path, source, *TWO).code == 1
    waits = "beat(3)\nif rank == 0:\n    beat(3, 'leaving'); sys.exit(0)\ntime.sleep(100)"
    ran = launch(tmp_path, waits, *TWO, "--exit_timeout", "0.5")
    assert ran.code == 1 and re.search(r"rank 0 .*others have made no step since.*: rank 1 at step 3", ran.err)


def test_fewer_processes_when_one_cannot_start_and_all_again_later(tmp_path: Path) -> None:
    source = """
say(generation, size, slot)
if generation == 0 and slot == 1: sys.exit(9)       # its GPU is broken: before any step
if generation == 0: time.sleep(100)
beat(generation)
if generation == 1: time.sleep(1 if rank else 0.5); os._exit(8)     # after a step
"""
    ran = launch(tmp_path, source, "--nproc_per_node", "3", "--min_procs", "2", "--max_restarts", "2")
    assert ran.code == 0, ran.err
    assert starts(ran.err) == ["2 of generation 1", "3 of generation 2"]
    seen = ran.out.splitlines()
    assert "1 2 0" in seen and "1 3 1" not in seen and {"2 3 0", "2 3 1", "2 3 2"} < set(seen)


def test_a_smaller_run_grows_again_by_itself(tmp_path: Path) -> None:
    source = """
def leave(*_): sys.exit(75)
signal.signal(signal.SIGTERM, leave)
say(generation, size)
if generation == 0:
    if slot == 0: sys.exit(9)
    time.sleep(100)
if generation == 2:
    if slot == 0: sys.exit(9)      # as before: this was an attempt, and uses up no restart
    time.sleep(100)
beat(generation)
if size == 1: time.sleep(100)
"""
    options = ("--min_procs", "1", "--max_restarts", "1", "--grow_after", "0.5")
    ran = launch(tmp_path, source, *TWO, *options)
    assert ran.code == 0, ran.err
    assert starts(ran.err) == ["1 of generation 1", "2 of generation 2", "1 of generation 3", "2 of generation 4"]
    assert "restart 2" not in ran.err


def test_sigterm_between_generations(tmp_path: Path) -> None:
    run = start(tmp_path, "say('try', generation)\nsys.exit(1)", "--max_restarts", "1000")
    run.until(r"try 3")
    run.signal(signal.SIGTERM)
    assert run.end(20).code in (1, 143)


def test_spares_wait_become_workers_and_end(tmp_path: Path) -> None:
    (tmp_path / "prepared.py").write_text("import os, pathlib\nTAKEN = 'RANK' not in os.environ\n")
    source = """
say("pid", os.getpid())
sys.path.insert(0, os.getcwd())
import prepared
for step in range(40):
    beat(step); time.sleep(0.1)
    if generation == 0 and step == 30: os.kill(os.getpid(), signal.SIGKILL)
    if generation == 1: break
say("spare" if prepared.TAKEN else "new", generation, sys.argv[1:], __name__)
"""
    variables = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY / 'src'}"}
    options = (*TWO, "--max_restarts", "1", "--preload", "prepared", "--spares", "2")
    ran = launch(tmp_path, source, *options, arguments=("a",), variables=variables)
    assert ran.code == 0, ran.err
    assert ran.out.count("spare 1 ['a'] __main__") == 2
    assert gone([int(pid) for pid in re.findall(r"pid (\d+)", ran.out)], 1)


# The parts


def test_heartbeats_and_other_texts() -> None:
    beat = run_dir.Heartbeat(12, 345, run_dir.STEPPING)
    assert len(beat.record()) == run_dir.RECORD_BYTES and run_dir.parse_heartbeat(beat.record()) == beat
    assert run_dir.parse_heartbeat(run_dir.Heartbeat(1, None, "joined").record()).step is None
    for junk in (b"", b"\0" * 64, b"1 2", b"x 1 step", b"1 two step", b"\xff" * 64, b"1 2 3 4"):
        assert run_dir.parse_heartbeat(junk) == run_dir.Heartbeat()


def test_reports_of_any_size_and_other_texts(tmp_path: Path) -> None:
    run_dir.begin_generation(tmp_path, 4)
    assert run_dir.running_generation(tmp_path) == 4
    report = run_dir.Report(2, 4, 17, 1.5, "ValueError", "\x00é" * 50_000, "t" * 100_000 + "end")
    assert run_dir.write_report(tmp_path, report)
    read = run_dir.read_report(tmp_path, 4, 2)
    assert read is not None and read.rank == 2 and read.step == 17 and read.traceback.endswith("end")
    path = run_dir.report_path(tmp_path, 4, 2)
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_size <= run_dir.MAX_REPORT_BYTES
    for junk in ("", "{", "[]", "null", '{"rank": "x"}'):
        path.write_text(junk)
        assert run_dir.read_report(tmp_path, 4, 2) is None
    assert run_dir.read_report(tmp_path, 4, 3) is None


def test_a_process_of_an_older_generation_may_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir.begin_generation(tmp_path, 0)
    monkeypatch.setenv("SBP_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("SBP_GENERATION", "0")
    launched.check_generation()
    run_dir.begin_generation(tmp_path, 1)
    with pytest.raises(sbp.ProcessError, match="generation 0 of the run, and generation 1 runs now: it may not join"):
        launched.check_generation()


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "SBP_LOCAL_SLOT": "2"}, [2]),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "SBP_LOCAL_SLOT": "1"}, [1]),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, [1]),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "SBP_LOCAL_SLOT": "1", "CUDA_VISIBLE_DEVICES": "5"}, None),
    ],
)
def test_the_gpu_of_a_process_is_that_of_its_place(variables: dict[str, str], devices: list[int] | None) -> None:
    assert starting._devices(None, variables) == devices


def test_secrets_are_found_by_name() -> None:
    variables = {
        "A_TOKEN": "abcdef",
        "SSH_KEY": "short",
        "x_secret_y": "0123456789",
        "PASSWORD": "default",
        "HOME": "/home/me",
    }
    assert secrets_of(variables) == (b"0123456789", b"abcdef")


def test_time_asleep_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = WakingClock()
    now[0] += 0.5
    assert clock() == 0.5
    now[0] += 3600
    assert clock() == 2.5
