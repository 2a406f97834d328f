"""Ports for the coordinator: another free one in each generation, and whether a given one is taken."""

import secrets
import socket

from ...errors import ProcessError

# Below the ports that systems give to outgoing connections: a free one there is not taken a moment later by chance.
_LOWEST, _HIGHEST = 20000, 32767
_TRIES = 200


def taken(address: str, port: int) -> str | None:
    """Why ``port`` cannot be listened on at ``address``; None if it can."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Connections that ended a moment ago may linger; somebody who listens may not. Not SO_REUSEPORT: JAX's
        # coordinator sets that, and two of one user's would share a port without an error.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def free(address: str, used: frozenset[int] = frozenset()) -> int:
    """A free port at ``address``, none of ``used``."""
    for _ in range(_TRIES):
        port = _LOWEST + secrets.randbelow(_HIGHEST - _LOWEST + 1)
        if port not in used and taken(address, port) is None:
            return port
    raise ProcessError(f"no free port was found at {address} in {_LOWEST} to {_HIGHEST}: give one with --master_port")


def check(address: str, port: int) -> None:
    """Raises ``ProcessError`` if ``port`` cannot be listened on at ``address``."""
    reason = taken(address, port)
    if reason is not None:
        raise ProcessError(
            f"--master_port {port}: process 0 cannot listen on {address}:{port} ({reason}). Another program has the "
            "port, or the address is not this machine's: give another port, or none on one node"
        )
