"""Writes docs/benchmarks.md: what the scripts in benchmarks/ printed last, by subject.

python docs/benchmarks_page.py
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """# What was measured

Each part is what a script in [benchmarks/](../benchmarks/README.md) printed, kept in `benchmarks/results/`.
`make bench` runs them all, `make results` writes this page anew. Seconds on shared machines vary: compare within a
table.
"""
SUBJECTS = {
    "plan_quality": "Bytes on the wire, against shardings written by hand",
    "solvers": "Search methods and fixed strategies, on one cost model",
    "search_zoo": "Published searches for signatures, on one cost model",
    "search_placing": "Published searches for placing ops on unlike devices, on one cost model",
    "search_rewriting": "Substitutions in the graph, chosen together with the plan",
    "search_stages": "Published searches for pipeline stages, on one cost model",
    "overlap": "What hides is not paid: simulated steps",
    "search_comparison": "Which search under a memory limit: prototypes compared",
    "contest": "A contest's problems: costs by pairs, bytes within a limit",
    "planning_time": "Seconds and memory that planning takes",
    "small_models": "Thirty small models: planning against compiling",
    "fidelity": "The compiled program against the plan",
    "lowerings": "One plan in three programs: explicit, as constraints, shardings alone",
    "memory": "Memory, against XLA's own figures",
    "remat": "Planning with less memory than a step needs: what is computed again",
    "pipeline": "Pipelines, against the best plan without one",
    "actors": "Actors: bubbles, registers, how soon one fires, a loader",
    "megatron": "The simulator, against published runs",
    "calibration": "A calibrated cluster",
    "planning_and_calls": "Planning small models; the cost of a call",
    "eager": "Eager operations on global tensors",
    "collectives": "Collectives between devices and processes, beside jax.lax",
    "checkpoints": "Checkpoints: speed, and what they cost a step",
    "gpu": "On a GPU",
    "gpu_compile": "Compiled for GPUs, on a machine without one",
    "report": "A plan of 96 layers as HTML",
    "restarts": "From a killed process to the first collective of the next start",
    "random_programs": "Random programs, against plain JAX",
    "new_user": "A new user's path",
}


def page() -> str:
    """The page as text. A result without a subject here raises ``KeyError``."""
    results = {path.stem: path for path in (ROOT / "benchmarks" / "results").glob("*.txt")}
    titles = {name: SUBJECTS[name] for name in sorted(results, key=list(SUBJECTS).index)}
    parts = [f"\n## {title}\n\n```\n{results[name].read_text().rstrip()}\n```\n" for name, title in titles.items()]
    return HEAD + "".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "benchmarks.md").write_text(page())
