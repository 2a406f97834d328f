"""The kernels that run pages and notebooks: nobody's own IPython profile, and quiet."""

import os
import tempfile
from pathlib import Path

# Else every kernel warns that it listens on a port, and that frozen modules cannot be debugged.
_CONFIG = "c.IPKernelApp.log_level = 40\n"


def prepare() -> None:
    """Set the environment that kernels started from now on inherit."""
    folder = Path(tempfile.mkdtemp(prefix="ipython-"))
    profile = folder / "profile_default"
    profile.mkdir()
    (profile / "ipython_kernel_config.py").write_text(_CONFIG)
    os.environ["IPYTHONDIR"] = str(folder)
    os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
