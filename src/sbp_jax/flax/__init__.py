"""Flax users' door: ``sbp.flax.jit`` stands where ``nnx.jit`` stood."""

try:
    import flax as _flax
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "sbp.flax needs Flax, which is not installed. Functions of arrays need no sbp.flax: sbp.auto_parallel plans "
        "them. For Flax models: pip install 'sbp-jax[flax]'",
        name=error.name,
    ) from error

from .born import create as create
from .jit import jit as jit
from .parallel import parallel as parallel
from .pins import pins as pins
from .variables import shardings as shardings
from .variables import signatures as signatures
