"""What the hardware is: devices, links, presets, and the costs that follow. Knows nothing of the rest."""

import difflib
import functools
import warnings
from pathlib import Path

from ..errors import SbpError
from .base import Cluster as Cluster
from .collectives import KINDS as KINDS
from .collectives import ROOTED as ROOTED
from .device import Device as Device
from .device import device as device
from .levels import Level as Level
from .levels import Link as Link
from .presets import CPU as CPU
from .presets import PRESETS, preset_of
from .toml import is_same as is_same
from .toml import load as load
from .toml import parse as parse
from .toml import to_toml as to_toml


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
    """The cluster of this machine's devices of a type; for abstract placements a current one of that type.

    Devices that no preset describes are warned of, once: their costs are then another machine's.
    """
    if type == "cpu":
        return CPU
    if not is_abstract:
        import jax

        return _of_kind(type, jax.devices(type)[0].device_kind)
    return PRESETS[_STAND_IN.get(type, "h100")]


_STAND_IN = {"tpu": "tpu-v5p"}


@functools.lru_cache(maxsize=64)
def _of_kind(type: str, kind: str) -> Cluster:
    found = preset_of(kind)
    if found is None:
        found = PRESETS[_STAND_IN.get(type, "h100")]
        warnings.warn(
            f"no cluster describes {kind!r} devices: costs are taken for {found.name}, so plans may be poor ones for "
            f"this machine. `sbp-jax calibrate -o mine.toml` measures it; then "
            f"config=sbp.AutoParallelConfig(cluster='mine.toml'). Or name a preset: {', '.join(presets())}",
            UserWarning,
            stacklevel=2,
        )
    return found
