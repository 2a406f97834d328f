"""What another process says: with another hash seed, the order of a set of strings is another one there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def under_another_hash_seed(file: str, expression: str, **variables: str) -> Any:
    """What ``expression`` is, as JSON, where ``t`` is the module of this file, in a process with another hash seed, and
    these environment variables."""
    path = Path(file)
    folders = [str(path.parent), str(Path(__file__).parent)]
    program = f"import json, sys; sys.path[:0] = {folders!r}; import {path.stem} as t\n"
    program += f"print(json.dumps({expression}))"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    found = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables | {"PYTHONHASHSEED": seed}, capture_output=True,
        text=True, check=True, timeout=300,
    ).stdout  # fmt: skip
    return json.loads(found.splitlines()[-1])
