"""The command line, ``sbp-jax``: one file for each command, registered by ``base.command``.

Exit codes: 0 when done; 1 where the answer is no (``diff``: the plans differ, ``doctor``: something is broken); 2 for
wrong usage or any ``SbpError``, whose message goes to stderr without a traceback; 130 when interrupted.
"""

from .base import main as main

# Importing a command registers it, in the order of the help.
from . import planning, reading, benching, examining, calibrating, launching  # isort: skip
