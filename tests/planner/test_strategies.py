"""The named strategies are what their names say, on programs unlike the zoo: what is split, what is sent, and where."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.signature import Split

LINE = sbp.placement.abstract((8,), axis_names=("dp",), cluster="a100-80")
MESH = sbp.placement.abstract((2, 4), axis_names=("dp", "tp"), cluster="a100-80")
DATA_PARALLEL = ("data_parallel", "zero2", "zero3")


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def trained(loss: Callable[[Any, Any], jax.Array], micro: int = 0, reshaped: int = 0) -> Callable[..., Any]:
    """A step with momentum; over ``micro`` batches along a leading dim, or over those cut out of one batch."""

    def grad(w, batch):
        if not micro:
            return jax.grad(loss)(w, batch)
        if reshaped:
            batch = jax.tree.map(lambda x: x.reshape(micro, x.shape[0] // micro, *x.shape[1:]), batch)
        zero = jax.tree.map(jnp.zeros_like, w)
        return jax.lax.scan(lambda g, b: (jax.tree.map(jnp.add, g, jax.grad(loss)(w, b)), None), zero, batch)[0]

    def step(state, batch):
        m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], grad(state["w"], batch))
        return {"w": jax.tree.map(lambda w, m: w - 0.1 * m, state["w"], m), "m": m}, jnp.float32(0)

    return step


def convolutions(w, b):
    """Without normalisation: nothing but gradients is summed over examples."""
    x = b["image"]
    for k in ("a", "b"):
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(x, w[k], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        )
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    logits = x.reshape(x.shape[0], -1) @ w["head"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), b["label"][:, None], 1))


def attention(w, b):
    x = w["embed"][b["tokens"]] + w["position"][None]
    n, s, d = x.shape
    mask = jnp.where(jnp.tril(jnp.ones((s, s))) > 0, 0.0, -1e9)

    def block(x, p):
        q, k, v = ((x @ p[name]).reshape(n, s, 8, d // 8) for name in "qkv")
        a = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k) / 4 + mask, -1)
        x = x + jnp.einsum("bhst,bthd->bshd", a, v).reshape(n, s, d) @ p["o"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"], None

    x, _ = jax.lax.scan(block, x, w["blocks"])
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x @ w["embed"].T), b["labels"][..., None], -1))


def recurrence(w, b):
    """Batch first outside, time first inside the loop."""
    h0 = jnp.zeros((b["x"].shape[0], w["h"].shape[0]))
    h, _ = jax.lax.scan(lambda h, x: (jnp.tanh(x @ w["i"] + h @ w["h"]), None), h0, jnp.swapaxes(b["x"], 0, 1))
    return jnp.mean((h @ w["o"] - b["y"]) ** 2)


def language(w, b):
    """Time first, and all positions of all sequences together in the head."""
    h0 = jnp.zeros((b["x"].shape[1], w["h"].shape[0]))

    def cell(h, x):
        h = jnp.tanh(x @ w["i"] + h @ w["h"])
        return h, h

    _, hs = jax.lax.scan(cell, h0, b["x"])
    logits = hs.reshape(-1, hs.shape[-1]) @ w["o"]
    return jnp.mean((logits.reshape(*hs.shape[:2], -1) - b["y"]) ** 2)


def messages(w, b):
    h = b["nodes"] @ w["e"]
    for _ in range(2):
        m = jax.nn.relu(jnp.concatenate([h[b["from"]], h[b["to"]]], -1) @ w["m"])
        h = h + jax.ops.segment_sum(m, b["to"], num_segments=h.shape[0]) @ w["u"]
    return jnp.mean((h @ w["o"] - b["y"]) ** 2)


def mixed(w, b):
    """Arguments of several ranks; class weights and a temperature that have no examples."""
    h = jax.nn.relu(b["x"] @ w["a"]) + jax.nn.relu(b["seq"] @ w["b"]).sum(1)
    error = ((h @ w["o"] * b["classes"] - b["y"]) ** 2).mean(-1)
    return jnp.mean(error * b["weight"]) / b["temperature"]


def two_sources(w, b):
    """Labelled and other examples, so many of each: two batches."""
    return jnp.mean((jnp.tanh(b["x"] @ w["a"]) - b["y"]) ** 2) + jnp.mean(jnp.tanh(b["u"] @ w["a"]) ** 2)


CONV = {"a": f32(3, 3, 3, 32), "b": f32(3, 3, 32, 64), "head": f32(64 * 16 * 16, 16)}
BLOCKS = {**{k: f32(4, 128, 128) for k in "qkvo"}, "up": f32(4, 128, 512), "down": f32(4, 512, 128)}
GPT = {"embed": f32(512, 128), "position": f32(64, 128), "blocks": BLOCKS}
RNN = {"i": f32(32, 128), "h": f32(128, 128), "o": f32(128, 256)}
GNN = {"e": f32(16, 64), "m": f32(128, 64), "u": f32(64, 64), "o": f32(64, 8)}
MIXED = {"a": f32(32, 256), "b": f32(16, 256), "o": f32(256, 64)}


def graphs(*n: int) -> dict[str, Any]:
    return {"nodes": f32(*n, 64, 16), "from": i32(*n, 256), "to": i32(*n, 256), "y": f32(*n, 64, 8)}


# Step, parameters, batch, the dim of each argument that counts examples (None: it has none).
CASES: dict[str, tuple[Any, Any, Any, dict[str, int | None]]] = {
    "convolutions": (trained(convolutions), CONV, {"image": f32(64, 32, 32, 3), "label": i32(64)},
                     {"image": 0, "label": 0}),
    "rows first": (trained(lambda w, b: convolutions(w, {**b, "image": jnp.moveaxis(b["image"], 2, 0)})), CONV,
                   {"image": f32(32, 32, 64, 3), "label": i32(64)}, {"image": 2, "label": 0}),
    "micro-batches": (trained(convolutions, 4), CONV, {"image": f32(4, 64, 32, 32, 3), "label": i32(4, 64)},
                      {"image": 1, "label": 1}),
    "scanned layers": (trained(attention), GPT, {"tokens": i32(32, 64), "labels": i32(32, 64)},
                       {"tokens": 0, "labels": 0}),
    "scanned layers, micro-batches": (trained(attention, 4), GPT, {"tokens": i32(4, 32, 64), "labels": i32(4, 32, 64)},
                                      {"tokens": 1, "labels": 1}),
    "recurrence": (trained(recurrence), RNN, {"x": f32(64, 24, 32), "y": f32(64, 256)}, {"x": 0, "y": 0}),
    "graphs": (trained(lambda w, b: jnp.mean(jax.vmap(messages, (None, 0))(w, b))), GNN, graphs(32),
               {"nodes": 0, "from": 0, "to": 0, "y": 0}),
    "ranks": (trained(mixed), MIXED, {"x": f32(64, 32), "seq": f32(64, 24, 16), "y": f32(64, 64), "weight": f32(64),
              "classes": f32(64), "temperature": f32()},
              {"x": 0, "seq": 0, "y": 0, "weight": 0, "classes": None}),
    "two sources": (trained(two_sources), {"a": f32(32, 64)}, {"x": f32(64, 32), "y": f32(64, 64), "u": f32(160, 32)},
                    {"x": 0, "y": 0, "u": 0}),
}  # fmt: skip


def plan(name: str, solver: str, where: sbp.Placement, case: Any = None) -> sbp.Plan:
    step, w, batch, _ = case or CASES[name]
    config = sbp.AutoParallelConfig(solver=solver)
    return sbp.plan(step, {"w": w, "m": w}, batch, placement=where, donate_argnums=0, config=config)


def collectives(p: sbp.Plan) -> list[tuple[str, float, tuple[int, ...]]]:
    return [(m.kind, b.times, tuple(b.shape)) for b in p.boxings() for m in b.moves if m.is_collective]


@pytest.mark.parametrize("where", [LINE, MESH], ids=str)
@pytest.mark.parametrize("solver", DATA_PARALLEL)
@pytest.mark.parametrize("name", CASES)
def test_the_batch_is_split_and_only_sums_over_it_are_sent(name: str, solver: str, where: sbp.Placement) -> None:
    _, w, _, batch_dims = CASES[name]
    p = plan(name, solver, where)
    of = {leaf.path: leaf.signature for leaf in p.inputs}
    for key, dim in batch_dims.items():
        expected = sbp.broadcast if dim is None else Split(dim)
        assert all(c == expected for c in of[f"1/{key}"]), (key, of[f"1/{key}"])
    state_whole = {"data_parallel": "wm", "zero2": "w", "zero3": ""}[solver]
    for path, s in of.items():
        if path.startswith("0/"):
            assert all(isinstance(c, Split) != (path[2] in state_whole) for c in s), (path, s)
    # Gradients and parameters, transposed or not, layer by layer where the loop has them so; sums of a scalar.
    shapes = {tuple(sorted(x.shape)) for x in jax.tree.leaves(w)}
    layers = {s[1:] for x in jax.tree.leaves(w) if len(s := x.shape) == 3 and name.startswith("scanned")}
    for kind, times, shape in collectives(p):
        assert tuple(sorted(shape)) in shapes | layers or int(np.prod(shape)) == 1, (kind, times, shape)
        assert times == 1 or solver != "data_parallel", "in a loop"


@pytest.mark.parametrize("name", CASES)
def test_tensor_parallelism_splits_weights_and_features(name: str) -> None:
    """On the last axis no dim of the data, the batch included; on the one before, the batch."""
    batch_dims = CASES[name][3]
    p = plan(name, "megatron", MESH)
    of = {leaf.path: leaf.signature for leaf in p.inputs}
    for key, dim in batch_dims.items():
        assert of[f"1/{key}"] == sbp.Signature((sbp.broadcast if dim is None else Split(dim), sbp.broadcast))
    for path, s in of.items():
        if path.startswith("0/"):
            assert s[0] == sbp.broadcast and s == of["0/w" + path[3:]]
            assert isinstance(s[1], Split) or path.endswith("position"), path


def test_megatrons_transformer() -> None:
    """Two all-reduces of activations forward and two backward in each layer, as in the paper."""
    p = plan("scanned layers", "megatron", MESH)
    assert [(kind, times) for kind, times, shape in collectives(p) if times > 1] == [("all_reduce", 4.0)] * 4


def test_sums_over_the_batch_inside_a_loop_are_those_of_the_model() -> None:
    """Statistics of each micro-batch are needed there and then; gradients are summed after the loop."""

    def normalised(w, b):
        h = b["x"] @ w["a"]
        h = (h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-5)
        return jnp.mean((jax.nn.relu(h) @ w["o"] - b["y"]) ** 2)

    case = (
        trained(normalised, 4),
        {"a": f32(64, 256), "o": f32(256, 32)},
        {"x": f32(4, 64, 64), "y": f32(4, 64, 32)},
        {},
    )
    p = plan("", "data_parallel", LINE, case)
    assert {shape for _, times, shape in collectives(p) if times == 4} <= {(256,), (1, 256)}
    assert {shape for _, times, shape in collectives(p) if times == 1} == {(64, 256), (256, 32)}


def test_micro_batches_cut_out_of_a_batch() -> None:
    """The loop runs over one part of the batch, devices over the other: moved once, before the loop."""
    w = CASES["convolutions"][1]
    batch = {"image": f32(256, 32, 32, 3), "label": i32(256)}
    p = plan("", "data_parallel", LINE, (trained(convolutions, 4, reshaped=1), w, batch, {}))
    of = {leaf.path: str(leaf.signature) for leaf in p.inputs}
    assert of["1/image"] == of["1/label"] == "S(0)"
    assert all(times == 1 for _, times, _ in collectives(p))


def test_a_head_over_all_positions() -> None:
    p = plan("", "data_parallel", LINE, (trained(language), RNN, {"x": f32(24, 64, 32), "y": f32(24, 64, 256)}, {}))
    of = {leaf.path: str(leaf.signature) for leaf in p.inputs}
    assert of["1/x"] == of["1/y"] == "S(1)" and all(times == 1 for _, times, _ in collectives(p))


def test_a_batch_that_does_not_divide_is_told() -> None:
    step, w, _, _ = CASES["ranks"]
    batch = {"x": f32(30, 32), "seq": f32(30, 24, 16), "y": f32(30, 64), "weight": f32(30), "classes": f32(64),
             "temperature": f32()}  # fmt: skip
    p = plan("", "data_parallel", LINE, (step, w, batch, {}))
    assert all(str(leaf.signature) == "B" for leaf in p.inputs)
    assert any("as nearly split on the batch dimension as can be" in n and "/x (30x32)" in n for n in p.notes)


def test_one_example_is_no_batch() -> None:
    """Rows of an image or positions of a sequence are not taken for examples."""
    for name, batch in (("convolutions", {"image": f32(1, 32, 32, 3), "label": i32(1)}),
                        ("scanned layers", {"tokens": i32(1, 64), "labels": i32(1, 64)})):  # fmt: skip
        step, w, _, _ = CASES[name]
        p = plan("", "data_parallel", LINE, (step, w, batch, {}))
        assert all(str(leaf.signature) == "B" for leaf in p.inputs) and not collectives(p)
        assert any("no dimension of the data was found that counts examples" in n for n in p.notes)


def test_a_loss_that_compares_all_examples() -> None:
    def contrastive(w, b):
        i, t = jax.nn.relu(b["i"] @ w["i"]) @ w["p"], jax.nn.relu(b["t"] @ w["t"]) @ w["q"]
        scores = i @ t.T
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(scores))) - jnp.mean(jnp.diag(jax.nn.log_softmax(scores, 0)))

    w = {"i": f32(64, 256), "p": f32(256, 64), "t": f32(32, 256), "q": f32(256, 64)}
    p = plan("", "data_parallel", LINE, (trained(contrastive), w, {"i": f32(256, 64), "t": f32(256, 32)}, {}))
    of = {leaf.path: str(leaf.signature) for leaf in p.inputs}
    assert of["1/i"] == of["1/t"] == "S(0)" and all(of[f"0/w/{k}"] == "B" for k in w)


@pytest.mark.parametrize("solver", [*DATA_PARALLEL, "megatron"])
def test_the_numbers_are_those_of_one_device(solver: str) -> None:
    step, w, batch, _ = CASES["recurrence"]
    random = np.random.default_rng(0)
    weights, data = jax.tree.map(lambda x: random.normal(size=x.shape).astype(x.dtype) / 8, (w, batch))
    state = {"w": weights, "m": jax.tree.map(np.zeros_like, weights)}
    where = sbp.placement("cpu", np.arange(8).reshape(2, 4), axis_names=("dp", "tp"))
    expected = jax.jit(step)(state, data)[0]
    planned = sbp.auto_parallel(step, placement=where, donate_argnums=0, config=sbp.AutoParallelConfig(solver=solver))
    planned.plan(state, data).verify()
    found = planned(state, data)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected)


def test_zero_stages_added_to_data_parallelism() -> None:
    """They hold less the higher they are, and send no more: an all-reduce is a reduce-scatter and an all-gather."""

    def loss(w, b):
        return jnp.square(jax.nn.relu(b["x"] @ w["up"]) @ w["down"] - b["x"]).mean()

    state = {k: {"up": f32(256, 1024), "down": f32(1024, 256)} for k in ("w", "m")}
    plans = [
        sbp.plan(
            trained(loss), state, {"x": f32(256, 256)}, placement=MESH, donate_argnums=0,
            config=sbp.AutoParallelConfig(solver="data_parallel", zero_stage=stage),
        )
        for stage in range(4)
    ]  # fmt: skip
    held = [plan.memory_per_device for plan in plans]
    assert held[0] > held[1] >= held[2] >= held[3]
    assert all(plan.bytes_on_wire <= plans[0].bytes_on_wire * 1.001 for plan in plans)
    assert not any("as nearly whole" in note for plan in plans for note in plan.notes)
