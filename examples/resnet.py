"""A small residual network with batch norm: statistics of the whole batch, however the batch is split.

    python examples/resnet.py                                      # CPUs: 8 simulated devices as a 2x4 mesh
    python examples/resnet.py --size resnet18 --batch 1024         # on GPUs: all of them

Where every device normalises by its own part of the batch, results depend on the number of devices ("synchronised"
batch norm is then an extra). A signature never changes a value: a mean over a split batch is a sum of terms, P, which
the plan reduces. The script checks that against one device, and shows what a device's own statistics would have been.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import sbp_jax as sbp
from shared import Batch, brief, check, check_equal, check_learned, devices, mesh_shape
from zoo.common import configure
from zoo.images import patterns
from zoo.resnet import SIZES, Resnet, ResnetConfig, loss_fn


def train_step(model: Resnet, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    """One step, in place: parameters, momentum, and batch norm's running statistics."""
    loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss


def evaluate(model: Resnet, batch: Batch) -> jax.Array:
    """The share of images that are recognised."""
    return jnp.mean(model(batch["images"]).argmax(-1) == batch["labels"])


def create(config: ResnetConfig) -> tuple[Resnet, nnx.Optimizer]:
    """A new model and its optimizer, the same numbers every time."""
    model = Resnet(config, nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(config.learning_rate, momentum=0.9), wrt=nnx.Param)


def stem_mean(model: Resnet, images: np.ndarray) -> np.ndarray:
    """What batch norm subtracts after the first convolution: the mean over these images, (channels,)."""
    return np.asarray(model.stem(jnp.asarray(images)).mean((0, 1, 2)))


def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Run the tutorial; the plan, both losses, both running means, the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "resnet18"), default="tiny")
    parser.add_argument("--batch", type=int, default=64, help="images in a step, on all devices together")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compare-steps", type=int, default=5, help="steps repeated on a single device")
    parser.add_argument("--mesh", type=mesh_shape, help="as 2x4: axes dp x tp (default: all GPUs, or 2x4 on CPUs)")
    options = parser.parse_args(arguments)
    where = devices(("dp", "tp"), options.mesh)
    config = configure(SIZES, options.size, {"batch": options.batch, "dropout": 0.0})

    def batch(seed: int) -> Batch:
        return patterns(seed, config.batch, config.pixels, config.classes)

    # The planned step stands where nnx.jit(train_step) stood.
    model, optimizer = create(config)
    step = sbp.flax.jit(train_step, placement=where)
    plan = step.plan(model, optimizer, batch(0))
    print(brief(plan, "1/batch/images", "0/model/stem/kernel/*", "0/model/blocks/*/conv_*/kernel/*"))
    sums = [b for b in plan.boxings() if b.shape == (config.channels[0],) and "P" in str(b.src)]
    print(f"  of them {len(sums)} reductions of {config.channels[0]} channels' sums: batch norm and its gradients")
    check(plan.verify().ok, "the compiled program moves what the plan says, no more")

    # Before the first step: what the whole batch's mean is, and what each device's own would be.
    images = batch(0)["images"]
    whole = stem_mean(model, images)
    parts = np.stack([stem_mean(model, part) for part in np.array_split(images, max(2, where.size))])

    losses = [float(step(model, optimizer, batch(0)))]
    learnt = np.asarray(model.norm.mean.get_value())  # after one step: 0.1 of the batch's mean, from 0 on
    print(f"\nMeans of the first channels after the stem, batch of {config.batch}:")
    print(f"  the whole batch {np.round(whole[:4], 4)}; as learnt by the split step {np.round(learnt[:4] / 0.1, 4)}")
    print(f"  each device's own part, for the first channel: {np.round(parts[:, 0], 4)}")
    tolerance = 2e-3 * float(np.abs(whole).max())
    check(bool(np.abs(learnt / 0.1 - whole).max() <= tolerance), "batch statistics are those of the whole batch")
    own = float(np.abs(parts - whole).max())
    check(own > 10 * tolerance, f"a device's own would be another's: up to {own:.3f} away")

    losses += [float(step(model, optimizer, batch(i))) for i in range(1, options.steps)]
    single, reference = nnx.jit(train_step), create(config)
    compared = [float(single(*reference, batch(i))) for i in range(min(options.compare_steps, options.steps))]
    print(f"\nloss {losses[0]:.3f} -> {losses[-1]:.3f} in {options.steps} steps")
    check_equal(losses[: len(compared)], compared, "equal to a single device")
    check_learned(losses, by=0.3 * losses[0])

    # Running statistics are what evaluation uses. Another function, another plan; the model stays where it is.
    model.eval()
    accuracy = float(sbp.flax.jit(evaluate, placement=where)(model, batch(10_000)))
    check(accuracy > 0.5, f"unseen images are recognised by the running statistics: {accuracy:.0%}")
    return {"plan": plan, "losses": losses, "single": compared, "mean": learnt / 0.1, "whole": whole, "right": accuracy}


if __name__ == "__main__":
    main()
