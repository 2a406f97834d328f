"""Layers planned apart: which layer a cluster is of, and plans that use memory up between two plans of like layers."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.calls import capture
from sbp_jax.planner.apart import Apart, Grouping, apart, translated
from sbp_jax.planner.costs.cost_graph import penalised
from sbp_jax.planner.graph.stack import cut, layer_numbers
from sbp_jax.planner.memory.footprint import Footprint
from sbp_jax.planner.methods import Task
from sbp_jax.planner.optimize.program import solve
from sbp_jax.planner.optimize.search import Found
from sbp_jax.planner.output.plan_builder import build_plan
from sbp_jax.planner.prepare import Prepared
from sbp_jax.planner.request import Request

LAYERS, WIDTH, HIDDEN, BATCH = 10, 256, 1024, 1024
WHERE = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="a100-80")


def step(state, x):
    def loss(w):
        h = x
        for layer in w:
            h = h + jnp.tanh(h @ layer["up"]) @ layer["down"]
        return (h * h).mean()

    grads = jax.grad(loss)(state["w"])
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grads)
    return {"w": jax.tree.map(lambda w, m: w - 0.1 * m, state["w"], moments), "m": moments}


def shapes():
    w = [{"up": f32(WIDTH, HIDDEN), "down": f32(HIDDEN, WIDTH)} for _ in range(LAYERS)]
    return {"w": w, "m": w}, f32(BATCH, WIDTH)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@functools.cache
def prepared() -> Prepared:
    program, _, _ = capture.trace(step, shapes(), {}, (), (0,))
    return Prepared(program, Request(WHERE, sbp.cluster.get("a100-80")))


def test_every_cluster_is_of_the_layer_whose_weights_it_reads() -> None:
    clustering, classes = prepared().clustered
    number = layer_numbers(clustering.clusters, classes)
    program = prepared().program
    label = {op.outs[0].id: op.label for op in program.input_ops}
    of_layer: dict[int, set[int]] = {}
    for cluster in clustering.clusters:
        for v in (*cluster.ins, *cluster.outs):
            if "/w/" in label.get(v.id, ""):  # the forward and the backward products, the update
                of_layer.setdefault(int(label[v.id].split("/w/")[1].split("/")[0]), set()).add(
                    int(number[cluster.index])
                )
    assert sorted(of_layer) == list(range(LAYERS))
    found = [of_layer[k] for k in range(LAYERS)]
    assert all(len(x) == 1 for x in found), found
    numbers = [x.pop() for x in found]
    assert numbers == list(range(LAYERS)) or numbers == list(range(LAYERS))[::-1]


def test_cut_classes_have_all_clusters_and_one_part_each() -> None:
    clustering, classes = prepared().clustered
    number = layer_numbers(clustering.clusters, classes)
    is_first = number < 4
    differ = {classes[c.index] for c in clustering.clusters if c.ops[0].name == "tanh"}
    new, origin = cut(clustering.clusters, classes, differ, is_first)
    assert max(new) + 1 == len(origin) == len(set(new))
    for k, old, first in zip(new, classes, is_first.tolist(), strict=True):
        assert origin[k][0] == old and (first or not origin[k][1])
        assert old not in differ or origin[k][1] == first


@functools.cache
def alike(part: float) -> tuple[Task, Found]:
    """What a search knows within ``part`` of what the cheapest plan holds: that plan, one that fits, a bound."""
    ready = prepared()
    free = solve(ready.graph)
    assert free is not None
    held = ready.footprint.over_time(free.choice)
    limit, point = part * held.max(), int(held.argmax())
    for rate in np.geomspace(0.03, 30.0, 12) * free.objective / held.max():
        found = solve(penalised(ready.graph, [(rate, ready.footprint.at(point))]))
        assert found is not None
        if ready.footprint.over_time(found.choice).max() <= limit:
            break
    seconds = ready.graph.evaluate(found.choice)
    task = Task(ready.graph, ready.footprint, limit, clusters_per_class=5.0, find_roles=lambda: ready.roles)
    return task, Found(found, seconds, free.bound, free.objective, memory_is_short=True, free_choice=free.choice)


def cut_plan(task: Task, found: Found) -> Apart | None:
    ready = prepared()
    return apart(task, found, Grouping(ready.decisions, ready.footprint), lambda x: ready.priced(None, x))


def test_memory_between_two_plans_of_like_layers_is_used() -> None:
    task, found = alike(0.7)
    cut = cut_plan(task, found)
    assert cut is not None and task.limit_bytes is not None and found.free_seconds is not None
    choice, new = cut.found.solution.choice, cut.grouping
    # Without a limit, of layers alike within it, and between the two.
    assert found.free_seconds * 0.99 < cut.found.bound <= cut.found.seconds < found.seconds
    held = new.footprint.over_time(choice).max()
    before = task.footprint.over_time(found.solution.choice).max()
    assert before < held <= task.limit_bytes
    assert cut.found.seconds == cut.problem.evaluate(choice)
    assert any("layers are planned apart" in n for n in cut.found.notes)
    # What was minimised is what the plan's ops and boxings add up to: no link between the parts is forgotten.
    p = build_plan(new.decisions, choice, new.footprint, prepared().request, "step")
    assert p.compute_seconds + p.boxing_seconds == pytest.approx(cut.found.seconds, rel=1e-3)
    assert p.memory_per_device == held


def test_layers_apart_are_planned_only_where_memory_is_short_and_a_gap_is_open() -> None:
    task, found = alike(0.7)
    for other in (
        replace(found, memory_is_short=False), replace(found, free_choice=None), replace(found, bound=found.seconds),
        replace(found, free_choice=found.solution.choice),
    ):  # fmt: skip
        assert cut_plan(task, other) is None
    assert cut_plan(replace(task, clusters_per_class=1.0), found) is None
    assert cut_plan(replace(task, limit_bytes=1.0), found) is None  # nothing fits


def test_a_cut_stack_costs_what_its_plan_adds_up_to() -> None:
    """A link from a class of all layers to one of some of them would be paid for all of them."""
    ready = prepared()
    clustering, classes = ready.clustered
    number = layer_numbers(clustering.clusters, classes)
    _, found = alike(0.7)
    usual, tried = found.solution.choice, 0
    for k, name in enumerate([c.ops[0].name for c in ready.decisions.representative]):
        if name not in ("tanh", "mul", "transpose") or ready.decisions.count[k] < LAYERS - 2:
            continue
        new, origin = cut(clustering.clusters, classes, {k}, number < LAYERS // 2)
        problem, decisions = ready.priced(None, new)
        footprint = Footprint(decisions, problem, ready.footprint.liveness)
        other = list(usual)
        other[k] = (usual[k] + 1) % len(ready.graph.nodes[k])
        choice = translated(problem, decisions, ready.decisions, origin, other, usual)
        p = build_plan(decisions, choice, footprint, ready.request, "step")
        assert problem.evaluate(choice) == pytest.approx(p.compute_seconds + p.boxing_seconds, rel=1e-3), name
        same = translated(problem, decisions, ready.decisions, origin, usual, usual)
        assert problem.evaluate(same) == pytest.approx(ready.graph.evaluate(usual), rel=1e-9)
        assert problem.evaluate(choice) > problem.evaluate(same)
        tried += 1
    assert tried >= 3
