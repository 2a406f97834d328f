"""The model zoo with and without ``rewrite="taso"``: objectives, their ratio, what was done, seconds of planning.

    python benchmarks/search_rewriting.py [--only gpt,lstm] [--meshes 1x8,2x4] [--steps 60] [--cluster a100-80]
                                          [--results benchmarks/results/search_rewriting.txt]

Both are planned by the exact search for the plain sum of compute and boxing (``overlap=False``), without a memory
limit. "block" is Inception v1's module 3a, forward, the kind of graph that TASO was published for; "attention" is a
layer on 64 examples. Ends with exit code 1 where a rewritten program is more expensive: the search must keep the
program then.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
import search_zoo
from jax import lax
from search_zoo import Case

import sbp_jax as sbp


def shape(*lengths: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(lengths, np.float32)


def conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def inception(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    a, b, c, d = (jax.nn.relu(conv(x, w[name])) for name in "abcd")
    return jnp.concatenate([a, conv(b, w["b3"]), conv(c, w["c5"]), d], -1)


def attention(w: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    q, k, v = (x @ w[name] for name in "qkv")
    return (jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 8.0) @ v) @ w["o"]


def trained(f: Callable[..., Any]) -> Callable[..., Any]:
    def step(w: dict[str, jax.Array], x: jax.Array) -> tuple[Any, jax.Array]:
        value, grads = jax.value_and_grad(lambda w: jnp.mean(f(w, x) ** 2))(w)
        return jax.tree.map(lambda a, g: a - 0.1 * g, w, grads), value

    return step


BLOCK = (
    {"a": shape(1, 1, 192, 64), "b": shape(1, 1, 192, 96), "c": shape(1, 1, 192, 16), "d": shape(1, 1, 192, 32),
     "b3": shape(3, 3, 96, 128), "c5": shape(5, 5, 16, 32)},
    shape(128, 28, 28, 192),
)  # fmt: skip
LAYER = {name: shape(512, 512) for name in "qkvo"}, shape(64, 256, 512)

MODELS: dict[str, Callable[[], Case]] = {
    "block": lambda: (inception, BLOCK, ()),
    "block, trained": lambda: (trained(inception), BLOCK, (0,)),
    "attention": lambda: (attention, LAYER, ()),
    "attention, trained": lambda: (trained(attention), LAYER, (0,)),
    **{name: make for name, make in search_zoo.MODELS.items() if name != "products"},
}
_SAME = 1e-6


def main() -> int:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=";".join(MODELS), help="models, with ; between them")
    parser.add_argument("--meshes", default="1x8,2x4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cluster", default="a100-80")
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    began, worse, ratios, lines = time.perf_counter(), 0, [], []

    def tell(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    tell("| model | mesh | ms | rewritten, ms | ratio | nodes | programs | s | s, rewritten | what was done |")
    tell("|---|---|---|---|---|---|---|---|---|---|")
    for model in args.only.split(";"):
        step, arguments, donated = MODELS[model]()
        for mesh in args.meshes.split(","):
            where = sbp.placement.abstract(tuple(map(int, mesh.split("x"))), cluster=args.cluster)
            plain, after = (
                sbp.plan(
                    step, *arguments, placement=where, donate_argnums=donated,
                    config=sbp.AutoParallelConfig(overlap=False, **options),
                )
                for options in ({}, {"rewrite": "taso", "rewrite_options": {"steps": args.steps}})
            )  # fmt: skip
            ratio = after.objective / plain.objective
            worse += ratio > 1 + _SAME
            ratios.append(ratio)
            done = after.rewritten.moves if after.rewritten is not None else ()
            what = ", ".join(f"{len(sites)} x {name}" for name, sites in done) or "nothing"
            tell(
                f"| {model} | {mesh} | {1e3 * plain.objective:.4g} | {1e3 * after.objective:.4g} | {ratio:.3f} | "
                f"{len(plain.nodes)} | {after.statistics['programs_priced']:.0f} | {plain.planning_seconds:.2f} | "
                f"{after.planning_seconds:.2f} | {what} |"
            )
    cheaper = sum(r < 1 - _SAME for r in ratios)
    tell(
        f"\n{cheaper} of {len(ratios)} rows cheaper, mean ratio {np.mean(ratios):.3f}, best {min(ratios):.3f}; "
        f"{worse} worse; {time.perf_counter() - began:.0f} s in all"
    )
    if args.results:
        args.results.write_text("\n".join(lines) + "\n")
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
