"""What a new user waits for: from a clone to the first plan, and the notebooks from fresh kernels.

    python benchmarks/new_user.py [--write]

Clones this checkout's last commit into a temporary folder and runs `make demo` there, on as bare a machine as this one
is: its own .venv is made, packages come from wherever pip is set to. Says when each thing was printed, in seconds since
the clone began; then runs `make notebooks` there. ``--write`` keeps what was printed in ``results/new_user.txt``.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What is waited for, by how its line begins.
MARKS = {"the plan": "Plan of ", "verified": "verified in", "trained": "training"}


def main() -> int:
    """Print, and keep; 1 when a command fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what is printed in results/new_user.txt")
    args = parser.parse_args()
    lines = [f"new_user.py; {platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}; "
             f"{date.today()}. Seconds by the clock, since the clone began.", ""]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        lines.append(f"git clone           {time.monotonic() - start:6.0f} s")
        demo = subprocess.Popen(
            ["make", "demo", "ARGS=--steps 2"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        seen: set[str] = set()
        for line in demo.stdout or ():
            for name, begins in MARKS.items():
                if name not in seen and line.startswith(begins):
                    seen.add(name)
                    lines.append(f"make demo: {name:<9}{time.monotonic() - start:6.0f} s")
        failed = demo.wait() != 0 or seen != set(MARKS)
        notebooks = subprocess.run(["make", "notebooks"], cwd=folder, capture_output=True, text=True, check=False)
        failed |= notebooks.returncode != 0
        lines += ["", "make notebooks", *re.findall(r"^(?:notebook|\d\d_|all).*$", notebooks.stdout, re.M)]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if args.write and not failed:
        (Path(__file__).parent / "results" / "new_user.txt").write_text(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
