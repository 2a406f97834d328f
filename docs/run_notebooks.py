"""Runs every notebook of notebooks/ from a fresh kernel, as it lies there, and prints the seconds that each takes.

    python docs/run_notebooks.py            # all of them, kept with their outputs in docs/notebooks/ for `make docs`
    python docs/run_notebooks.py 01 05      # those whose names begin so

Exit status 1 when a cell raises or writes to stderr (a warning, say). "wall" is by the clock, "processor" the seconds
that the kernel used on all cores.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

import kernels

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "notebooks"
SECONDS_A_CELL = 180


def run(path: Path) -> NotebookNode:
    """The notebook with its outputs; run where what it writes goes with it."""
    notebook = jupytext.read(path)
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=SECONDS_A_CELL, resources=where).execute()
    notebook.metadata["mystnb"] = {"execution_mode": "off"}  # done; Sphinx shows the outputs
    return notebook


def complaints(notebook: NotebookNode) -> list[str]:
    """What the cells wrote to stderr."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    return [output.text for output in outputs if output.get("name") == "stderr"]


def processor_seconds() -> float:
    """Used by the kernels that have ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(prefixes: list[str]) -> int:
    """Run them one after the other."""
    paths = [p for p in sorted((ROOT / "notebooks").glob("[0-9]*.md")) if p.name.startswith(tuple(prefixes or [""]))]
    if not paths:
        print(f"no notebook begins with {', '.join(prefixes)}", file=sys.stderr)
        return 1
    kernels.prepare()
    OUT.mkdir(exist_ok=True)
    failed, total = False, 0.0
    print(f"{'notebook':<32} {'wall s':>8} {'processor s':>12}")
    for path in paths:
        began, used = time.perf_counter(), processor_seconds()
        try:
            notebook = run(path)
        except CellExecutionError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            failed = True
            continue
        for text in complaints(notebook):
            print(f"{path.name} wrote to stderr: {text}", file=sys.stderr)
            failed = True
        jupytext.write(notebook, OUT / f"{path.stem}.ipynb")
        wall = time.perf_counter() - began
        total += wall
        print(f"{path.stem:<32} {wall:8.1f} {processor_seconds() - used:12.1f}", flush=True)
    print(f"{'all':<32} {total:8.1f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
