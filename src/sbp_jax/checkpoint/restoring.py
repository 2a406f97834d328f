"""Restoring and checking: every process reads what its devices need, and all end with the same outcome."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from ..errors import CheckpointDamaged, CheckpointError, SbpError
from ..placement import Placement
from ..plan import PlanData
from ..processes import store
from . import manifest as manifests
from .build import build
from .leaves import nest
from .manifest import Manifest
from .read import Reading, faults
from .saving import name_of, said
from .targets import Target, targets


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What a checkpoint says of itself besides the state.

    Attributes:
        path: its folder.
        step: the step it was saved at; None where none was given.
        data: what ``save(..., data=...)`` was given, as JSON gives it back.
        created: when, UTC, ISO 8601.
        plan_fingerprint: that of the plan it was saved with, None without one.
        versions: of sbp_jax, jax and Python that wrote it.
        nbytes: bytes of its data.
        bytes_read: bytes of data that this process read to restore it; 0 where it only looked.
    """

    path: Path
    step: int | None
    data: Any
    created: str
    plan_fingerprint: str | None
    versions: dict[str, str]
    nbytes: int
    bytes_read: int = 0

    def plan(self) -> PlanData | None:
        """The plan that the state was saved with. Raises ``CheckpointDamaged``, ``PlanError``."""
        manifest = manifests.read(self.path)
        names = manifest.with_suffix("plan-")
        if not names:
            return None
        raw = manifests.read_checked(self.path, manifest, names[0])
        return PlanData.from_json(json.loads(raw), repr(str(self.path / names[0])))


def info_of(folder: Path, manifest: Manifest, reading: Reading | None = None) -> CheckpointInfo:
    """What users see of a manifest."""
    return CheckpointInfo(
        folder,
        manifest.step,
        manifest.data,
        manifest.created,
        manifest.plan_fingerprint,
        dict(manifest.versions),
        sum(manifest.files[name]["bytes"] for name in manifest.with_suffix("data-")),
        0 if reading is None else reading.bytes,
    )


def restore_together(
    folder: Path, like: Any, placement: Placement | None, step: int | None, timeout_seconds: float
) -> tuple[Any, CheckpointInfo]:
    """The state in a folder, and what the folder says of it.

    Raises on every process, whichever found it: ``CheckpointDamaged`` for damage, ``CheckpointError`` for a checkpoint
    of another state.
    """
    name = f"restoring the checkpoint {name_of(folder)}"
    state = info = None
    damaged: CheckpointDamaged | None = None
    failure: Exception | None = None
    try:
        state, info = _restore(folder, like, placement, step)
    except CheckpointDamaged as error:
        damaged = error
    except Exception as error:  # told to the others before it is raised
        failure = error
    agree(name, damaged, failure, timeout_seconds)
    assert info is not None
    return state, info


def agree(name: str, damaged: Exception | None, failure: Exception | None, timeout_seconds: float) -> None:
    """Raise on every process what one of them found, damage before anything else."""
    together = store()
    mine = [str(damaged) if damaged else None, said(failure) if failure else None]
    everyones = [json.loads(x) for x in together.gather(name, json.dumps(mine), timeout_seconds)]
    told = _by_text([x[0] for x in everyones])
    if told:
        raise CheckpointDamaged(told) from damaged
    if failure is not None:
        raise failure
    told = _by_text([x[1] for x in everyones])
    if told:
        raise CheckpointError(f"{name}: {told}")


def _by_text(texts: Sequence[str | None]) -> str:
    """What processes say, the same texts once, with the ranks where it is not all of them."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        if text:
            ranks.setdefault(text, []).append(rank)
    if len(ranks) == 1 and len(next(iter(ranks.values()))) == len(texts):
        return next(iter(ranks))
    return "; ".join(f"rank {', '.join(map(str, where))}: {text}" for text, where in ranks.items())


def _restore(folder: Path, like: Any, placement: Placement | None, step: int | None) -> tuple[Any, CheckpointInfo]:
    manifest = manifests.read(folder)
    if step is not None and manifest.step != step:
        raise CheckpointDamaged(f"{folder.name} holds step {manifest.step}: its files are another step's")
    for plan in manifest.with_suffix("plan-"):
        manifests.read_checked(folder, manifest, plan)
    found, structure = targets(manifest.leaves, like, placement, str(folder))
    _warn_of_changes(found)
    values, reading = build(folder, manifest, found)
    state = nest(manifest.leaves, values) if structure is None else jax.tree_util.tree_unflatten(structure, values)
    return state, info_of(folder, manifest, reading)


def _warn_of_changes(found: Sequence[Target]) -> None:
    notes = [x.note for x in found if x.note]
    if notes and store().rank == 0:
        more = f" and {len(notes) - 3} more" if len(notes) > 3 else ""
        warnings.warn(
            "restored in another signature, because the dims do not divide by the devices: "
            f"{', '.join(notes[:3])}{more}",
            UserWarning,
            stacklevel=2,
        )


def verify_together(folder: Path, step: int | None, timeout_seconds: float) -> Manifest:
    """Every byte of a checkpoint checked, each process reading its share.

    Raises ``CheckpointDamaged`` on every process, naming what is damaged.
    """
    together = store()
    damaged: CheckpointDamaged | None = None
    failure: Exception | None = None
    manifest: Manifest | None = None
    try:
        manifest = manifests.read(folder)
        if step is not None and manifest.step != step:
            raise CheckpointDamaged(f"{folder.name} holds step {manifest.step}: its files are another step's")
        told = faults(folder, manifest, together.rank, together.size)
        if told:
            raise CheckpointDamaged("; ".join(told))
    except CheckpointDamaged as error:
        damaged = error
    except SbpError as error:
        failure = error
    agree(f"verifying the checkpoint {name_of(folder)}", damaged, failure, timeout_seconds)
    assert manifest is not None
    return manifest
