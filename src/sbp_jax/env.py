"""Which process this is, of how many: OneFlow's ``flow.env``. A rank here is a process, whatever devices it has.

Nothing here starts a backend or connects to anything.
"""

from .processes import current as _current


def get_world_size() -> int:
    """The number of processes of this run."""
    return _current().size


def get_rank() -> int:
    """This process's number among all, from 0."""
    return _current().rank


def get_local_rank() -> int:
    """This process's number among those on its machine, from 0."""
    return _current().local_rank
