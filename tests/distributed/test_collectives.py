"""Collectives in one process of eight devices and in four processes of two: the same cases, the same numbers."""

import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import collective_cases as cc
import sbp_jax as sbp
from sbp_jax.distributed import ReduceOp
from world import World


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(processes=4, devices=2) as world:
        world.run("jax.devices()")  # JAX's backends start together: no limit of ours is kept by the first who uses one.
        yield world


@pytest.mark.parametrize("row", cc.TABLE, ids=lambda row: f"{row[0]}-{row[2]}{row[1]}-{row[3]}".replace(" ", ""))
def test_one_process(row: Any) -> None:
    cc.check_same(cc.case(*row), cc.expected(*row), str(row))


def test_four_processes(world: World) -> None:
    results = world.run(cc.cases, cc.TABLE, timeout=400)
    for k, row in enumerate(cc.TABLE):
        cc.check_same([one for process in results for one in process[k]], cc.expected(*row), str(row))


@pytest.mark.slow
def test_eight_processes_of_one_device() -> None:
    with World(processes=8, devices=1) as world:
        results = world.run(cc.cases, cc.TABLE, timeout=900)
        for k, row in enumerate(cc.TABLE):
            cc.check_same([one for process in results for one in process[k]], cc.expected(*row), str(row))
        for found in world.run(cc.case_plain):
            check_plain(found)
        assert [one for process in world.run(cc.case_by_rank) for one in np.concatenate(process)] == scattered()
        check_send(world.run(cc.case_send, timeout=300))


def check_plain(found: list[Any]) -> None:
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    np.testing.assert_array_equal(found[0], 8 * x)
    np.testing.assert_array_equal(found[1], np.tile(x, (8, 1)))
    assert [float(one) for one in found[2]] == [3.0] * 8
    np.testing.assert_array_equal(found[3], x)
    assert found[4].item() == 16 and found[4].dtype == np.int32
    np.testing.assert_array_equal(found[5], np.ones((2, 2)))


def scattered() -> list[float]:
    return [8.0 * n for n in range(16)]


def test_one_array_for_all_devices(world: World) -> None:
    check_plain(cc.case_plain())
    for found in world.run(cc.case_plain):
        check_plain(found)


def test_results_by_rank_come_as_a_tuple(world: World) -> None:
    assert list(np.concatenate(cc.case_by_rank())) == scattered()
    assert [one for process in world.run(cc.case_by_rank) for one in np.concatenate(process)] == scattered()


def test_groups_are_axes_of_a_mesh(world: World) -> None:
    powers = 2.0 ** np.arange(8).reshape(2, 4)
    wanted = [
        [powers[row].sum(), powers[:, column].sum(), 255.0, powers[:, column].tolist(), powers[1, column]]
        for row in range(2)
        for column in range(4)
    ]
    assert cc.case_groups() == wanted
    assert [one for process in world.run(cc.case_groups) for one in process] == wanted


def check_global(found: list[Any]) -> None:
    x, y = np.arange(32.0), np.arange(64)
    top, low = y[:32], y[32:]
    wanted = [
        ("B, S(0)", x),
        ("S(0), S(0)", None),
        ("B, B", top + low),
        ("B, B", y),
        ("B, B", top),
        ("B, B", low),
        ("B, B", low),
        ("P, B", top + low),
        ("P, B", top),
        ("P, B", low),
        ("S(0), B", low),
        ("S(0), B", np.concatenate([top[:16], low[:16], top[16:], low[16:]])),
        ("B, B", 4 * (top + low)),
    ]
    for (signature, value), (expected, numbers) in zip(found, wanted, strict=True):
        assert signature == expected
        if numbers is not None:
            np.testing.assert_array_equal(value, numbers)
    # Each device of tp has a piece of 8, of which dp gets halves: pieces stay where they are.
    np.testing.assert_array_equal(np.sort(found[1][1]), x)


def test_global_tensors(world: World) -> None:
    check_global(cc.case_global())
    for found in world.run(cc.case_global):
        check_global(found)


def check_send(found: list[list[Any]]) -> None:
    received = {(right, tag): x for process in found for right, tag, x in process}
    assert len(received) == 16
    for rank in range(8):
        right = (rank + 1) % 8
        np.testing.assert_array_equal(received[right, 0], cc.tensor_of(rank, [3, rank], "int32"))
        assert received[right, 1] == rank and received[right, 1].dtype == np.float32


def test_send_and_recv(world: World) -> None:
    check_send([cc.case_send()])
    check_send(world.run(cc.case_send, timeout=300))


def test_reduce_scatter_of_the_documentation(world: World) -> None:
    """No. 28 of the behaviour: 1 to 12 as 4x3, from two ranks."""
    p = sbp.placement("cpu", [0, 1])
    first, second = sbp.distributed.reduce_scatter(jnp.arange(1, 13).reshape(4, 3), placement=p)
    assert first.tolist() == [[2, 4, 6], [8, 10, 12]]
    assert second.tolist() == [[14, 16, 18], [20, 22, 24]]
    source = """
p = sbp.placement("cpu", [0, 2])     # of processes 0 and 1
found = sbp.distributed.reduce_scatter(jnp.arange(1, 13).reshape(4, 3), placement=p)
return None if found is None else found.tolist()
"""
    assert world.run(source) == [[[2, 4, 6], [8, 10, 12]], [[14, 16, 18], [20, 22, 24]], None, None]


# Inside shard_map


def mapped(fn: Any, out: PartitionSpec = PartitionSpec(("dp", "tp"))) -> Any:  # noqa: B008
    mesh = jax.make_mesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=PartitionSpec(("dp", "tp")), out_specs=out, check_vma=False))


@pytest.mark.parametrize("op", list(ReduceOp))
def test_inside_shard_map(op: ReduceOp) -> None:
    x = np.arange(1.0, 65.0, dtype=np.float32) / 16
    whole = cc.REDUCTIONS[op.value]
    found = mapped(lambda y: sbp.distributed.all_reduce(y, op))(x)
    np.testing.assert_allclose(found[:8], whole(x.reshape(8, 8), axis=0), rtol=1e-5)
    found = mapped(lambda y: sbp.distributed.reduce_scatter(y, op, group="tp"))(x)
    np.testing.assert_allclose(found[:2], whole(x[:32].reshape(4, 8), axis=0)[:2], rtol=1e-5)


def test_inside_shard_map_the_rest() -> None:
    d, x = sbp.distributed, np.arange(64.0, dtype=np.float32)
    np.testing.assert_array_equal(mapped(lambda y: d.all_gather(y, group="dp")[1])(x)[:8], x[32:40])
    np.testing.assert_array_equal(mapped(lambda y: d.all_gather_into_tensor(y))(x)[:64], x)
    np.testing.assert_array_equal(mapped(lambda y: d.broadcast(y, src=3))(x)[:8], x[24:32])
    np.testing.assert_array_equal(mapped(lambda y: d.scatter(y, src=2))(x), x[16:24])
    sent = mapped(lambda y: d.all_to_all(y))(x)
    np.testing.assert_array_equal(sent, x.reshape(8, 8).T.ravel())
    listed = mapped(lambda y: d.all_to_all([y[:4], y[4:]], group="dp")[1])(x)
    np.testing.assert_array_equal(listed[:4], x[32:36])
    reduced = mapped(lambda y: d.reduce(y, dst=1, group="tp"))(x)
    np.testing.assert_array_equal(reduced[8:16], x[:32].reshape(4, 8).sum(0))
    np.testing.assert_array_equal(reduced[:8], x[:8])


def test_inside_shard_map_what_is_exchanged_may_be_a_sum_over_copies_of_a_transposed_array() -> None:
    """XLA for CPUs simplifies the sum, changes the layout of part of what is exchanged, and refuses the program."""

    def fn(x: Any) -> Any:
        copies = lax.broadcast_in_dim(lax.transpose(x, (2, 1, 0)), (8, 4, 1, 4), (0, 1, 2))
        return sbp.distributed.all_to_all(jnp.cos(copies).sum(-1), group="dp")

    x = np.random.default_rng(0).normal(size=(8, 4, 8)).astype(np.float32)
    summed = [4 * np.cos(x[k : k + 1].transpose(2, 1, 0)) for k in range(8)]
    # Rank (dp, tp) is number 4 * dp + tp.
    expected = [np.concatenate([summed[k % 4 + 4 * j][4 * (k // 4) :][:4] for j in range(2)]) for k in range(8)]
    np.testing.assert_allclose(mapped(fn)(x), np.concatenate(expected), rtol=1e-5)


def test_a_collective_differentiates() -> None:
    loss = mapped(lambda y: sbp.distributed.all_reduce((y**2).sum(), "mean"), PartitionSpec())
    np.testing.assert_allclose(jax.grad(loss)(jnp.arange(8.0)), 2 * np.arange(8.0) / 8)


def test_a_repeated_call_compiles_nothing() -> None:
    x = tuple(jax.device_put(jnp.ones((4, 4)), device) for device in jax.devices())
    sbp.distributed.all_reduce(x)
    with no_compilation():
        sbp.distributed.all_reduce(x)


class no_compilation:
    """Fails if JAX compiles or traces in the block."""

    def __enter__(self) -> None:
        self.seen: list[str] = []
        jax.monitoring.register_event_duration_secs_listener(self._see)

    def _see(self, event: str, duration_secs: float, **_: Any) -> None:
        self.seen.append(event)

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._see)
        assert [event for event in self.seen if "compile" in event or "trace" in event] == []


def test_negative_zero_and_nan_are_broadcast_as_they_are() -> None:
    x = np.array([-0.0, np.nan, np.inf, -np.inf], np.float32)
    found = sbp.distributed.broadcast(tuple(x if rank == 2 else np.ones_like(x) for rank in range(8)), src=2)
    assert np.asarray(found[5]).tobytes() == x.tobytes()


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.reduce_scatter(jnp.ones(12)), r"12 \(of shape \(12,\)\) does not divide: pad it by 4 to 16"),
        (lambda d: d.reduce_scatter(1.0), "the tensor has no dims"),
        (lambda d: d.all_to_all([jnp.ones(2)] * 3), "takes a list of 8 tensors, one for each rank of the group; got 3"),
        (lambda d: d.all_to_all([jnp.ones(2)] * 7 + [jnp.ones(3)]), "must have one shape and dtype"),
        (lambda d: d.all_reduce(jnp.ones(3), op="median"), "'median' is no reduction; possible: sum, max, min, mean"),
        (lambda d: d.all_reduce(jnp.ones(3, jnp.complex64), op="max"), "complex numbers have no order"),
        (lambda d: d.all_reduce((jnp.ones(3),) * 2), "a tuple of 2 tensors, and this process has 8"),
        (
            lambda d: d.all_reduce((jnp.ones(3),) * 7 + (jnp.ones(4),)),
            r"got rank 0: float32\[3\].*rank 7: float32\[4\]",
        ),
        (lambda d: d.all_reduce((jnp.ones(3),) * 7 + (jnp.ones(3, int),)), r"rank 7: int32\[3\]"),
        (lambda d: d.broadcast(jnp.ones(3), src=8), "src=8: the group .* has 8 members, ranks 0 to 7"),
        (lambda d: d.gather(jnp.ones(3), dst=-1), "dst=-1"),
        (lambda d: d.all_reduce(jnp.ones(3), group="tp"), "has no axis 'tp'; its axes: axis0; placement= says"),
        (lambda d: d.all_reduce(jnp.ones(3), group=()), "must be the name of a mesh axis"),
        (lambda d: d.all_reduce("x"), "is no array"),
        (lambda d: d.scatter(), "rank 0 of .* is the source, and passed no tensor"),
        (lambda d: jax.jit(d.all_reduce)(jnp.ones(3)), "there is no shard_map around"),
        (lambda d: jax.jit(lambda x: d.all_reduce(x, group="tp"))(jnp.ones(3)), "the axis 'tp' is not bound here"),
        (lambda d: jax.jit(lambda x: d.barrier())(jnp.ones(3)), "call it outside"),
        (lambda d: d.send(jnp.ones(3), dst=1), "say which one with src="),
        (lambda d: d.send(jnp.ones(3), dst=9, src=0), "rank 9 is none of"),
        (lambda d: d.recv(dst=1), "from which rank"),
        (lambda d: d.recv(jnp.ones(3), src=0, dst=1, timeout_seconds=0.1), "recv without send: rank 0 .* to rank 1"),
    ],
)
def test_errors_say_what_is_wrong(call: Any, message: str) -> None:
    with pytest.raises(sbp.SbpError, match=message):
        call(sbp.distributed)


def test_components_of_different_shapes_are_an_error() -> None:
    x = sbp.arange(10, placement=sbp.placement("cpu", range(4)), sbp=sbp.split(0))
    with pytest.raises(sbp.SbpError, match=r"components of .* have different shapes"):
        sbp.distributed.all_reduce(x)


def test_a_send_that_nobody_receives_is_an_error_at_the_next_barrier() -> None:
    sbp.distributed.send(jnp.ones(3), dst=4, src=2)
    with pytest.raises(sbp.ProcessError, match=r"send without recv: .* rank 2 \(process 0\) to rank 4 .*float32\[3\]"):
        sbp.distributed.barrier()
    sbp.distributed.barrier()


def test_what_is_received_is_checked() -> None:
    sbp.distributed.send(jnp.ones(3), dst=4, src=2)
    with pytest.raises(sbp.ProcessError, match=r"recv expects int32\[2\], and float32\[3\] was sent"):
        sbp.distributed.recv(jnp.ones(2, int), src=2, dst=4)


def test_recv_waits_for_another_thread() -> None:
    sender = threading.Timer(0.3, functools.partial(sbp.distributed.send, jnp.ones(3), dst=1, src=0))
    sender.start()
    assert sbp.distributed.recv(src=0, dst=1).tolist() == [1.0] * 3
    sender.join()


def errors_of(world: World, source: str) -> list[str]:
    found = world.errors(source, timeout=60)
    assert all(one is None or one[0] in ("ProcessError", "SbpError") for one in found), found
    return ["" if one is None else one[1] for one in found]


@pytest.mark.parametrize("missing", [0, 2])
def test_a_collective_that_only_some_call_names_who_is_missing(world: World, missing: int) -> None:
    """No. 29 of the behaviour."""
    source = f"""
if sbp.env.get_rank() == {missing}:
    import time
    time.sleep(8)
sbp.distributed.all_reduce(jnp.ones(3), timeout_seconds=2)
"""
    # The missing one too, which comes when the others have given up: it must not go on alone.
    for text in errors_of(world, source):
        assert f"rank {missing} has not come within 2 s" in text and "all_reduce(sum) of float32[3]" in text


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        ("d.all_reduce(jnp.ones(3 + (r == 2)))", ["float32[3]", "process 2 calls all_reduce(sum) of float32[4]"]),
        ("d.all_reduce(jnp.ones(3, int if r == 1 else float))", ["float32[3]", "process 1 calls", "int32[3]"]),
        (
            "d.all_reduce(jnp.ones(3), op='max' if r == 3 else 'sum')",
            ["all_reduce(sum)", "process 3 calls all_reduce(max)"],
        ),
        ("d.all_gather(jnp.ones(3)) if r == 1 else d.all_reduce(jnp.ones(3))", ["process 1 calls all_gather()"]),
        ("d.barrier() if r == 1 else d.all_reduce(jnp.ones(3))", ["process 1 calls barrier()"]),
        ("d.broadcast(jnp.ones(3), src=r)", ["broadcast(rank 0)", "process 1 calls broadcast(rank 1)"]),
    ],
)
def test_calls_that_differ_are_an_error_everywhere(world: World, call: str, parts: list[str]) -> None:
    for text in errors_of(world, f"d, r = sbp.distributed, sbp.env.get_rank()\n{call}"):
        assert "the processes differ in what they call" in text
        assert all(part in text for part in parts), text


def test_a_process_that_cannot_take_part_stops_all(world: World) -> None:
    source = "sbp.distributed.all_reduce((jnp.ones(3), jnp.ones(3 + (sbp.env.get_rank() == 1))))"
    errors = errors_of(world, source)
    assert "one shape and dtype; got rank 2: float32[3], rank 3: float32[4]" in errors[1]
    for text in errors[:1] + errors[2:]:
        assert "process 1 cannot take part" in text and "rank 3: float32[4]" in text


def test_send_without_recv_names_both(world: World) -> None:
    errors = errors_of(
        world, "if sbp.env.get_rank() == 1: sbp.distributed.send(jnp.ones(3), dst=7, src=2, timeout_seconds=1)"
    )
    assert "send without recv: rank 2 (process 1) to rank 7 (process 3)" in errors[1] and "within 1 s" in errors[1]
    errors = errors_of(world, "if sbp.env.get_rank() == 3: sbp.distributed.recv(src=2, dst=7, timeout_seconds=1)")
    assert "recv without send: rank 2 (process 1) to rank 7 (process 3)" in errors[3]


def test_all_goes_on_after_errors(world: World) -> None:
    assert [np.asarray(x).tolist() for x in world.run("return sbp.distributed.all_reduce(jnp.ones(2))")] == [[8, 8]] * 4
