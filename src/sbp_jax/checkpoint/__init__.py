"""Checkpoints that can be trusted: written by all processes at once, checked when read, restored on any placement."""

from .manager import Manager as Manager
from .restoring import CheckpointInfo as CheckpointInfo
from .single import info as info
from .single import restore as restore
from .single import save as save
from .single import verify as verify
