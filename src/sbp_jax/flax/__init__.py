"""Flax users' door: ``sbp.flax.jit`` stands where ``nnx.jit`` stood."""

from .born import create as create
from .jit import jit as jit
from .parallel import parallel as parallel
from .pins import pins as pins
from .variables import shardings as shardings
from .variables import signatures as signatures
