"""Which process this is, of how many: OneFlow's ``flow.env``. A rank here is a process, whatever devices it has.

The launcher's variables, or those of the scheduler; after ``sbp.distributed.initialize()`` what the processes told each
other. Nothing here starts a backend or connects to anything.
"""

from .processes import Rdma as Rdma
from .processes import current as _current
from .processes import find_rdma as _find_rdma


def get_world_size() -> int:
    """The number of processes of this run."""
    return _current().size


def get_rank() -> int:
    """This process's number among all, from 0."""
    return _current().rank


def get_local_rank() -> int:
    """This process's number among those on its machine, from 0."""
    return _current().local_rank


def get_node_size() -> int:
    """The number of machines of this run: as the launcher or the scheduler says it, else as the processes found it when
    they started, else 1.
    """
    return _current().nodes or 1


def is_multi_client() -> bool:
    """Whether this run has several processes. Each runs the same program, as in OneFlow's multi-client mode."""
    return _current().size > 1


_rdma: list[Rdma] = []


def init_rdma() -> Rdma:
    """What NCCL will use for RDMA between machines; an error where it has none.

    NCCL turns RDMA on by itself when JAX first communicates on GPUs, so nothing is started. This reads the adapters
    of this machine and NCCL's variables: without RDMA NCCL would use TCP and say nothing. Every process calls it.
    Returns the adapters in use, which print as a sentence.

    Raises ``ProcessError``: no adapter with an active port, variables that turn RDMA off, or a run on CPUs.
    """
    _rdma[:] = [_find_rdma()]
    return _rdma[0]


def rdma_is_initialized() -> bool:
    """Whether ``init_rdma`` has found RDMA in this process."""
    return bool(_rdma)
