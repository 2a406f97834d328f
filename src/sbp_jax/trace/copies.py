"""Ops copied with other operands; control flow with its links and bodies. What is copied stays as it is."""

from collections.abc import Callable, Mapping

from .graph import Atom, Graph, Op, Structured, Value

Renamed = Mapping[int, Atom]


def _nothing(new: Op, old: Op) -> None:
    pass


def copied_op(op: Op, renamed: Renamed) -> Op:
    """The op, reading other values by id, with the same results."""
    ins = tuple(renamed.get(x.id, x) if isinstance(x, Value) else x for x in op.ins)
    return Op(op.name, ins, op.outs, op.params, op.primitive, op.info, op.label, has_effect=op.has_effect)


def copied(
    op: Op | Structured, renamed: Renamed, note: Callable[[Op, Op], None] = _nothing,
    body: Callable[[Graph], Graph] | None = None,
) -> Op | Structured:  # fmt: skip
    """An op, or control flow; ``renamed`` are values of the scope around it.

    ``note`` is told each new op and what it is a copy of; ``body`` copies a body, by default as it is.
    """

    def link(op: Op, renamed: Renamed) -> Op:
        new = copied_op(op, renamed)
        note(new, op)
        return new

    def as_it_is(graph: Graph) -> Graph:
        ops = [copied(op, {}, note) for op in graph.ops]
        return Graph(list(graph.inputs), list(graph.outputs), ops, graph.times)

    if isinstance(op, Op):
        return link(op, renamed)
    roles = {role: [link(x, renamed) for x in links] for role, links in op.roles.items()}
    return Structured(op.kind, op.params, tuple((body or as_it_is)(b) for b in op.bodies), roles, op.info)
