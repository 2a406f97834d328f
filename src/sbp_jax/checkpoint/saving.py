"""Saving: all processes agree on what is saved, copy their pieces to the host, write them; process 0 completes it.

``prepare`` runs in the training loop's thread and returns when the state may change again; ``commit`` may run in
another. Each ends on every process with the same outcome: an error of one is raised by all.
"""

import datetime
import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..errors import CheckpointError, SbpError
from ..processes import store
from . import files
from .layout import nbytes, pieces_of, processes_of, writers
from .leaves import Leaf, describe, flatten, names
from .manifest import Manifest, file_entry, to_text, versions
from .write import Crew, Piece, write

TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A state on the host, ready to be written into ``folder``. ``name`` says in words what is saved."""

    manifest: Manifest
    folder: Path
    pieces: tuple[Piece, ...]
    plan: str | None
    name: str
    timeout_seconds: float
    chunk_bytes: int


def number_of(step: Any) -> int:
    """A step as an int. Raises ``CheckpointError`` for what is no whole number, 0 or more."""
    if isinstance(step, bool) or not hasattr(step, "__index__") or step.__index__() < 0:
        raise CheckpointError(f"step={step!r}: a step is a whole number, 0 or more")
    return step.__index__()


def name_of(path: Path) -> str:
    """A checkpoint's name among the processes: the same on all, another for each folder."""
    return f"{path.name} {hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def prepare(
    path: Path,
    state: Any,
    *,
    step: int | None,
    plan: Any,
    data: Any,
    folder_for: Callable[[str], Path],
    is_copied: bool,
    timeout_seconds: float,
    chunk_bytes: int,
    within: Path | None = None,
) -> Prepared:
    """Agree with the other processes on what is saved, and take this process's pieces to the host.

    Process 0 alone decides on the folder, ``folder_for(id)``, beside ``path`` or ``path`` itself, and makes it. Without
    ``is_copied`` pieces may share memory with the state: it must stay as it is until ``commit`` has ended. The
    processes meet under ``path``'s name, or that of the folder ``within``: then those with different steps meet, too.

    Raises ``CheckpointError`` on every process where one of them cannot save its state, or the states differ.
    """
    together = store()
    name = f"saving the checkpoint {name_of(path)}"
    meeting = name if within is None else f"saving a checkpoint in {name_of(within)}"
    step = None if step is None else number_of(step)
    mine: dict[str, Any] = {"fault": None, "id": secrets.token_hex(16), "step": step}
    leaves: list[Leaf] = []
    values: list[Any] = []
    plan_text = None
    try:
        leaves, values = _described(state)
        plan_text, data_text = _plan_text(plan), _data_text(data)
        mine["data"], mine["digest"] = data_text, _digest(leaves)
        private = [k for k, x in enumerate(values) if processes_of(x) == {0}] if together.rank == 0 else []
        mine["private"] = private
        if together.rank == 0:
            made = folder_for(mine["id"])
            files.make_folder(made)
            mine["folder"] = made.name
    except Exception as error:  # told to the others before it is raised
        mine["fault"] = said(error)
        _tell(together, meeting, mine, timeout_seconds, error)
    everyones = _tell(together, meeting, mine, timeout_seconds, None)
    first = everyones[0]
    _same(together, meeting, leaves, everyones, timeout_seconds)
    id, folder = first["id"], path.parent / first["folder"]
    fingerprint = getattr(plan, "fingerprint", None)
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = Manifest(id, step, created, tuple(leaves), {}, json.loads(first["data"]), fingerprint, versions())
    pieces = _captured(leaves, values, set(first["private"]), together.rank, together.size, is_copied)
    if together.rank:
        plan_text = None
    return Prepared(manifest, folder, tuple(pieces), plan_text, name, timeout_seconds, chunk_bytes)


def _described(state: Any) -> tuple[list[Leaf], list[Any]]:
    found, _ = flatten(state)
    leaves = [describe(keys, x) for keys, x in found]
    gone = [leaf.path for leaf, (_, x) in zip(leaves, found, strict=True) if _is_deleted(x)]
    if gone:
        raise CheckpointError(
            f"{gone[0]} was donated to a jitted function, or deleted: its value is gone. Save the state that the step "
            "returned, not the one that it was given"
        )
    seen: set[str] = set()
    for path in names([x.keys for x in leaves]):
        if path in seen:
            raise CheckpointError(f"two leaves of the state have the same path, {path!r}: give them different names")
        seen.add(path)
    return leaves, [x for _, x in found]


def _is_deleted(x: Any) -> bool:
    return hasattr(x, "is_deleted") and x.is_deleted()


def _plan_text(plan: Any) -> str | None:
    return None if plan is None else json.dumps(plan.to_json(), separators=(",", ":"))


def _data_text(data: Any) -> str:
    try:
        return files.compact(data)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"data= must be made of dicts with texts as keys, lists, numbers, texts, bools and None, got {data!r}"
        ) from error


def _digest(leaves: list[Leaf]) -> str:
    return hashlib.sha256("\n".join(map(_line, leaves)).encode()).hexdigest()


def _line(leaf: Leaf) -> str:
    return f"{leaf.path}: {leaf} ({leaf.kind})"


def _tell(together: Any, name: str, mine: dict[str, Any], timeout_seconds: float, error: Exception | None) -> list[Any]:
    """What all processes say. Raises on every process where one of them says a fault."""
    everyones = [json.loads(x) for x in together.gather(name, json.dumps(mine), timeout_seconds)]
    faults = {rank: x["fault"] for rank, x in enumerate(everyones) if x["fault"]}
    if isinstance(error, SbpError):
        raise error
    if error is not None:
        raise CheckpointError(f"{name}: {said(error)}") from error
    if faults:
        raise CheckpointError(f"{name}: " + "; ".join(f"rank {rank}: {fault}" for rank, fault in faults.items()))
    return everyones


def _same(together: Any, name: str, leaves: list[Leaf], everyones: list[Any], timeout_seconds: float) -> None:
    """Raises ``CheckpointError`` where processes save different states or steps, naming the first difference."""
    steps = [x["step"] for x in everyones]
    if len(set(steps)) > 1:
        raise CheckpointError(f"{name}: the processes save different steps, by rank: {steps}")
    other = next((rank for rank, x in enumerate(everyones) if x["digest"] != everyones[0]["digest"]), None)
    if other is None:
        return
    lines = [
        json.loads(x) for x in together.gather(f"{name} leaves", json.dumps([*map(_line, leaves)]), timeout_seconds)
    ]
    ours, theirs = lines[0], lines[other]
    k = next(
        (k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )  # fmt: skip
    said = [x[k] if k < len(x) else "nothing more" for x in (ours, theirs)]
    raise CheckpointError(
        f"{name}: the processes save different states. The first difference: rank 0 has {said[0]}, rank {other} has "
        f"{said[1]}"
    )


def _captured(
    leaves: list[Leaf], values: list[Any], private: set[int], rank: int, processes: int, is_copied: bool
) -> list[Piece]:
    """The pieces that this process writes, on the host."""
    numbers = [k for k, leaf in enumerate(leaves) if leaf.has_data]
    pieces = [pieces_of(leaves[k], values[k]) for k in numbers]
    for k, x in zip(numbers, pieces, strict=True):
        if k in private:  # each process has its own: that of process 0 is kept
            x.holders.update({box: [0] for box in x.holders})
    sizes = [{box: nbytes(leaves[k], box) for box in x.holders} for k, x in zip(numbers, pieces, strict=True)]
    who = writers(sizes, [x.holders for x in pieces], processes)
    mine = [
        (k, box, x.local(box)) for k, x, chosen in zip(numbers, pieces, who, strict=True)
        for box, writer in chosen.items() if writer == rank
    ]  # fmt: skip
    for _, _, data in mine:
        if isinstance(data, jax.Array):
            data.copy_to_host_async()
    return [Piece(k, box, np.array(x, copy=True) if is_copied else np.asarray(x)) for k, box, x in mine]


def commit(
    prepared: Prepared, crew: Crew, finish: Callable[[Manifest], None], clean: Callable[[], None]
) -> Manifest:  # fmt: skip
    """Write the pieces, and end the crew; when all processes have, process 0 writes the manifest and calls ``finish``.

    Where anything fails, process 0 calls ``clean``. Raises ``CheckpointError`` on every process then.
    """
    together, name, limit = store(), prepared.name, prepared.timeout_seconds
    manifest, folder = prepared.manifest, prepared.folder
    mine: dict[str, Any] = {"fault": None, "files": {}}
    failure = None
    try:
        mine["files"] = write(folder, manifest.id, together.rank, prepared.pieces, prepared.chunk_bytes, crew)
        if prepared.plan is not None:
            plan_name = f"plan-{manifest.id[:8]}.json"
            files.write_text(folder / plan_name, prepared.plan)
            mine["files"][plan_name] = file_entry(prepared.plan.encode())
    except Exception as error:
        failure, mine["fault"] = error, said(error)
    finally:
        crew.close()
    try:
        everyones = [json.loads(x) for x in together.gather(f"{name}, written", json.dumps(mine), limit)]
    except BaseException:
        if together.rank == 0:
            clean()
        raise
    fault = "; ".join(f"rank {rank}: {x['fault']}" for rank, x in enumerate(everyones) if x["fault"])
    manifest = replace(manifest, files={file: entry for x in everyones for file, entry in x["files"].items()})
    if together.rank == 0:
        try:
            if not fault:
                _check_all_here(folder, manifest)
                files.write_text(folder / files.MANIFEST, to_text(manifest))
                finish(manifest)
        except Exception as error:
            failure, fault = error, f"rank 0: {said(error)}"
        if fault:
            clean()
    # No process goes on before it is complete, or what was written is removed.
    fault = together.broadcast(f"{name}, done", fault if together.rank == 0 else None, timeout_seconds=limit)
    if fault:
        raise CheckpointError(f"{name} failed, and left nothing behind. {fault}") from failure
    return manifest


def _check_all_here(folder: Path, manifest: Manifest) -> None:
    missing = [name for name in manifest.files if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"process 0 does not see {missing[0]} in {folder}, which another process wrote: all processes must save to "
            "one file system that they share"
        )


def said(error: BaseException) -> str:
    """An error in one line, for other processes."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    return f"{error}" if isinstance(error, SbpError) else f"{type(error).__name__}: {error}"
