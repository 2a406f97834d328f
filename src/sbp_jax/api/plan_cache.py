"""Plans on disk: ``AutoParallelConfig(cache=folder)``. What was planned once is read again, by any process.

An entry is a file: a line with a checksum, then the plan as JSON. Its name is a hash of all that a plan hangs on: the
program's fingerprint, what was asked of the planner (placements, hardware, pins, limits, options), and the versions of
this library, of jax and of the solver. An entry that cannot be read is made anew, and the plan says so.
"""

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from ..errors import PlanError
from ..plan import PlanData
from ..planner import Request
from ..planner.versions import versions
from ..trace import Program, canonical_text, fingerprint
from .config import AutoParallelConfig

_MARK = "sbp_jax plan"
# What is told on the way, and what is done with a plan once it is there.
_OF_THE_SEARCH = {"progress", "budget"}  # the budget is made of options, which count
_OF_THE_RUN = {"cache", "lowering", "compiler_options"}


def read_or_make(
    program: Program, requests: Sequence[Request], config: AutoParallelConfig, name: str, make: Callable[[], PlanData]
) -> PlanData:
    """The plan of ``make()``, or the one that an earlier call with the same key wrote into ``config.cache``.

    A plan from the cache has ``statistics["from_cache"]`` and a note. No search runs for it.
    """
    start = time.perf_counter()
    path = Path(str(config.cache)).expanduser() / f"{key_of(program, requests, config)}.json"
    found, fault = _read(path, program)
    if found is None:
        plan = make()
        unwritten = _write(path, plan)  # before the note: the next reader's entry is a good one
        plan.notes += [f"plan cache: {x}" for x in (fault, unwritten) if x]
        return plan
    found.function = name
    made_in, found.planning_seconds = found.planning_seconds, time.perf_counter() - start
    found.statistics["from_cache"] = 1.0
    found.notes.append(
        f"from the plan cache, where it was made in {made_in:.3g} s; lines of code are those it was made from ({path})"
    )
    return found


def key_of(program: Program, requests: Sequence[Request], config: AutoParallelConfig) -> str:
    """The hash that names an entry. ``requests``: one for each placement that is tried."""
    labels = [op.label for op in (*program.input_ops, *program.output_ops)]
    asked = [{f.name: getattr(r, f.name) for f in fields(r) if f.name not in _OF_THE_SEARCH} for r in requests]
    options = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in _OF_THE_RUN | {"cluster"}}
    text = canonical_text((fingerprint(program), labels, program.argument_names, asked, options, versions()))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(path: Path, program: Program) -> tuple[PlanData | None, str]:
    """An entry's plan, or None; and what was wrong with the entry, if there is one."""
    try:
        head, _, text = path.read_text().partition("\n")
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError) as error:
        fault = f"the entry {path} could not be read ({type(error).__name__}: {error})"
        return None, _replaced(path, fault)
    if head != f"{_MARK} {_checksum(text)}":
        return None, _replaced(path, f"the entry {path} was damaged")
    try:
        plan = PlanData.from_json(json.loads(text), repr(str(path)))
    except (PlanError, json.JSONDecodeError) as error:
        return None, _replaced(path, f"the entry {path} was damaged ({error})")
    if plan.fingerprint != fingerprint(program):
        return None, _replaced(path, f"the entry {path} was of another program")
    return plan, ""


def _replaced(path: Path, fault: str) -> str:
    """Remove an entry that is of no use, so that the plan made anew takes its place."""
    with contextlib.suppress(OSError):
        path.unlink()
    return f"{fault}; the plan was made anew"


def _write(path: Path, plan: PlanData) -> str:
    """Write an entry, whole or not at all: a reader never sees a part. What went wrong, or nothing."""
    text = json.dumps(plan.to_json(), separators=(",", ":"))
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.chmod(0o700)  # whatever the umask
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp")  # mode 0600
        try:
            with os.fdopen(handle, "w") as file:
                file.write(f"{_MARK} {_checksum(text)}\n{text}")
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        return f"the plan could not be written to {path} ({error.strerror or error})"
    return ""


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
