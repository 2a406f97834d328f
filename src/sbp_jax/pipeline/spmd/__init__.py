"""A pipeline as one program for all devices: a loop over time slots, in each of which a group runs its task."""

from .step import SpmdStep as SpmdStep
from .step import spmd_step as spmd_step
