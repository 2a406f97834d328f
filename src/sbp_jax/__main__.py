"""``python -m sbp_jax``: the command line."""

import sys

from .cli import main

sys.exit(main())
