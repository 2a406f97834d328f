"""Ops cut by ratios among unlike devices: the program in pieces, each of which is placed."""

from . import accpar_ratios
from .pieces import Pieces as Pieces
