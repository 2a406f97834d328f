"""The kernels that run pages and notebooks: no IPython profile of yours, quiet, and timed."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Else every kernel warns that it listens on a port, and that frozen modules cannot be debugged.
_CONFIG = "c.IPKernelApp.log_level = 40\n"
_STARTED = time.time()


def prepare() -> None:
    """Set the environment that kernels started from now on inherit."""
    folder = Path(tempfile.mkdtemp(prefix="ipython-"))
    profile = folder / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text(_CONFIG)
    os.environ["IPYTHONDIR"] = str(folder)
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"


def tell_seconds(app: Any, error: Exception | None) -> None:
    """Sphinx's hook: print how long each page ran that was executed in this build."""
    if error is not None:
        return
    taken: dict[str, float] = {}
    for page in app.env.found_docs:
        data = app.env.nb_metadata.get(page, {}).get("exec_data") or {}
        if data.get("runtime") and data.get("mtime", 0) >= _STARTED:
            taken[page] = data["runtime"]
    for page in sorted(taken, key=lambda page: -taken[page]):
        print(f"{page:<32} {taken[page]:8.1f} s")
    if taken:
        print(f"{'pages run':<32} {sum(taken.values()):8.1f} s")
