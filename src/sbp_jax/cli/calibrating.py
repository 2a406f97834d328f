"""``sbp-jax calibrate``: this machine, measured."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SbpError
from .base import Run, check_output, command

if TYPE_CHECKING:
    from ..cluster import Cluster


@command(
    "calibrate",
    "measure this machine and write its cluster file",
    "  sbp-jax calibrate -o mine.toml                  then: sbp.AutoParallelConfig(cluster='mine.toml')\n"
    "  sbp-jax calibrate --devices 8                   on 8 devices, on a host without accelerators simulated ones\n"
    "  sbp-jax calibrate --json > measured.json        everything that was measured\n"
    "On several machines start it in every process of the job: --coordinator, --processes and --process as in\n"
    "jax.distributed.initialize (or none of them where JAX finds them by itself, with --distributed).",
)
def calibrate(parser: argparse.ArgumentParser) -> Run:
    """Measure this machine: matrix products, memory, the smallest op and collectives.

    All devices of the process are measured at once, in less than two minutes. With several processes the links between
    them are measured too; process 0 writes the file.
    """
    parser.add_argument("-o", "--output", metavar="FILE", help="write the cluster here, as TOML (default: print it)")
    parser.add_argument("--name", help="the cluster's name (default: the file's, else 'measured')")
    parser.add_argument("--devices", type=int, metavar="N", help="measure only N devices (default: all there are)")
    parser.add_argument("--json", action="store_true", help="print the cluster and all measurements as JSON")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    parser.add_argument("--distributed", action="store_true", help="join the other processes of this job first")
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="address of process 0 (implies --distributed)")
    parser.add_argument("--processes", type=int, metavar="N", help="how many processes there are")
    parser.add_argument("--process", type=int, metavar="I", help="which of them this is")
    return _calibrate


def _calibrate(args: argparse.Namespace) -> None:
    from ..cluster import presets, to_toml

    name = args.name or (Path(args.output).stem if args.output else "measured")
    if name in presets():
        raise SbpError(f"{name!r} is the name of a preset, which would be found instead of a file: give another --name")
    output = _output(args.output, args.force)
    import jax

    if args.distributed or args.coordinator:
        jax.distributed.initialize(args.coordinator, args.processes, args.process)
    elif args.devices:
        _simulate(args.devices)
    from ..cluster.calibrate import calibrate as measure

    first = jax.process_index() == 0

    def say(text: str) -> None:
        if first:
            print(text, file=sys.stderr)

    found = measure(name, args.devices, progress=lambda what: say(f"measuring {what} ..."))
    if not first:
        return
    devices = jax.device_count() if jax.process_count() > 1 else args.devices or jax.local_device_count()
    header = [f"Measured by `sbp-jax calibrate` on {devices} x {found.cluster.device.name}, jax {jax.__version__}."]
    header += [f"Collectives fit within {found.worst_error:.0%}.", *found.notes]
    text = to_toml(found.cluster, "\n".join(header))
    if output is not None:  # first: whoever reads what is printed may stop
        output.write_text(text, encoding="utf-8")
    if args.json:
        measured = [dataclasses.asdict(m) for m in found.measurements]
        print(json.dumps({"cluster": _plain(found.cluster), "measurements": measured, "notes": header}, indent=2))
    else:
        for m in found.measurements:
            say(str(m))
        for line in header:
            say(line)
    if output is not None:
        say(f"wrote {output}; use it as sbp.AutoParallelConfig(cluster={str(output)!r})")
    elif not args.json:
        print(text, end="")


def _output(path: str | None, force: bool) -> Path | None:
    """Before minutes are spent on measuring."""
    if path is not None and not path.endswith(".toml"):
        raise SbpError(f"--output {path!r}: clusters are found by names that end in .toml")
    output = check_output(path)
    if output is not None and output.exists() and not force:
        raise SbpError(f"--output {path!r} exists: --force overwrites it")
    return output


def _simulate(devices: int) -> None:
    """Where the platform is a host's, as many simulated devices as asked for; the number can no longer change later."""
    import jax

    if (os.environ.get("JAX_PLATFORMS") or "cpu") == "cpu":
        try:
            jax.config.update("jax_num_cpu_devices", devices)
        except RuntimeError:  # JAX runs already: what there is must do
            return


def _plain(cluster: "Cluster") -> dict[str, Any]:
    found = dataclasses.asdict(cluster)
    found["overlaps"] = sorted(cluster.overlaps)
    found["device"]["flops_per_second"] = dict(cluster.device.flops_per_second)
    return found
