"""A run that survives lost processes: each start makes its own plan, goes on from the newest checkpoint, and stops when
it is asked to.

    python -m sbp_jax.distributed.launch --nproc_per_node 4 --devices_per_proc 2 --max_restarts 10 \\
        examples/elastic.py --folder /tmp/elastic

Kill any of its processes while it runs (`kill -9 PID`): all start again and the loss curve goes on as if nothing had
been. `kill PID_OF_THE_LAUNCHER` makes them save at a common step and leave; the same command goes on from there.
"""

import argparse
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import sbp_jax as sbp

WIDTH, EXAMPLES, BATCH = 16, 480, 24


def examples() -> dict[str, np.ndarray]:
    """A regression: the same numbers in every process and in every start."""
    random = np.random.default_rng(0)
    x = random.normal(size=(EXAMPLES, WIDTH)).astype(np.float32)
    return {"x": x, "y": np.tanh(x @ random.normal(size=(WIDTH, 4)).astype(np.float32))}


def new_state() -> dict[str, np.ndarray]:
    """The first parameters, and their momentum."""
    random = np.random.default_rng(1)
    up = 0.3 * random.normal(size=(WIDTH, 24)).astype(np.float32)
    down = 0.3 * random.normal(size=(24, 4)).astype(np.float32)
    return {"up": up, "down": down, "momentum_up": np.zeros_like(up), "momentum_down": np.zeros_like(down)}


def train_step(state, batch):
    """One step of gradient descent with momentum, as for one device."""

    def loss_fn(up, down):
        return jnp.mean((jnp.tanh(batch["x"] @ up) @ down - batch["y"]) ** 2)

    loss, (up, down) = jax.value_and_grad(loss_fn, argnums=(0, 1))(state["up"], state["down"])
    momentum_up, momentum_down = 0.9 * state["momentum_up"] + up, 0.9 * state["momentum_down"] + down
    new = {"up": state["up"] - 0.05 * momentum_up, "down": state["down"] - 0.05 * momentum_down}
    return new | {"momentum_up": momentum_up, "momentum_down": momentum_down}, loss


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--folder", type=Path, required=True, help="for checkpoints and the losses")
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    options.add_argument("--pause", type=float, default=0.0, help="seconds to sleep in each step")
    args = options.parse_args()

    world = sbp.distributed.initialize()
    print(f"rank {world.rank} of {world.size} is process {os.getpid()}, generation {world.generation}", flush=True)
    devices = np.arange(jax.device_count())
    mesh = sbp.placement("cpu" if jax.default_backend() == "cpu" else "gpu", ranks=devices, axis_names=("dp",))
    manager = sbp.checkpoint.Manager(args.folder / "checkpoints")
    data = sbp.data.pipeline(examples(), placement=mesh, sbp=sbp.split(0), batch=BATCH, seed=0, epochs=None)

    # Planned for the devices of this start, however many there are.
    step = sbp.auto_parallel(train_step, placement=mesh, donate_argnums=0)
    state, begin = new_state(), 0
    if manager.latest_step() is not None:
        state = manager.restore(placement=mesh)
        begin = manager.restored.step
        data.restore(manager.restored.data)
    note(args.folder, world, f"start {world.generation} {world.size} {begin}")

    for number in range(begin, args.steps):
        # True in every process at the same step, after SIGTERM to the launcher or to any process.
        if sbp.distributed.should_stop(number):
            manager.save(number, state, data=data.state(), blocking=True)
            sbp.distributed.leave()
        state, loss = step(state, next(data))
        note(args.folder, world, f"loss {number} {float(loss):.9g} {time.time()}")
        time.sleep(args.pause)
        if (number + 1) % args.every == 0:
            manager.save(number + 1, state, data=data.state())
    manager.close()
    note(args.folder, world, f"done {args.steps}")


def note(folder: Path, world: sbp.distributed.World, text: str) -> None:
    """A line in the run's diary, by process 0."""
    if world.rank == 0:
        folder.mkdir(exist_ok=True)
        with (folder / "diary.txt").open("a") as diary:
            diary.write(text + "\n")


if __name__ == "__main__":
    main()
