"""The checkpoints of a run: written in the background, whole or not at all, the newest ones kept."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.checkpoint import files, write


def state_of(step: int) -> dict[str, Any]:
    return {"w": jnp.full((64, 8), float(step)), "step": step}


def check(state: Any, step: int) -> None:
    assert state["step"] == step
    np.testing.assert_array_equal(state["w"], state_of(step)["w"])


def test_the_newest_are_kept(tmp_path: Path) -> None:
    with sbp.checkpoint.Manager(tmp_path / "run", keep=2) as manager:
        assert manager.latest_step() is None and manager.latest_valid_step() is None and manager.all_steps() == []
        with pytest.raises(sbp.CheckpointError, match="there is no checkpoint in"):
            manager.restore()
        for step in (1, 5, 20, 100_000_000_000):
            manager.save(step, state_of(step), data=[step])
        manager.wait()
        assert manager.all_steps() == [20, 100_000_000_000]
        check(manager.restore(like=state_of(0)), 100_000_000_000)
        check(manager.restore(20), 20)
        assert manager.restored is not None and (manager.restored.step, manager.restored.data) == (20, [20])
        assert manager.info(20).data == [20]
        with pytest.raises(sbp.CheckpointError, match=r"no checkpoint of step 5; there are \[20, 100000000000\]"):
            manager.restore(5)
        with pytest.raises(sbp.CheckpointError, match=r"no checkpoint of step 5"):
            manager.info(5)
    kept = sbp.checkpoint.Manager(tmp_path / "run", keep=None)
    kept.save(np.int64(7), state_of(7), blocking=True)
    assert kept.all_steps() == [7, 20, 100_000_000_000]


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", None])
def test_a_step_is_a_whole_number(tmp_path: Path, step: Any) -> None:
    with pytest.raises(sbp.CheckpointError, match="a step is a whole number"):
        sbp.checkpoint.Manager(tmp_path).save(step, {})
    with pytest.raises(sbp.CheckpointError, match="keep="):
        sbp.checkpoint.Manager(tmp_path, keep=0)


def test_files_are_private_even_where_the_umask_is_open(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        sbp.checkpoint.Manager(tmp_path / "a" / "run").save(1, state_of(1), blocking=True)
    finally:
        os.umask(old)
    for path in (tmp_path / "a").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_save_returns_while_it_writes_and_the_state_may_be_donated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, real = threading.Event(), write._write_chunk
    monkeypatch.setattr(write, "_write_chunk", lambda *args: (go.wait(30), real(*args))[1])
    manager = sbp.checkpoint.Manager(tmp_path / "run")
    state = jnp.arange(1000.0)
    host = np.arange(5)
    manager.save(1, {"x": state, "host": host})
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    for _ in range(3):
        state = step(state)
    host[:] = -1
    assert manager.all_steps() == []
    go.set()
    manager.wait()
    found = manager.restore()
    np.testing.assert_array_equal(found["x"], np.arange(1000.0))
    np.testing.assert_array_equal(found["host"], np.arange(5))


@pytest.mark.parametrize("then", ["save", "wait", "restore", "close", "with", "latest_valid_step"])
def test_what_fails_in_the_background_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    manager = sbp.checkpoint.Manager(tmp_path / "run")
    manager.save(1, state_of(1), blocking=True)
    with monkeypatch.context() as patch:
        patch.setattr(files, "reserve", _no_space)
        manager.save(2, state_of(2))
        assert manager._thread is not None
        manager._thread.join()
    with pytest.raises(sbp.CheckpointError, match="No space left on device"):
        if then == "save":
            manager.save(3, state_of(3))
        elif then == "with":
            with manager:
                pass
        else:
            getattr(manager, then)()
    check(manager.restore(), 1)
    assert sorted(x.name for x in (tmp_path / "run").iterdir()) == ["step-00000001"]
    manager.save(4, state_of(4), blocking=True)
    check(manager.restore(), 4)


def _no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["create", "write_exactly", "write_text", "sync_folder", "rename"])
@pytest.mark.parametrize("has_old", [True, False])
def test_a_full_disk_at_any_point_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, has_old: bool
) -> None:
    """For a run's folder, and where the same step, or path, is written again."""
    manager, path = sbp.checkpoint.Manager(tmp_path / "run"), tmp_path / "single"
    manager.save(1, state_of(1), blocking=True)
    if has_old:
        manager.save(2, state_of(2), blocking=True)
        sbp.checkpoint.save(path, state_of(2))
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with monkeypatch.context() as patch:
        if where == "rename":
            patch.setattr(Path, "rename", _no_space)
            patch.setattr(Path, "replace", _no_space)
        else:
            patch.setattr(files, where, _no_space)
        for save in (
            lambda: manager.save(2, state_of(20), blocking=True),
            lambda: sbp.checkpoint.save(path, state_of(20)),
        ):
            with pytest.raises(sbp.CheckpointError, match=r"failed, and left nothing behind.*No space left on device"):
                save()
    if where != "sync_folder":  # there all is written: only whether it would survive a loss of power is not known
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
        check(manager.restore(), 2 if has_old else 1)
        assert path.exists() == has_old
    manager.save(3, state_of(3), blocking=True)
    check(manager.restore(), 3)
    sbp.checkpoint.save(path, state_of(3))
    check(sbp.checkpoint.restore(path), 3)


KILLED = """
import os, signal, sys, jax.numpy as jnp, sbp_jax as sbp
from pathlib import Path
from sbp_jax.checkpoint import files
left = [int(sys.argv[2])]
def deadly(fn):
    def call(*args, **kwargs):
        left[0] -= 1
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return fn(*args, **kwargs)
    return call
for room, names in ((os, "pwrite fsync open mkdir write"), (Path, "rename replace unlink mkdir")):
    for name in names.split():
        setattr(room, name, deadly(getattr(room, name)))
state = lambda step: {"w": jnp.full((64, 32), float(step)), "step": step}
manager = sbp.checkpoint.Manager(sys.argv[1] + "/run", keep=2, chunk_bytes=1 << 11)
step = (manager.latest_step() or 0) + 1
while True:
    manager.save(step, state(step))
    sbp.checkpoint.save(sys.argv[1] + "/single", state(step), chunk_bytes=1 << 11)
    manager.save(step, state(step))  # again, in the place of the first
    step += 1
"""


@pytest.mark.parametrize("count", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_a_valid_one(tmp_path: Path, count: int) -> None:
    """Killed before an operation on files, whichever: the first saves have some 25 of them each."""
    rng, last = np.random.default_rng(7), 0
    environment = {**os.environ, "PYTHONPATH": str(Path(sbp.__file__).parents[1])}
    for k in range(count):
        before = str(rng.integers(120, 200) if k == 0 else rng.integers(1, 100))
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), before], env=environment, timeout=120)
        assert killed.returncode == -signal.SIGKILL
        manager = sbp.checkpoint.Manager(tmp_path / "run")
        found = manager.latest_valid_step()  # a warning, of damage, would be an error
        assert found is not None and found == max(manager.all_steps()) and found >= last
        state = manager.restore()
        assert state["step"] == found and np.all(np.asarray(state["w"]) == found)
        single = sbp.checkpoint.restore(tmp_path / "single")
        assert np.all(np.asarray(single["w"]) == single["step"]) and last - 1 <= single["step"] <= found + 1
        last = found
    manager = sbp.checkpoint.Manager(tmp_path / "run")
    manager.save(last + 1, {"w": jnp.zeros(2), "step": last + 1}, blocking=True)
    assert all(not x.name.startswith(".") for x in (tmp_path / "run").iterdir())  # what was left over is gone


def test_the_last_save_is_finished_when_the_program_ends(tmp_path: Path) -> None:
    source = (
        "import sys, jax.numpy as jnp, sbp_jax as sbp\n"
        "sbp.checkpoint.Manager(sys.argv[1]).save(3, {'w': jnp.ones((2000, 1000))})\n"
        "raise SystemExit(0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(sbp.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", source, str(tmp_path)], check=True, env=environment, timeout=120)
    assert sbp.checkpoint.Manager(tmp_path).restore()["w"].shape == (2000, 1000)


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    with pytest.raises(sbp.CheckpointError, match="holds other things than a checkpoint"):
        sbp.checkpoint.save(tmp_path / "mine", {"x": 1})
    with pytest.raises(sbp.CheckpointError, match="is a file"):
        sbp.checkpoint.save(tmp_path / "file", {"x": 1})
    with pytest.raises(sbp.CheckpointError, match="does not exist"):
        sbp.checkpoint.restore(tmp_path / "none")
    with pytest.raises(sbp.CheckpointDamaged, match=r"manifest\.json is missing"):
        sbp.checkpoint.restore(tmp_path / "mine")
    sbp.checkpoint.Manager(tmp_path / "run").save(3, {"x": 1}, blocking=True)
    with pytest.raises(sbp.CheckpointError, match=r"checkpoints of a manager: .*step-00000003"):
        sbp.checkpoint.restore(tmp_path / "run")
    assert sbp.checkpoint.restore(tmp_path / "run" / "step-00000003") == {"x": 1}
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"
