"""A call captured: the function traced on shapes, which results replace which arguments, what the user pinned."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import PlanError
from ..paths import named
from ..placement import Placement
from ..planner import Among, inner_pins, pin_of
from ..shardings import is_sbp
from ..signature import Signature
from ..trace import Op, Program, build, planned_here, without_collecting
from . import values
from .path_pins import Argument, Asked, PinDict, followers, matches


def trace(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], static: Sequence[int], donate: Sequence[int],
    fixed: Mapping[str, Any] | None = None, donated_names: Sequence[str] = (), names: Sequence[str] = (),
) -> tuple[Program, Any, Any]:  # fmt: skip
    """The program of a call, the tree of its dynamic arguments, and its results' shapes.

    ``static`` and ``donate`` are numbers of positional arguments; ``fixed`` are static arguments given by name,
    ``donated_names`` the donated ones among ``kwargs``. ``names`` are what the arguments given by position are called.
    """
    dynamic = tuple(jax.tree.map(values.aval, x) for i, x in enumerate(args) if i not in static)

    with without_collecting(), planned_here():
        closed, out_shape = jax.make_jaxpr(of_dynamic(fn, args, static, fixed or {}), return_shape=True)(
            dynamic, jax.tree.map(values.aval, kwargs)
        )
    paths = jax.tree_util.tree_flatten_with_path((dynamic, kwargs))[0]
    labels = [jax.tree_util.keystr(path[1:], simple=True, separator="/") for path, _ in paths]
    with without_collecting():
        program = build(closed, labels)
    program.argument_names = tuple(names)
    out_paths = jax.tree_util.tree_flatten_with_path(out_shape)[0]
    for op, (path, _) in zip(program.output_ops, out_paths, strict=True):
        op.label = jax.tree_util.keystr(path, simple=True, separator="/")
    positions = [i - sum(s < i for s in static) for i in donate]
    given = (*dynamic, *(kwargs[k] for k in sorted(kwargs)))
    positions += [len(dynamic) + k for k, name in enumerate(sorted(kwargs)) if name in donated_names]
    program.donated[:] = _replacements(jax.tree.map(values.aval, given), out_shape, positions)
    return program, jax.tree.structure((dynamic, kwargs)), out_shape


def of_dynamic(
    fn: Callable[..., Any], args: Sequence[Any], static: Sequence[int], fixed: Mapping[str, Any]
) -> Callable[[Sequence[Any], dict[str, Any]], Any]:
    """``fn`` as a function of its traced arguments alone, by position and by name."""
    statics = {i: args[i] for i in static}
    n = len(args)

    def flat(dynamic: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        supply = iter(dynamic)
        return fn(*(statics[i] if i in statics else next(supply) for i in range(n)), **kwargs, **fixed)

    return flat


def results_of(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], static: Sequence[int], fixed: Mapping[str, Any]
) -> Any:
    """The shapes and dtypes of a call's results."""

    return jax.eval_shape(
        of_dynamic(fn, args, static, fixed), tuple(x for i, x in enumerate(args) if i not in static), kwargs
    )


def returned_alike(dynamic: Sequence[Any], results: Any) -> list[tuple[int, int]]:
    """(argument's leaf, result's leaf) of arguments that come back in a tree of their own structure and shapes.

    Such are a training step's state and a gradient's parameters, donated or not; a single array says nothing.
    """
    trees = [i for i, x in enumerate(dynamic) if not jax.tree_util.all_leaves([x])]
    pairs = _replacements(dynamic, results, trees)
    start = np.cumsum([0, *(len(jax.tree.leaves(x)) for x in dynamic)])
    found: list[tuple[int, int]] = []
    for i in trees:
        own = [(a, r) for a, r in pairs if start[i] <= a < start[i + 1]]
        taken = [r for _, r in own]
        if len(own) == start[i + 1] - start[i] and taken == list(range(taken[0], taken[0] + len(taken))):
            found += own
    return found


def _replacements(dynamic: Any, results: Any, donated: Sequence[int]) -> list[tuple[int, int]]:
    """Which result replaces which donated argument: the subtree of the same structure and shapes, else leaf by leaf."""
    numbered = jax.tree.unflatten(jax.tree.structure(results), range(len(jax.tree.leaves(results))))
    subtrees = [(results, numbered)]
    if isinstance(results, tuple | list):
        subtrees += list(zip(results, numbered, strict=True))
    elif isinstance(results, dict):
        subtrees += [(results[k], numbered[k]) for k in results]
    start = np.cumsum([0, *(len(jax.tree.leaves(x)) for x in dynamic)])
    shapes = [(x.shape, x.dtype) for x in jax.tree.leaves(results)]
    pairs: list[tuple[int, int]] = []
    used: set[int] = set()
    for position in donated:
        argument = dynamic[position]
        leaves, tree = jax.tree.flatten(argument)
        for subtree, numbers in subtrees:
            taken = jax.tree.leaves(numbers)
            same = jax.tree.structure(subtree) == tree and all(
                (a.shape, a.dtype) == shapes[k] for a, k in zip(leaves, taken, strict=True)
            )
            if same and not used & set(taken):
                break
        else:
            taken = []
            for a in leaves:
                k = next((k for k, s in enumerate(shapes) if s == (a.shape, a.dtype) and k not in {*used, *taken}), -1)
                taken.append(k)
        pairs += [(int(start[position]) + i, k) for i, k in enumerate(taken) if k >= 0]
        used |= set(taken)
    return pairs


def pins(
    program: Program, where: Placement, in_sbp: Any, out_sbp: Any, in_tree: Any, out_shape: Any, uneven: bool = False,
    by_path: PinDict | None = None, names: Sequence[str] = (), with_moments: bool = True,
) -> Any:  # fmt: skip
    """All pins of a program by node: of arguments, of results, and those written inside.

    ``uneven``: whether those inside may ask for padded pieces. ``by_path``: pins of arguments by path, which count
    before ``in_sbp``; ``names`` are those of the arguments given by position. ``with_moments``: what lies in an
    ``opt_state`` follows its parameter.
    """
    pins: dict[int, tuple[Signature | Among, str]] = {}
    n = in_tree.num_leaves
    arguments = jax.tree.unflatten(in_tree, range(n))[0]
    results = jax.tree.unflatten(jax.tree.structure(out_shape), range(len(program.output_ops)))
    for given, numbers, ops, words in (
        (in_sbp, arguments, program.input_ops, "in_sbp"),
        (out_sbp, results, program.output_ops, "out_sbp"),
    ):
        for k, signature in _spread(given, numbers, words):
            op = ops[k]
            name = f"{words} of {op.label or 'the result'}"
            pins[op.index] = (pin_of((op.outs or op.ins)[0].shape, signature, where, name), name)
    if by_path:
        found = [_argument(op, names) for op in program.input_ops[:n]]
        for k, (given, words) in _by_path(found, by_path, with_moments).items():
            op = program.input_ops[k]
            pins.pop(op.index, None)
            if given is not None:
                pins[op.index] = (pin_of(op.outs[0].shape, given, where, words), words)
    return pins | inner_pins(program, where, uneven)


def _argument(op: Op, names: Sequence[str]) -> Argument:
    return Argument(op.label, named(op.label, names), op.outs[0].shape)


def _by_path(found: Sequence[Argument], asked: PinDict, with_moments: bool) -> dict[int, tuple[Any, str]]:
    """By number of an argument's leaf: what is asked of it, and the words for errors."""
    if not isinstance(asked, Mapping):
        raise PlanError(f"pins is a dictionary of signatures by path, got {type(asked).__name__}")
    hits = matches(found, Asked(asked, "", "pins"), True)
    pinned = {k: (given, f"pins[{key!r}] for {found[k].named}") for k, (key, given) in hits.items()}
    if with_moments:
        for k, parameter in followers(found, True).items():
            if parameter in hits and k not in hits:
                given, words = pinned[parameter]
                pinned[k] = given, f"{words}, which {found[k].named} follows"
    return pinned


def _spread(given: Any, numbers: Any, words: str) -> list[tuple[int, Any]]:
    """A tree of signatures (or a prefix of one) against a tree of leaf numbers."""
    if given is None:
        return []
    if is_sbp(given):
        return [(k, given) for k in jax.tree.leaves(numbers)]
    try:
        spread = jax.tree.map(
            lambda s, part: [(k, s) for k in jax.tree.leaves(part)] if s is not None else [],
            given, numbers, is_leaf=is_sbp,
        )  # fmt: skip
    except ValueError as error:
        keys = list(given) if words == "in_sbp" and isinstance(given, Mapping) else []
        if keys and all(isinstance(key, str) for key in keys):
            by_path = f"a dictionary by path ({keys[0]!r}) is pins={{...}}; "
        else:
            by_path = ""
        raise PlanError(f"{words} does not have the structure of what it pins: {by_path}{error}") from None
    pairs = jax.tree.leaves(spread, is_leaf=lambda x: isinstance(x, list) and all(isinstance(p, tuple) for p in x))
    return [p for part in pairs for p in part]
