"""LoRA fine-tuning: a frozen GPT learns to SHOUT through small adapters; only their gradients travel. Flax nnx.

    python examples/lora.py                                                # CPUs: 8 simulated devices
    python examples/lora.py --preset gpt2-large --batch 64 --seq 1024      # on GPUs: all of them

Hu et al., arXiv:2106.09685: beside a frozen matrix W goes a product of two narrow ones, A and B, and only those are
trained. So gradients, optimizer states and what data parallelism sends shrink to the adapters' size; what stays is
the base, which may lie whole on each device, or be split where memory is short. The script trains a base on Python's
standard library, then adapters on the same text in capitals, and looks at what is sent, held and changed.
"""

import argparse
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import sbp_jax as sbp
from shared import Batch, Corpus, brief, check, check_equal, devices, mib
from zoo.common import configure
from zoo.gpt import SIZES, GptConfig
from zoo.gpt_nnx import Gpt, loss_fn

ADAPTED = ("query", "value")  # of every attention, as in the paper


def pretrain_step(model: Gpt, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    """One step on all parameters, in place."""
    loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss


def finetune_step(model: Gpt, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    """One step on the adapters, in place: gradients are taken of ``nnx.LoRAParam`` only."""
    loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, nnx.LoRAParam))(model, batch)
    optimizer.update(model, grads)
    return loss


def adapt(model: Gpt, rank: int, rngs: nnx.Rngs) -> None:
    """Put an adapter beside every query and value matrix; at first they add nothing."""
    for block in model.blocks:
        for name in ADAPTED:
            base = getattr(block.attention, name)
            lora = nnx.LoRA(base.in_features, rank, base.out_features, base_module=base, rngs=rngs)
            setattr(block.attention, name, lora)


def bytes_of(model: Gpt, kind: type) -> int:
    """Bytes of the variables of one kind."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(nnx.state(model, kind)))


def shouting(batch: Batch) -> Batch:
    """The same text in capital letters."""
    return {k: np.where((v >= ord("a")) & (v <= ord("z")), v - 32, v) for k, v in batch.items()}


def base_weights(model: Gpt) -> list[np.ndarray]:
    """Copies of all frozen weights: ``nnx.Param`` that are no ``nnx.LoRAParam``."""
    frozen = nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam))
    return [np.asarray(leaf).copy() for leaf in jax.tree.leaves(nnx.state(model, frozen))]


def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Run the tutorial; the plans, the losses, and the adapters' bytes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=SIZES, default="tiny")
    parser.add_argument("--layers", type=int, help="default: the preset's")
    parser.add_argument("--rank", type=int, default=4, help="of the adapters")
    parser.add_argument("--batch", type=int, default=16, help="texts in a step, on all devices together")
    parser.add_argument("--seq", type=int, default=32, help="bytes of a text")
    parser.add_argument("--steps", type=int, default=30, help="of fine-tuning")
    parser.add_argument("--pretrain-steps", type=int, default=60, help="of the base, before")
    parser.add_argument("--memory", type=float, default=0.9, help="limit of the short plan, of what the free one holds")
    parser.add_argument("--compare-steps", type=int, default=5, help="steps repeated on a single device")
    options = parser.parse_args(arguments)
    where = devices(("dp",))
    layers = options.layers or SIZES[options.preset].layers
    sizes = {"layers": layers, "vocab": 256, "seq": options.seq, "dropout": 0.0, "dtype": "float32"}
    config: GptConfig = configure(SIZES, options.preset, sizes)
    corpus = Corpus.standard_library()
    batch = lambda i: corpus.batch(i, options.batch, options.seq)  # noqa: E731

    # The base, by whatever plan is cheapest.
    model = Gpt(config, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(config.learning_rate), wrt=nnx.Param)
    pretrain = sbp.flax.jit(pretrain_step, placement=where)
    base = [float(pretrain(model, optimizer, batch(i))) for i in range(options.pretrain_steps)]
    print(f"base: {mib(bytes_of(model, nnx.Param))}, loss {base[0]:.3f} -> {base[-1]:.3f} nats a byte")
    # What data parallelism would send to train all of it, for comparison.
    copied = sbp.AutoParallelConfig(solver="data_parallel")
    whole = sbp.flax.jit(pretrain_step, placement=where, config=copied).plan(model, optimizer, batch(0))

    adapt(model, options.rank, nnx.Rngs(1))
    create = lambda: nnx.Optimizer(model, optax.adam(10 * config.learning_rate), wrt=nnx.LoRAParam)  # noqa: E731
    optimizer = create()
    # A copy on one device, to compare with: planned steps donate, so the arrays of the model itself will be gone.
    graph, state = nnx.split((model, create()))
    alone = nnx.merge(graph, jax.device_put(jax.tree.map(jnp.copy, state), jax.local_devices()[0]))
    shout = lambda i: shouting(batch(i))  # noqa: E731
    finetune = sbp.flax.jit(finetune_step, placement=where)
    plan = finetune.plan(model, optimizer, shout(0))
    adapters = bytes_of(model, nnx.LoRAParam)
    print(f"\nadapters: {mib(adapters)}")
    print(brief(plan, "0/model/blocks/*/wide/kernel/*", "0/model/blocks/*/lora_*", "1/batch/inputs"))
    all_sent = mib(whole.bytes_on_wire)
    print(f"  a device sends {mib(plan.bytes_on_wire)} a step; to train all parameters it would {all_sent}")
    check(plan.verify().ok, "the compiled program moves what the plan says, no more")
    most = 2 * (1 - 1 / where.size) * adapters
    check(plan.bytes_on_wire <= most + 64, "what is sent are the adapters' gradients, summed once, and the loss")
    moments = [leaf for leaf in plan.inputs if "/mu/" in leaf.path]
    held = sum(4 * math.prod(leaf.shape) for leaf in moments)
    check(held == adapters, "the optimizer remembers the adapters only")

    # With less memory the base is split: gathered where it is used, it is still not changed.
    if where.size > 1:
        limit = options.memory * plan.memory_per_device
        asked = sbp.AutoParallelConfig(memory_limit=limit, effort="quick")
        short = sbp.flax.jit(finetune_step, placement=where, config=asked).plan(model, optimizer, shout(0))
        of_model = [leaf for leaf in short.inputs if leaf.path.startswith("0/model/")]
        split = [leaf for leaf in of_model if sbp.broadcast not in leaf.signature]
        print(f"\nat most {mib(limit)} a device: {len(split)} arrays of the model are split, the largest are")
        for leaf in sorted(split, key=lambda leaf: -math.prod(leaf.shape))[:4]:
            print(f"  {leaf.path} {list(leaf.shape)} ({leaf.signature})")
        check(short.memory_per_device <= limit < plan.memory_per_device, "the plan fits")
        check(any("lora" not in leaf.path for leaf in split), "because parts of the frozen base are split")

    before = base_weights(model)
    others, evaluate = [shout(options.steps + i) for i in range(8)], nnx.jit(loss_fn)
    untrained = np.mean([evaluate(model, texts) for texts in others])
    losses = [float(finetune(model, optimizer, shout(i))) for i in range(options.steps)]
    print(f"\nloss {losses[0]:.3f} -> {np.mean(losses[-3:]):.3f} nats a byte of capitals in {options.steps} steps")
    same = all(np.array_equal(a, b) for a, b in zip(before, base_weights(model), strict=True))
    check(same and bool(before), f"all {len(before)} arrays of the base are, bit by bit, what they were")
    single = nnx.jit(finetune_step)
    reference = [float(single(*alone, shout(i))) for i in range(min(options.compare_steps, options.steps))]
    check_equal(losses[: len(reference)], reference, "equal to a single device")
    trained = np.mean([evaluate(model, texts) for texts in others])
    print(f"of capitals that it was not trained on: {untrained:.3f} -> {trained:.3f}")
    if options.steps >= 3:
        check(bool(trained < untrained - (0.1 if options.steps >= 15 else 0.0)), "the loss falls")
    return {"plan": plan, "whole": whole, "adapters": adapters, "base": base, "losses": losses, "single": reference}


if __name__ == "__main__":
    main()
