"""Which process this is, of how many: the launcher's variables, or those of SLURM, Open MPI and other MPIs."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .._compat import coordination_client, process_of_coordination
from ..errors import ProcessError

# Ranks on this machine, in schedulers' own variables: (local rank, processes of this machine).
_LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
_NODES = (
    ("NODE_RANK", "NNODES"),
    ("SLURM_NODEID", "SLURM_NNODES"),
)


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run, as one of them sees it. A rank is a process, whatever its number of devices."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among the processes of this machine."""
    local_size: int | None = None
    """Processes on this machine; None where nothing says so."""
    node_rank: int | None = None
    nodes: int | None = None
    generation: int = 0
    """How often the run has been started again (SBP_GENERATION)."""


def number(variables: Mapping[str, str], name: str) -> int | None:
    """The whole number in a variable; None where it is not set. Raises ``ProcessError`` if it is something else."""
    text = variables.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ProcessError(f"the environment variable {name} is {text!r}: it must be a whole number, 0 or more")
    return int(text)


def read(variables: Mapping[str, str]) -> World:
    """The world that the variables tell of: rank and size from RANK and WORLD_SIZE, 0 of 1 without them."""
    rank, size = number(variables, "RANK"), number(variables, "WORLD_SIZE")
    local, local_size = _first(variables, _LOCAL)
    node, nodes = _first(variables, _NODES)
    return World(
        rank or 0,
        1 if size is None else size,
        (rank or 0) if local is None else local,
        local_size,
        node,
        nodes,
        number(variables, "SBP_GENERATION") or 0,
    )


def _first(variables: Mapping[str, str], names: tuple[tuple[str, str], ...]) -> tuple[int | None, int | None]:
    """The first pair of variables whose first is set. SLURM writes counts such as ``4(x2)``: those say nothing sure."""
    for name, count in names:
        found = number(variables, name)
        if found is not None:
            text = variables.get(count, "").strip()
            return found, int(text) if text.isdecimal() else None
    return None, None


# What the processes found out when they met: local rank, local size, node rank, nodes. Variables come first.
_found: list[tuple[int, int, int, int]] = []


def found(local_rank: int, local_size: int, node_rank: int, nodes: int) -> None:
    """Keep where this process runs among the machines of the run."""
    _found[:] = [(local_rank, local_size, node_rank, nodes)]


def current() -> World:
    """The world of this process now: what ``initialize`` connected, otherwise what the variables say.

    Starts no backend and connects to nothing.
    """
    told = read(os.environ)
    if coordination_client() is None:
        return told
    rank, size = process_of_coordination()
    local, local_size, node, nodes = _found[0] if _found else (rank, None, None, None)
    return replace(
        told,
        rank=rank,
        size=size,
        local_rank=told.local_rank if _first(os.environ, _LOCAL)[0] is not None else local,
        local_size=local_size if told.local_size is None else told.local_size,
        node_rank=node if told.node_rank is None else told.node_rank,
        nodes=nodes if told.nodes is None else told.nodes,
    )
