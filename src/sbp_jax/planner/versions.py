"""Which versions of what made a plan: the same ones make the same plan of the same program."""

import contextlib
import functools
import importlib.metadata

_PACKAGES = ("sbp_jax", "jax", "jaxlib", "highspy", "numpy", "scipy")


@functools.cache
def versions() -> dict[str, str]:
    """The version of each package that a plan hangs on, where it is installed."""
    found = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
