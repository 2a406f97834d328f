"""A classifier of a million faces: its head is split by classes, and its logits are never gathered.

    python examples/faces.py                                       # CPUs: 8 simulated devices as a 2x4 mesh
    python examples/faces.py --identities 1000000 --batch 1024     # on GPUs: all of them

With a million classes the head outweighs all else, and logits of the whole batch outweigh the head. Split by classes
every device makes its own columns of logits; the cross entropy needs of the others their maximum (P(max)) and two
sums (P): batch numbers each, not batch x classes. Nobody says so here: the planner finds it. The script shows that on
the plan for a million classes, on the program that XLA compiled of it, and by training with fewer.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import sbp_jax as sbp
from shared import Batch, brief, check, check_equal, check_learned, devices, mesh_shape, mib

MARGIN, SCALE = 0.35, 32.0  # CosFace (Wang et al., arXiv:1801.09414): cosines less a margin for the right class


class Faces(nnx.Module):
    """Vectors (batch, inputs) -> cosines (batch, identities) to the centre of each identity."""

    def __init__(self, inputs: int, features: int, identities: int, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(inputs, 2 * features, rngs=rngs)
        self.out = nnx.Linear(2 * features, features, rngs=rngs)
        self.centres = nnx.Param(0.01 * jax.random.normal(rngs.params(), (features, identities)))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.out(nnx.relu(self.hidden(x)))
        y = y * jax.lax.rsqrt((y * y).sum(1, keepdims=True) + 1e-6)
        centres = self.centres.get_value()
        return y @ (centres * jax.lax.rsqrt((centres * centres).sum(0, keepdims=True) + 1e-6))


def loss_fn(model: Faces, batch: Batch) -> jax.Array:
    """Mean cross entropy in nats of the scaled cosines, the right one made smaller by the margin."""
    cosines = model(batch["x"])
    right = jnp.arange(cosines.shape[1]) == batch["y"][:, None]
    return optax.softmax_cross_entropy_with_integer_labels(SCALE * (cosines - MARGIN * right), batch["y"]).mean()


def train_step(model: Faces, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    """One step of training, in place. Nothing in it knows of devices."""
    loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
    optimizer.update(model, grads)
    return loss


def create(options: argparse.Namespace, identities: int) -> tuple[Faces, nnx.Optimizer]:
    """A model and its optimizer; inside ``nnx.eval_shape`` their shapes only."""
    model = Faces(options.inputs, options.features, identities, nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(options.learning_rate), wrt=nnx.Param)


def faces(step: int, options: argparse.Namespace) -> Batch:
    """Pictures of the first 64 identities, each seen through noise."""
    rng, own = np.random.default_rng((1, step)), np.random.default_rng(0)
    y = rng.integers(0, min(64, options.identities), options.batch)
    x = own.standard_normal((64, options.inputs))[y] + 0.3 * rng.standard_normal((options.batch, options.inputs))
    return {"x": x.astype(np.float32), "y": y.astype(np.int32)}


def check_head(plan: sbp.Plan, compiled: jax.stages.Compiled, options: argparse.Namespace, identities: int) -> int:
    """The head is split by classes, and neither logits nor head travel; elements of the largest array that does."""
    n, sent = plan.placement.size, plan.bytes_on_wire
    report = plan.verify(compiled)  # raises where XLA moves what the plan does not know
    largest = max((collective.operand.elements for _, collective in report.matched), default=0)
    head = next(leaf for leaf in plan.inputs if leaf.shape == (options.features, identities))
    print(f"  the head lies as ({head.signature}): {mib(4 * options.features * identities / n)} on each device")
    if n == 1:
        print("  with one device there is nothing to split")
        return largest
    check(set(head.signature) == {sbp.split(1)}, "the head is split by classes on every axis, by the planner's choice")
    check(not any(identities in b.shape for b in plan.boxings()), "nothing with a dimension of all classes is moved")
    check(any("P(max)" in str(b.src) for b in plan.boxings()), "maxima are reduced: P(max)")
    logits = options.batch * identities // n
    check(sent < 4 * logits, f"all that a device sends, {mib(sent)}, is less than its part of the logits")
    check(largest < logits, f"no compiled collective has more than {largest:,} elements; a device's logits: {logits:,}")
    return largest


def read(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--identities", type=int, default=10_240, help="classes of the model that is trained")
    parser.add_argument("--planned", type=int, default=1_000_000, help="classes of the model that is only planned")
    parser.add_argument("--batch", type=int, default=64, help="pictures in a step, on all devices together")
    parser.add_argument("--inputs", type=int, default=96)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compare-steps", type=int, default=5, help="steps repeated on a single device")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--mesh", type=mesh_shape, help="as 2x4: axes dp x tp (default: all GPUs, or 2x4 on CPUs)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> dict[str, object]:
    """Run the tutorial; both plans, the largest arrays moved, the losses, and those of one device."""
    options = read(arguments)
    where = devices(("dp", "tp"), options.mesh)

    # A plan needs shapes only, and so does XLA: nothing of this model is ever in memory.
    shapes = nnx.eval_shape(lambda: create(options, options.planned))
    print(f"{options.planned:,} identities, planned and compiled from shapes:")
    step = sbp.flax.jit(train_step, placement=where)
    planned = step.plan(*shapes, faces(0, options))
    print(brief(planned))
    planned_largest = check_head(planned, step.lower(*shapes, faces(0, options)).compile(), options, options.planned)

    print(f"\n{options.identities:,} identities, trained:")
    # Born sharded: the head is never whole on one device.
    model, optimizer = sbp.flax.create(create, options, options.identities, placement=where)
    step = sbp.flax.jit(train_step, placement=where)
    plan = step.plan(model, optimizer, faces(0, options))
    print(brief(plan))
    largest = check_head(plan, step.lower(model, optimizer, faces(0, options)).compile(), options, options.identities)
    losses = [float(step(model, optimizer, faces(i, options))) for i in range(options.steps)]
    print(f"\nloss {losses[0]:.3f} -> {losses[-1]:.3f} in {options.steps} steps")
    alone, reference = nnx.jit(train_step), create(options, options.identities)
    compared = [float(alone(*reference, faces(i, options))) for i in range(min(options.compare_steps, options.steps))]
    check_equal(losses[: len(compared)], compared, "equal to a single device")
    check_learned(losses, by=0.3 * losses[0])
    return {"plan": plan, "planned": planned, "largest": largest, "planned_largest": planned_largest,
            "losses": losses, "single": compared}  # fmt: skip


if __name__ == "__main__":
    main()
