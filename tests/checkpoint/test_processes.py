"""Checkpoints of several processes: 4 with 2 devices each. Every case runs in all of them."""

import errno
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import sbp_jax as sbp
from sbp_jax.signature import Partial
from world import World

LIMIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=4, devices=2) as world:
        yield world


def placements() -> dict[str, Any]:
    return {
        "all": sbp.placement("cpu", ranks=range(8), axis_names=("dp",)),
        "grid": sbp.placement("cpu", ranks=[[0, 2, 4], [1, 3, 5]], axis_names=("tp", "dp")),
        "three": sbp.placement("cpu", ranks=[6, 1, 4], axis_names=("dp",)),
        "second": sbp.placement("cpu", ranks=[2, 3], axis_names=("dp",)),  # process 1 of 4 alone
    }


def whole(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def spread(x: np.ndarray, where: Any, *spec: Any) -> jax.Array:
    sharding = NamedSharding(where.mesh, PartitionSpec(*spec))
    return jax.make_array_from_callback(x.shape, sharding, lambda i: x[i], dtype=x.dtype)


def state_of(where: dict[str, Any], step: int = 0) -> dict[str, Any]:
    x = whole((24, 10)) + step
    tensor = sbp.zeros(11, 7, placement=where["all"], sbp="B") + whole((11, 7))
    return {
        "rows": spread(x, where["all"], "dp"),
        "both": spread(x, where["grid"], "dp", "tp"),
        "copies": spread(whole((5,), np.int32), where["all"]),
        "half": spread(whole((6, 2), jnp.bfloat16), where["second"], "dp"),
        "uneven": tensor.to_global(sbp="S(0)") if where["all"].size <= 11 else tensor,
        "partial": tensor.to_global(sbp="P"),
        "own": jnp.arange(3.0) + jax.process_index(),  # each process has another: that of process 0 is kept
        "host": np.arange(4) + jax.process_index(),
        "step": step,
        "key": jax.random.key(3),
    }


def ranks_here(x: sbp.GlobalTensor) -> list[int]:
    return [r for r in x.placement.flat_ranks if jax.devices()[r].process_index == jax.process_index()]


def check(found: dict[str, Any], step: int = 0) -> None:
    """That every device of this process holds what it must."""
    expected = {
        "rows": whole((24, 10)) + step, "both": whole((24, 10)) + step, "copies": whole((5,), np.int32),
        "half": whole((6, 2), jnp.bfloat16), "uneven": whole((11, 7)), "partial": whole((11, 7)), "own": np.arange(3.0),
        "host": np.arange(4), "step": step,
    }  # fmt: skip
    assert set(found) == {*expected, "key"}
    for name, value in expected.items():
        x = found[name]
        if isinstance(x, sbp.GlobalTensor):
            parts = dict(zip(ranks_here(x), x.to_local(), strict=True))
            for position in np.ndindex(x.placement.shape):
                rank = int(x.placement.ranks[position])
                if rank in parts:
                    is_idle = any(k for c, k in zip(x.sbp, position, strict=True) if isinstance(c, Partial))
                    np.testing.assert_array_equal(parts[rank], 0 * value if is_idle else value[x.spec.box(position)])
        elif isinstance(x, jax.Array):
            assert x.dtype == np.asarray(value, x.dtype).dtype and x.shape == np.shape(value)
            for shard in x.addressable_shards:
                np.testing.assert_array_equal(shard.data, value[shard.index])
        else:
            np.testing.assert_array_equal(x, value)
    for shard in found["key"].addressable_shards:
        np.testing.assert_array_equal(jax.random.key_data(shard.data), jax.random.key_data(jax.random.key(3)))


def case_save_and_restore(folder: str) -> list[str]:
    where = placements()
    state = state_of(where)
    sbp.checkpoint.save(folder, state, chunk_bytes=100, timeout_seconds=LIMIT_SECONDS)
    for found in (sbp.checkpoint.restore(folder), sbp.checkpoint.restore(folder, state)):
        check(found)
        assert (
            found["half"].sharding.is_equivalent_to(state["half"].sharding, 2)
            and found["partial"].sbp == state["partial"].sbp
        )
    sbp.checkpoint.verify(folder)
    return sorted(os.listdir(folder))


def test_every_process_writes_its_own_and_restores_its_own(world: World, tmp_path: Path) -> None:
    for names in world.run(case_save_and_restore, str(tmp_path / "state")):
        assert [name.split("-")[0] for name in names] == ["data"] * 4 + ["index"] * 4 + ["manifest.json"]
    # And this process alone, with 8 devices, where there were 4 processes.
    check(sbp.checkpoint.restore(tmp_path / "state"))
    sizes = [x.stat().st_size for x in (tmp_path / "state").glob("data-*")]
    assert max(sizes) < 0.5 * sum(sizes)


def case_restore_elsewhere(folder: str) -> None:
    where = placements()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("three", "second", "grid", "all"):
            found = sbp.checkpoint.restore(folder, placement=where[name], timeout_seconds=LIMIT_SECONDS)
            for x in (found["rows"], found["uneven"]):
                devices = x.placement.mesh.devices if isinstance(x, sbp.GlobalTensor) else x.sharding.mesh.devices
                assert [d.id for d in devices.flat] == [d.id for d in where[name].mesh.devices.flat]
            if name == "three":
                lengths = {r: n for r, n in zip([6, 1, 4], [4, 4, 3], strict=True)}
                mine = [r for r in [6, 1, 4] if jax.devices()[r].process_index == jax.process_index()]
                assert [len(found["uneven"].to_local(r)) for r in mine] == [lengths[r] for r in mine]
            if name in ("all", "grid"):
                check(found)
    like = {"uneven": sbp.empty(11, 7, placement=where["grid"], sbp="S(1), S(0)")}
    try:
        sbp.checkpoint.restore(folder, like)
    except sbp.CheckpointError as error:
        assert "only in the checkpoint" in str(error)


def test_restored_by_other_processes_than_saved_it(world: World, tmp_path: Path) -> None:
    """Saved by one process with 8 devices; restored by 4 processes on 3, 2, 6 and 8 devices."""
    sbp.checkpoint.save(tmp_path / "state", state_of(placements()), chunk_bytes=64)
    world.run(case_restore_elsewhere, str(tmp_path / "state"))


def case_bytes_read(folder: str) -> list[float]:
    """Saved by rows; restored by columns, uneven, whole on one process: what is read and allocated for it."""
    where = placements()
    x = whole((512, 1024))
    saved = sbp.checkpoint.Manager(folder, chunk_bytes=1 << 14, timeout_seconds=LIMIT_SECONDS)
    saved.save(1, {"x": spread(x, where["all"], "dp")}, blocking=True)
    found = []
    likes = [
        NamedSharding(where["all"].mesh, PartitionSpec(None, "dp")),
        sbp.empty(512, 1024, placement=where["grid"], sbp="S(0), S(1)"),
        NamedSharding(where["second"].mesh, PartitionSpec("dp")),
    ]
    for like in likes:
        tracemalloc.start()
        y = saved.restore(like={"x": like})["x"]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert saved.restored is not None
        found.append([saved.restored.bytes_read / x.nbytes, peak / x.nbytes])
        if isinstance(y, jax.Array):
            for shard in y.addressable_shards:
                np.testing.assert_array_equal(shard.data, x[shard.index])
    return found


def test_each_process_reads_what_its_devices_need(world: World, tmp_path: Path) -> None:
    """Of 2 MiB: by columns a quarter each; 2 x 3 pieces a third each for three processes; all for one alone."""
    found = world.run(case_bytes_read, str(tmp_path / "run"))
    for rank, (columns, uneven, alone) in enumerate(found):
        assert columns[0] == 0.25
        assert uneven[0] <= (0.375 if rank < 3 else 0)  # 342 of 1,024 columns, rounded to chunks of 64
        assert alone[0] == (1.0 if rank == 1 else 0.0)
        # What is allocated besides the parts themselves: the manifest, the chunks under way.
        assert columns[1] <= 0.25 + 0.15 and uneven[1] <= 0.36 + 0.15


def case_full_disk(folder: str, full: int) -> None:
    from sbp_jax.checkpoint import files

    where = placements()
    manager = sbp.checkpoint.Manager(folder, timeout_seconds=LIMIT_SECONDS)
    manager.save(1, state_of(where, 1))
    manager.wait()
    real = files.reserve

    def no_space(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if jax.process_index() == full:
        files.reserve = no_space
    try:
        manager.save(2, state_of(where, 2))
        message = ""
        try:
            manager.wait()
        except sbp.CheckpointError as error:
            message = str(error)
        assert f"rank {full}: No space left on device" in message, message
    finally:
        files.reserve = real
    assert sorted(os.listdir(folder)) == ["step-00000001"]
    check(manager.restore(like=state_of(where)), 1)
    manager.save(3, state_of(where, 3), data={"n": jax.process_index()})
    check(manager.restore(), 3)
    assert manager.restored is not None and manager.restored.data == {"n": 0}
    assert manager.latest_valid_step() == 3 and manager.all_steps() == [1, 3]


@pytest.mark.parametrize("full", [0, 2])
def test_a_full_disk_of_one_process_is_an_error_of_all(world: World, tmp_path: Path, full: int) -> None:
    world.run(case_full_disk, str(tmp_path / "run"), full)


def case_differ(folder: str, what: str) -> None:
    where = placements()
    state = state_of(where)
    step = 5
    if jax.process_index() == 2:
        if what == "leaf":
            state["rows"] = spread(whole((8, 10)), where["all"], "dp")
        elif what == "more":
            state["zz"] = jnp.zeros(3)
        elif what == "step":
            step = 6
        elif what == "type":
            state["own"] = print
        elif what == "missing":
            return
    sbp.checkpoint.Manager(folder, timeout_seconds=3).save(step, state, blocking=True)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("leaf", r"first difference: rank 0 has rows: float32[24, 10] (jax), rank 2 has rows: float32[8, 10]"),
        ("more", "rank 0 has nothing more, rank 2 has zz: float32[3] (jax)"),
        ("type", "the leaf 'own' is builtin_function_or_method"),
        ("missing", "rank 2 has not come within 3 s"),
        ("step", "the processes save different steps, by rank: [5, 5, 6, 5]"),
    ],
)
def test_processes_that_save_different_things(world: World, tmp_path: Path, what: str, told: str) -> None:
    errors = world.errors(case_differ, str(tmp_path / what), what)
    for rank, error in enumerate(errors):
        if what == "missing" and rank == 2:
            assert error is None
        else:
            assert error is not None and error[0] in ("CheckpointError", "ProcessError") and told in error[1], error
    assert not any(x.name.startswith("step") for x in (tmp_path / what).glob("*"))


def case_another_model(folder: str, whose: int | None) -> None:
    where = placements()
    state = {"a": spread(whole((8, 2)), where["all"], "dp"), "b": 1}
    sbp.checkpoint.save(folder, state, timeout_seconds=LIMIT_SECONDS)
    like = dict(state)
    if whose is None or jax.process_index() == whose:
        like["a"] = jax.ShapeDtypeStruct((8, 3), jnp.float32)
    sbp.checkpoint.restore(folder, like, timeout_seconds=LIMIT_SECONDS)


@pytest.mark.parametrize("whose", [None, 0, 3])
def test_another_model_is_an_error_of_all(world: World, tmp_path: Path, whose: int | None) -> None:
    for error in world.errors(case_another_model, str(tmp_path / "state"), whose):
        assert error is not None and error[0] == "CheckpointError"
        assert "a: saved float32[8, 2], expected float32[8, 3]" in error[1]


def case_damage(folder: str) -> None:
    import warnings

    where = placements()
    like = {"x": NamedSharding(where["all"].mesh, PartitionSpec("dp"))}
    manager = sbp.checkpoint.Manager(folder, timeout_seconds=LIMIT_SECONDS)
    for step in (1, 2):
        manager.save(step, {"x": spread(whole((64, 8)) + step, where["all"], "dp")})
    manager.wait()
    from sbp_jax.processes import store

    if jax.process_index() == 0:  # a part that process 3 alone reads
        (file,) = (Path(folder) / "step-00000002").glob("data-00003-*")
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 4
        file.write_bytes(raw)
    store().barrier("damaged")
    for again in (lambda: manager.restore(like=like), manager.latest_valid_step):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = again()
        assert len(told) == (jax.process_index() == 0)
        assert all("step 2 is damaged: rank 3: data-00003" in str(x.message) for x in told) or found == 1
        if isinstance(found, dict):
            for shard in found["x"].addressable_shards:
                np.testing.assert_array_equal(shard.data, (whole((64, 8)) + 1)[shard.index])


def test_damage_that_one_process_sees_makes_all_step_back(world: World, tmp_path: Path) -> None:
    world.run(case_damage, str(tmp_path / "run"))
