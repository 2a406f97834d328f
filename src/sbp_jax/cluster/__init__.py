"""What the hardware is: devices, links, presets, and the costs that follow. Knows nothing of the rest."""

import difflib
import tomllib
from pathlib import Path

from ..errors import SbpError
from .base import Cluster as Cluster
from .base import Device as Device
from .base import Level as Level
from .base import Link as Link
from .base import device as device
from .presets import CPU as CPU
from .presets import KINDS, PRESETS


def presets() -> list[str]:
    """The names of known clusters."""
    return sorted(PRESETS)


def get(what: "str | Path | Cluster") -> Cluster:
    """A cluster by a preset's name, by the path of its TOML file, or itself. Unknown names raise ``SbpError``."""
    if isinstance(what, Cluster):
        return what
    text = str(what)
    if text in PRESETS:
        return PRESETS[text]
    if text.endswith(".toml"):
        return load(text)
    near = difflib.get_close_matches(text.lower(), PRESETS, n=3, cutoff=0.4)
    raise SbpError(
        f"cluster {text!r} is not known{'; did you mean ' + ', '.join(near) + '?' if near else ''} "
        f"Known: {', '.join(presets())}; or give the path of a .toml file, or a sbp.Cluster"
    )


def resolve(what: "str | Path | Cluster | None", type: str, is_abstract: bool = False) -> Cluster:
    """The cluster named, or where none is, the one that devices of ``type`` stand for."""
    return default_for(type, is_abstract) if what is None else get(what)


def default_for(type: str, is_abstract: bool = False) -> Cluster:
    """The cluster of this machine's devices of a type; for abstract placements a current one of that type."""
    if type == "cpu":
        return CPU
    if not is_abstract:
        import jax

        kind = jax.devices(type)[0].device_kind.lower()
        for part, name in KINDS:
            if part in kind:
                return PRESETS[name]
    return PRESETS["tpu-v5p" if type == "tpu" else "h100"]


def load(path: str | Path) -> Cluster:
    """A cluster from a TOML file: ``name``, ``[device]`` with its rates, one ``[[level]]`` for each level."""
    try:
        data = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise SbpError(f"cannot read the cluster file {str(path)!r}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise SbpError(f"{str(path)!r} is not TOML: {error}") from error
    try:
        d = data["device"]
        return Cluster(
            data["name"],
            device(d["name"], d["flops_per_second"], d["memory_bytes"], d["memory_bytes_per_second"]),
            tuple(
                Level(v["name"], v.get("devices"), v["bytes_per_second"], v["latency_seconds"]) for v in data["level"]
            ),
            data.get("matmul_efficiency", 1.0),
            data.get("memory_efficiency", 1.0),
            data.get("op_seconds_floor", 0.0),
        )
    except (KeyError, TypeError) as error:
        raise SbpError(f"{str(path)!r} lacks or misspells {error} of a cluster description") from error
