"""A call's arguments, moved to where its plan wants them."""

from typing import Any

import jax

from ..calls.roles import Call
from ..calls.values import is_bound, is_on_mesh, is_there, moved
from ..step.jitted import LoweredStep


def placed(entry: LoweredStep, call: Call, name: str) -> tuple[Any, ...]:
    """What the jitted step takes; its arguments moved to where the plan wants them, once.

    A batch that is bound to no device is left to each call: the first one, placed here, would be compiled for on its
    own, for to JAX a program for arguments that lie on a mesh is another (0.10.2). For the same reason what is donated,
    which the next call gets from this one, is placed on a mesh of one device, too.
    """
    leaves, tree = jax.tree.flatten((call.dynamic, call.kwargs))
    donated = call.donated_positions
    kept = [i in donated for i, x in enumerate(call.dynamic) for _ in jax.tree.leaves(x)]
    named = sorted(call.kwargs.items())
    kept += [name in call.donated_names for name, x in named for _ in jax.tree.leaves(x)]
    wanted = {
        k: (entry.plan.inputs[k].path, x, s)
        for k, (x, s, keep) in enumerate(zip(leaves, entry.shardings, kept, strict=True))
        if (not is_there(x, s) and (keep or is_bound(x, s))) or (keep and not is_on_mesh(x))
    }
    there = dict(zip(wanted, moved(list(wanted.values()), name), strict=True))
    args, kwargs = jax.tree.unflatten(tree, [there.get(k, x) for k, x in enumerate(leaves)])
    return entry.arguments(args, kwargs)


def is_placed(entry: LoweredStep, call: Call) -> bool:
    """Whether every argument is where the plan wants it."""
    leaves = jax.tree.leaves((call.dynamic, call.kwargs))
    return all(is_there(x, s) for x, s in zip(leaves, entry.shardings, strict=True))
