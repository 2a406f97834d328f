"""The reader of compiled programs: on real ones, and on the forms that GPUs' compilers write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sbp_jax.errors import SbpError
from sbp_jax.lower import hlo


def compiled(f, shape: tuple[int, ...] = (2, 4), dtype=jnp.float32) -> str:
    names = ("a", "b", "c")[: len(shape)]
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape), names)
    spec = PartitionSpec()
    g = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
    return g.lower(jax.ShapeDtypeStruct((16, 8), dtype)).compile().as_text() or ""


@pytest.mark.parametrize(
    ("f", "kind", "sent"),
    [
        (lambda x: lax.psum(x, "b"), "all-reduce", 2 * 3 / 4 * 512),
        (lambda x: lax.pmax(x, ("a", "b")), "all-reduce", 2 * 7 / 8 * 512),
        (lambda x: lax.psum_scatter(x, "b", tiled=True), "reduce-scatter", 3 / 4 * 512),
        (lambda x: lax.all_gather(x, "a", tiled=True), "all-gather", 1 * 512),
        (lambda x: lax.all_to_all(x, "b", 0, 1, tiled=True), "all-to-all", 3 / 4 * 512),
        (lambda x: lax.ppermute(x, "b", [(i, (i + 1) % 4) for i in range(4)]), "collective-permute", 512),
    ],
)
def test_kinds_and_bytes(f, kind: str, sent: float) -> None:
    assert hlo.count(compiled(f)) == {kind: (1, sent)}


@pytest.mark.parametrize("axes", [("a",), ("b",), ("c",), ("a", "b"), ("a", "c"), ("b", "c"), ("a", "b", "c")])
def test_groups_are_mesh_axes(axes: tuple[str, ...]) -> None:
    (found,) = hlo.collectives(compiled(lambda x: lax.psum(x, axes), (2, 2, 2)))
    assert hlo.mesh_axes(found.groups, (2, 2, 2)) == tuple("abc".index(a) for a in axes)


def test_groups_that_are_no_axes() -> None:
    assert hlo.mesh_axes([(0, 3), (1, 2)], (2, 2)) is None


def test_loops_count_by_their_trips() -> None:
    def step(x, _):
        return lax.psum(x, "a") * 0.5, None

    def nested(x, _):
        return lax.scan(step, x, None, length=3)[0], None

    assert hlo.count(compiled(lambda x: lax.scan(step, x, None, length=5)[0]))["all-reduce"][0] == 5
    assert hlo.count(compiled(lambda x: lax.scan(nested, x, None, length=4)[0]))["all-reduce"][0] == 12


def test_a_loop_without_a_known_end() -> None:
    def body(x):
        return lax.psum(x, "a") * 0.3

    (found,) = hlo.collectives(compiled(lambda x: lax.while_loop(lambda y: y.sum() > 1, body, x)))
    assert (found.times, found.known) == (1.0, False)


def test_every_branch_counts() -> None:
    def f(x):
        return lax.cond(x.sum() > 0, lambda y: lax.psum(y, "a"), lambda y: lax.psum(y, "b") * 2, x)

    found = hlo.collectives(compiled(f))
    assert len(found) == 2 and all(c.in_conditional for c in found)


def test_sixteen_bit_sums_are_promoted_on_cpu() -> None:
    (found,) = hlo.collectives(compiled(lambda x: lax.psum(x, "a"), dtype=jnp.bfloat16))
    assert found.promoted and found.operand.elements == 128


def test_scopes_reach_the_text() -> None:
    def f(x):
        with jax.named_scope("box17"):
            return lax.psum(x, "a")

    (found,) = hlo.collectives(compiled(f))
    assert "/box17/" in found.op_name


GPU = """HloModule jit_f, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%body (p: (s32[], f32[64])) -> (s32[], f32[64]) {
  %p = (s32[], f32[64]{0}) parameter(0)
  %x = f32[64]{0} get-tuple-element(%p), index=1
  %ar-start = f32[64]{0} all-reduce-start(%x), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%add
  %ar-done = f32[64]{0} all-reduce-done(%ar-start)
  ROOT %t = (s32[], f32[64]{0}) tuple(%i, %ar-done)
}

%cond (p: (s32[], f32[64])) -> pred[] {
  ROOT %lt = pred[] constant(false)
}

ENTRY %main (x: bf16[16,8], y: f32[32]) -> (bf16[64,8], f32[32]) {
  %x = bf16[16,8]{1,0} parameter(0)
  %y = f32[32]{0} parameter(1)
  %ag-start = (bf16[16,8]{1,0}, bf16[64,8]{1,0}) all-gather-start(%x), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  %ag-done = bf16[64,8]{1,0} all-gather-done(%ag-start)
  %both = (f32[32]{0}, f32[16]{0}) all-reduce(%y, /*index=1*/%z), replica_groups={}, to_apply=%add, metadata={op_name="jit(f)/box3/psum"}
  %z = f32[16]{0} constant({...})
  %w = (s32[], f32[64]{0}) while(%init), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"6"}}
  ROOT %r = (bf16[64,8]{1,0}, f32[32]{0}) tuple(%ag-done, %y)
}
"""  # noqa: E501


def test_gpu_forms() -> None:
    found = {c.instruction: c for c in hlo.collectives(GPU) if c.instruction != "both"}
    gather, reduce = found["ag-start"], found["ar-start"]
    assert gather.groups == ((0, 2, 4, 6), (1, 3, 5, 7)) and gather.sent_bytes == 3 * 16 * 8 * 2
    assert reduce.times == 6 and reduce.groups[1] == (4, 5, 6, 7) and reduce.sent_bytes == 2 * 3 / 4 * 256
    both = [c for c in hlo.collectives(GPU) if c.instruction == "both"]
    assert [c.operand.elements for c in both] == [32, 16] and both[0].group_size == 8
    assert hlo.count(GPU)["all-reduce"][0] == 8


def test_the_face_of_verify() -> None:
    assert hlo.count("HloModule empty") == {}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("mesh['x'=2,'y'=4] {'y'}", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("mesh['x'=2,'y'=4] {'x'}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("mesh['x'=2,'y'=2] {'x','y'}", [(0, 1, 2, 3)]),
        ("mesh['x'=2,'y'=2] {'y','x'}", [(0, 2, 1, 3)]),
        ("mesh['o'=1,'x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("mesh['x'=2,'y'=2], device_ids=(3,1,2,0) {'y'}", [(3, 1), (2, 0)]),
        ("mesh['x'=8] {'x':(1)2}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("mesh['x'=8] {'x':(2)2}", [(0, 2), (1, 3), (4, 6), (5, 7)]),
        ("mesh['x'=8] {'x':(4)2,'x':(1)2}", [(0, 4, 1, 5), (2, 6, 3, 7)]),
        ("mesh['x'=2,'o'=1] {'o'}", [(0,), (1,)]),
    ],
)
def test_groups_along_the_axes_of_a_mesh(groups: str, expected: list[tuple[int, ...]]) -> None:
    text = f"""HloModule f, num_partitions=8
ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0)
  ROOT %r = f32[4]{{0}} all-reduce(f32[4]{{0}} %x), channel_id=1, replica_groups={groups}, to_apply=%add
}}
"""
    (found,) = hlo.collectives(text)
    assert list(found.groups) == expected


def test_groups_that_cannot_be_read_are_an_error() -> None:
    text = """HloModule f, num_partitions=8
ENTRY %main (x: f32[4]) -> f32[4] {
  ROOT %r = f32[4]{0} all-reduce(f32[4]{0} %x), replica_groups=<4 of them>, to_apply=%add
}
"""
    with pytest.raises(SbpError, match=r"cannot read the groups of a collective .*<4 of them>"):
        hlo.collectives(text)


def test_groups_of_programs_that_xla_partitioned() -> None:
    """XLA writes those along mesh axes, here of a mesh whose devices are not in order."""
    devices = np.array(jax.devices()[:8])[[3, 1, 2, 0, 7, 5, 6, 4]].reshape(2, 2, 2)
    mesh = Mesh(devices, ("a", "b", "c"))
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(None, ("a", "c"))))
    w = jax.ShapeDtypeStruct((32, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(("a", "c"))))
    f = jax.jit(lambda x, w: x @ w, out_shardings=NamedSharding(mesh, PartitionSpec()))
    (found,) = hlo.collectives(f.lower(x, w).compile().as_text() or "")
    assert hlo.mesh_axes(found.groups, (2, 2, 2)) == (0, 2)
    assert found.sent_bytes == 2 * 3 / 4 * 512
