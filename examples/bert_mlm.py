"""Train a BERT on Python's standard library: bytes are masked, the model fills them in. Flax linen, TrainState.

    python examples/bert_mlm.py                                    # CPUs: 8 simulated devices as a 2x4 mesh
    python examples/bert_mlm.py --size base --batch 256 --seq 512  # on GPUs: all of them

Devlin et al., arXiv:1810.04805: of the bytes 15 % are to be guessed; 80 % of those are shown as a mask, 10 % as any
byte, 10 % as they are. The step is a plain function of a ``TrainState``, ``sbp.auto_parallel`` stands where
``jax.jit`` stood. Masks and dropout are drawn inside: random numbers are the same however their arrays are split.
"""

import argparse
from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import sbp_jax as sbp
from shared import Corpus, brief, check, check_equal, check_learned, devices, mesh_shape

MASK = 256  # beyond the 256 bytes
VOCABULARY = 264  # a few rows more than are used, so that meshes can split it


@dataclass(frozen=True, slots=True)
class BertConfig:
    """``hidden`` is split among ``heads``; the perceptrons are four times as wide."""

    layers: int
    hidden: int
    heads: int
    dropout: float = 0.1


SIZES = {"tiny": BertConfig(2, 64, 4), "base": BertConfig(12, 768, 12), "large": BertConfig(24, 1024, 16)}


class Block(nn.Module):
    """Attention in both directions, then a perceptron; norms after each, as in the paper."""

    config: BertConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        y = nn.MultiHeadDotProductAttention(c.heads, dropout_rate=c.dropout, deterministic=False, name="attention")(x)
        x = nn.LayerNorm()(x + nn.Dropout(c.dropout, deterministic=False)(y))
        y = nn.Dense(c.hidden, name="narrow")(nn.gelu(nn.Dense(4 * c.hidden, name="wide")(x)))
        return nn.LayerNorm()(x + nn.Dropout(c.dropout, deterministic=False)(y))


class Bert(nn.Module):
    """Bytes (batch, seq) -> logits (batch, seq, vocabulary); the output matrix is the embedding."""

    config: BertConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        c = self.config
        embed = nn.Embed(VOCABULARY, c.hidden, embedding_init=nn.initializers.normal(0.02), name="tokens")
        positions = self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], c.hidden))
        x = nn.LayerNorm()(embed(tokens) + positions)
        for i in range(c.layers):
            x = Block(c, name=f"block_{i}")(x)
        return embed.attend(nn.LayerNorm()(nn.gelu(nn.Dense(c.hidden, name="transform")(x))))


def mask(key: jax.Array, text: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(what the model sees, which bytes it must guess), both (batch, seq)."""
    chosen_key, how_key, byte_key = jax.random.split(key, 3)
    chosen = jax.random.bernoulli(chosen_key, 0.15, text.shape)
    how = jax.random.uniform(how_key, text.shape)
    shown = jnp.where(how < 0.8, MASK, jnp.where(how < 0.9, jax.random.randint(byte_key, text.shape, 0, 256), text))
    return jnp.where(chosen, shown, text), chosen


def train_step(state: TrainState, text: jax.Array) -> tuple[TrainState, jax.Array]:
    """One step; the loss in nats a masked byte. Nothing in it knows of devices."""
    mask_key, dropout_key = jax.random.split(jax.random.fold_in(jax.random.key(0), state.step))
    seen, chosen = mask(mask_key, text)

    def loss_fn(params: dict) -> jax.Array:
        logits = state.apply_fn({"params": params}, seen, rngs={"dropout": dropout_key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, text)
        return (losses * chosen).sum() / chosen.sum()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss


def create(config: BertConfig, options: argparse.Namespace) -> TrainState:
    """The first state, the same numbers every time."""
    model = Bert(config)
    keys = {"params": jax.random.key(1), "dropout": jax.random.key(2)}
    params = jax.jit(model.init)(keys, jnp.zeros((1, options.seq), jnp.int32))["params"]
    schedule = optax.warmup_constant_schedule(0.0, options.learning_rate, options.steps // 5)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
    # The count of steps is an array from the start, as it is after the first: one type, one compilation.
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx).replace(step=jnp.zeros((), jnp.int32))


def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Run the tutorial; the plan, the losses, and those of one device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--layers", type=int, help="default: the size's")
    parser.add_argument("--batch", type=int, default=32, help="texts in a step, on all devices together")
    parser.add_argument("--seq", type=int, default=64, help="bytes of a text")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--compare-steps", type=int, default=5, help="steps repeated on a single device")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--mesh", type=mesh_shape, help="as 2x4: axes dp x tp (default: all GPUs, or 2x4 on CPUs)")
    options = parser.parse_args(arguments)
    where = devices(("dp", "tp"), options.mesh)
    config, corpus = SIZES[options.size], Corpus.standard_library()
    config = replace(config, layers=options.layers or config.layers)
    texts = lambda i: corpus.batch(i, options.batch, options.seq)["inputs"]  # noqa: E731

    state = create(config, options)
    # The state is donated: the new one takes its place, in the same signatures.
    step = sbp.auto_parallel(train_step, placement=where, donate_argnums=0)
    plan = step.plan(state, texts(0))
    print(brief(plan, "1", "0/params/*/wide/kernel", "0/params/*/narrow/kernel", "0/params/*/query/kernel"))
    check(plan.verify().ok, "the compiled program moves what the plan says, no more")
    check(not plan.unruled, "every op of the step can be split: none is repeated because a rule is missing")

    losses = []
    for i in range(options.steps):
        state, loss = step(state, texts(i))
        losses.append(float(loss))
    print(f"\nloss {losses[0]:.3f} -> {np.mean(losses[-5:]):.3f} nats a masked byte in {options.steps} steps")

    alone, single, compared = jax.jit(train_step), create(config, options), []
    for i in range(min(options.compare_steps, options.steps)):
        single, loss = alone(single, texts(i))
        compared.append(float(loss))
    check_equal(losses[: len(compared)], compared, "equal to a single device, masks and dropout included")
    check_learned(losses, by=1.5, last=5)
    return {"plan": plan, "losses": losses, "single": compared, "state": state}


if __name__ == "__main__":
    main()
