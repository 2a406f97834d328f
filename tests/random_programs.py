"""Random JAX programs from a seed, as source text: planned, run, compared with plain JAX, verified.

``python tests/random_programs.py SEED`` runs one and prints it. ``--from 100000 --count 10000`` runs many: a line for
each seed that fails, a summary at the end; ``--log FILE`` goes on where an earlier run with that file stopped.
Whatever one seed gives is fixed, so a failure can be shrunk by deleting lines of what is printed.

Results are compared with a tolerance, so no value may depend on another by a jump: comparisons, orders, positions of
maxima and roundings are taken of *exact* values only, those that no rounding has touched (arguments, and what moves,
selects or negates their elements). Values are kept small: each knows a bound, and is scaled when that grows.

The package ``random_program`` has the parts: ``scope`` (a body while it is written), ``pointwise``, ``reducing``,
``moving``, ``nested``, ``types``, ``effects`` (the ops), ``generate``, ``running`` (what is compared), ``many``.
"""

import os

if __name__ == "__main__":  # before jax is imported
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    )

from random_program.generate import Generated as Generated
from random_program.generate import generate as generate
from random_program.many import main
from random_program.running import CLUSTERS as CLUSTERS
from random_program.running import PLAIN as PLAIN
from random_program.running import Invalid as Invalid
from random_program.running import check as check
from random_program.running import check_again as check_again
from random_program.running import run as run

if __name__ == "__main__":
    main()
