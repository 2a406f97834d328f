"""What the options of ``plan`` and ``bench`` mean: the function with its arguments, the mesh, the configuration."""

import argparse
import dataclasses
import difflib
import math
import re
import types
import typing
from typing import Any

import numpy as np

from .. import cluster as clusters
from ..api.config import AutoParallelConfig, parse_bytes
from ..errors import SbpError
from ..placement import Placement, placement
from .target import Target, example_arguments, load, target

_NAMES = ("dp", "tp")


def read_target(args: argparse.Namespace, real: bool = False) -> Target:
    """The function with its arguments. Raises ``SbpError`` for names and shapes that are wrong."""
    fn = load(args.function)
    given = example_arguments(getattr(args, "shapes", None), args.args, real)
    donate = None if args.donate is None else indices(args.donate, "--donate")
    return target(fn, given, donate, indices(args.static or "", "--static"))


def read_config(args: argparse.Namespace, base: AutoParallelConfig) -> AutoParallelConfig:
    """``base`` with what the command line says otherwise."""
    given = dict(_setting(text) for text in args.config)
    if args.solver is not None:
        given["solver"] = args.solver
    if args.memory_limit is not None:
        given["memory_limit"] = parse_bytes(args.memory_limit, "--memory-limit")
    if getattr(args, "cluster", None) is not None:
        given["cluster"] = clusters.get(args.cluster).name if not args.cluster.endswith(".toml") else args.cluster
        clusters.get(given["cluster"])
    return dataclasses.replace(base, **given)


def read_placement(args: argparse.Namespace, found: Target) -> Placement | int | str | None:
    """Where to plan for: the devices here, or an abstract mesh of ``--cluster``'s hardware."""
    cluster = getattr(args, "cluster", None)
    if args.mesh is None:
        if args.axes is not None:
            raise SbpError(f"--axes {args.axes!r} names the axes of --mesh, which is not given")
        if args.devices is not None:
            if args.devices < 1:
                raise SbpError(f"--devices {args.devices}: at least 1")
            return args.devices
        if cluster is not None:
            raise SbpError(f"--cluster {cluster}: say how much of it there is, as --mesh 16x8 or --devices 128")
        return "auto" if found.placement is None else found.placement
    if args.devices is not None:
        raise SbpError("--mesh and --devices: give one; --devices lets the planner choose the mesh")
    shape = _mesh(args.mesh)
    names = _axes(args.axes, shape)
    if cluster is not None:
        return placement.abstract(shape, names, cluster, type="cpu" if cluster == "cpu" else "gpu")
    import jax

    kind, size = jax.default_backend(), math.prod(shape)
    if size > jax.device_count():
        raise SbpError(
            f"--mesh {args.mesh} is {size} devices, and there are {jax.device_count()} of kind {kind} here. To plan "
            f"for hardware that is not here: sbp-jax plan --cluster h100 (known: {', '.join(clusters.presets())}, or a "
            ".toml file)" + (f"; to simulate devices set JAX_NUM_CPU_DEVICES={size}" if kind == "cpu" else "")
        )
    return placement(kind, np.arange(size).reshape(shape), names)


def _mesh(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\s*[1-9]\d*(\s*[x,*]\s*[1-9]\d*)*\s*", text):
        raise SbpError(f"--mesh {text!r}: write the sizes of its axes with x between, as 8, 2x4 or 16x8x8")
    return tuple(int(n) for n in re.findall(r"\d+", text))


def _axes(text: str | None, shape: tuple[int, ...]) -> tuple[str, ...]:
    if text is None:
        return _NAMES[: len(shape)] if len(shape) <= len(_NAMES) else tuple(f"axis{i}" for i in range(len(shape)))
    names = tuple(part.strip() for part in text.split(","))
    if len(names) != len(shape) or len(set(names)) != len(names) or not all(n.isidentifier() for n in names):
        size = "x".join(map(str, shape))
        raise SbpError(f"--axes {text!r}: {len(shape)} different names are needed for the mesh {size}, as dp,tp")
    return names


def indices(text: str, option: str) -> tuple[int, ...]:
    """``0,1``: positions of arguments."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise SbpError(f"{option} {text!r}: write positions of arguments, from 0, with commas between: 0 or 0,1")
    return tuple(map(int, parts))


def _setting(text: str) -> tuple[str, Any]:
    """``key=value`` as a field of ``AutoParallelConfig``, by the field's type."""
    key, equals, value = text.partition("=")
    key, value = key.strip().replace("-", "_"), value.strip()
    kinds = typing.get_type_hints(AutoParallelConfig)
    if not equals or key not in kinds:
        near = difflib.get_close_matches(key, kinds, n=2)
        hint = f"did you mean {' or '.join(near)}? " if near and key not in kinds else ""
        raise SbpError(f"--config {text!r}: write key=value; {hint}Keys: {', '.join(kinds)}")
    if key == "memory_limit" and value.lower() != "none":
        return key, parse_bytes(value, f"--config {key}")
    return key, _value(value, kinds[key], f"--config {text!r}")


def _value(text: str, kind: Any, said: str) -> Any:
    choices = typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) else (kind,)
    if text.lower() == "none":
        if type(None) not in choices:
            raise SbpError(f"{said}: it cannot be none")
        return None
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if bool in choices:
        if text.lower() not in words:
            raise SbpError(f"{said}: write true or false")
        return words[text.lower()]
    for number, what in ((int, "a whole number"), (float, "a number")):
        if number in choices:
            try:
                return number(text)
            except ValueError:
                raise SbpError(f"{said}: write {what}") from None
    return text
