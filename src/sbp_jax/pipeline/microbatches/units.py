"""The units of a step's graph, an op or control flow as one: what they make, and what they are made of."""

from ...trace import Op, Structured, Value

Unit = Op | Structured


def made_by(unit: Unit) -> list[Value]:
    """The values that an op gives to the scope it is in."""
    if isinstance(unit, Op):
        return list(unit.outs)
    if unit.kind == "scan":
        return [*(op.outs[1] for op in unit.roles["carry"]), *(op.outs[0] for op in unit.roles["stack"])]
    if unit.kind == "while":
        return [op.outs[1] for op in unit.roles["carry"]]
    return [op.outs[0] for op in unit.roles["join" if unit.kind == "cond" else "barrier"]]


def is_transposed(unit: Unit) -> bool:
    """Whether it comes of JAX's transposition: of the backward pass."""
    return any("transpose(" in str(getattr(node.info, "name_stack", "")) for node in nodes_of(unit))


def nodes_of(unit: Unit) -> list[Op]:
    """The nodes that it is."""
    if isinstance(unit, Op):
        return [unit]
    return [*unit.links, *(node for body in unit.bodies for node in body.nodes())]
