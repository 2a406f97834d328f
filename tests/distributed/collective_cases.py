"""Collectives on every device's own tensor, and what numpy says that each device must get.

The cases run in one process of eight devices and in several processes: device r always has ``tensor_of(r)``.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sbp_jax as sbp

DEVICES = 8
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "product": np.prod}


def tensor_of(rank: int, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Numbers that differ by rank, small enough for sums and products of eight to be exact."""
    size = math.prod(shape)
    values = (np.arange(size) * 7 + rank * 5 + (np.arange(size) % (rank + 2))) % 3 - (0 if dtype[0] in "ub" else 1)
    if dtype == "bool":
        values = values % 2
    if dtype.startswith("complex"):
        values = values + 1j * ((values + rank) % 2)
    return values.reshape(shape).astype(jnp.dtype(dtype))


def my_ranks() -> list[int]:
    return [rank for rank, device in enumerate(jax.devices()) if device.process_index == jax.process_index()]


def case(name: str, shape: Sequence[int], dtype: str, options: dict[str, Any]) -> list[Any]:
    """One collective of all devices; the results of this process's devices."""
    mine = tuple(tensor_of(rank, shape, dtype) for rank in my_ranks())
    options = dict(options)
    listed = options.pop("listed", False)
    given: Any = tuple(list(x) for x in mine) if listed else mine
    found = getattr(sbp.distributed, name)(given, **options)
    assert isinstance(found, tuple) and len(found) == len(mine)
    return list(found)


def cases(table: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [case(*row) for row in table]


def expected(name: str, shape: Sequence[int], dtype: str, options: dict[str, Any]) -> list[Any]:
    """By numpy, for every device in rank order."""
    options = dict(options)
    listed = options.pop("listed", False)
    x = np.stack([tensor_of(rank, shape, dtype) for rank in range(DEVICES)])
    op = options.get("op", "sum")
    reduced = _reduced(x, op)
    root = options.get("src", options.get("dst", 0))
    if name == "all_reduce":
        return [reduced] * DEVICES
    if name == "reduce":
        return [reduced if rank == root else x[rank].astype(reduced.dtype) for rank in range(DEVICES)]
    if name == "broadcast":
        return [x[root]] * DEVICES
    if name == "all_gather":
        return [list(x)] * DEVICES
    if name == "gather":
        return [list(x) if rank == root else None for rank in range(DEVICES)]
    if name == "all_gather_into_tensor":
        return [x.reshape(-1, *shape[1:]) if shape else x] * DEVICES
    if name in ("reduce_scatter", "reduce_scatter_tensor"):
        return [part[0] if listed else part for part in np.split(reduced, DEVICES)]
    if name == "scatter":
        return [part[0] if listed else part for part in np.split(x[root], DEVICES)]
    assert name == "all_to_all"
    sent = [np.split(one, DEVICES) for one in x]
    received = [[sent[rank][to] for rank in range(DEVICES)] for to in range(DEVICES)]
    return [[part[0] for part in parts] if listed else np.concatenate(parts) for parts in received]


def _reduced(x: np.ndarray, op: str) -> np.ndarray:
    """With the dtypes that ``ReduceOp`` promises."""
    if op == "mean" and x.dtype.kind in "biu":
        return x.mean(axis=0).astype(np.float32)
    wide = x.astype(np.int32) if x.dtype == bool and op in ("sum", "product") else x
    if wide.dtype.kind == "c" and op in ("max", "min"):
        return wide[0]
    return np.asarray(REDUCTIONS[op](wide, axis=0)).astype(wide.dtype)


# name, shape, dtype, options
TABLE: list[tuple[str, list[int], str, dict[str, Any]]] = [
    *(("all_reduce", [4, 3], "float32", {"op": op}) for op in REDUCTIONS),
    *(("all_reduce", [5], "int32", {"op": op}) for op in REDUCTIONS),
    *(("all_reduce", [3], "bool", {"op": op}) for op in REDUCTIONS),
    *(("all_reduce", [2, 3], "complex64", {"op": op}) for op in ("sum", "mean", "product")),
    *(("all_reduce", [7], dtype, {}) for dtype in ("bfloat16", "float16", "int8", "uint8", "int16")),
    *(("all_reduce", [], "float32", {"op": op}) for op in ("sum", "product")),
    ("all_reduce", [0, 3], "float32", {}),
    ("all_gather", [3, 2], "float32", {}),
    ("all_gather", [], "int32", {}),
    ("all_gather", [2, 0], "float32", {}),
    *(("all_gather_into_tensor", [3, 2], dtype, {}) for dtype in ("bool", "int8", "bfloat16", "complex64", "float32")),
    ("all_gather_into_tensor", [], "float32", {}),
    ("all_gather_into_tensor", [0, 2], "float32", {}),
    ("all_to_all", [8, 3], "float32", {}),
    ("all_to_all", [16], "bool", {}),
    ("all_to_all", [8, 2], "int8", {"listed": True}),
    *(("broadcast", [3], dtype, {"src": 5}) for dtype in ("bool", "int8", "bfloat16", "complex64", "float32")),
    ("broadcast", [], "float32", {}),
    ("gather", [3], "float32", {"dst": 6}),
    ("reduce", [3], "float32", {"dst": 3, "op": "max"}),
    ("reduce", [3], "int32", {"op": "mean"}),
    *(("reduce_scatter", [16, 3], "float32", {"op": op}) for op in REDUCTIONS),
    ("reduce_scatter", [8, 2], "int8", {"listed": True}),
    ("reduce_scatter", [8, 2], "bfloat16", {"listed": True, "op": "max"}),
    ("reduce_scatter", [8], "bool", {}),
    ("reduce_scatter", [0, 2], "float32", {}),
    ("reduce_scatter_tensor", [8], "int32", {"op": "min"}),
    ("scatter", [8, 2], "float32", {"src": 4}),
    ("scatter", [8, 2], "bool", {"src": 1, "listed": True}),
]


def flat_results(results: Any) -> list[Any]:
    """Arrays, lists of arrays and None, as numpy."""
    return [
        None if one is None else [np.asarray(part) for part in one] if isinstance(one, list) else np.asarray(one)
        for one in results
    ]


def check_same(found: Sequence[Any], wanted: Sequence[Any], what: Any) -> None:
    """Every device's result, dtype and shape included."""
    assert len(found) == len(wanted)
    for rank, (one, other) in enumerate(zip(flat_results(found), wanted, strict=True)):
        if other is None or one is None:
            assert one is other, f"{what}: rank {rank} has {one}"
            continue
        if isinstance(one, np.ndarray):
            one, other = [one], [other]
        assert len(one) == len(other), f"{what}: rank {rank} has {len(one)} tensors"
        for part, wished in zip(one, other, strict=True):
            assert part.dtype == wished.dtype and part.shape == wished.shape, f"{what}: rank {rank}: {part}"
            np.testing.assert_allclose(
                part.astype(np.complex128), wished.astype(np.complex128), rtol=1e-2 if "bfloat16" in what else 1e-6,
                err_msg=f"{what}: rank {rank}",
            )  # fmt: skip


# What follows is compared between one process and several as it is, and with numpy where the test says so.


def case_plain() -> list[Any]:
    """One array for all devices: the same for the same array, however many processes the devices belong to."""
    x = jnp.arange(16.0).reshape(8, 2)
    d = sbp.distributed
    return [
        np.asarray(d.all_reduce(x)),
        np.asarray(d.all_gather_into_tensor(x)),
        [np.asarray(one) for one in d.all_gather(jnp.float32(3))],
        np.asarray(d.broadcast(x, src=7)),
        np.asarray(d.all_reduce(2)),
        np.asarray(d.all_reduce([[1.0, 2.0]] * 3 if False else np.ones((2, 2)), op="mean")),
    ]


def case_by_rank() -> list[Any]:
    """Results that differ by rank, of one array for all devices: by this process's devices."""
    found = sbp.distributed.reduce_scatter(jnp.arange(16.0))
    each = found if isinstance(found, tuple) else (found,)
    assert isinstance(found, tuple) == (jax.local_device_count() > 1)
    return [np.asarray(one) for one in each]


def case_groups() -> list[Any]:
    """Along one axis of a mesh: sums by row, and by column."""
    p = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    mine = tuple(np.float32(2**rank) for rank in my_ranks())
    d = sbp.distributed
    rows = d.all_reduce(mine, group="tp", placement=p)
    columns = d.all_reduce(mine, group="dp", placement=p)
    both = d.all_reduce(mine, group=("dp", "tp"), placement=p)
    gathered = d.all_gather_into_tensor(mine, group="dp", placement=p)
    sent = d.broadcast(mine, src=1, group="dp", placement=p)
    return [
        [float(a), float(b), float(c), np.asarray(e).tolist(), float(f)]
        for a, b, c, e, f in zip(rows, columns, both, gathered, sent, strict=True)
    ]


def case_global() -> list[Any]:
    """Global tensors: signatures, and logical values."""
    p = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    d = sbp.distributed
    x = sbp.arange(32, dtype="float32", placement=p, sbp="P, S(0)")
    y = sbp.arange(64, dtype="int32", placement=p, sbp="S(0), B")
    found = [
        d.all_reduce(x, group="dp"),
        d.reduce_scatter(x, group="dp"),
        d.all_reduce(y, group="dp"),
        d.all_gather_into_tensor(y, group="dp"),
        *d.all_gather(y, group="dp"),
        d.broadcast(y, src=1, group="dp"),
        d.reduce(y, dst=1, group="dp"),
        *d.gather(y, dst=1, group="dp"),
        d.scatter(y, src=1, group="dp"),
        d.all_to_all(y, group="dp"),
        d.all_reduce(y),
    ]
    return [[str(one.sbp), one.numpy()] for one in found]


def case_send() -> list[Any]:
    """Every rank to its right neighbour, and back a number, with tags."""
    d = sbp.distributed
    found = []
    for rank in range(DEVICES):
        right = (rank + 1) % DEVICES
        for x, tag in ((tensor_of(rank, [3, rank], "int32"), 0), (np.float32(rank), 1)):
            if rank in my_ranks():
                d.send(x, dst=right, src=rank, tag=tag)
            if right in my_ranks():
                found.append([right, tag, np.asarray(d.recv(src=rank, dst=right, tag=tag))])
    d.barrier()
    return found
