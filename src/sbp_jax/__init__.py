"""sbp_jax: OneFlow's SBP system on JAX. Plans a training step, proves the plan, runs exactly that."""

from . import boxing as boxing
from . import cluster as cluster
from .api import auto_parallel as auto_parallel
from .api import plan as plan
from .cluster import Cluster as Cluster
from .config import AutoParallelConfig as AutoParallelConfig
from .errors import PlacementError as PlacementError
from .errors import PlanError as PlanError
from .errors import PlanMismatch as PlanMismatch
from .errors import SbpError as SbpError
from .errors import SignatureError as SignatureError
from .placement import Placement as Placement
from .placement import from_sharding as from_sharding
from .placement import placement as placement
from .placement import to_partition_spec as to_partition_spec
from .placement import to_sharding as to_sharding
from .planned import Plan as Plan
from .signature import Broadcast as Broadcast
from .signature import Partial as Partial
from .signature import Signature as Signature
from .signature import Split as Split
from .signature import broadcast as broadcast
from .signature import partial_max as partial_max
from .signature import partial_min as partial_min
from .signature import partial_sum as partial_sum
from .signature import split as split
from .trace import pin as _pin

__version__ = "0.1.0"


def to_global(x, sbp, placement=None, grad_sbp=None):
    """Inside a traced function: ``x`` with its signature in the plan pinned to ``sbp``. See ``trace/pin.py``."""
    return _pin(x, sbp, placement, grad_sbp)


def __getattr__(name: str):
    if name == "flax":
        import importlib

        return importlib.import_module(".flax", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
