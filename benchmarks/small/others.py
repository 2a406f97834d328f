"""Graph networks, recurrent networks, differential equations."""

import itertools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from .common import BATCH, Keys, Model, Tree, layer_norm, norm_params, text, token_loss, train

NODES, EDGES, FEATURES = 2048, 8192, 128


def graph() -> Tree:
    """Random edges."""
    rng = np.random.default_rng(0)
    return {
        "nodes": rng.standard_normal((NODES, FEATURES), dtype=np.float32),
        "edges": rng.standard_normal((EDGES, 16), dtype=np.float32),
        "senders": rng.integers(0, NODES, (EDGES,), dtype=np.int32),
        "receivers": rng.integers(0, NODES, (EDGES,), dtype=np.int32),
        "label": rng.integers(0, 10, (NODES,), dtype=np.int32),
    }


def message_passing() -> Model:
    """Messages by an MLP on both ends and the edge, summed where they arrive; residual, normed."""
    width, layers = 256, 4

    def mlp(keys: Keys, *sizes: int) -> Tree:
        return [{"w": keys.dense(a, b), "b": jnp.zeros(b)} for a, b in itertools.pairwise(sizes)]

    def run(p: Tree, x: Array) -> Array:
        for layer in p[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ p[-1]["w"] + p[-1]["b"]

    def init() -> Tree:
        keys = Keys()
        rounds = [
            {"edge": mlp(keys, 3 * width, width, width), "node": mlp(keys, 2 * width, width, width),
             "norm": norm_params(width)}
            for _ in range(layers)
        ]  # fmt: skip
        return {"nodes": mlp(keys, FEATURES, width, width), "edges": mlp(keys, 16, width, width), "rounds": rounds,
                "head": mlp(keys, width, width, 10)}  # fmt: skip

    def loss(params: Tree, b: Tree) -> Array:
        x, e = run(params["nodes"], b["nodes"]), run(params["edges"], b["edges"])
        for p in params["rounds"]:
            message = run(p["edge"], jnp.concatenate([x[b["senders"]], x[b["receivers"]], e], -1))
            e = e + message
            total = jax.ops.segment_sum(message, b["receivers"], NODES)
            x = layer_norm(x + run(p["node"], jnp.concatenate([x, total], -1)), p["norm"])
        return token_loss(run(params["head"], x), b["label"])

    return train(init, loss, graph)


def gat() -> Model:
    """Graph attention (Velickovic et al., 2018): a softmax over each node's incoming edges."""
    heads, width = 8, 512

    def init() -> Tree:
        keys = Keys()
        sizes = (FEATURES, width, width, width)
        layers = [
            {"w": keys.dense(a, heads, b // heads), "send": keys.table(heads, b // heads),
             "receive": keys.table(heads, b // heads), "skip": keys.dense(a, b)}
            for a, b in itertools.pairwise(sizes)
        ]  # fmt: skip
        return {"layers": layers, "head": keys.dense(width, 10)}

    def loss(params: Tree, b: Tree) -> Array:
        x, senders, receivers = b["nodes"], b["senders"], b["receivers"]
        for p in params["layers"]:
            h = jnp.einsum("nf,fhd->nhd", x, p["w"])
            score = jax.nn.leaky_relu((h * p["send"]).sum(-1)[senders] + (h * p["receive"]).sum(-1)[receivers], 0.2)
            top = jax.ops.segment_max(score, receivers, NODES)
            score = jnp.exp(score - jnp.where(jnp.isfinite(top), top, 0.0)[receivers])
            weight = score / (jax.ops.segment_sum(score, receivers, NODES)[receivers] + 1e-9)
            out = jax.ops.segment_sum(h[senders] * weight[..., None], receivers, NODES)
            x = jax.nn.elu(out.reshape(NODES, -1) + x @ p["skip"])
        return token_loss(x @ params["head"], b["label"])

    return train(init, loss, graph, optax.adam(5e-3))


class LstmModel(nn.Module):
    """Two layers of Flax's LSTM."""

    vocab: int

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        x: Any = nn.Embed(self.vocab, 256)(tokens)
        for _ in range(2):
            x = nn.RNN(nn.OptimizedLSTMCell(512))(x)
        return nn.Dense(self.vocab)(x)


def lstm() -> Model:
    """A language model with clipped gradients."""
    model: Any = LstmModel(4096)
    batch = text(4096, 64)
    return train(
        lambda: model.init(jax.random.key(0), batch()["inputs"])["params"],
        lambda params, b: token_loss(model.apply({"params": params}, b["inputs"]), b["targets"]),
        batch,
        optax.chain(optax.clip_by_global_norm(0.25), optax.sgd(1.0)),
    )


def gru_seq2seq() -> Model:
    """An encoder in both directions, a decoder that attends to it at every step (Bahdanau et al., 2015)."""
    vocab, embed, width, seq = 4096, 128, 256, 48

    def cell(keys: Keys, inside: int) -> Tree:
        return {"x": keys.dense(inside, 3 * width), "h": keys.dense(width, 3 * width), "b": jnp.zeros(3 * width)}

    def init() -> Tree:
        keys = Keys()
        return {"source": keys.table(vocab, embed), "target": keys.table(vocab, embed), "forward": cell(keys, embed),
                "backward": cell(keys, embed), "start": keys.dense(2 * width, width),
                "decoder": cell(keys, embed + 2 * width),
                "query": keys.dense(width, width), "key": keys.dense(2 * width, width), "score": keys.dense(width, 1),
                "head": keys.dense(3 * width, vocab)}  # fmt: skip

    def gru(p: Tree, h: Array, x: Array) -> Array:
        a, b = jnp.split(x @ p["x"] + p["b"], [2 * width], -1), jnp.split(h @ p["h"], [2 * width], -1)
        r, z = jnp.split(jax.nn.sigmoid(a[0] + b[0]), 2, -1)
        return (1 - z) * jnp.tanh(a[1] + r * b[1]) + z * h

    def loss(params: Tree, b: Tree) -> Array:
        x = params["source"][b["source"]].swapaxes(0, 1)
        zero = jnp.zeros((x.shape[1], width))

        def encode(p: Tree, reverse: bool) -> tuple[Array, Array]:
            def step(h: Array, x: Array) -> tuple[Array, Array]:
                h = gru(p, h, x)
                return h, h

            return jax.lax.scan(step, zero, x, reverse=reverse)

        (last, there), (first, back) = encode(params["forward"], False), encode(params["backward"], True)
        memory = jnp.concatenate([there, back], -1).swapaxes(0, 1)
        keys = memory @ params["key"]

        def decode(h: Array, y: Array) -> tuple[Array, Array]:
            score = jnp.tanh(keys + (h @ params["query"])[:, None]) @ params["score"]
            context = (jax.nn.softmax(score, 1) * memory).sum(1)
            h = gru(params["decoder"], h, jnp.concatenate([y, context], -1))
            return h, jnp.concatenate([h, context], -1)

        h = jnp.tanh(jnp.concatenate([last, first], -1) @ params["start"])
        _, out = jax.lax.scan(decode, h, params["target"][b["inputs"]].swapaxes(0, 1))
        return token_loss(out.swapaxes(0, 1) @ params["head"], b["targets"])

    def batch() -> Tree:
        rng = np.random.default_rng(0)
        target = rng.integers(0, vocab, (BATCH, seq + 1), dtype=np.int32)
        return {"source": rng.integers(0, vocab, (BATCH, seq), dtype=np.int32), "inputs": target[:, :-1],
                "targets": target[:, 1:]}  # fmt: skip

    return train(init, loss, batch, optax.adagrad(0.1))


def _field(params: Tree, t: Array, x: Array) -> Array:
    t = jnp.broadcast_to(t, (x.shape[0], 1))
    for p in params[:-1]:
        x = jnp.tanh(jnp.concatenate([x, jnp.broadcast_to(t, (x.shape[0], 1))], -1) @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def _field_params(dims: int, width: int) -> Tree:
    keys = Keys()
    return [
        {"w": keys.dense(dims + 1, width), "b": jnp.zeros(width)},
        {"w": keys.dense(width + 1, width), "b": jnp.zeros(width)},
        {"w": keys.dense(width + 1, width), "b": jnp.zeros(width)},
        {"w": keys.dense(width, dims), "b": jnp.zeros(dims)},
    ]


def _paths(steps: int, dims: int) -> Tree:
    rng = np.random.default_rng(0)
    return {"start": rng.standard_normal((256, dims), dtype=np.float32),
            "path": rng.standard_normal((steps, 256, dims), dtype=np.float32)}  # fmt: skip


def neural_ode() -> Model:
    """Runge and Kutta's fourth order in a scan, differentiated through."""
    dims, width, steps = 64, 768, 20

    def loss(params: Tree, b: Tree) -> Array:
        h = 1.0 / steps

        def advance(x: Array, t: Array) -> tuple[Array, Array]:
            k1 = _field(params, t, x)
            k2 = _field(params, t + h / 2, x + h / 2 * k1)
            k3 = _field(params, t + h / 2, x + h / 2 * k2)
            k4 = _field(params, t + h, x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return x, x

        _, path = jax.lax.scan(advance, b["start"], jnp.arange(steps) * h)
        return ((path - b["path"]) ** 2).mean()

    return train(lambda: _field_params(dims, width), loss, lambda: _paths(steps, dims), optax.adabelief(1e-3))


def diffrax_ode() -> Model:
    """The same by Diffrax, with an adaptive step."""
    import diffrax  # pyright: ignore[reportMissingImports]

    dims, width, steps = 64, 512, 8

    def loss(params: Tree, b: Tree) -> Array:
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, x, p: _field(p, t, x)), diffrax.Tsit5(), 0.0, 1.0, 0.05, b["start"], params,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.1, 1.0, steps)),
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-3), max_steps=64,
        )  # fmt: skip
        return ((solution.ys - b["path"]) ** 2).mean()

    return train(lambda: _field_params(dims, width), loss, lambda: _paths(steps, dims))


MODELS: dict[str, Callable[[], Model]] = {
    "message_passing": message_passing,
    "gat": gat,
    "lstm": lstm,
    "gru_seq2seq": gru_seq2seq,
    "neural_ode": neural_ode,
}
EXTRA: dict[str, Callable[[], Model]] = {"diffrax_ode": diffrax_ode}
