"""Data, model and hybrid parallelism by hand, and by the planner: a perceptron reads handwritten digits.

    python examples/mlp_digits.py                                  # CPUs: 8 simulated devices
    python examples/mlp_digits.py --hidden 16384 --steps 300       # on GPUs: all of them

A signature says for each axis of the mesh how a value lies on it: S(0), split along its dimension 0; B, whole on
every device; P, a sum of which every device holds one term. Parallelism is nothing but a choice of signatures. The
script makes four choices, trains the same perceptron with each, and checks that all four learn the same.
"""

import argparse

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import sbp_jax as sbp
from shared import Batch, brief, check, check_equal, devices

# By strategy the mesh's axes, and signatures by path, as pins: those of the matrices and of the images. What follows
# from them (the bias of a split layer, Adam's moments) and all that is not named is the planner's choice.
STRATEGIES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    # Every device has the whole model and its part of the batch; gradients are summed.
    "data parallel": (("dp",), {"wide/kernel": "B", "narrow/kernel": "B", "batch/x": "S(0)"}),
    # Every device has the whole batch and its part of the hidden layer; the narrow matrix' products are summed.
    "model parallel": (("tp",), {"wide/kernel": "S(1)", "narrow/kernel": "S(0)", "batch/x": "B"}),
    # Both: on a 2 x 4 mesh the batch is split in 2, the hidden layer in 4.
    "hybrid parallel": (
        ("dp", "tp"),
        {"wide/kernel": "B, S(1)", "narrow/kernel": "B, S(0)", "batch/x": "S(0), B"},
    ),
    "the planner's": (("dp", "tp"), {}),
}


class Mlp(nnx.Module):
    """Images (batch, 64) -> logits (batch, 10)."""

    def __init__(self, hidden: int, rngs: nnx.Rngs):
        init = nnx.initializers.glorot_uniform()
        self.wide = nnx.Linear(64, hidden, kernel_init=init, rngs=rngs)
        self.narrow = nnx.Linear(hidden, 10, kernel_init=init, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.narrow(nnx.relu(self.wide(images)))


def digits() -> tuple[Batch, Batch]:
    """1,437 images to learn from and 360 to be judged by: {"x": (n, 64) in 0..1, "y": (n,) 0..9}."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    return {"x": x[360:], "y": y[360:]}, {"x": x[:360], "y": y[:360]}


def signatures_by_example() -> list[str]:
    """One product with global tensors, eagerly, in the signatures of each parallelism: those of the results."""
    where = devices(("x",))
    made = []
    for a, b in (("S(0)", "B"), ("B", "S(1)"), ("S(1)", "S(0)")):
        left = sbp.randn(64, 128, placement=where, sbp=a, seed=0)
        right = sbp.randn(128, 256, placement=where, sbp=b, seed=1)
        product = left @ right
        print(f"  ({a}) @ ({b}) = ({product.sbp})")
        np.testing.assert_allclose(product.numpy(), left.numpy() @ right.numpy(), rtol=2e-2, atol=2e-1)
        made.append(str(product.sbp))
    return made


def train_step(model: Mlp, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    """One step of training, in place. Nothing in it knows of devices."""

    def loss_fn(model: Mlp) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]).mean()

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def train(name: str, options: argparse.Namespace) -> tuple[sbp.Plan, list[float], float]:
    """The plan of a strategy, the loss of every step, and the share of unseen images that are read right."""
    axes, pins = STRATEGIES[name]
    where = devices(axes)
    born = {path: signature for path, signature in pins.items() if not path.startswith("batch")}
    model = sbp.flax.create(Mlp, options.hidden, nnx.Rngs(0), placement=where, sbp=born)  # never whole on one device
    optimizer = nnx.Optimizer(model, optax.adam(options.learning_rate), wrt=nnx.Param)
    step = sbp.flax.jit(train_step, placement=where, sbp=pins)

    seen, unseen = digits()
    losses = []
    for i in range(options.steps):
        rows = np.random.default_rng((0, i)).integers(0, len(seen["y"]), options.batch)
        losses.append(float(step(model, optimizer, {k: v[rows] for k, v in seen.items()})))
    right = np.asarray(model(unseen["x"])).argmax(-1) == unseen["y"]

    plan = step.plan(model, optimizer, {k: v[: options.batch] for k, v in seen.items()})
    return plan, losses, float(right.mean())


def main(arguments: list[str] | None = None) -> dict[str, tuple[sbp.Plan, list[float], float]]:
    """Run the tutorial; by strategy the plan, the losses and the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help="width of the hidden layer")
    parser.add_argument("--batch", type=int, default=512, help="images in a step, on all devices together")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    options = parser.parse_args(arguments)

    print("One product, three ways to split it:")
    made = signatures_by_example()
    if devices(("x",)).size > 1:  # on one device nothing is split
        check(made == ["S(0)", "S(1)", "P"], "rows give rows, columns give columns, inner pieces give terms of a sum")

    results = {}
    for name in STRATEGIES:
        results[name] = train(name, options)
        plan, losses, accuracy = results[name]
        print(f"\n{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, {accuracy:.1%} of unseen digits read right")
        print(brief(plan, "0/model/wide/kernel/*", "0/model/narrow/kernel/*", "1/batch/x"))

    print("\nWhat must hold:")
    reference, first = results["data parallel"][1], results["data parallel"][2]
    for name, (plan, losses, accuracy) in results.items():
        check_equal(losses, reference, f"{name} learns as data parallel does")
        check(abs(accuracy - first) < 0.01, f"{name} reads as well: {accuracy:.1%}")
        check(plan.verify().ok, f"{name}: the compiled program moves what the plan says, no more")
    check(first > 0.9, "and that is well")
    parameters = 4 * (64 * options.hidden + options.hidden + options.hidden * 10 + 10)
    plan = results["data parallel"][0]
    summed = 2 * (1 - 1 / plan.placement.size) * parameters
    words = f"data parallel sums its gradients, {parameters:,} bytes, and sends nothing else but the loss"
    check(summed <= plan.bytes_on_wire <= summed + 100, words if summed else "one device sends nothing")
    by_hand = min(plan.step_seconds for name, (plan, _, _) in results.items() if name != "the planner's")
    planned = results["the planner's"][0].step_seconds
    check(planned <= by_hand * 1.001, f"no choice by hand is cheaper: {planned * 1e6:.0f} of {by_hand * 1e6:.0f} µs")
    return results


if __name__ == "__main__":
    main()
