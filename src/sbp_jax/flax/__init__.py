"""Flax users' door: ``sbp.flax.jit`` stands where ``nnx.jit`` stood."""

from .jit import jit as jit
