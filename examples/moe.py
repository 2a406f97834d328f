"""Mixture of experts: experts stay on their devices, tokens travel to them and back. Flax nnx.

    python examples/moe.py                                                             # CPUs: 8 simulated devices
    python examples/moe.py --experts 64 --hidden 1024 --middle 4096 --batch 256 --seq 1024   # on GPUs: all of them

Every byte of text goes to the two of the experts that its router likes best, as long as those have room (GShard,
Lepikhin et al., arXiv:2006.16668). Which byte goes where is a one-hot tensor, so routing is two einsums, and expert
parallelism is a matter of signatures: experts S(0) along an axis, sequences S(0) before and after, an all_to_all in
between.
The script plans that three ways: as data parallelism, which copies experts; with experts pinned; and freely.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import sbp_jax as sbp
from shared import Batch, Corpus, brief, check, check_equal, check_learned, devices, mesh_shape, mib
from zoo.gpt import GptConfig
from zoo.gpt_nnx import Attention
from zoo.moe import MoeConfig, route


class Experts(nnx.Module):
    """(batch, seq, hidden) -> the same, and the loss that keeps experts evenly used."""

    def __init__(self, config: MoeConfig, rngs: nnx.Rngs):
        init = nnx.initializers.normal(0.05)
        e, h, m = config.experts, config.hidden, config.middle
        self.config = config
        self.norm = nnx.LayerNorm(h, rngs=rngs)
        self.router = nnx.Linear(h, e, use_bias=False, rngs=rngs)
        self.w_in = nnx.Param(init(rngs.params(), (e, h, m)))
        self.w_out = nnx.Param(init(rngs.params(), (e, m, h)))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = self.norm(x)
        # combine (batch, seq, experts, capacity): the weight of a token at its place with an expert, elsewhere zero.
        combine, balance = route(self.config, jax.nn.softmax(self.router(y), axis=-1))
        sent = jnp.einsum("bsec,bsh->ebch", (combine > 0).astype(x.dtype), y)
        middle = nnx.gelu(jnp.einsum("ebch,ehm->ebcm", sent, self.w_in.get_value()))
        made = jnp.einsum("ebcm,emh->ebch", middle, self.w_out.get_value())
        return x + jnp.einsum("bsec,ebch->bsh", combine.astype(x.dtype), made), balance


class MixtureModel(nnx.Module):
    """Bytes (batch, seq) -> logits (batch, seq, 256), and the balance loss."""

    def __init__(self, config: MoeConfig, rngs: nnx.Rngs):
        attention = GptConfig(config.layers, config.hidden, config.heads, dropout=0.0)
        self.tokens = nnx.Embed(256, config.hidden, embedding_init=nnx.initializers.normal(0.02), rngs=rngs)
        self.positions = nnx.Embed(config.seq, config.hidden, embedding_init=nnx.initializers.normal(0.02), rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(config.hidden, rngs=rngs) for _ in range(config.layers)])
        self.attentions = nnx.List([Attention(attention, rngs) for _ in range(config.layers)])
        self.experts = nnx.List([Experts(config, rngs) for _ in range(config.layers)])

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, balance = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1])), jnp.zeros(())
        for norm, attention, experts in zip(self.norms, self.attentions, self.experts, strict=True):
            x, one = experts(x + attention(norm(x)))
            balance += one
        return self.tokens.attend(x), balance


def train_step(model: MixtureModel, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    """One step, in place; the loss in nats a byte, without the balance loss. Nothing in it knows of devices."""

    def loss_fn(model: MixtureModel) -> tuple[jax.Array, jax.Array]:
        logits, balance = model(batch["inputs"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean()
        return loss + 0.01 * balance, loss

    (_, loss), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss


def create(config: MoeConfig) -> tuple[MixtureModel, nnx.Optimizer]:
    """A model and its optimizer; inside ``nnx.eval_shape`` their shapes only."""
    model = MixtureModel(config, nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(config.learning_rate), wrt=nnx.Param)


def experts_of(plan: sbp.Plan) -> list[str]:
    """The signatures that the experts' matrices have."""
    found = [leaf for leaf in plan.inputs if leaf.path.startswith("0/model/experts/") and "/w_" in leaf.path]
    return sorted({str(leaf.signature) for leaf in found})


def travelling(plan: sbp.Plan, config: MoeConfig) -> tuple[float, int]:
    """Bytes a device sends of what goes to experts and comes back; how many matrices of experts are gathered."""
    tokens, gathered = 0.0, 0
    matrices = {(config.experts, *dims) for dims in ((config.hidden, config.middle), (config.middle, config.hidden))}
    for boxing in plan.boxings():
        if "all_to_all" in boxing.collective and config.capacity in boxing.shape:
            tokens += boxing.times * boxing.bytes
        if boxing.shape in matrices and any(move.kind == "all_gather" for move in boxing.moves):
            gathered += round(boxing.times)
    return tokens, gathered


def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Run the tutorial; the plans, and the losses by plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--middle", type=int, default=256, help="width of an expert")
    parser.add_argument("--batch", type=int, default=32, help="texts in a step, on all devices together")
    parser.add_argument("--seq", type=int, default=32, help="bytes of a text")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compare-steps", type=int, default=5, help="steps repeated with pins, and on one device")
    parser.add_argument("--mesh", type=mesh_shape, help="as 2x4: axes dp x ep (default: all GPUs, or 2x4 on CPUs)")
    options = parser.parse_args(arguments)
    where = devices(("dp", "ep"), options.mesh)
    sizes = {k: getattr(options, k) for k in ("layers", "hidden", "heads", "experts", "middle", "seq", "batch")}
    config, corpus = MoeConfig(**sizes), Corpus.standard_library()
    batch = lambda i: corpus.batch(i, config.batch, config.seq)  # noqa: E731

    copied = sbp.AutoParallelConfig(solver="data_parallel")
    pins = dict.fromkeys(("experts/*/w_in", "experts/*/w_out"), "B, S(0)")  # along dp, along ep
    ways = {"copied": (None, copied), "pinned": (pins, None), "planned": (None, None)}
    steps, objects, plans = {}, {}, {}
    for name, (asked_sbp, asked) in ways.items():
        steps[name] = sbp.flax.jit(train_step, placement=where, config=asked, sbp=asked_sbp)
        objects[name] = sbp.flax.create(create, config, placement=where, sbp=asked_sbp)  # parameters are born split
        plan = plans[name] = steps[name].plan(*objects[name], batch(0))
        print(f"\nexperts {name}:")
        print(brief(plan, "0/model/experts/*/w_in/*", "0/model/experts/*/w_out/*", "1/batch/inputs"))
        tokens, gathered = travelling(plan, config)
        print(f"  to experts and back: {mib(tokens)}; matrices of experts gathered: {gathered}")

    print("\nWhat must hold:")
    pinned, planned = plans["pinned"], plans["planned"]
    if where.shape[1] > 1:
        check(experts_of(pinned) == ["B, S(0)"], "pinned experts are split along ep, repeated along dp")
        check(travelling(pinned, config)[0] > 0, "then tokens travel to them: all_to_all")
    check(travelling(pinned, config)[1] == 0, "and no expert does: its matrices are never gathered")
    for name in ("copied", "pinned"):
        ratio = planned.step_seconds / plans[name].step_seconds
        check(ratio <= 1 + 1e-3 + planned.optimality_gap, f"the plan takes {ratio:.2f} times as long as {name} experts")

    losses = [float(steps["planned"](*objects["planned"], batch(i))) for i in range(options.steps)]
    print(f"\nloss {losses[0]:.3f} -> {np.mean(losses[-3:]):.3f} nats a byte in {options.steps} steps")
    compared = min(options.compare_steps, options.steps)
    by_hand = [float(steps["pinned"](*objects["pinned"], batch(i))) for i in range(compared)]
    alone, single = nnx.jit(train_step), create(config)
    reference = [float(alone(*single, batch(i))) for i in range(compared)]
    check_equal(losses[:compared], reference, "equal to a single device")
    check_equal(by_hand, reference, "so are the pinned experts")
    for name in ("planned", "pinned"):
        check(plans[name].verify().ok, f"experts {name}: the compiled program moves what the plan says, no more")
    check_learned(losses, by=1.0)
    return {"plans": plans, "experts": {k: experts_of(v) for k, v in plans.items()}, "losses": losses,
            "by_hand": by_hand, "single": reference}  # fmt: skip


if __name__ == "__main__":
    main()
