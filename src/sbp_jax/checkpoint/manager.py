"""``Manager``: the checkpoints of a run in one folder, written in the background, the newest valid one restored."""

import logging
import os
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ..errors import CheckpointDamaged, CheckpointError
from ..processes import store
from ..shardings import PlacementLike, as_placement
from . import files
from . import manifest as manifests
from .manifest import Manifest
from .restoring import CheckpointInfo, info_of, restore_together, verify_together
from .saving import TIMEOUT_SECONDS, Prepared, commit, name_of, number_of, prepare
from .single import absolute, clean, complete, folder_for
from .write import CHUNK_BYTES, Crew, step_aside

_STEP = re.compile(r"step-([0-9]{8,})")
_log = logging.getLogger(__name__)


class Manager:
    """The checkpoints of a run: ``folder/step-00000120`` and so on, the newest ``keep`` of them (None: all).

    Every process makes one, with the same folder, and calls its methods in the same order. ``save`` copies the state
    to the host and returns; the files are written by a thread. What fails there is raised by the next ``save``,
    ``wait``, ``restore`` or ``close``. Leave a ``with`` block, or call ``close``, to wait for the last one.

    ``restored``: what the last ``restore`` read, with its step and ``data``; None before.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int | None = 3,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        if keep is not None and (type(keep) is not int or keep < 1):
            raise CheckpointError(f"keep={keep!r}: how many checkpoints are kept is 1 or more, or None for all")
        self.folder = absolute(folder)
        self.keep = keep
        self.restored: CheckpointInfo | None = None
        self._timeout_seconds, self._chunk_bytes = timeout_seconds, chunk_bytes
        self._damaged: set[int] = set()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(
        self, step: int, state: Any, *, plan: Any = None, data: Any = None, blocking: bool = False
    ) -> None:  # fmt: skip
        """Write ``state`` as the checkpoint of ``step``; with ``blocking`` return when it is on the disk.

        The arrays may be donated or changed as soon as this returns. One that is still being written is waited for. A
        checkpoint of the same step is replaced. The arguments are those of ``sbp.checkpoint.save``.

        Raises ``CheckpointError`` for what cannot be saved, and what went wrong in the background before.
        """
        self.wait()
        step = number_of(step)
        where = self._path(step)
        prepared = prepare(
            where,
            state,
            step=step,
            plan=plan,
            data=data,
            folder_for=lambda id: self._folder_for(where, id),
            is_copied=not blocking,
            timeout_seconds=self._timeout_seconds,
            chunk_bytes=self._chunk_bytes,
            within=self.folder,
        )
        crew = Crew(is_behind=not blocking)
        if blocking:
            self._write(prepared, crew, where, step)
            return
        self._thread = threading.Thread(
            target=self._write_behind, args=(prepared, crew, where, step), name="sbp-checkpoint", daemon=False
        )
        self._thread.start()

    def restore(
        self, step: int | None = None, *, like: Any = None, placement: PlacementLike | None = None
    ) -> Any:  # fmt: skip
        """The newest valid state; that of ``step`` where it is given. ``like`` and ``placement`` as for
        ``sbp.checkpoint.restore``.

        A damaged checkpoint is passed over with a warning that names what is damaged. ``manager.restored`` says which
        one was taken, and has its ``data``.

        Raises:
            CheckpointDamaged: where no valid one is left, or ``step`` is damaged.
            CheckpointError: where there is none, or it is of another state: that is not passed over.
        """
        self.wait()
        to = None if placement is None else as_placement(placement)
        state, self.restored = self._newest(
            "restore", step, lambda path, k: restore_together(path, like, to, k, self._timeout_seconds)
        )
        return state

    def latest_step(self) -> int | None:
        """The newest step that was completely written, valid or not; None without any."""
        return max(self.all_steps(), default=None)

    def latest_valid_step(self) -> int | None:
        """The newest step whose files are what was written; None without any. Reads every byte of it, and warns of
        damaged ones that it passes over."""
        self.wait()

        def check(path: Path, step: int) -> int:
            verify_together(path, step, self._timeout_seconds)
            return step

        try:
            return self._newest("find", None, check)
        except CheckpointDamaged:
            return None
        except CheckpointError:
            if self.all_steps():
                raise
            return None

    def all_steps(self) -> list[int]:
        """The steps that were completely written, in order."""
        if not self.folder.is_dir():
            return []
        found = ((_STEP.fullmatch(x.name), x) for x in self.folder.iterdir())
        return sorted(int(m[1]) for m, x in found if m and x.is_dir() and not x.is_symlink())

    def info(self, step: int) -> CheckpointInfo:
        """What the checkpoint of a step says of itself. Raises ``CheckpointError`` where there is none."""
        path = self._path(step)
        if not path.is_dir():
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; there are {self.all_steps()}")
        return info_of(path, manifests.read(path))

    def wait(self) -> None:
        """Return when the last ``save`` is on the disk. Raises ``CheckpointError`` where it is not."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """``wait``, for the end of a run."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.wait()
        except Exception:
            if error is None:
                raise
            _log.exception("the last checkpoint was not written")

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{number_of(step):08d}"

    def _folder_for(self, where: Path, id: str) -> Path:
        files.make_folder(self.folder)
        for path in self.folder.glob(".step-*.tmp-*"):
            files.remove_folder(path)
        return folder_for(where, id)

    def _write(self, prepared: Prepared, crew: Crew, where: Path, step: int) -> None:
        def finish(manifest: Manifest) -> None:
            complete(prepared.folder, where, manifest)
            self._damaged.discard(step)
            self._remove_old(step)

        commit(prepared, crew, finish, lambda: clean(prepared.folder, where, prepared.manifest.id))

    def _write_behind(self, prepared: Prepared, crew: Crew, where: Path, step: int) -> None:
        step_aside()
        try:
            self._write(prepared, crew, where, step)
        except BaseException as error:
            self._failure = error
            _log.error("the checkpoint of step %d was not written: %s", step, error)

    def _remove_old(self, newest: int) -> None:
        """All but the newest ``keep``; those known to be damaged do not count."""
        if self.keep is None:
            return
        good = [s for s in self.all_steps() if s not in self._damaged]
        for step in sorted({*good[: -self.keep], *(s for s in self._damaged if s < newest)} - {newest}):
            path = self._path(step)
            going = path.with_name(f".{path.name}.tmp-removed")
            try:
                files.remove_folder(going)
                path.rename(going)  # at once: what is half removed is no checkpoint
            except OSError as error:
                _log.warning("the old checkpoint %s could not be removed: %s", path, error)
            files.remove_folder(going)

    def _newest(self, verb: str, step: int | None, use: Callable[[Path, int], Any]) -> Any:
        """``use`` of the newest checkpoint that is not damaged, or of that of ``step`` alone."""
        told = ",".join(map(str, self.all_steps()))
        name = f"{verb} a checkpoint of {name_of(self.folder)}"
        told = store().broadcast(name, told if store().rank == 0 else None, timeout_seconds=self._timeout_seconds)
        steps = [int(x) for x in told.split(",") if x]
        if step is not None and step not in steps:
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; there are {steps}")
        if not steps:
            raise CheckpointError(f"there is no checkpoint in {self.folder}")
        faults = []
        for k in [step] if step is not None else reversed(steps):
            try:
                found = use(self._path(k), k)
            except CheckpointDamaged as error:
                faults.append(f"step {k} is damaged: {error}")
                self._damaged.add(k)
                continue
            if faults and store().rank == 0:
                warnings.warn(
                    f"the checkpoints in {self.folder}: {'; '.join(faults)}. Step {k} is used instead",
                    UserWarning,
                    stacklevel=3,
                )
            return found
        raise CheckpointDamaged(f"no checkpoint in {self.folder} can be used: {'; '.join(faults)}")
