"""``sbp-jax doctor``: what is here, what is wrong with it, how to fix it."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from .base import Run, command

if TYPE_CHECKING:
    from .checks import Finding
    from .facts import Facts

_SIGNS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@command(
    "doctor",
    "what is here, what is wrong with it, how to fix it",
    "  sbp-jax doctor                                  exit code 1 where something cannot work\n"
    "  sbp-jax doctor --json > here.json               for a bug report",
)
def doctor(parser: argparse.ArgumentParser) -> Run:
    """Look at versions, devices, links, memory and environment, and say what is wrong and how to fix it.

    Nothing is changed. JAX is started in a process of its own, which takes some seconds.
    """
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    return _doctor


def _doctor(args: argparse.Namespace) -> int:
    from . import facts as gathering
    from .checks import examine

    facts = gathering.gather()
    found = examine(facts)
    if args.json:
        told = {"facts": _plain(facts), "findings": [dataclasses.asdict(f) for f in found]}
        print(json.dumps(told, indent=2))
    else:
        print("\n".join([*described(facts), "", *judged(found)]))
    return int(any(f.status == "fail" for f in found))


def described(f: "Facts") -> list[str]:
    """The facts, line by line."""
    rows = [("Python", f"{f.python} on {f.system}, {f.cpus} processors")]
    rows += [(name, version) for name, version in f.versions.items()]
    for gpu in f.gpus:
        rows.append(("GPU", f"{gpu.name}, driver {gpu.driver}, {gpu.memory_bytes / 2**30:.0f} GiB"))
    if f.cuda:
        rows.append(("CUDA", f"up to {f.cuda}, by the driver"))
    kinds: dict[tuple[str, Any], int] = {}
    for d in f.devices:
        kinds[d["kind"], d["bytes"]] = kinds.get((d["kind"], d["bytes"]), 0) + 1
    for (kind, held), count in kinds.items():
        rows.append(("devices", f"{count} x {kind}" + (f", {held / 2**30:.1f} GiB for JAX" if held else "")))
    rows += [(name, value) for name, value in f.environment.items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    return [*lines, *f.topology.rstrip().splitlines()]


def judged(found: "list[Finding]") -> list[str]:
    """The findings, worst last, and how many."""
    lines = []
    for status in ("ok", "warn", "fail"):
        for f in found:
            if f.status == status:
                lines.append(f"{_SIGNS[status]}  {f.check}: {f.says}")
                lines += [f"      -> {f.do}"] if f.do else []
    fails, warns = (sum(f.status == s for f in found) for s in ("fail", "warn"))
    return [*lines, "", f"{fails} of {len(found)} checks failed, {warns} warned" if fails or warns else "all is well"]


def _plain(facts: "Facts") -> dict[str, Any]:
    found = dataclasses.asdict(facts)
    found["versions"], found["environment"] = dict(facts.versions), dict(facts.environment)
    return found
