"""The launcher with workers that need no JAX: variables, ends, signals, logs, ports, options."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import LAUNCH, REPOSITORY, Running, environment, gone, launch, start

TWO = ("--nproc_per_node", "2")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes as Linux has them")


def test_help_is_quick_and_imports_no_jax() -> None:
    seconds = []
    for _ in range(3):
        begin = time.monotonic()
        ran = subprocess.run([*LAUNCH, "--help"], capture_output=True, text=True, env=environment(), check=True)
        seconds.append(time.monotonic() - begin)
    assert "--nproc_per_node" in ran.stdout and "--max_restarts" in ran.stdout
    traced = [sys.executable, "-X", "importtime", *LAUNCH[1:], "--help"]
    imported = subprocess.run(traced, capture_output=True, text=True, env=environment(), check=True).stderr
    assert not re.search(r"\| +(jax|numpy|scipy|flax)\b", imported)
    assert min(seconds) < 1.0  # 0.15 on a machine of its own


def test_variables_of_each_process(tmp_path: Path) -> None:
    names = "MASTER_ADDR MASTER_PORT WORLD_SIZE RANK LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK NNODES SBP_GENERATION"
    source = f"say(json.dumps([{{n: os.environ[n] for n in {names.split()!r}}}, sys.argv[1:], __name__, os.getsid(0)]))"
    ran = launch(tmp_path, source, "--nproc_per_node", "3", arguments=("--lr", "0.1", "-m", "x y"))
    assert ran.code == 0, ran.err
    told = sorted((json.loads(line) for line in ran.out.splitlines()), key=lambda line: line[0]["RANK"])
    ports = {variables.pop("MASTER_PORT") for variables, *_ in told}
    assert len(ports) == 1 and 1024 < int(ports.pop()) < 65536
    for rank, (variables, arguments, name, _) in enumerate(told):
        assert variables == {
            "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "3", "RANK": str(rank), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "3", "NODE_RANK": "0", "NNODES": "1", "SBP_GENERATION": "0",
        }  # fmt: skip
        assert arguments == ["--lr", "0.1", "-m", "x y"] and name == "__main__"
    assert len({session for *_, session in told}) == 3, "each has a session of its own"


@pytest.mark.parametrize("seed", [None, "7"])
def test_sets_have_one_order_in_all_processes(tmp_path: Path, seed: str | None) -> None:
    variables = {} if seed is None else {"PYTHONHASHSEED": seed}
    ran = launch(tmp_path, "say(os.environ['PYTHONHASHSEED'], hash('x'))", "--nproc_per_node", "3", variables=variables)
    assert ran.out.startswith(f"{seed or 0} ") and len(set(ran.out.splitlines())) == 1


def test_ranks_of_the_second_node(tmp_path: Path) -> None:
    options = ("--nnodes", "2", "--node_rank", "1", *TWO, "--master_port", "23999")
    ran = launch(tmp_path, 'say(rank, size, os.environ["NODE_RANK"], os.environ["MASTER_PORT"])', *options)
    assert sorted(ran.out.splitlines()) == ["2 4 1 23999", "3 4 1 23999"]


def test_a_script_finds_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text("VALUE = 'mine'")  # The launcher has a module of this name.
    assert launch(tmp_path, "import logs; say(logs.VALUE, sys.path[0])").out == f"mine {tmp_path}\n"


def test_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text("import sys\nprint(__package__, sys.argv[1:])")
    ran = Running(tmp_path, "-m", "package.train", "a").end()
    assert (ran.code, ran.out) == (0, "package ['a']\n")


def test_programs_without_python(tmp_path: Path) -> None:
    ran = Running(tmp_path, *TWO, "--no_python", "bash", "-c", "echo $RANK of $WORLD_SIZE").end()
    assert ran.code == 0 and sorted(ran.out.splitlines()) == ["0 of 2", "1 of 2"]
    ran = Running(tmp_path, "--no-python", "no-such-program").end()
    assert ran.code == 127 and "cannot run 'no-such-program'" in ran.err


# Processes that fail

OTHERS_WAIT = "\nif rank != 1: time.sleep(100)\n"


@pytest.mark.parametrize(
    ("failing", "code", "said"),
    [
        ("sys.exit(3)", 3, "ended with exit code 3"),
        ("sys.exit('no data')", 1, "| no data"),
        ("raise ValueError('bad value')", 1, "| ValueError: bad value"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "was killed by SIGSEGV"),
        ("os._exit(200)", 200, "ended with exit code 200"),
    ],
)
def test_the_first_failure_ends_all(tmp_path: Path, failing: str, code: int, said: str) -> None:
    run = start(tmp_path, f"say('pid', os.getpid()){OTHERS_WAIT}{failing}", "--nproc_per_node", "3")
    ran = run.end()
    assert ran.code == code
    assert "rank 1 (process " in ran.err and said in ran.err
    assert gone([int(pid) for pid in re.findall(r"pid (\d+)", ran.out)], 0.1)
    assert ran.seconds < 10


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    ran = launch(tmp_path, "def f():\n    raise ValueError('here')\nf()")
    assert "runpy" not in ran.err and "child.py" not in ran.err and "in f" in ran.err


def test_processes_that_ignore_sigterm_are_killed(tmp_path: Path) -> None:
    source = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('pid', os.getpid())" + OTHERS_WAIT + "sys.exit(5)"
    ran = launch(tmp_path, source, *TWO, "--grace", "0.5")
    assert ran.code == 5 and ran.seconds < 10
    assert gone([int(pid) for pid in re.findall(r"pid (\d+)", ran.out)], 0.1)


def test_children_of_workers_end_with_them(tmp_path: Path) -> None:
    source = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
say("pid", child.pid)
time.sleep(0.3)
if rank == 1: os._exit(4)
time.sleep(100)
"""
    ran = launch(tmp_path, source, *TWO)
    assert ran.code == 4
    assert gone([int(pid) for pid in re.findall(r"pid (\d+)", ran.out)], 2)


def test_workers_die_with_the_launcher(tmp_path: Path) -> None:
    run = start(
        tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('pid', os.getpid())\ntime.sleep(100)", *TWO
    )
    run.until(r"(?s)pid.*pid \d+\n")
    run.signal(signal.SIGKILL)
    run.process.wait()
    assert gone([int(pid) for pid in re.findall(r"pid (\d+)", run.out())], 5)


def test_one_that_ends_well_leaves_the_others_alone(tmp_path: Path) -> None:
    ran = launch(tmp_path, "if rank: time.sleep(1.0)\nsay('done', rank)", *TWO, "--exit_timeout", "0.2")
    assert ran.code == 0 and "done 1" in ran.out


# Signals


def test_sigterm_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    source = """
def leave(*_):
    time.sleep(0.5); say("saved", rank); sys.exit(75)
signal.signal(signal.SIGTERM, leave)
say("ready")
while True: time.sleep(0.01)
"""
    run = start(tmp_path, source, *TWO, "--max_restarts", "3")
    run.until(r"(?s)ready.*ready")
    run.signal(signal.SIGTERM)
    ran = run.end()
    assert ran.code == 75 and sorted(re.findall(r"saved \d", ran.out)) == ["saved 0", "saved 1"]
    assert "starting" not in ran.err, "no restart after SIGTERM"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)], ids=["TERM", "INT", "HUP"]
)
def test_signals_without_a_handler_end_the_run(tmp_path: Path, number: int, code: int) -> None:
    run = start(tmp_path, "say('ready')\ntime.sleep(100)", *TWO, "--max_restarts", "3")
    run.until(r"(?s)ready.*ready")
    run.signal(number)
    ran = run.end(20)
    assert ran.code == code and "starting" not in ran.err


def test_a_second_sigterm_kills(tmp_path: Path) -> None:
    run = start(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('ready')\ntime.sleep(100)", *TWO)
    run.until(r"(?s)ready.*ready")
    run.signal(signal.SIGTERM)
    run.until(lambda run: "passed on" in run.err())
    run.signal(signal.SIGTERM)
    assert run.end(10).code == 143


def test_processes_that_do_not_leave_in_time_are_killed(tmp_path: Path) -> None:
    source = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('ready')\ntime.sleep(100)"
    run = start(tmp_path, source, *TWO, "--stop_timeout", "0.5")
    run.until(r"(?s)ready.*ready")
    run.signal(signal.SIGTERM)
    ran = run.end(15)
    assert ran.code == 143 and "has not left within 0.5 s of SIGTERM" in ran.err


def test_usr_signals_are_passed_on(tmp_path: Path) -> None:
    source = """
signal.signal(signal.SIGUSR1, lambda *_: say("usr1", rank))
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
say("ready")
while True: time.sleep(0.01)
"""
    run = start(tmp_path, source, *TWO)
    run.until(r"(?s)ready.*ready")
    run.signal(signal.SIGUSR1)
    run.until(r"(?s)usr1.*usr1")
    run.signal(signal.SIGUSR2)
    assert run.end().code == 0


# Output


def test_lines_of_two_ranks_do_not_mix(tmp_path: Path) -> None:
    source = (
        "for i in range(300):\n    for part in (str(rank) * 20, str(rank) * 20, chr(10)): os.write(1, part.encode())"
    )
    ran = launch(tmp_path, source + "\nos.write(1, b'no end')", "--nproc_per_node", "3", "--label")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) == 903
    for rank in "012":
        assert lines.count(f"[{rank}] {rank * 40}") == 300 and lines.count(f"[{rank}] no end") == 1


def test_much_output_is_all_there(tmp_path: Path) -> None:
    ran = launch(tmp_path, "os.write(1, b'x' * 3_000_000 + b'\\n')\nsys.stdout.write('y' * 500_000)")
    assert len(ran.out) == 3_500_002 and ran.code == 0


def test_a_secret_in_a_long_line_is_taken_out_wherever_it_is_cut(tmp_path: Path) -> None:
    source = "for i in range(20):\n    os.write(1, b'x' * 65_530 + os.environb[b'MY_TOKEN'])"
    ran = launch(tmp_path, source, variables={"MY_TOKEN": "hunter2hunter2"})
    assert "hunter2" not in ran.out and ran.out.count("***") == 20
    assert ran.out == ("x" * 65_530 + "***") * 20 + "\n"


def test_output_in_files(tmp_path: Path) -> None:
    source = """
print("out", rank)
print("err", rank, file=sys.stderr)
if rank == 1: time.sleep(.3); sys.exit(6)
time.sleep(100)
"""
    os.umask(0o022)
    ran = launch(tmp_path, source, *TWO, "--redirect_stdout_and_stderr", "--logdir", "logs")
    assert ran.code == 6 and ran.out == "" and "  | err 1" in ran.err
    for rank in (0, 1):
        folder = tmp_path / "logs" / f"local_rank_{rank}"
        assert (folder / "stdout").read_text() == f"out {rank}\n" and (folder / "stderr").read_text() == f"err {rank}\n"
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, folder / "stdout")]
        assert modes == [0o700, 0o700, 0o600]
    ran = launch(tmp_path, "print('new')", "--redirect-stdout-and-stderr", "--logdir", "logs")
    assert (tmp_path / "logs" / "local_rank_0" / "stdout").read_text() == "new\n", "a new run overwrites, as in OneFlow"


@pytest.mark.parametrize("place", ["link to a file", "link to a folder", "hard link", "pipe", "link as logdir"])
def test_logs_follow_no_links(tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    logdir = tmp_path / "logs"
    if place == "link as logdir":
        logdir.symlink_to(outside)
    else:
        (logdir / "local_rank_0").mkdir(parents=True)
        target = logdir / "local_rank_0" / "stdout"
        if place == "link to a file":
            target.symlink_to(outside / "precious")
        elif place == "hard link":
            os.link(outside / "precious", target)
        elif place == "pipe":
            os.mkfifo(target)
        else:
            (logdir / "local_rank_0").rmdir()
            (logdir / "local_rank_0").symlink_to(outside)
    ran = launch(tmp_path, "print('x')", "--redirect_stdout_and_stderr", "--logdir", "logs")
    assert ran.code == 2 and ("link" in ran.err or "not a file of ours" in ran.err)
    assert [path.name for path in outside.iterdir()] == ["precious"] and (outside / "precious").read_text() == "mine"


def test_a_folder_that_others_may_write_to_is_no_logdir(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    ran = launch(tmp_path, "print('x')", "--redirect_stdout_and_stderr", "--logdir", "shared")
    assert ran.code == 2 and "others may write into the folder" in ran.err
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1777, "somebody's folder keeps its mode"


def test_secrets_are_taken_out_of_output(tmp_path: Path) -> None:
    secret = {"MY_API_TOKEN": "hunter2hunter2", "DB_PASSWORD": "s3cr3t-value", "KEYBOARD": "true", "PLAIN": "visible-1"}
    source = "say(os.environ['MY_API_TOKEN'], os.environ['PLAIN'], 'true')\nraise ValueError(os.environ['DB_PASSWORD'])"
    ran = launch(tmp_path, source, variables=secret)
    assert ran.out == "*** visible-1 true\n"
    assert "hunter2" not in ran.err and "s3cr3t" not in ran.err and "ValueError: ***" in ran.err
    ran = launch(tmp_path, source, "--redirect_stdout_and_stderr", "--logdir", "logs", variables=secret)
    assert "s3cr3t" not in ran.err and "ValueError: ***" in ran.err


# Options and ports


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nproc_per_node", "0"), "--nproc_per_node 0: must be 1 or more"),
        (("--nnodes", "2", "--node_rank", "2"), "--node_rank 2: with --nnodes 2 it is 0 to 1"),
        (("--node_rank", "-1"), "--node_rank -1: must be 0 or more"),
        (("--master_port", "70000"), "--master_port 70000: must be 1 to 65535"),
        (("-m", "--no_python"), "--module and --no_python"),
        (("--redirect_stdout_and_stderr",), "needs --logdir"),
        (("--logdir", ""), "--logdir '': give the name of a folder"),
        (("--logdir", "a\nb"), "give the name of a folder"),
        (("--logdir", "/"), "give a folder for the logs alone"),
        (("--logdir", "logs/.."), "give a folder for the logs alone"),
        (("--logdir", "no/such/folder"), "there is no folder"),
        (("--logdir", "program.py"), "is no folder"),
        (("--min_procs", "3", "--nproc_per_node", "2"), "--min_procs 3 is more than --nproc_per_node 2"),
        (("--grace", "nan"), "--grace nan: must be 0 or more"),
        (("--heartbeat_timeout", "0"), "--heartbeat_timeout 0.0: must be 0.1 or more"),
        (("--preload", "os;x"), "is no name of a module"),
        (("--master_addr", "no.such.host.invalid"), "no machine of this name is known"),
        (("--bind", "somewhere"), "must be an IP address"),
        (("--master_addr", "192.0.2.7"), "add --allow_remote"),
        (("--bind", "0.0.0.0"), "add --allow_remote"),
        (("--bind", "::"), "add --allow_remote"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    ran = launch(tmp_path, "say('ran')", *options)
    assert ran.code == 2 and said in ran.err and ran.out == "" and "Traceback" not in ran.err


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    ran = Running(tmp_path, "--nproc_per_node", "2", "no_such.py").end()
    assert ran.code == 2 and "there is no file 'no_such.py': give a script, -m with a module's name" in ran.err


def test_options_after_the_script_are_the_scripts(tmp_path: Path) -> None:
    ran = launch(tmp_path, "say(sys.argv[1:])", arguments=("--logdir", "x", "--nnodes", "7", "--", "-m"))
    assert ran.out == "['--logdir', 'x', '--nnodes', '7', '--', '-m']\n"


def test_a_wide_address_is_a_warning(tmp_path: Path) -> None:
    ran = launch(tmp_path, "say(os.environ['JAX_COORDINATOR_BIND_ADDRESS'])", "--bind", "0.0.0.0", "--allow_remote")
    assert ran.code == 0 and "warning: process 0 listens on 0.0.0.0" in ran.err and ran.out.startswith("0.0.0.0:")


@pytest.mark.parametrize("reuse", [False, True], ids=["listener", "listener that shares its port"])
def test_a_port_that_is_taken(tmp_path: Path, reuse: bool) -> None:
    with socket.socket() as other:
        if reuse:  # As JAX's coordinator does: a second one would get the port, and half of the connections.
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        ran = launch(tmp_path, "say('ran')", "--master_port", port)
    assert ran.code == 2 and ran.out == ""
    assert f"--master_port {port}: process 0 cannot listen on 127.0.0.1:{port} (Address already in use)" in ran.err


def test_simulated_devices(tmp_path: Path) -> None:
    flags = "--xla_dump_to=/x --xla_force_host_platform_device_count=8"
    names = ("SBP_DEVICES_PER_PROC", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS")
    source = f"say(*(os.environ.get(n) for n in {names}))"
    ran = launch(tmp_path, source, "--devices_per_proc", "2", variables={"XLA_FLAGS": flags})
    assert ran.out == "2 2 cpu --xla_dump_to=/x\n"


def test_the_command_line_has_it_too(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import os; print(os.environ['RANK'])")
    command = [sys.executable, "-m", "sbp_jax", "launch", *TWO, "program.py"]
    ran = subprocess.run(
        command, capture_output=True, text=True, env=environment(), cwd=tmp_path, timeout=60, check=True
    )
    assert sorted(ran.stdout.split()) == ["0", "1"]
    assert (REPOSITORY / "src" / "sbp_jax" / "cli" / "launching.py").is_file()
