"""The processes of a run: how they start together, who is which, and what they tell each other.

The low room: it knows nothing of placements or tensors. Nothing here moves tensors; the messages are short texts in
the key-value store of JAX's coordination service.
"""

from ..run_dir import EXIT_STOPPED as EXIT_STOPPED
from .agreement import Request as Request
from .agreement import request as request
from .devices import start_devices as start_devices
from .launched import heartbeat as heartbeat
from .ranks import World as World
from .ranks import current as current
from .rdma import Rdma as Rdma
from .rdma import find_rdma as find_rdma
from .start import initialize as initialize
from .start import is_initialized as is_initialized
from .start import shutdown as shutdown
from .stopping import ask_to_stop as ask_to_stop
from .stopping import leave as leave
from .stopping import should_stop as should_stop
from .store import Store as Store
from .store import store as store
