"""Clusters as TOML: written so that reading gives the same cluster back; read so that all mistakes are named."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from ..errors import SbpError
from .base import Cluster
from .device import Device
from .levels import Level

_REQUIRED = dataclasses.MISSING


def to_toml(cluster: Cluster, comments: str = "") -> str:
    """The text of a cluster's file. ``comments`` go in front, a line each."""
    found = {**_table(cluster), "device": _table(cluster.device), "level": [_table(v) for v in cluster.levels]}
    found["device"]["flops_per_second"] = dict(cluster.device.flops_per_second)
    del found["levels"]
    return "".join(f"{f'# {line}'.rstrip()}\n" for line in comments.splitlines()) + tomli_w.dumps(found)


def _table(value: Any) -> dict[str, Any]:
    """A dataclass's fields as TOML has them: no None, and no sets."""
    found = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {k: sorted(x) if isinstance(x, frozenset) else x for k, x in found.items() if x is not None}


def is_same(a: str, b: str) -> bool:
    """Whether two texts, perhaps written by different versions, describe the same cluster."""
    try:
        return a == b or parse(a) == parse(b)
    except SbpError:
        return False


def load(path: str | Path) -> Cluster:
    """A cluster from a TOML file: ``name``, ``[device]`` with its rates, one ``[[level]]`` for each level.

    Raises ``SbpError`` for a file that cannot be read, is not TOML, has keys too many or too few, or values that
    cannot be.
    """
    try:
        return _parsed(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SbpError(f"cannot read the cluster file {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SbpError(f"{str(path)!r} is not TOML: {error}") from error
    except SbpError as error:
        raise SbpError(f"{str(path)!r} describes no cluster: {error}") from error


def parse(text: str) -> Cluster:
    """A cluster from the text of its file. Raises ``SbpError`` for any other text."""
    try:
        return _parsed(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SbpError(f"the description of the cluster is not TOML: {error}") from error


def _parsed(text: str) -> Cluster:
    data = tomllib.loads(text)
    device, levels = data.get("device"), data.get("level")
    faults = _faults("at the top", data, Cluster, renamed={"levels": "level"})
    if isinstance(device, Mapping):
        faults += _faults("[device]", device, Device)
    elif device is not None:
        faults.append("[device] must be a table")
    if isinstance(levels, list) and all(isinstance(v, Mapping) for v in levels):
        for i, level in enumerate(levels):
            faults += _faults(f"[[level]] {level.get('name', i + 1)!r}", level, Level)
    elif levels is not None:
        faults.append("each level must be a [[level]] table")
    if faults or not isinstance(device, Mapping) or not isinstance(levels, list):
        raise SbpError("; ".join(faults))
    fields = {k: v for k, v in data.items() if k not in ("device", "level")}
    if "overlaps" in fields:
        fields["overlaps"] = frozenset(fields["overlaps"])
    rates = tuple(sorted((k, float(v)) for k, v in device["flops_per_second"].items()))
    tiles = tuple(tuple(t) for t in device.get("tiles", ()))
    chip = Device(**{**_floats(device), "flops_per_second": rates, "tiles": tiles})
    return Cluster(device=chip, levels=tuple(Level(**_floats(v, devices=None)) for v in levels), **_floats(fields))


# What each key holds; the rest are numbers.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str, "library": str, "overlaps": list, "device": Mapping, "level": list, "flops_per_second": Mapping,
    "tiles": list, "devices": int, "uplinks": int, "units": int,
    "stores_between": int,
}  # fmt: skip


def _faults(where: str, data: Mapping[str, Any], kind: type, renamed: Mapping[str, str] = {}) -> list[str]:
    """What is wrong with a table's keys and with the types of its values."""
    fields = {renamed.get(f.name, f.name): f for f in dataclasses.fields(kind)}
    needed = [n for n, f in fields.items() if f.default is _REQUIRED and n != "devices"]
    faults = []
    if missing := [n for n in needed if n not in data]:
        faults.append(f"{where} lacks {', '.join(missing)}")
    if unknown := [n for n in data if n not in fields]:
        faults.append(f"{where} has unknown keys: {', '.join(unknown)}; known are {', '.join(fields)}")
    for name, value in data.items():
        wanted = _TYPES.get(name, (int, float))
        if name in fields and (not isinstance(value, wanted) or isinstance(value, bool)):
            faults.append(f"{where}: {name} = {value!r} is not {_spoken(wanted)}")
    rates = data.get("flops_per_second")
    if isinstance(rates, Mapping):
        faults += [f"{where}: flops_per_second of {k} = {v!r} is not a number" for k, v in rates.items()
                   if isinstance(v, bool) or not isinstance(v, int | float)]  # fmt: skip
    tiles = data.get("tiles")
    if isinstance(tiles, list):
        faults += [f"{where}: tile {t!r} is not [rows, columns, depth]" for t in tiles
                   if not isinstance(t, list) or len(t) != 3 or not all(isinstance(x, int) for x in t)]  # fmt: skip
    return faults


def _spoken(wanted: Any) -> str:
    return {str: "a text", list: "a list", Mapping: "a table", int: "a whole number"}.get(wanted, "a number")


def _floats(table: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """Numbers as floats, as written in code: 1 and 1.0 make the same cluster anyway."""
    whole = ("devices", "uplinks", "units", "stores_between")
    return {**defaults, **{k: float(v) if isinstance(v, int) and k not in whole else v for k, v in table.items()}}
