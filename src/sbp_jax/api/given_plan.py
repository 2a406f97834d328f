"""A plan made elsewhere: whether it is for this program, and whether what else is asked for says the same."""

from collections.abc import Callable, Sequence
from dataclasses import fields

from .. import cluster as clusters
from ..errors import PlanError
from ..placement import Placement
from ..plan import Leaf, PlanData
from ..planner import Pins, pin_allows
from ..trace import Op, Program, fingerprint
from .config import AutoParallelConfig

_MOST_SHOWN = 3


def check_given(
    given: PlanData,
    program: Program,
    name: str,
    where: Placement | int | str | None,
    config: AutoParallelConfig,
    pins_on: Callable[[Placement], Pins],
) -> PlanData:
    """``given``, if it was made for ``program`` and nothing asked for beside it disagrees.

    ``pins_on`` gives the pins on a placement. Raises ``PlanError`` with what each side says.
    """
    found = fingerprint(program)
    if given.fingerprint != found:
        raise PlanError(
            f"the plan was made for another function or other shapes: it is for {given.function!r} "
            f"({given.fingerprint}), {name!r} with these arguments is {found}. {_difference(given, program)}. "
            "Plan again for these arguments"
        )
    faults = [*_placements(given, where), *_options(given, config)]
    if not faults:  # pins on another placement would say little
        faults += _pins(given, program, pins_on(given.placement))
    if faults:
        raise PlanError(
            f"plan= and what else is asked for disagree: {'; '.join(faults)}. Leave the options out to run the plan as "
            "it is, or leave plan= out to plan again"
        )
    return given


def _difference(given: PlanData, program: Program) -> str:
    """What differs between the plan's function and this one, as far as the plan knows."""
    for words, leaves, ops in (
        ("argument", given.inputs, program.input_ops),
        ("result", given.outputs, program.output_ops),
    ):
        here = [_look(op) for op in ops]
        there = [(leaf.path, leaf.shape, leaf.dtype) for leaf in leaves]
        if len(here) != len(there):
            return f"The plan has {len(there)} {words}s, this function {len(here)}"
        for a, b in zip(there, here, strict=True):
            if a[1:] != b[1:]:
                return f"{words} {b[0] or '(the only one)'} is {_text(*b[1:])}, in the plan it is {_text(*a[1:])}"
    if given.recomputed is None and given.rewritten is None and len(given.nodes) != len(program.nodes):
        return f"The plan is of {len(given.nodes)} ops, this function has {len(program.nodes)}"
    return (
        "Arguments and results are alike: what differs is an op, a parameter of one, a constant, a weak type, which "
        "arguments are donated, a rule, or the version of jax"
    )


def _look(op: Op) -> tuple[str, tuple[int, ...], str]:
    value = (op.outs or op.ins)[0]
    return op.label, tuple(value.shape), str(value.dtype)


def _text(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _placements(given: PlanData, where: Placement | int | str | None) -> list[str]:
    plans = given.placement
    if isinstance(where, Placement):
        same = (where.shape, where.axis_names, where.flat_ranks, where.type, where.is_abstract) == (
            plans.shape, plans.axis_names, plans.flat_ranks, plans.type, plans.is_abstract
        )  # fmt: skip
        if not same:
            ranks = f" with ranks {where.flat_ranks} and {plans.flat_ranks}" * (str(where) == str(plans))
            hint = " (to run it on devices: dataclasses.replace(plan, placement=...))" * plans.is_abstract
            return [f"placement= is {where}, the plan is for {plans}{ranks}{hint}"]
    elif isinstance(where, int) and where != plans.size:
        return [f"placement={where} is a number of devices, the plan is for {plans.size}: {plans}"]
    return []


def _options(given: PlanData, config: AutoParallelConfig) -> list[str]:
    """Options set to other than their defaults, that are not those that the plan was made with."""
    default = {f.name: f.default for f in fields(config)}
    faults = [
        f"config asks for {k}={asked!r}, the plan was made with {k}={given.options.get(k, default[k])!r}"
        for k, asked in config.plan_options().items()
        if given.options.get(k, default[k]) != asked
    ]
    if config.cluster is not None and given.hardware:
        cluster = clusters.resolve(config.cluster, given.placement.type, given.placement.is_abstract)
        if not clusters.is_same(clusters.to_toml(cluster), given.hardware):
            faults.append(f"config asks for cluster {cluster.name!r}, the plan was made for {given.cluster!r}")
    limit = config.memory_limit_bytes
    if limit is not None and given.memory_per_device > limit:
        faults.append(
            f"config allows {limit / 2**20:.4g} MiB a device, the plan needs {given.memory_per_device / 2**20:.4g} MiB"
        )
    return faults


def _pins(given: PlanData, program: Program, pins: Pins) -> list[str]:
    """Arguments and results that are pinned to other signatures than the plan has for them."""
    leaves: dict[int, Leaf] = {
        op.index: leaf
        for ops, some in ((program.input_ops, given.inputs), (program.output_ops, given.outputs))
        for op, leaf in zip(ops, some, strict=True)
    }
    faults = [
        f"{words} is ({signature}), in the plan it is ({leaves[k].signature})"
        for k, (signature, words) in pins.items()
        if k in leaves and not pin_allows(signature, leaves[k].signature)
    ]
    if len(faults) > _MOST_SHOWN:
        return [*faults[:_MOST_SHOWN], f"and {len(faults) - _MOST_SHOWN} more"]
    return faults
