"""``python -m sbp_jax.distributed.launch``."""

import sys

from .command import main

sys.exit(main())
