"""sbp_jax: OneFlow's SBP system on JAX. Plans a training step, proves the plan, runs exactly that."""

import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING

__version__ = "0.1.0"


def _is_the_command_line() -> bool:
    """Whether this process is `sbp-jax`, `python -m sbp_jax`, or the launcher."""
    script = (getattr(_sys, "argv", None) or [""])[0].replace("\\", "/").rpartition("/")[2]
    if script != "-m":
        return script in ("sbp-jax", "sbp-jax.exe", "sbp-jax-script.py", "sbp-jax-script.pyw")
    ours = {("-m", __name__), ("-m", f"{__name__}.distributed.launch")}
    return not ours.isdisjoint(zip(_sys.orig_argv, _sys.orig_argv[1:], strict=False))


# To say its help the command line needs none of what follows, which takes seconds: it comes once a command is to run.
if "_is_bare" not in globals():
    _is_bare = _is_the_command_line()

if _TYPE_CHECKING or not _is_bare:
    from . import actors as actors
    from . import boxing as boxing
    from . import cluster as cluster
    from . import data as data
    from . import planner as planner
    from . import schedules as schedules
    from . import signature as sbp
    from .api import AutoParallelConfig as AutoParallelConfig
    from .api import Placed as Placed
    from .api import auto_parallel as auto_parallel
    from .api import place_ops as place_ops
    from .api import plan as plan
    from .cluster import Cluster as Cluster
    from .errors import ActorError as ActorError
    from .errors import CheckpointDamaged as CheckpointDamaged
    from .errors import CheckpointError as CheckpointError
    from .errors import DataError as DataError
    from .errors import PlacementError as PlacementError
    from .errors import PlanError as PlanError
    from .errors import PlanMismatch as PlanMismatch
    from .errors import ProcessError as ProcessError
    from .errors import SbpError as SbpError
    from .errors import ScheduleError as ScheduleError
    from .errors import SignatureError as SignatureError
    from .lower.count import count_collectives as count_collectives
    from .pipeline import Pipeline as Pipeline
    from .pipeline import PipelinePlan as PipelinePlan
    from .pipeline import scope as scope
    from .placement import Placement as Placement
    from .placement import placement as placement
    from .planner.placing import Devices as Devices
    from .report.diff import diff as diff
    from .report.visualize import visualize as visualize
    from .rules import register_rule as register_rule
    from .shardings import from_sharding as from_sharding
    from .shardings import to_partition_spec as to_partition_spec
    from .shardings import to_sharding as to_sharding
    from .signature import Broadcast as Broadcast
    from .signature import Partial as Partial
    from .signature import Signature as Signature
    from .signature import Split as Split
    from .signature import broadcast as broadcast
    from .signature import partial_max as partial_max
    from .signature import partial_min as partial_min
    from .signature import partial_sum as partial_sum
    from .signature import split as split
    from .simulate import Simulation as Simulation
    from .simulate import simulate as simulate
    from .step.plan import Plan as Plan
    from .tensor import GlobalTensor as GlobalTensor
    from .tensor import apply as apply
    from .tensor import arange as arange
    from .tensor import empty as empty
    from .tensor import empty_like as empty_like
    from .tensor import eye as eye
    from .tensor import full as full
    from .tensor import full_like as full_like
    from .tensor import linspace as linspace
    from .tensor import local_to_global as local_to_global
    from .tensor import matmul as matmul
    from .tensor import numpy as numpy
    from .tensor import ones as ones
    from .tensor import ones_like as ones_like
    from .tensor import rand as rand
    from .tensor import rand_like as rand_like
    from .tensor import randint as randint
    from .tensor import randn as randn
    from .tensor import randn_like as randn_like
    from .tensor import tensor as tensor
    from .tensor import zeros as zeros
    from .tensor import zeros_like as zeros_like
    from .trace import pin as _pin


def to_global(x, sbp=None, placement=None, grad_sbp=None):
    """``x`` in the signature ``sbp``, on ``placement``.

    A global tensor is redistributed (``GlobalTensor.to_global``). An array inside a traced function keeps its value,
    and its signature in the plan is pinned to ``sbp`` (``trace/pin.py``).
    """
    if isinstance(x, GlobalTensor):
        return x.to_global(placement=placement, sbp=sbp, grad_sbp=grad_sbp)
    if sbp is None:
        raise SignatureError("to_global of an array inside a traced function pins its signature: pass sbp=...")
    return _pin(x, sbp, placement, grad_sbp)


def _load_face() -> None:
    """All public names, where this process is the command line and has left them out so far."""
    global _is_bare
    if _is_bare:
        _is_bare = False
        __spec__.loader.exec_module(_sys.modules[__name__])


# Rooms that come when they are asked for: most programs need none of them.
_LATER = ("flax", "env", "distributed", "checkpoint")


def __getattr__(name: str):
    if _is_bare:
        _load_face()
        return getattr(_sys.modules[__name__], name)
    if name in _LATER:
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
