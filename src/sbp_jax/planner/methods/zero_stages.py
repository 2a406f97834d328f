"""ZeRO's stages as restrictions (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", SC 2020, section 5): what a training step keeps is cut along every mesh axis that divides it.

Stage 0: optimizer state has its parameter's signature. 1: optimizer state is split along every axis. 2: so are the
gradients, where the update reads them: they are reduce-scattered, never whole. 3: so are the parameters, which are
gathered where they are used.
"""

from collections.abc import Sequence

from ...errors import PlanError
from .families import family, split_batch, split_data
from .node_roles import NodeRoles
from .restriction import Restriction, divided, whole
from .task import Task


def zero(a: NodeRoles, stage: int) -> Restriction:
    """The restriction of a stage, 0 to 3, on all axes of the mesh."""
    if not a.known:
        raise PlanError(
            f"zero_stage={stage} speaks of parameters and optimizer state, but no argument is known to be either: "
            "nothing that the model's parameters are in is donated. Donate the training state, "
            "donate_argnums=0 say, and return its new value"
        )
    r = Restriction(a)
    if stage == 0:
        follow(r)
    else:
        split_kept(r, stage, range(len(a.axis_sizes)))
    return r


def follow(r: Restriction) -> None:
    """Optimizer state has the signature of its parameter."""
    for state, parameter in r.roles.states:
        if parameter is not None:
            r.alike(parameter, state)


def split_kept(r: Restriction, stage: int, axes: Sequence[int]) -> None:
    """Split along ``axes``: from stage 1 optimizer state, from 2 gradients, from 3 parameters."""
    a = r.roles
    score = divided(a.axis_sizes, axes)
    r.wish((state for state, _ in a.states), score, "split")
    if stage >= 2:
        r.wish(a.gradients, score, "split")
    if stage >= 3:
        r.wish(a.parameters, score, "split")


def data_parallel(task: Task, stage: int, by_batch: bool) -> Restriction:
    """Stage 2 or 3 on all axes. Data and activations are split on the batch dimension, or the data on any one."""
    r = family(task, f"zero{stage}")
    sizes = r.roles.axis_sizes
    axes = range(len(sizes))
    constant = [x for x in r.roles.buffers if x.batch is None or not by_batch]
    r.wish((*constant, *(r.roles.parameters if stage < 3 else ())), whole(sizes, axes), "whole")
    split_kept(r, stage, axes)
    if by_batch:
        split_batch(r, axes, state_whole=False)
    else:
        split_data(r, axes)
    return r
