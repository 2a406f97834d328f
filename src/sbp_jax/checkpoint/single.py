"""``save``, ``restore``, ``verify`` and ``info``: one checkpoint in one folder."""

import os
from pathlib import Path
from typing import Any

from ..errors import CheckpointDamaged, CheckpointError
from ..shardings import PlacementLike, as_placement
from . import files
from . import manifest as manifests
from .manifest import Manifest
from .restoring import CheckpointInfo, info_of, restore_together, verify_together
from .saving import TIMEOUT_SECONDS, commit, prepare
from .write import CHUNK_BYTES, Crew


def save(
    path: str | os.PathLike[str],
    state: Any,
    *,
    plan: Any = None,
    step: int | None = None,
    data: Any = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Write ``state`` into the folder ``path``, and return when it is on the disk.

    Every process calls this; each writes what its devices hold, once. A checkpoint that is there is replaced: until the
    last moment the old one can be restored, whatever happens.

    Args:
        path: a folder that all processes see. It may be missing, empty, or a checkpoint.
        state: a tree of jax.Arrays, global tensors, numpy arrays, typed PRNG keys, numbers, texts and None: Flax and
            optax states are such trees. Of a partial tensor the value is saved, and that it is partial; the terms are
            not. Arrays that each process has for itself are process 0's.
        plan: the plan that the state belongs to; kept beside it (``info(path).plan()``).
        step: a number for it.
        data: anything that JSON can hold, given back by ``info(path).data``: the position in the data, say.
        timeout_seconds: how long processes wait for each other.
        chunk_bytes: the largest part that has its own checksum, and that is read at once.

    Raises:
        CheckpointError: on every process, where one cannot write (a full disk), a leaf cannot be saved, or the
            processes save different states.
        ProcessError: where a process does not come in time; it is named.
    """
    where = absolute(path)
    prepared = prepare(
        where,
        state,
        step=step,
        plan=plan,
        data=data,
        folder_for=lambda id: folder_for(where, id),
        is_copied=False,
        timeout_seconds=timeout_seconds,
        chunk_bytes=chunk_bytes,
    )

    def finish(manifest: Manifest) -> None:
        complete(prepared.folder, where, manifest)

    commit(prepared, Crew(), finish, lambda: clean(prepared.folder, where, prepared.manifest.id))


def folder_for(where: Path, id: str) -> Path:
    """The folder to write into: a temporary one beside ``where``; where a checkpoint is replaced, ``where``.

    Those of earlier saves that were killed are removed. Raises ``CheckpointError`` where ``where`` holds other things.
    """
    for path in where.parent.glob(f".{where.name}.tmp-*"):
        files.remove_folder(path)
    return where if _check_replaceable(where) else where.with_name(f".{where.name}.tmp-{id[:8]}")


def complete(folder: Path, where: Path, manifest: Manifest) -> None:
    """Give a written checkpoint its name. What replaces another is complete with its manifest: the old files go."""
    if folder != where:
        folder.rename(where)
        files.sync_folder(where.parent)
        return
    keep = {files.MANIFEST, *manifest.files}
    for path in where.iterdir():
        if path.name not in keep and _is_ours(path.name):
            path.unlink(missing_ok=True)


def clean(folder: Path, where: Path, id: str) -> None:
    """Remove what a failed save has written. A checkpoint that was to be replaced stays as it is."""
    if folder != where:
        files.remove_folder(folder)
        return
    for path in where.iterdir():
        if _is_ours(path.name) and f"-{id[:8]}." in path.name:
            path.unlink(missing_ok=True)


def restore(
    path: str | os.PathLike[str],
    like: Any = None,
    placement: PlacementLike | None = None,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """The state that ``save`` wrote into ``path``.

    Every process calls this, and reads only what its own devices need; each part is checked before it is used.

    Args:
        path: the folder of one checkpoint. A manager's folder holds several: ``Manager(folder).restore()``.
        like: a tree with the names of the saved one. Its leaves say what is expected and where it goes: arrays and
            ShapeDtypeStructs (shape and dtype must be the saved ones; their sharding is where it goes), global tensors
            (their placement and signature), NamedShardings (``plan.shardings()``), numpy arrays (whole, on the host).
            None: nested dicts, lists and tuples (a class's fields as a dict), every leaf where it was when saved.
        placement: where all arrays go instead, a placement or a mesh; each of its axes splits what the axis of that
            name split. Where a jax.Array does not divide, another dim is split, or none, and a warning says so; a
            global tensor is split unevenly.

    Raises:
        CheckpointDamaged: on every process, where the files are not what was written. The message names the file.
        CheckpointError: on every process, where it is not a checkpoint of ``like``: the message lists the differences.
        PlacementError: where its devices are not here, and neither ``like`` nor ``placement`` says others.
    """
    where = absolute(path)
    _check_exists(where)
    to = None if placement is None else as_placement(placement)
    try:
        return restore_together(where, like, to, None, timeout_seconds)[0]
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"the checkpoint {where} is damaged: {error}") from error


def verify(path: str | os.PathLike[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
    """Read every byte of a checkpoint and check it; several processes share the work.

    Raises ``CheckpointDamaged`` on every process, naming what is damaged.
    """
    where = absolute(path)
    _check_exists(where)
    try:
        verify_together(where, None, timeout_seconds)
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"the checkpoint {where} is damaged: {error}") from error


def info(path: str | os.PathLike[str]) -> CheckpointInfo:
    """What a checkpoint says of itself: step, data, plan. Raises ``CheckpointDamaged``, ``CheckpointError``."""
    where = absolute(path)
    _check_exists(where)
    return info_of(where, manifests.read(where))


def _is_ours(name: str) -> bool:
    """Whether a save makes files of this name besides the manifest; whole ones, or cut off by the end of a process."""
    return files.is_listed_name(name.removesuffix(".tmp")) or name == f"{files.MANIFEST}.tmp"


def absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _check_exists(where: Path) -> None:
    if not where.is_dir():
        raise CheckpointError(f"there is no checkpoint {where}: the folder does not exist")
    if not (where / files.MANIFEST).exists() and any(where.glob("step-*")):
        raise CheckpointError(
            f"{where} holds the checkpoints of a manager: sbp.checkpoint.Manager(folder).restore(...) gives the newest "
            f"valid one, sbp.checkpoint.restore(folder + '/{min(x.name for x in where.glob('step-*'))}') a certain one"
        )


def _check_replaceable(where: Path) -> bool:
    """Whether there is a checkpoint to replace. Raises ``CheckpointError`` for a folder of other things."""
    if not where.exists():
        return False
    if not where.is_dir():
        raise CheckpointError(f"{where} is a file: a checkpoint is a folder")
    names = [x.name for x in where.iterdir()]
    if not names:
        where.rmdir()
        return False
    if files.MANIFEST not in names and not all(map(_is_ours, names)):
        raise CheckpointError(f"{where} holds other things than a checkpoint ({names[0]}): name a new folder")
    return True
