"""A damaged checkpoint is found out, whatever the damage, and the older one is used."""

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import sbp_jax as sbp

P4 = sbp.placement("cpu", ranks=range(4), axis_names=("dp",))
DAMAGES = 100


def state_of(step: int) -> dict[str, Any]:
    spread = NamedSharding(P4.mesh, PartitionSpec("dp"))
    return {
        "w": jax.device_put(jnp.arange(64.0).reshape(16, 4) + step, spread),
        "b": np.arange(5) * step,
        "same": np.arange(6, dtype=np.int8),  # equal at every step: only the file's own id tells steps apart
        "none": jnp.zeros((0, 2)),
        "lr": 0.1 * step,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with the steps 1, 2 and 3; the data of each in several chunks."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with sbp.checkpoint.Manager(folder, chunk_bytes=40) as manager:
        for step in (1, 2, 3):
            manager.save(step, state_of(step), data={"step": step}, blocking=True)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def flip(rng: random.Random, step: Path) -> str:
    file = rng.choice(sorted(step.iterdir()))
    raw = bytearray(file.read_bytes())
    place, bit = rng.randrange(len(raw)), rng.randrange(8)
    raw[place] ^= 1 << bit
    file.write_bytes(raw)
    return f"bit {bit} of byte {place} of {file.name}"


def overwrite(rng: random.Random, step: Path) -> str:
    file = rng.choice(sorted(step.iterdir()))
    raw = bytearray(file.read_bytes())
    place = rng.randrange(len(raw))
    raw[place : place + rng.randrange(1, 64)] = b"\0" * min(rng.randrange(1, 64), len(raw) - place)
    file.write_bytes(raw)
    return f"zeros at byte {place} of {file.name}"


def truncate(rng: random.Random, step: Path) -> str:
    file = rng.choice(sorted(step.iterdir()))
    length = rng.randrange(file.stat().st_size)
    file.write_bytes(file.read_bytes()[:length])
    return f"{file.name} cut to {length} bytes"


def lengthen(rng: random.Random, step: Path) -> str:
    file = rng.choice(sorted(step.iterdir()))
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.randrange(1, 9)))
    return f"{file.name} made longer"


def remove(rng: random.Random, step: Path) -> str:
    file = rng.choice(sorted(step.iterdir()))
    file.unlink()
    return f"{file.name} removed"


def empty(rng: random.Random, step: Path) -> str:
    for file in step.iterdir():
        file.unlink()
    return "all files removed"


def swap(rng: random.Random, step: Path) -> str:
    one, other = rng.sample(sorted(step.iterdir()), 2)
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)
    return f"{one.name} and {other.name} swapped"


def swap_steps(rng: random.Random, step: Path) -> str:
    """A file's content of another step under the name of this one's; or all files of the other step."""
    source = step.with_name("step-00000002")
    if rng.random() < 0.3:
        shutil.rmtree(step)
        shutil.copytree(source, step)
        return "the files of step 2"
    kind = rng.choice(["data", "index", "manifest"])
    (mine,) = step.glob(f"{kind}*")
    (theirs,) = source.glob(f"{kind}*")
    mine.write_bytes(theirs.read_bytes())
    return f"{kind} of step 2"


def swap_chunks(rng: random.Random, step: Path) -> str:
    """Two pieces of the data file change places."""
    (file,) = step.glob("data*")
    raw = bytearray(file.read_bytes())
    a, b = rng.sample(range(64, len(raw) - 40, 40), 2)
    raw[a : a + 40], raw[b : b + 40] = raw[b : b + 40], raw[a : a + 40]
    file.write_bytes(raw)
    return f"bytes {a} and {b} of {file.name} swapped"


KINDS: list[Callable[[random.Random, Path], str]] = [
    flip, flip, flip, overwrite, truncate, lengthen, remove, empty, swap, swap_steps, swap_chunks,
]  # fmt: skip


def check(state: Any, step: int) -> None:
    expected = state_of(step)
    assert set(state) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(state[name], value)


def test_a_hundred_damages_are_found_and_the_older_step_is_used(whole: Path, tmp_path: Path) -> None:
    rng, original, kinds = random.Random(15), contents(whole), itertools.cycle(KINDS)
    done: dict[str, int] = {}
    tried = 0
    while sum(done.values()) < DAMAGES:
        tried += 1
        folder = tmp_path / str(tried)
        shutil.copytree(whole, folder)
        kind = next(kinds)
        told = kind(rng, folder / "step-00000003")
        if contents(folder) == original:
            continue  # zeros over zeros: no damage
        manager = sbp.checkpoint.Manager(folder)
        with pytest.warns(UserWarning, match=r"step 3 is damaged: .*Step 2 is used instead"):
            state = manager.restore(like=state_of(0) if tried % 2 else None)
        check(state, 2)
        assert manager.restored is not None and (manager.restored.step, manager.restored.data) == (2, {"step": 2}), told
        with pytest.warns(UserWarning, match="step 3 is damaged"):
            assert manager.latest_valid_step() == 2, told
        with pytest.raises(sbp.CheckpointDamaged):
            sbp.checkpoint.verify(folder / "step-00000003")
            if kind is swap_steps:  # whole and valid, but another step's
                raise sbp.CheckpointDamaged("")
        done[kind.__name__] = done.get(kind.__name__, 0) + 1
        shutil.rmtree(folder)
    assert sum(done.values()) == DAMAGES and set(done) == {kind.__name__ for kind in KINDS}


def test_every_bit_of_the_small_files_and_headers_counts(whole: Path, tmp_path: Path) -> None:
    """Not a sample: each byte of the newest step, one flipped bit at a time, on one copy."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    step = folder / "step-00000003"
    for file in sorted(step.iterdir()):
        raw = file.read_bytes()
        stride = 1 if file.name.startswith("data") else 7
        for place in range(0, len(raw), stride):
            changed = bytearray(raw)
            changed[place] ^= 1 << (place % 8)
            file.write_bytes(changed)
            with pytest.raises(sbp.CheckpointDamaged):
                sbp.checkpoint.verify(step)
        file.write_bytes(raw)
    sbp.checkpoint.verify(step)


def test_without_damage_the_newest_is_used_and_nothing_is_said(whole: Path) -> None:
    manager = sbp.checkpoint.Manager(whole)
    check(manager.restore(like=state_of(0)), 3)
    assert manager.latest_valid_step() == 3 == manager.latest_step()


def test_all_damaged_says_what_is_wrong_with_each(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    for k, step in enumerate(sorted((tmp_path / "run").iterdir())):
        [truncate, remove, flip][k](random.Random(k), step)
    manager = sbp.checkpoint.Manager(tmp_path / "run")
    with pytest.raises(sbp.CheckpointDamaged, match=r"step 3 is damaged: .*step 2 is damaged: .*step 1 is damaged: "):
        manager.restore()
    assert manager.latest_valid_step() is None


def test_damage_in_one_step_alone_is_an_error_where_that_step_is_asked_for(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    remove(random.Random(0), tmp_path / "run" / "step-00000003")
    with pytest.raises(sbp.CheckpointDamaged, match="step 3"):
        sbp.checkpoint.Manager(tmp_path / "run").restore(3)
    check(sbp.checkpoint.Manager(tmp_path / "run").restore(1), 1)


def test_the_message_names_the_file_and_the_leaf(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (file,) = (tmp_path / "run" / "step-00000003").glob("data*")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1  # the last leaf in order of names: w
    file.write_bytes(raw)
    with pytest.raises(sbp.CheckpointDamaged, match=rf"{file.name}: bytes \d+ to {len(raw)} \(of the leaf 'w'\)"):
        sbp.checkpoint.restore(tmp_path / "run" / "step-00000003")


def test_after_stepping_back_the_damaged_step_is_written_anew(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    flip(random.Random(1), tmp_path / "run" / "step-00000003")
    manager = sbp.checkpoint.Manager(tmp_path / "run", keep=2)
    with pytest.warns(UserWarning, match="step 3 is damaged"):
        manager.restore()
    manager.save(3, state_of(3), blocking=True)
    check(manager.restore(), 3)
    assert manager.all_steps() == [2, 3]


# Crafted, not damaged: a manifest with a right checksum may still say anything.
@pytest.mark.parametrize(
    "name", ["../evil.bin", "/etc/passwd", "data-00000-0123abcd.bin/../../x", "data-00000-0123abcd.exe", ""]
)
def test_names_that_lead_out_of_the_folder_are_refused(whole: Path, tmp_path: Path, name: str) -> None:
    import dataclasses

    from sbp_jax.checkpoint import manifest as manifests

    step = tmp_path / "state"
    shutil.copytree(whole / "step-00000003", step)
    told = manifests.read(step)
    crafted = dataclasses.replace(told, files={**told.files, name: {"bytes": 1}})
    (step / "manifest.json").write_text(manifests.to_text(crafted))
    with pytest.raises(sbp.CheckpointDamaged, match="no name of a checkpoint's file"):
        sbp.checkpoint.restore(step)


def test_links_are_not_followed(whole: Path, tmp_path: Path) -> None:
    step = tmp_path / "state"
    shutil.copytree(whole / "step-00000003", step)
    (file,) = step.glob("data*")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(sbp.CheckpointDamaged, match="cannot be opened"):
        sbp.checkpoint.restore(step)
    run = tmp_path / "run"
    run.mkdir()
    (run / "step-00000009").symlink_to(whole / "step-00000003")
    assert sbp.checkpoint.Manager(run).all_steps() == []


@pytest.mark.parametrize(
    "change",
    [
        {"leaf": 99}, {"box": [[0, 99], [0, 4]]}, {"box": [[0, 4]]}, {"box": [[4, 0], [0, 4]]}, {"offset": 0},
        {"offset": -64}, {"nbytes": 1 << 40}, {"box": "no"}, {"crc": "x"}, {"dtype": "object"}, {"dtype": "V8"},
        {"keys": 3},
    ],
)  # fmt: skip
def test_crafted_numbers_are_refused(whole: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    import json

    from sbp_jax.checkpoint import files
    from sbp_jax.checkpoint import manifest as manifests

    step = tmp_path / "state"
    shutil.copytree(whole / "step-00000003", step)
    (index,) = step.glob("index*")
    body = json.loads(index.read_text())
    row = body["chunks"][-1]
    for k, name in enumerate(("leaf", "box", "offset", "nbytes", "crc")):
        row[k] = change.get(name, row[k])
    index.write_text(files.compact(body))
    told = json.loads((step / "manifest.json").read_text())["manifest"]
    told["files"][index.name] = manifests.file_entry(index.read_bytes())
    leaf = next(x for x in told["leaves"] if x["kind"] == "jax")
    leaf |= {k: v for k, v in change.items() if k in ("dtype", "keys")}
    both = {"manifest": told, "sha256": manifests._sha256(files.compact(told).encode())}
    (step / "manifest.json").write_text(files.compact(both))
    with pytest.raises(sbp.CheckpointDamaged):
        sbp.checkpoint.restore(step)


def test_a_newer_format_says_so(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sbp_jax.checkpoint import manifest as manifests

    step = tmp_path / "state"
    shutil.copytree(whole / "step-00000003", step)
    told = manifests.read(step)
    monkeypatch.setattr(manifests, "VERSION", 2)
    (step / "manifest.json").write_text(manifests.to_text(told))
    monkeypatch.undo()
    with pytest.raises(sbp.CheckpointError, match=r"version 2; this version of sbp_jax reads .* version 1"):
        sbp.checkpoint.restore(step)
