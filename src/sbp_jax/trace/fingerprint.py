"""What a program is, as a short hash: the same in every process, another one for anything that a plan hangs on."""

import hashlib
from array import array
from typing import Any

import numpy as np

from ..rules import Factors, lookup, whole
from .canonical import Canonical
from .graph import Atom, Graph, Lit, Op, Program, Structured, Value

# A change of what is hashed, or of what strategies mean, raises it: plans made before are then for other programs.
VERSION = 2


def fingerprint(program: Program) -> str:
    """A hash of what a program computes and of what its rules say.

    Ops with their parameters, shapes, dtypes and weak types; literals; wiring; control flow; which results replace
    which arguments; and every op's factor map, so that a plan made under other rules is for another program. The
    values of arrays that the function closed over are arguments, and do not count. Made once.
    """
    if program.hashed is None:
        program.hashed = _Hasher().program(program)
    return program.hashed


class _Hasher:
    def __init__(self) -> None:
        self.canonical = Canonical()
        self.looks: dict[str, int] = {}
        self.known: dict[Any, tuple[int, int]] = {}
        self.literals: dict[Any, str] = {}
        self.values: dict[int, int] = {}
        self.wiring = array("q")

    def program(self, program: Program) -> str:
        for op in program.nodes:
            self.op(op)
        self.graph(program.graph)
        digest = hashlib.sha256(f"{VERSION} {len(program.input_ops)} {len(program.constants)}".encode())
        digest.update(str((sorted(program.donated), program.weak_results)).encode())
        digest.update("\n".join(self.looks).encode())
        digest.update(np.asarray(self.wiring, "<i8").tobytes())
        return digest.hexdigest()[:16]

    def op(self, op: Op) -> None:
        """What an op looks like, and what it is wired to."""
        key = (
            op.name, self.canonical.params(op.params) if op.params else "",
            tuple([(x.shape, x.dtype, x.weak) if isinstance(x, Value) else self.literal(x) for x in op.ins]),
            tuple([(v.shape, v.dtype, v.weak) for v in op.outs]),
        )  # fmt: skip
        numbers, values = self.known.get(key), self.values
        if numbers is None:
            text = f"{key[:2]}{[*map(self.look_of, op.ins)]}{[*map(self.look_of, op.outs)]}"
            numbers = self.known[key] = self.number(text), self.number(_factors_text(op))
        self.wiring.extend(numbers)
        self.wiring.extend([values.setdefault(x.id, len(values)) for x in op.ins if isinstance(x, Value)])
        self.wiring.extend([values.setdefault(v.id, len(values)) for v in op.outs])

    def literal(self, x: Lit) -> str:
        """A scalar with its type: ``1``, ``1.0`` and ``True`` are equal to Python."""
        value = x.literal
        key = type(value), value.tobytes() if isinstance(value, np.generic | np.ndarray) else repr(value), x.dtype
        text = self.literals.get(key)
        if text is None:
            text = self.literals[key] = self.canonical(np.asarray(value))
        return f"{text}{x.shape}~" if x.weak else f"{text}{x.shape}"

    def look_of(self, x: Atom) -> str:
        """Shape, dtype and weak type; of a literal its value, too."""
        kind = f"{self.canonical.dtype(x.dtype)}{x.shape}{'~' if x.weak else ''}"
        return kind if isinstance(x, Value) else f"{self.literal(x)}:{kind}"

    def number(self, text: str) -> int:
        return self.looks.setdefault(text, len(self.looks))

    def graph(self, graph: Graph) -> None:
        """Which ops and loops lie in which body."""
        for op in graph.ops:
            if isinstance(op, Structured):
                self.wiring.append(self.number(f"{op.kind}[{self.canonical.params(op.params)}]"))
                for role, links in op.roles.items():
                    self.wiring.append(self.number(role))
                    self.wiring.extend([link.index for link in links])
                for body in op.bodies:
                    self.wiring.extend((-1, len(body.inputs), len(body.outputs)))
                    self.graph(body)
            else:
                self.wiring.append(op.index)
        self.wiring.append(-2)


def _factors_text(op: Any) -> str:
    """What the rules say of an op, users' rules included. What it costs says nothing of what a plan may do."""
    rule = lookup(op.name)
    f: Factors = rule.factors(op) if rule is not None else whole(op)
    linear = [(sorted(item.operands), item.takes, item.gives, item.narrows) for item in f.linear]
    return f"{f.ins}{f.outs}{f.sizes}{sorted(f.blocked)}{f.reduced}{linear}{sorted(f.addends)}{'once' * f.once}"
