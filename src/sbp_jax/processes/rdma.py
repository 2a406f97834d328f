"""What NCCL will use between machines: RDMA adapters, as Linux lists them, and NCCL's own variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ProcessError

_ADAPTERS = Path("/sys/class/infiniband")
_OFF = ("1", "true", "yes")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A port of an RDMA adapter. ``link``: InfiniBand, or Ethernet for RoCE."""

    name: str
    port: int
    link: str
    rate: str

    def __str__(self) -> str:
        return f"{self.name}:{self.port} ({self.link}, {self.rate})"


@dataclass(frozen=True, slots=True)
class Rdma:
    """The adapters that NCCL uses on this machine, and the variables that choose among them."""

    adapters: tuple[Adapter, ...]
    variables: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        by = f", as {', '.join(f'{name}={value}' for name, value in self.variables)} says" if self.variables else ""
        return f"NCCL uses RDMA over {', '.join(map(str, self.adapters))}{by}"


def find_rdma(variables: Mapping[str, str] | None = None, folder: Path = _ADAPTERS) -> Rdma:
    """The adapters with an active port that NCCL's variables leave in use.

    Raises ``ProcessError`` where there are none, saying which of the reasons it is.
    """
    told = os.environ if variables is None else variables
    if told.get("JAX_PLATFORMS", "").split(",")[0] == "cpu":
        raise ProcessError("RDMA is for GPUs: this run is on CPUs (JAX_PLATFORMS=cpu), where Gloo uses TCP")
    if told.get("NCCL_IB_DISABLE", "").strip().lower() in _OFF:
        raise ProcessError(f"NCCL_IB_DISABLE={told['NCCL_IB_DISABLE']}: NCCL is told to use no RDMA; unset it")
    if told.get("NCCL_NET", "").strip().lower() == "socket":
        raise ProcessError(f"NCCL_NET={told['NCCL_NET']}: NCCL is told to use TCP; unset it, or set it to IB")
    ports = adapters(folder)
    if not ports:
        raise ProcessError(
            f"there is no RDMA adapter on this machine ({folder} has none with an active port): NCCL uses TCP. In a "
            "container, the adapters must be passed in (/dev/infiniband), and their drivers loaded on the host"
        )
    chosen = told.get("NCCL_IB_HCA", "").strip()
    used = tuple(port for port in ports if _is_chosen(port, chosen))
    if not used:
        raise ProcessError(
            f"NCCL_IB_HCA={chosen} leaves none of this machine's adapters: {', '.join(map(str, ports))}. NCCL would "
            "use TCP"
        )
    names = ("NCCL_IB_HCA", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_NET_GDR_LEVEL", "NCCL_IB_GID_INDEX")
    return Rdma(used, tuple((name, told[name]) for name in names if told.get(name)))


def adapters(folder: Path = _ADAPTERS) -> tuple[Adapter, ...]:
    """The active ports of this machine's RDMA adapters."""
    found = []
    for port in sorted(folder.glob("*/ports/*")):
        if "ACTIVE" in _text(port / "state"):
            link = _text(port / "link_layer") or "unknown link"
            found.append(Adapter(port.parent.parent.name, int(port.name), link, _text(port / "rate") or "unknown rate"))
    return tuple(found)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _is_chosen(port: Adapter, wanted: str) -> bool:
    """NCCL's syntax: names begin with one of a list, ``=`` before it means equal, ``^`` none of them; ``name:port``."""
    refuse = wanted.startswith("^")
    rest = wanted.removeprefix("^")
    exact = rest.startswith("=")
    entries = [entry for entry in rest.removeprefix("=").split(",") if entry]
    if not entries:
        return True

    def fits(entry: str) -> bool:
        name, _, number = entry.partition(":")
        named = port.name == name if exact else port.name.startswith(name)
        return named and (not number or number == str(port.port))

    return any(map(fits, entries)) != refuse
