"""The processes of a run, connected: JAX's runtime started with addresses from the launcher or the scheduler."""

import ipaddress
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from .._compat import backends_are_started, coordination_client, detected_cluster, keep_cpu_collectives_on
from ..errors import ProcessError
from . import launched, leaving, meeting, ranks
from .ranks import World, current, number

HEARTBEAT_SECONDS = 30
"""How long a process may be silent before JAX takes it for dead, and ends the others."""

SHUTDOWN_SECONDS = 60
"""How long a process that ends waits for the others to end too."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the processes meet, and which one this is."""

    address: str
    size: int
    rank: int


_started: list[bool] = []


def is_initialized() -> bool:
    """Whether ``initialize`` has run in this process, or JAX's own ``jax.distributed.initialize``."""
    return bool(_started) or coordination_client() is not None


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: int | Sequence[int] | None = None,
    bind: str | None = None,
    timeout_seconds: float = 300.0,
    heartbeat_timeout_seconds: int = HEARTBEAT_SECONDS,
    shutdown_timeout_seconds: int = SHUTDOWN_SECONDS,
    preemption_service: bool = False,
) -> World:
    """Connect the processes of this run. Every process calls it once, before its first JAX computation.

    Without arguments the launcher's variables are read (MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK), otherwise what JAX
    finds by itself (SLURM, Open MPI, Kubernetes, TPU pods). Where there is neither, the process is a run of its own
    and nothing is started. A second call does nothing.

    Args:
      coordinator_address: ``host:port`` where rank 0 listens and the others connect.
      num_processes: how many processes there are.
      process_id: this process's rank, from 0.
      local_device_ids: the GPUs that this process uses. By default all of them; one, that of LOCAL_RANK, where the
        launcher has started several processes on this machine.
      bind: ``host:port`` that rank 0 listens on. By default the coordinator's address alone, so that a run on one
        machine (127.0.0.1) cannot be reached from another. Anything wider gives a warning.
      timeout_seconds: how long to wait for the other processes.
      heartbeat_timeout_seconds: a process that is silent for so long is dead, and JAX ends the others.
      shutdown_timeout_seconds: how long a process that ends waits for the others to end. A process that an exception
        ends does not wait. Give more where rank 0 works on alone for longer after the others have ended.
      preemption_service: JAX's own, which swallows SIGTERM and asks for a checkpoint at a common step. Off by default,
        so that SIGTERM ends a process as it does without JAX.

    Returns:
      The world: rank, size, local rank.

    Raises:
      ProcessError: the coordinator cannot be reached, its port is taken, processes do not come within the limit, or
        they disagree on their number or their ranks. All of them raise, within the limit.
    """
    if is_initialized():
        return _again(coordinator_address, num_processes, process_id)
    start = _where(coordinator_address, num_processes, process_id, timeout_seconds)
    if start is None or (start.size == 1 and not start.address):
        _started.append(True)
        launched.install()
        return current()
    if backends_are_started():
        raise ProcessError(
            "sbp.distributed.initialize() must come before the first JAX computation and before jax.devices(): a JAX "
            "backend has started in this process, and can no longer be connected to the others"
        )
    bind = bind or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or start.address
    launched.check_generation()
    end = time.monotonic() + timeout_seconds
    here = _meet(start, bind, timeout_seconds)
    _set("jax_enable_preemption_service", preemption_service)
    if not getattr(jax.config, "jax_cpu_collectives_implementation", None):
        _set("jax_cpu_collectives_implementation", "gloo")
    keep_cpu_collectives_on(here.here)
    jax.distributed.initialize(
        coordinator_address=start.address,
        num_processes=start.size,
        process_id=start.rank,
        local_device_ids=_devices(local_device_ids, os.environ),
        coordinator_bind_address=bind,
        initialization_timeout=max(10, round(end - time.monotonic())),
        heartbeat_timeout_seconds=heartbeat_timeout_seconds,
        shutdown_timeout_seconds=shutdown_timeout_seconds,
    )
    ranks.found(here.local_rank, here.local_size, here.node_rank, here.nodes)
    leaving.watch(shutdown_timeout_seconds)
    _started.append(True)
    launched.install()
    return current()


def shutdown() -> None:
    """Disconnect: waits for the other processes to do the same, within ``shutdown_timeout_seconds``.

    A process that ends does so by itself. JAX cannot connect again in the same process once a backend has started.
    """
    _started.clear()
    leaving.forget()
    if coordination_client() is not None:
        jax.distributed.shutdown()


def _again(address: str | None, size: int | None, rank: int | None) -> World:
    """A second call: nothing to do, unless it asks for another world."""
    world = current()
    if (size is not None and size != world.size) or (rank is not None and rank != world.rank):
        raise ProcessError(
            f"this process is rank {world.rank} of {world.size} already; initialize() asked for rank "
            f"{world.rank if rank is None else rank} of {world.size if size is None else size}"
            f"{f' at {address}' if address else ''}. A process can be connected once"
        )
    return world


def _where(address: str | None, size: int | None, rank: int | None, timeout_seconds: float) -> Start | None:
    """Where to meet, from the arguments, the launcher's variables, or JAX's detection. None: a process on its own."""
    variables = os.environ
    address = address or _master(variables)
    size = number(variables, "WORLD_SIZE") if size is None else size
    rank = number(variables, "RANK") if rank is None else rank
    if size == 1 and address is None:
        return _checked("", 1, rank or 0)
    if None in (address, size, rank):
        found_address, found_size, found_rank = detected_cluster(timeout_seconds)
        address = address or variables.get("JAX_COORDINATOR_ADDRESS") or found_address
        size = found_size if size is None else size
        rank = found_rank if rank is None else rank
    if address is None and size is None and rank is None:
        return None
    told = {
        "the coordinator's address (MASTER_ADDR and MASTER_PORT, or coordinator_address=)": address,
        "the number of processes (WORLD_SIZE, or num_processes=)": size,
        "this process's rank (RANK, or process_id=)": rank,
    }
    missing = [what for what, value in told.items() if value is None]
    if missing:
        raise ProcessError(
            f"initialize() was not told {' or '.join(missing)}. `python -m sbp_jax.distributed.launch` sets all of "
            "them; SLURM, Open MPI and Kubernetes are detected"
        )
    assert address is not None and size is not None and rank is not None
    return _checked(address, size, rank)


def _checked(address: str, size: int, rank: int) -> Start:
    if not 0 <= rank < size:
        raise ProcessError(f"this process's rank is {rank} of {size} processes: ranks go from 0 to the number less one")
    if address:
        meeting.host_and_port(address)
    return Start(address, size, rank)


def _master(variables: Mapping[str, str]) -> str | None:
    host, port = variables.get("MASTER_ADDR", "").strip(), variables.get("MASTER_PORT", "").strip()
    if not host:
        return None
    if not port:
        raise ProcessError(f"MASTER_ADDR is {host!r}, and MASTER_PORT is not set: both are needed")
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own, which no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _meet(start: Start, bind: str, timeout_seconds: float) -> meeting.Place:
    """All processes, agreed; where this one runs."""
    hello = meeting.Hello(start.rank, start.size, current().generation, jax.__version__, meeting.machine())
    if start.rank:
        return meeting.join(start.address, hello, timeout_seconds)
    if not is_loopback(meeting.host_and_port(bind)[0]):
        warnings.warn(
            f"rank 0 listens on {bind}, which other machines can reach: whoever can connect there can take part in "
            "this run. Keep the port inside a trusted network",
            stacklevel=4,
        )
    return meeting.gather(bind, hello, timeout_seconds)


def _devices(given: int | Sequence[int] | None, variables: Mapping[str, str]) -> int | Sequence[int] | None:
    """The GPUs of this process: as asked; its own one where the launcher put several processes on this machine."""
    if given is not None or variables.get("JAX_LOCAL_DEVICE_IDS"):
        return given
    visible = variables.get("CUDA_VISIBLE_DEVICES", "")
    # Ours says which place a process has, also where the launcher has left out one that does not work.
    place = number(variables, "SBP_LOCAL_SLOT")
    if place is not None:
        return None if visible and "," not in visible else [place]
    local, size = number(variables, "LOCAL_RANK"), number(variables, "LOCAL_WORLD_SIZE")
    if local is None or size is None or size == 1 or (visible and "," not in visible):
        return None
    return [local]


def _set(option: str, value: object) -> None:
    """A setting of JAX, where this version has it."""
    try:
        jax.config.update(option, value)
    except AttributeError:
        pass
