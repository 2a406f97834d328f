"""Every published search for placing on training steps and unlike devices: a run over the best known, bound, seconds.

    python benchmarks/search_placing.py [--only gpt,towers] [--devices mixed,tight] [--methods heft,gdp] [--ops 16]
                                        [--steps 200]

Each step (forward, backward, update) is traced once and merged to ``--ops`` ops; every method places the same graph and
is judged by the same simulator. accpar_ratios cuts ops into pieces first: its graph has more of them, none merged.
"best": over the shortest run of the row. "bound": what no placement of these ops, whole, takes less than, over the
same; pesto's, proven. "s" is processor seconds, compiling included. Policies are trained on the graph that they place,
by ``--steps`` updates. "gdp, before" and the like were trained on random graphs for the same devices before, and place
the graph without learning of it. "tight": no GPU can hold a whole run. "-": the method refused, with the reason below
the table.
Ends with exit code 1 where any method that leaves ops whole is below the bound.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import jax.numpy as jnp
from search_zoo import print_means

import sbp_jax as sbp
import zoo
from sbp_jax.calls.capture import trace
from sbp_jax.planner.catalogue import lookup
from sbp_jax.planner.placing import OpGraph, Placing, PlacingTask, Policy, gdp, placeable, placeto, regal, sample_graph

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def of_zoo(name: str, **config: Any) -> Program:
    """A training step."""
    case = zoo.build(name, **config)
    return case.step, (case.abstract_state(), case.batch(0))


def shapes(*each: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """float32 arrays, by shape alone."""
    return tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in each)


def towers() -> Program:
    """Four towers of two products each, of unlike widths, joined at their end, and their gradients."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        parts = [jnp.tanh(jax.nn.relu(x @ a) @ b) for a, b in w]
        return jnp.concatenate(parts, axis=-1).sum(-1).mean()

    w = [shapes((1024, n), (n, 512)) for n in (2048, 4096, 4096, 8192)]
    return jax.value_and_grad(loss), (w, *shapes((4096, 1024)))


def encoder_decoder() -> Program:
    """Two encoders, one narrow and one wide, read by a decoder through attention, and their gradients."""

    def attend(w: Any, q: jax.Array, kv: jax.Array) -> jax.Array:
        k, v = kv @ w[0], kv @ w[1]
        return jax.nn.softmax(q @ k.swapaxes(-1, -2) / 16) @ v

    def loss(w: Any, x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        for a, b in w["first"]:
            x = x + jax.nn.gelu(x @ a) @ b
        for a, b in w["second"]:
            y = y + jax.nn.gelu(y @ a) @ b
        for near, far, a, b in w["decoder"]:
            z = z + attend(near, z, x) + attend(far, z, y)
            z = z + jax.nn.gelu(z @ a) @ b
        return (z**2).mean()

    first, second = ([shapes((512, n), (n, 512))] * 3 for n in (1024, 4096))
    decoder = [(*(shapes((512, 512), (512, 512)) for _ in range(2)), *shapes((512, 2048), (2048, 512)))] * 2
    x = shapes((32, 128, 512), (32, 256, 512), (32, 128, 512))
    return jax.value_and_grad(loss), ({"first": first, "second": second, "decoder": decoder}, *x)


MODELS: dict[str, Callable[[], Program]] = {
    "mlp": lambda: of_zoo("mlp", hidden=1024, features=1024, batch=4096, dropout=0.0),
    "lstm": lambda: of_zoo("lstm", hidden=512, batch=256),
    "gpt": lambda: of_zoo("gpt", batch=64, hidden=256, seq=128, dropout=0.0),
    "vit": lambda: of_zoo("vit", batch=64),
    "dlrm": lambda: of_zoo("dlrm", batch=4096),
    "towers": towers,
    "encoder_decoder": encoder_decoder,
}
DEVICES: dict[str, tuple[str, ...]] = {
    "mixed": ("h100", "v100", "v100"),
    "tight": ("a100-80", "v100", "host"),
    "four": ("a100-80", "a100-80", "v100", "host"),
}
# What a device may hold, as a part of what a run needs whose ops are all on the first; elsewhere what its kind has.
MEMORY = {"tight": (0.6, 0.4, 10.0)}
BEFORE = {"gdp": gdp, "placeto": placeto, "regal": regal}
_SAME = 1e-9


def trained(devices: sbp.Devices, ops: int, methods: list[str]) -> dict[str, Policy]:
    """Policies for these devices, trained on random graphs with dear and with cheap transfers."""
    graphs = [sample_graph(k, ops, devices, apart=(0.05, 0.5, 5.0)[k % 3]) for k in range(9)]
    steps = {"gdp": 600, "placeto": 600, "regal": 100}
    return {name: BEFORE[name].train(graphs, devices, steps=steps[name]) for name in BEFORE if name in methods}


def options(name: str, ops: int, steps: int) -> dict[str, Any]:
    """What a method is told in this table."""
    known = {o.name for o in lookup(name, "placing").options}
    if name == "pesto":
        return {"most_ops": ops, "nodes": 20_000}
    return {"steps": steps} if "steps" in known and name != "regal" else {}


def limited(devices: sbp.Devices, graph: OpGraph, name: str) -> sbp.Devices:
    """The devices of a set, with its limits of memory for this graph."""
    if name not in MEMORY:
        return devices
    need = PlacingTask(graph, devices).simulator.timeline([0] * len(graph)).peak_bytes[0]
    return replace(devices, memory_bytes=tuple(part * need for part in MEMORY[name]))


def run(
    name: str, graph: OpGraph, devices: sbp.Devices, given: dict[str, Any], program: Any
) -> tuple[Placing, float]:  # fmt: skip
    """A method's placement, and processor seconds."""
    method, began = lookup(name, "placing"), time.process_time()
    found = method.run(PlacingTask(graph, devices, method.checked(given), program))
    return found, time.process_time() - began


def main() -> int:
    """Print the table; 1 where a method is below the proven bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--methods", default=",".join(sbp.planner.solvers().of("placing")))
    parser.add_argument("--ops", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    methods, sets = args.methods.split(","), args.devices.split(",")
    began, below = time.process_time(), 0
    refused: dict[str, list[str]] = {}
    points: dict[str, list[tuple[float, float]]] = {}
    print("| model | devices | method | ms | best | bound | s |\n|---|---|---|---|---|---|---|", flush=True)
    where = {name: sbp.Devices.of(*DEVICES[name]) for name in sets}
    policies = {name: trained(where[name], args.ops, methods) for name in sets}
    for model in args.only.split(","):
        fn, inputs = MODELS[model]()
        program = trace(fn, inputs, {}, (), ())[0]
        for name in sets:
            graph = placeable(program, where[name], args.ops).graph
            devices = limited(where[name], graph, name)
            found: dict[str, tuple[float, float, float]] = {}
            in_pieces: set[str] = set()
            for method in methods:
                try:
                    answer, spent = run(method, graph, devices, options(method, args.ops, args.steps), program)
                    found[method] = answer.seconds, answer.bound_seconds, spent
                    in_pieces |= {method} if answer.cut is not None else set()
                except sbp.PlanError as error:
                    refused.setdefault(method, []).append(f"{model} on {name}: {error}")
                if method in policies[name]:
                    start = time.process_time()
                    policy = replace(policies[name][method], devices=devices)
                    try:
                        answer = policy.place(graph, samples=1 if method == "regal" else 16)
                    except sbp.PlanError as error:
                        refused.setdefault(f"{method}, before", []).append(f"{model} on {name}: {error}")
                        continue
                    found[f"{method}, before"] = answer.seconds, 0.0, time.process_time() - start
            best = min(x for x, _, _ in found.values())
            bound = max(b for _, b, _ in found.values())
            for method in [*methods, *(f"{m}, before" for m in policies[name])]:
                if method not in found:
                    print(f"| {model} | {name} | {method} | - | - | - | - |", flush=True)
                    continue
                seconds, _, spent = found[method]
                is_below = method not in in_pieces and seconds < bound * (1 - _SAME)
                below += is_below
                points.setdefault(method, []).append((spent, seconds / best))
                print(
                    f"| {model} | {name} | {method} | {1e3 * seconds:.4g} | {seconds / best:.3f}"
                    f"{'!' if is_below else ''} | {bound / best:.3f} | {spent:.3f} |", flush=True,
                )  # fmt: skip
    print_means(refused, points)
    print(f"\n{below} placements below a proven bound; {time.process_time() - began:.0f} s of processor time in all")
    return int(below > 0)


if __name__ == "__main__":
    sys.exit(main())
