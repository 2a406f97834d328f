"""The launcher's options: OneFlow's names and meanings, and those for restarts. Nothing here imports JAX."""

import argparse
import ipaddress
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from ...errors import ProcessError

_NAME_SECONDS = 60.0

EXAMPLES = """\
  python -m sbp_jax.distributed.launch --nproc_per_node 4 train.py --epochs 3
  python -m sbp_jax.distributed.launch --nproc_per_node 4 --devices_per_proc 2 --max_restarts 10 train.py
  python -m sbp_jax.distributed.launch --nproc_per_node 8 --nnodes 2 --node_rank 0 \\
      --master_addr 10.0.0.1 --master_port 7788 --allow_remote train.py"""


@dataclass(frozen=True, slots=True)
class Options:
    """A checked command line."""

    command: tuple[str, ...]
    """The script, module or program, and its arguments."""
    nnodes: int = 1
    node_rank: int = 0
    nproc_per_node: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    """None: a free port, another one in each generation."""
    bind: str = "127.0.0.1"
    module: bool = False
    no_python: bool = False
    redirect: bool = False
    logdir: Path | None = None
    max_restarts: int = 0
    min_procs: int = 1
    devices_per_proc: int | None = None
    grow_after_seconds: float | None = None
    grace_seconds: float = 5.0
    stop_timeout_seconds: float = 60.0
    heartbeat_timeout_seconds: float = 300.0
    exit_timeout_seconds: float = 60.0
    spares: int = 0
    preload: tuple[str, ...] = ()
    label: bool = False

    @property
    def first_rank(self) -> int:
        """The rank of this node's first process."""
        return self.node_rank * self.nproc_per_node


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All options, with ``_`` in their names as OneFlow has them; ``-`` does as well."""

    def add(name: str, help: str, **more: object) -> None:
        both = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parser.add_argument(*both, dest=name, help=help, **more)  # type: ignore[arg-type]

    add("nnodes", "number of nodes (machines); each runs a launcher (1)", type=int, default=1, metavar="N")
    add("node_rank", "which of the nodes this is, from 0 (0)", type=int, default=0, metavar="N")
    add(
        "nproc_per_node", "processes to start on each node; one for each GPU, say (1)", type=int, default=1, metavar="N"
    )
    add("master_addr", "address of node 0, a name or an IP address (127.0.0.1)", default="127.0.0.1", metavar="HOST")
    add("master_port", "a free port of node 0 (on one node: any free one; on several: 29500)", type=int, metavar="PORT")
    parser.add_argument(
        "-m", "--module", action="store_true", help="the script is a module's name, run as `python -m` does"
    )
    add("no_python", "run the script as a program of its own, without Python", action="store_true")
    add(
        "redirect_stdout_and_stderr", "write each process's output to LOGDIR/local_rank_K/stdout and stderr",
        action="store_true",
    )  # fmt: skip
    add("logdir", "folder for logs; made if it is not there, readable only by you", metavar="LOGDIR")
    add("max_restarts", "how often all processes are started again after one has failed (0)",
        type=int, default=0, metavar="N")  # fmt: skip
    add("min_procs", "go on with fewer processes, down to N on this node, when a start fails (nproc_per_node)",
        type=int, metavar="N")  # fmt: skip
    add("grow_after", "stop a run with fewer processes after SECONDS, at a common step, and try all of them again",
        type=float, metavar="SECONDS")  # fmt: skip
    add("devices_per_proc", "simulate N CPU devices in each process", type=int, metavar="N")
    add("bind", "address on which process 0 listens (MASTER_ADDR's own)", metavar="ADDR")
    add("allow_remote", "listen on an address that other machines can reach; only in networks that you trust",
        action="store_true")  # fmt: skip
    add("grace", "how long processes may take to end after one has failed (5)",
        type=float, default=5.0, metavar="SECONDS")  # fmt: skip
    add("stop_timeout", "how long they may take to save and leave after SIGTERM or SIGINT (60)",
        type=float, default=60.0, metavar="SECONDS")  # fmt: skip
    add("heartbeat_timeout", "a process that has called heartbeat() and does not again for so long has failed (300)",
        type=float, default=300.0, metavar="SECONDS")  # fmt: skip
    add("exit_timeout", "how long others may go on without a heartbeat once one has ended well (60)",
        type=float, default=60.0, metavar="SECONDS")  # fmt: skip
    add("spares", "processes that wait with JAX imported, for a quick restart (with --max_restarts: nproc_per_node)",
        type=int, metavar="N")  # fmt: skip
    add("preload", "modules that spares import beside jax, flax and such, with commas between",
        default="", metavar="MODULES")  # fmt: skip
    add("label", "put the rank before each line of output", action="store_true")
    parser.add_argument("training_script", help="what to run in every process")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments", metavar="...")


def check(args: argparse.Namespace) -> Options:
    """The options of a parsed command line. Raises ``ProcessError`` for what cannot be."""
    for name, least in (
        ("nnodes", 1), ("node_rank", 0), ("nproc_per_node", 1), ("max_restarts", 0), ("min_procs", 1),
        ("devices_per_proc", 1), ("spares", 0), ("grace", 0), ("stop_timeout", 0), ("heartbeat_timeout", 0.1),
        ("exit_timeout", 0.1), ("grow_after", 0.1),
    ):  # fmt: skip
        value = getattr(args, name)
        # `not >=` and not `<`: so that nan is refused as well.
        if value is not None and not value >= least:
            raise ProcessError(f"--{name} {value}: must be {least} or more")
    if args.node_rank >= args.nnodes:
        raise ProcessError(f"--node_rank {args.node_rank}: with --nnodes {args.nnodes} it is 0 to {args.nnodes - 1}")
    if args.master_port is not None and not 1 <= args.master_port <= 65535:
        raise ProcessError(f"--master_port {args.master_port}: must be 1 to 65535")
    if args.module and args.no_python:
        raise ProcessError("--module and --no_python: a module is run by Python; give one of the two")
    if not args.module and not args.no_python and not Path(args.training_script).exists():
        raise ProcessError(
            f"there is no file {args.training_script!r}: give a script, -m with a module's name, or --no_python with a "
            "program's"
        )
    if args.redirect_stdout_and_stderr and args.logdir is None:
        raise ProcessError("--redirect_stdout_and_stderr needs --logdir: a folder for the files")
    least = args.nproc_per_node if args.min_procs is None else args.min_procs
    if least > args.nproc_per_node:
        raise ProcessError(f"--min_procs {least} is more than --nproc_per_node {args.nproc_per_node}")
    if args.nnodes > 1 and least < args.nproc_per_node:
        raise ProcessError("--min_procs works on one node: with --nnodes over 1 every start has all processes")
    bind = _bind(args)
    return Options(
        command=(args.training_script, *args.training_script_args),
        nnodes=args.nnodes, node_rank=args.node_rank, nproc_per_node=args.nproc_per_node,
        master_addr=args.master_addr,
        # Several nodes cannot ask each other which port is free, so they need one that all know.
        master_port=29500 if args.master_port is None and args.nnodes > 1 else args.master_port,
        bind=bind, module=args.module, no_python=args.no_python, redirect=args.redirect_stdout_and_stderr,
        logdir=None if args.logdir is None else _logdir(args.logdir),
        max_restarts=args.max_restarts, min_procs=least, devices_per_proc=args.devices_per_proc,
        grow_after_seconds=args.grow_after, grace_seconds=args.grace, stop_timeout_seconds=args.stop_timeout,
        heartbeat_timeout_seconds=args.heartbeat_timeout, exit_timeout_seconds=args.exit_timeout,
        spares=_spares(args), preload=_modules(args.preload), label=args.label,
    )  # fmt: skip


def _spares(args: argparse.Namespace) -> int:
    if args.spares is not None:
        if args.spares and args.no_python:
            raise ProcessError("--spares: a spare process is Python's; it is of no use with --no_python")
        return min(args.spares, args.nproc_per_node)
    return args.nproc_per_node if args.max_restarts and not args.no_python else 0


def _modules(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ProcessError(f"--preload {text!r}: {name!r} is no name of a module; write jax,flax,my_package.model")
    return names


def _logdir(text: str) -> Path:
    if not text.strip() or any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise ProcessError(f"--logdir {text!r}: give the name of a folder")
    path = Path(text).absolute()
    if not path.name or path.name == "..":
        raise ProcessError(f"--logdir {text!r}: give a folder for the logs alone, not {str(path)!r}")
    if not path.parent.is_dir():
        raise ProcessError(f"--logdir {text!r}: there is no folder {str(path.parent)!r} to make it in")
    return path


def is_loopback(host: str) -> bool:
    """Whether an address, or every address of a name, can be reached from this machine alone."""
    try:
        found = [host] if _is_address(host) else [str(info[4][0]) for info in socket.getaddrinfo(host, None)]
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
        return True
    except ValueError:
        return False


def _find(host: str, seconds: float) -> None:
    """Look up a name. Of several nodes started at once, the first one's may become known a little later."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.getaddrinfo(host, None)
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= end:
                raise ProcessError(f"--master_addr {host!r}: no machine of this name is known: {error}") from error
        time.sleep(0.5)


def _bind(args: argparse.Namespace) -> str:
    """The address on which the coordinator listens. Wider than loopback only where it is said."""
    _find(args.master_addr, _NAME_SECONDS if args.nnodes > 1 else 0.0)
    bind = args.master_addr if args.bind is None else args.bind.strip("[]")
    if args.bind is not None and not _is_address(bind):
        raise ProcessError(f"--bind {args.bind!r}: must be an IP address, such as 127.0.0.1, 10.0.0.1 or 0.0.0.0")
    if not is_loopback(bind) and not args.allow_remote:
        raise ProcessError(
            f"{'--master_addr' if args.bind is None else '--bind'} {bind}: other machines can reach this address, and "
            "whoever can may read and change the run: JAX checks no passwords. In a network that you trust, add "
            "--allow_remote"
        )
    return bind


def constants(options: Options) -> dict[str, str]:
    """The environment's variables that are the same for every process, in every generation."""
    # All processes must trace the same programs, also those whose functions go through sets.
    same = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    if options.devices_per_proc is None:
        return same
    # XLA's own flag and JAX's variable exclude each other.
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept = [flag for flag in flags if not flag.startswith("--xla_force_host_platform_device_count")]
    return same | {
        "SBP_DEVICES_PER_PROC": str(options.devices_per_proc),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(options.devices_per_proc),
        "XLA_FLAGS": " ".join(kept),
    }
