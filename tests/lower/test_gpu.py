"""What XLA's compiler for GPUs needs, and does, and that for CPUs does not: ``benchmarks/gpu_compile.py`` runs it."""

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import JaxprEqn
from jax.sharding import AbstractMesh, AxisType

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.lower.emit import local_function
from sbp_jax.lower.verify import verify_text
from sbp_jax.shardings import to_partition_spec

N = 8


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def train(ws, x):
    """Three layers; the gradients, reduced where they are made."""

    def loss(ws):
        y = x
        for w in ws:
            y = jnp.sin(y @ w)
        return jnp.sum(y)

    return jax.tree.map(lambda g: 2.0 * jnp.abs(g), jax.grad(loss)(ws))


ARGS = ([f32(64, 64)] * 3, f32(4096, 64))


def lowered(kind: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[sbp.Plan, list[JaxprEqn]]:
    """A plan for that kind of device, and the ops that each one runs."""
    where = sbp.placement.abstract(N, axis_names="dp", type=kind, cluster="h100")
    plan = sbp.plan(fn, *args, placement=where, in_sbp=("B", "S(0)"), out_sbp="B")
    program = capture.trace(fn, args, {}, (), ())[0]
    ins, outs = (
        [to_partition_spec(x.signature, where, len(x.shape)) for x in side] for side in (plan.inputs, plan.outputs)
    )
    mesh = AbstractMesh((N,), ("dp",), axis_types=(AxisType.Auto,))
    pieces = local_function(program, plan)
    step = jax.shard_map(pieces, mesh=mesh, in_specs=tuple(ins), out_specs=outs, check_vma=False)
    (call,) = jax.make_jaxpr(step)(*jax.tree.leaves(args)).eqns
    return plan, call.params["jaxpr"].eqns


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_nothing_waits_for_what_is_sent_where_collectives_run_beside_compute(kind: str) -> None:
    plan, eqns = lowered(kind, train, ARGS)
    assert sum(m.is_collective for b in plan.boxing_list for m in b.moves) == 3
    sent = {v for e in eqns if e.primitive.name.startswith("psum") for v in e.outvars}
    sent |= {v for e in eqns if e.primitive.name == "transpose" and e.invars[0] in sent for v in e.outvars}
    held = {v for e in eqns if e.primitive.name == "optimization_barrier" for v in e.invars}
    assert sent and held
    assert bool(sent & held) == (kind == "cpu")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_nothing_waits_for_a_bias_gradient_on_gpus(kind: str) -> None:
    """XLA for GPUs sums it in the kernel that makes what it is the sum of."""

    def biased(ws, x):
        return jax.grad(lambda ws: jnp.sum(jnp.sin(jnp.sin(x @ ws[0] + ws[1]) @ ws[0])))(ws)

    _, eqns = lowered(kind, biased, ([f32(64, 64), f32(64)], f32(4096, 64)))
    barriers = [e for e in eqns if e.primitive.name == "optimization_barrier"]
    held = {v.aval.str_short() for e in barriers for v in e.invars}
    assert held and ("float32[64]" in held) == (kind == "cpu")


def joined(elements: int, dtype: str = "f32") -> str:
    """The text of a program with one reduction of a flat array."""
    return f"""HloModule m, is_scheduled=true, num_partitions={N}

ENTRY %main_spmd (p: {dtype}[{elements}]) -> {dtype}[{elements}] {{
  %p = {dtype}[{elements}]{{0}} parameter(0)
  %r = {dtype}[{elements}]{{0}} all-reduce-start(%p), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, to_apply=%add
  ROOT %done = {dtype}[{elements}]{{0}} all-reduce-done(%r)
}}
"""


@pytest.mark.parametrize(
    ("elements", "dtype", "ok", "left_out"),
    [(3 * 4096, "f32", True, 0), (2 * 4096, "f32", True, 1), (12289, "f32", False, 3), (3 * 4096, "bf16", False, 3)],
)
def test_reductions_that_xla_joins_are_the_plans(elements: int, dtype: str, ok: bool, left_out: int) -> None:
    where = sbp.placement.abstract(N, axis_names="dp", cluster="h100")
    plan = sbp.plan(train, *ARGS, placement=where, in_sbp=("B", "S(0)"), out_sbp="B")
    report = verify_text(plan, joined(elements, dtype))
    assert (report.ok, len(report.left_out)) == (ok, left_out)


def test_a_mesh_of_devices_that_are_not_here_is_for_compiling() -> None:
    """As those of ``jax.experimental.topologies``: described, and in no backend."""

    @dataclasses.dataclass(frozen=True)
    class Described:
        id: int
        platform: str = "gpu"
        device_kind: str = "NVIDIA H100 80GB HBM3"
        process_index: int = 0

    devices = [[Described(4 * i + k) for k in range(4)] for i in range(2)]
    mesh = jax.sharding.Mesh(devices, ("dp", "tp"))
    where = sbp.placement.from_mesh(mesh)
    assert where.is_abstract and where.can_compile and where.mesh is mesh
    assert (where.shape, where.axis_names, where.cluster) == ((2, 4), ("dp", "tp"), "h100")
    other = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="h100")
    assert not other.can_compile and other != where
    assert pickle.loads(pickle.dumps(where)).mesh is mesh
    with pytest.raises(sbp.PlacementError, match="abstract"):
        _ = other.mesh
    step = sbp.auto_parallel(jnp.sin, placement=mesh)
    plan = step.plan(f32(64, 8))
    assert plan.cluster == "h100" and plan.placement == where
    assert type(plan).from_json(plan.to_json()).placement == where
    with pytest.raises(sbp.PlanError, match="not run here, only compiled"):
        step(jnp.ones((64, 8)))
    with pytest.raises(sbp.PlanError, match="topologies"):
        sbp.auto_parallel(jnp.sin, placement=other).lower(f32(64, 8))
