"""The size of a plan's HTML report, and how long a browser takes to open it.

    python benchmarks/report_size.py                      # GPT-3, 96 layers unrolled, on 128 x 8 devices
    python benchmarks/report_size.py --model llama3-8b
    python benchmarks/report_size.py --plan plan.json     # a plan made before

Models are those of ``planning_time.py``. The browser is headless Chromium, found on the PATH; "opened" is the time from
the start of the page's load to its load event by its own clock (``performance.now``); "drawn" is the time of a whole
browser, from its start to a picture of the page, less that of an empty page. Each time the profile is
a fresh one. Results go to ``results/report.txt`` with ``--write``.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import sbp_jax as sbp

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
# Writes its own times into the page once it is loaded; only in the copy that is measured.
_PROBE = """<script>addEventListener('load',function(){document.title='TIMES '+JSON.stringify({
load:performance.now(),nodes:document.getElementsByTagName('*').length})})</script></body>"""


def plan_of(model: str) -> sbp.Plan:
    """A model's plan, from shapes alone."""
    from planning_time import MODELS

    import zoo

    name, size, overrides, mesh = MODELS[model]
    shape = tuple(map(int, mesh.split("x")))
    where = sbp.placement.abstract(shape, axis_names=("dp", "tp", "pp")[: len(shape)], cluster="h100")
    case = zoo.build(name, size, **overrides)
    return sbp.plan(case.step, case.abstract_state(), case.batch(0), placement=where, donate_argnums=0)


def browser() -> str | None:
    """The Chromium of this machine."""
    return next(
        (path for name in ("chromium", "google-chrome", "chromium-browser") if (path := shutil.which(name))), None
    )


def run(chromium: str, address: str, *more: str) -> tuple[str, float]:
    """What a browser of its own prints, and the seconds it takes."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        done = subprocess.run(
            [chromium, *_FLAGS, f"--user-data-dir={folder}", *more, address], capture_output=True, text=True,
            timeout=120, check=True,
        )  # fmt: skip
        return done.stdout, time.perf_counter() - start


def opened(page: Path, chromium: str) -> dict[str, float]:
    """Milliseconds to the load event, elements of the page, seconds until it is drawn."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", _PROBE), encoding="utf-8")
        found = re.search(r"<title>TIMES (\{.*?\})", run(chromium, copy.as_uri(), "--dump-dom")[0])
        if found is None:
            raise SystemExit("the page did not say when it was loaded")
        picture = ("--window-size=1280,1600", f"--screenshot={folder}/page.png")
        drawn, empty = (run(chromium, address, *picture)[1] for address in (page.as_uri(), "about:blank"))
    return {**json.loads(found[1].replace("&quot;", '"')), "drawn": drawn - empty, "whole": drawn}


def main() -> None:
    """Print a line for one plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt3")
    parser.add_argument("--plan", help="a saved plan instead of a model")
    parser.add_argument("--write", action="store_true", help="write results/report.txt")
    args = parser.parse_args()
    plan = sbp.Plan.load(args.plan) if args.plan else plan_of(args.model)
    with tempfile.TemporaryDirectory() as folder:
        page, saved = Path(folder) / "report.html", Path(folder) / "plan.json"
        plan.save(saved)
        start = time.process_time()
        plan.to_html(page)
        made = time.process_time() - start
        nodes = plan.statistics.get("nodes", 0)
        lines = [
            f"report of {args.plan or args.model} on {plan.placement}: {nodes:.0f} nodes, "
            f"{len(plan.boxings())} boxings",
            f"  plan as JSON      {saved.stat().st_size / 1e6:8.2f} MB",
            f"  report as HTML    {page.stat().st_size / 1e6:8.2f} MB, made in {made:.1f} s of the processor "
            "(simulated three times)",
        ]
        chromium = browser()
        if chromium is None:
            lines.append("  no Chromium on the PATH: not opened")
        else:
            runs = [opened(page, chromium) for _ in range(3)]
            best = min(runs, key=lambda r: r["load"])
            version = subprocess.run([chromium, "--version"], capture_output=True, text=True, check=True).stdout.strip()
            drawn, whole = min(r["drawn"] for r in runs), min(r["whole"] for r in runs)
            lines += [
                f"  opened            {best['load'] / 1e3:8.2f} s to its load event, the best of 3; the worst "
                f"{max(r['load'] for r in runs) / 1e3:.2f} s; {best['nodes']:.0f} elements",
                f"  drawn             {drawn:8.2f} s more than an empty page; {whole:.2f} s with the browser's start",
                f"  browser           {version}",
            ]
    text = "\n".join(lines)
    print(text)
    if args.write:
        (Path(__file__).parent / "results" / "report.txt").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
