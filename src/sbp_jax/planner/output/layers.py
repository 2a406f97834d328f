"""Which layer of the user's model every node of a program belongs to, and whether it runs forward, backward or updates.

The graph has no names; arguments' paths have. A layer is the folder of a parameter: an op that reads a parameter, by
itself or converted, is of its layer; so are the arithmetic of its update and what makes its gradient. Other ops lie
between: names of modules and ``jax.named_scope`` say where, else the next op of a known layer within the same function
of the user's, else the op whose result they read. A training step's name stacks say what is backward; what comes after
the last of it updates.

One pass or two over the nodes in plain Python: it may take a few microseconds a node, for a plan is waiting.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from ...paths import folders, n_shared, plain
from ...plan.insight import Spot
from ...rules.base import is_a
from ...trace import Op, Program, Value

FORWARD, BACKWARD, UPDATE = range(3)
_PHASES = ("forward", "backward", "update")
PARAMETER, STATE, BATCH, OTHER = "parameters", "optimizer state", "batch", "other state"
_TRANSFORM = re.compile(r"^\w+\((.*)\)$")
_NAME = re.compile(r"^[A-Za-z_][\w.\-]*$")


@dataclass(slots=True)
class Layers:
    """By node: its spot, an index of ``spots``. By argument: its kind and layer."""

    spots: list[Spot]
    of_node: list[int]
    kinds: list[str]
    of_argument: list[str]


def layers(program: Program) -> Layers:
    """The layers of a program's nodes and arguments."""
    return _Finder(program).run()


@dataclass(slots=True)
class _Finder:
    program: Program
    names: dict[str, int] = field(default_factory=dict)
    layer: list[int] = field(default_factory=list)
    phase: list[int] = field(default_factory=list)
    scope: list[tuple[str, ...]] = field(default_factory=list)

    def run(self) -> Layers:
        """Phases, then arguments, then ops that read or update them, then the rest."""
        nodes = self.program.nodes
        self.layer = [-1] * len(nodes)
        self._phases()
        kept = self._kept()
        in_model = self._read_by_the_model(kept)
        kinds, names = self._arguments(kept, in_model)
        self._seed(kinds, names)
        self._updates(names)
        self._fill()
        self._subdivide()
        found: dict[tuple[int, int], int] = {}
        of_node = [found.setdefault(key, len(found)) for key in zip(self.layer, self.phase, strict=True)]
        texts = list(self.names)
        spots = [Spot(texts[layer], _PHASES[phase]) for layer, phase in found]
        return Layers(spots, of_node, kinds, names)

    def _id(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _phases(self) -> None:
        """Phase and scope of every node, from JAX's name stacks; where there is none, as the node before."""
        known: dict[int, tuple[object, int, tuple[str, ...]]] = {}
        texts: dict[str, tuple[int, tuple[str, ...]]] = {}
        now, last = FORWARD, -1
        n_inputs, n = len(self.program.input_ops), len(self.program.nodes) - len(self.program.output_ops)
        for op in self.program.nodes:
            stack = getattr(op.info, "name_stack", None)
            entry = known.get(id(stack))
            if entry is None:
                text = "" if stack is None else str(stack)
                entry = known[id(stack)] = (stack, *texts.setdefault(text, _read(text)))
            if entry[1] >= 0:
                now = entry[1]
            if now == BACKWARD and entry[1] == BACKWARD:
                last = op.index
            self.phase.append(now)
            self.scope.append(entry[2])
        if last >= 0:  # what comes after the last of the backward pass
            self.phase[last + 1 : n] = [UPDATE] * (n - last - 1)
        self.phase[:n_inputs] = [FORWARD] * n_inputs
        self.phase[n:] = [UPDATE if last >= 0 else FORWARD] * (len(self.phase) - n)

    def _kept(self) -> set[int]:
        """Positions of the arguments that come back as results: donated, or by path and shape."""
        kept = {i for i, _ in self.program.donated}
        results = {(_tail(op.label), x.shape) for op in self.program.output_ops for x in op.ins if "/" in op.label}
        for k, op in enumerate(self.program.input_ops):
            if "/" in op.label and (_tail(op.label), op.outs[0].shape) in results:
                kept.add(k)
        return kept

    def _read_by_the_model(self, kept: set[int]) -> set[int]:
        """Of the arguments, those that an op before the update mixes with others."""
        origin = {op.outs[0].id: k for k, op in enumerate(self.program.input_ops)}
        found: set[int] = set()
        for op, phase in zip(self.program.nodes, self.phase, strict=True):
            if phase == UPDATE:
                continue
            mine = [origin[x.id] for x in op.ins if isinstance(x, Value) and x.id in origin]
            if mine and len(mine) == sum(isinstance(x, Value) for x in op.ins) and len(set(mine)) == 1:
                origin.update((v.id, mine[0]) for v in op.outs)
            found.update(mine)
        return found if kept else set(origin.values())

    def _arguments(self, kept: set[int], in_model: set[int]) -> tuple[list[str], list[str]]:
        """By argument: its kind, its layer."""
        ops = self.program.input_ops
        paths = plain([op.label for op in ops])
        depth = [path.count("/") for path in paths]
        kinds: list[str] = []
        for k, op in enumerate(ops):
            v = op.outs[0]
            floats = is_a(v.dtype, np.inexact)
            if k in kept or (not kept and depth[k] == max(depth)):
                kinds.append((PARAMETER if k in in_model else STATE) if floats and v.shape else OTHER)
            else:
                kinds.append(OTHER if op.label.startswith("constant ") else BATCH)
        parameters = [k for k, kind in enumerate(kinds) if kind == PARAMETER]
        lie_in = folders([paths[k] for k in parameters], self.program.argument_names)
        of = dict(zip(parameters, lie_in, strict=True))
        by_tail: dict[tuple[str, ...], str] = {}
        for k in parameters:
            parts = paths[k].split("/")
            for cut in range(len(parts)):
                by_tail.setdefault(tuple(parts[cut:]), of[k])
        places = {name: name for name in of.values()}
        names: list[str] = []
        for k in range(len(ops)):
            if k in of:
                names.append(of[k])
                continue
            parts = tuple(paths[k].split("/"))
            tails = [parts[cut:] for cut in range(1, len(parts))]
            home = next((by_tail[t] for t in tails if t in by_tail), None) if kinds[k] != BATCH else None
            if home is None and kinds[k] == OTHER:  # running statistics: beside the parameters of their layer
                home = next((places[x] for t in tails if (x := "/".join(t[:-1])) in places), None)
            names.append(home or f"({'inputs' if kinds[k] == BATCH else 'state'})")
        return kinds, names

    def _seed(self, kinds: list[str], names: list[str]) -> None:
        """Ops that read a parameter, or what only parameters were made into."""
        home: dict[int, int] = {}
        for k, op in enumerate(self.program.input_ops):
            self.layer[op.index] = layer = self._id(names[k])
            if kinds[k] in (PARAMETER, STATE):
                home[op.outs[0].id] = layer
        layer = self.layer
        start = len(self.program.input_ops)
        for op in self.program.nodes[start:]:
            mine, size, others = -1, -1, False
            for x in op.ins:
                if isinstance(x, Value):
                    of = home.get(x.id, -1)
                    if of < 0:
                        others = others or bool(x.shape)
                    elif x.size_bytes > size:
                        mine, size = of, x.size_bytes
            if mine >= 0:
                layer[op.index] = mine
                if not others:
                    for v in op.outs:
                        home[v.id] = mine

    def _updates(self, names: list[str]) -> None:
        """From the results back: the arithmetic at a parameter's own shape, and what makes its gradient."""
        by_tail = {_tail(op.label): names[k] for k, op in enumerate(self.program.input_ops) if "/" in op.label}
        twin = {o: i for i, o in self.program.donated}
        wanted: dict[int, tuple[int, tuple[int, ...]]] = {}
        layer, phase = self.layer, self.phase
        for k, op in enumerate(self.program.output_ops):
            name = names[twin[k]] if k in twin else by_tail.get(_tail(op.label)) if "/" in op.label else None
            if name is None:
                continue
            layer[op.index] = self._id(name)
            if name.startswith("("):
                continue
            wanted.update((x.id, (layer[op.index], x.shape)) for x in op.ins if isinstance(x, Value))
        stop = len(self.program.input_ops)
        for op in reversed(self.program.nodes[stop : len(self.program.nodes) - len(self.program.output_ops)]):
            hit = next((wanted[v.id] for v in op.outs if v.id in wanted), None)
            if hit is None:
                continue
            if layer[op.index] < 0 or phase[op.index] == UPDATE:
                layer[op.index] = hit[0]
            # In the update whatever has the parameter's shape; before it only what hands one value on.
            reads = [x for x in op.ins if isinstance(x, Value) and x.shape]
            if phase[op.index] != UPDATE and len(reads) != 1:
                continue
            for x in reads:
                if x.shape == hit[1] or (phase[op.index] != UPDATE and x.size_bytes == op.outs[0].size_bytes):
                    wanted.setdefault(x.id, (hit[0], x.shape))

    def _fill(self) -> None:
        """The rest: by module names, by function, by what they read."""
        layer, phase, nodes = self.layer, self.phase, self.program.nodes
        start, end = len(self.program.input_ops), len(nodes) - len(self.program.output_ops)
        layers = {tuple(name.split("/")): k for name, k in self.names.items() if not name.startswith("(")}
        shared = n_shared([name[:-1] for name in layers])  # folders that no module is named after
        known = {name[shared:]: k for name, k in layers.items()} | layers
        by_scope: dict[tuple[str, ...], int] = {}
        for k in range(start, end):
            if layer[k] < 0 and self.scope[k]:
                scope = self.scope[k]
                if scope not in by_scope:
                    by_scope[scope] = _within(scope, known)
                layer[k] = by_scope[scope]
        seeded = [k for k in range(start, end) if layer[k] >= 0]
        forward = [k for k in seeded if phase[k] == FORWARD]
        backward = [k for k in seeded if phase[k] == BACKWARD]
        loss = range(forward[-1] + 1, backward[0]) if forward and backward else range(0)
        lines = self.program.lines
        functions: dict[str, str] = {}
        run: list[int] = []
        before: tuple[str, int] | None = None
        for k in range(start, end):
            if phase[k] == UPDATE or k in loss:
                continue
            line = lines(nodes[k].info)
            name = functions.get(line)
            if name is None:
                name = functions[line] = line.partition("(")[2]
            if (name, phase[k]) != before:
                self._fill_run(run)
                run, before = [], (name, phase[k])
            run.append(k)
        self._fill_run(run)
        made: dict[int, int] = {}
        for k, op in enumerate(nodes):
            if layer[k] < 0:
                layer[k] = self._id("(loss)") if k in loss else self._by_operands(op, made)
            for v in op.outs:
                made[v.id] = layer[k]

    def _fill_run(self, run: list[int]) -> None:
        """Within one function of the user's: as the op of a known layer before, else as the first one after."""
        layer = self.layer
        last = next((layer[k] for k in run if layer[k] >= 0), -1)
        if last < 0:
            return
        for k in run:
            if layer[k] < 0:
                layer[k] = last
            last = layer[k]

    def _by_operands(self, op: Op, made: dict[int, int]) -> int:
        best, size = -1, -1
        different: set[int] = set()
        for x in op.ins:
            if isinstance(x, Value) and x.id in made:
                of = made[x.id]
                different.add(of)
                if x.size_bytes >= size:
                    best, size = of, x.size_bytes
        if self.phase[op.index] == UPDATE and size <= 16 and len(different) > 1:
            return self._id("(update)")  # scalars of many layers: norms, counters
        if best < 0:
            return self.layer[op.index - 1] if op.index and self.layer[op.index - 1] >= 0 else self._id("(inputs)")
        return best

    def _subdivide(self) -> None:
        """``jax.named_scope`` inside of a layer makes layers of its parts, where there are several."""
        seen: dict[int, set[tuple[str, ...]]] = {}
        start, end = len(self.program.input_ops), len(self.program.nodes) - len(self.program.output_ops)
        texts = list(self.names)
        parts = [tuple(t.split("/")) for t in texts]
        for k in range(start, end):
            if self.phase[k] != UPDATE:
                seen.setdefault(self.layer[k], set()).add(self.scope[k])
        split: dict[tuple[int, tuple[str, ...]], int] = {}
        for layer, scopes in seen.items():
            if len(scopes) < 2 or texts[layer].startswith("("):
                continue
            for scope in scopes:
                if scope and not _holds(scope, parts[layer]):
                    shared = [s for s in scopes if s and not _holds(s, parts[layer])]
                    if len(shared) > 1 or () in scopes:
                        split[layer, scope] = self._id(f"{texts[layer]}/{'/'.join(scope)}")
        if split:
            for k in range(start, end):
                self.layer[k] = split.get((self.layer[k], self.scope[k]), self.layer[k])


def _tail(label: str) -> str:
    return label.partition("/")[2]


def _read(stack: str) -> tuple[int, tuple[str, ...]]:
    """Phase (-1: unknown) and named scopes of a name stack: ``transpose(jvp(Model))/Dense_0``."""
    phase = BACKWARD if "transpose(" in stack else FORWARD if "jvp(" in stack else -1
    found: list[str] = []
    for part in stack.split("/"):
        while (inner := _TRANSFORM.match(part)) is not None:
            part = inner[1]
        if _NAME.match(part) and part not in ("checkpoint", "rematted_computation", "remat", "jit", "pjit"):
            found.append(part)
    return phase, tuple(found)


def _within(scope: tuple[str, ...], known: dict[tuple[str, ...], int]) -> int:
    """The longest known layer whose parts stand together in a scope; -1 for none."""
    for length in range(len(scope), 0, -1):
        for at in range(len(scope) - length, -1, -1):
            if scope[at : at + length] in known:
                return known[scope[at : at + length]]
    return -1


def _holds(scope: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether a scope names a layer, or nothing beyond the model that it is in."""
    return any(scope[at : at + len(parts)] == parts for at in range(len(scope) - len(parts) + 1)) or scope[-1:] == (
        parts[-1],
    )
