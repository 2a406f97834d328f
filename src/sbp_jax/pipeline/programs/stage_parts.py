"""A stage's planned program as jitted parts: before the loop, forward, backward (or its two halves), after the loop.

The program is lowered as a whole, to one function of local pieces, and that function's jaxpr is cut (``cutting.py``).
What one part leaves for another on the same devices is whatever the device holds, a term of a sum included: an array
with a leading dim that counts the devices. What stages give each other has the signature that the plan gives it.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ... import boxing
from ..._compat import opened, scan_operands
from ...errors import InternalError
from ...lower.named import named_in
from ...plan import PlanData
from ...shardings import to_partition_spec
from ...signature import Partial, Signature, broadcast
from ...trace import Op
from ..cuts.phases import Phases
from ..microbatches.cut import Region
from ..microbatches.parts import joined
from ..microbatches.units import nodes_of
from .cutting import Part, before_barriers, cut, is_literal, phases_of, split_weights
from .slots import WITH_EVERY_PART, Result, Slot, StagePart, StageParts, part_of
from .stage_local import behind, live, local_stage, loop_of
from .stage_program import LOOP, StageProgram

_IN_LOOP = {"forward", "backward", "input_gradient", "weight_gradient"}


def stage_parts(
    phases: Phases, source: StageProgram, plan: PlanData, splits_backward: bool, shared: Set[int] = frozenset(),
    compiler_options: Mapping[str, Any] | None = None, mesh: Mesh | None = None,
) -> StageParts:  # fmt: skip
    """Lower and cut a stage (of a synchronous schedule; else ``update_parts``).

    ``splits_backward``: whether its backward part is two; ``shared`` are the arguments of the step that other stages
    read as well; ``mesh`` one that has the axes of the stage's and others, where the parts are to be part of a program
    on that.
    """
    options = dict(compiler_options or {})
    return Maker(phases, source, plan, splits_backward, shared, options, mesh or plan.placement.mesh).make()


class Maker:
    """Makes the parts of a stage."""

    def __init__(
        self, phases: Phases, source: StageProgram, plan: PlanData, splits: bool, shared: Set[int],
        options: dict[str, Any], mesh: Mesh,
    ) -> None:  # fmt: skip
        self.phases, self.cut, self.source, self.plan = phases, phases.cut, source, plan
        self.splits, self.shared, self.options = splits, shared, options
        self.where, self.mesh = plan.placement, mesh
        self.unit_of = {n.index: k for k, u in enumerate(self.cut.units) for n in nodes_of(u)}
        self.loop = loop_of(source.program)
        self.local = local_stage(source.program, plan, self.loop, mesh)
        self.leaves: dict[int, Signature] = {}
        self.port_of, self.constants, self.out_vars = self.local.port_of, self.local.constants, self.local.out_vars
        self.backward_values = {
            v.id for k, u in enumerate(self.cut.units) if phases.backward[k] for n in nodes_of(u) for v in n.outs
        }

    def make(self) -> StageParts:
        """Its parts."""
        self.cut_top()
        n = len(self.source.takes)
        shardings = {i: NamedSharding(self.mesh, self.port_spec(i)) for i in range(n)}
        if self.loop is None:
            nothing = StagePart("forward", [], [], jax.jit(lambda: []))
            forward, backward = nothing, [nothing] * (2 if self.splits else 1)
            before = self.part("before", self.top[0], {})
        else:
            self.cut_body()
            before = self.part("before", self.top[0], {})
            names = ["backward"] if len(self.body) == 2 else ["input_gradient", "weight_gradient"]
            forward, *backward = (
                self.part(name, p, self.body_sources) for name, p in zip(["forward", *names], self.body, strict=True)
            )
        after = [self.part("after", p, self.after_sources, i) for i, p in enumerate(self.top[2:])]
        return StageParts(
            self.source, self.plan, before, forward, backward, after, shardings,
            NamedSharding(self.mesh, PartitionSpec(self.where.axis_names)), self.joined, self.leaves,
        )  # fmt: skip

    def joined(self, number: int, a: Any, b: Any) -> Any:
        """Two of the loop's sums as one."""
        return joined(self.source.sums[number], a, b)

    def node(self, equation: Any) -> int:
        """The node of the step that an equation is of, -1 for what is of none (a boxing, a sum)."""
        k, _ = named_in(str(equation.source_info.name_stack))
        return self.source.origin[k] if k >= 0 else -1

    def is_again(self, equation: Any) -> bool:
        """Whether an equation makes a value of the forward part once more."""
        return named_in(str(equation.source_info.name_stack))[0] in self.source.again

    def cut_top(self) -> None:
        """Before the loop, the loop, and one part for each level after it."""
        eqns: Sequence[Any] = self.local.jaxpr.eqns
        loop: Any = next(
            (e for e in eqns if e.primitive.name == "scan" and LOOP in str(e.source_info.name_stack)), None
        )
        self.loop_eqn: Any = loop
        gives = self.source.gives
        wanted = [v for v, p in zip(self.out_vars, gives, strict=True) if p.kind != "part" and v is not None]
        needed = live(eqns, [*wanted], loop)
        ahead = set() if loop is None else behind(eqns, loop)
        levels = 1 + max(
            [self.phases.level[k] for k, s in enumerate(self.phases.stage) if s == self.source.stage]
            + [p.level for p in gives if p.kind == "late"]
            + [p.level + 1 for p in self.source.takes if p.kind == "late"],
            default=0,
        )  # fmt: skip

        def named(e: Any) -> int | None:
            if e is loop:
                return 1
            k = self.unit_of.get(self.node(e), -1)
            return 2 + self.phases.level[k] if k >= 0 and self.cut.regions[k] is Region.AFTER else None

        arrive = {v: 3 + self.source.takes[i].level for v, i in self.port_of.items()
                  if self.source.takes[i].kind == "late"}  # fmt: skip
        leave = {v: 2 + p.level for v, p in zip(self.out_vars, gives, strict=True)
                 if p.kind == "late" and not is_literal(v)}  # fmt: skip
        found = phases_of(needed, named, arrive, leave)
        # What the loop needs comes before it; what is not of any part (a boxing of a result) with the first after it.
        phases = [1 if e is loop else 0 if id(e) in ahead else max(2, p) for e, p in zip(needed, found, strict=True)]
        self.top = cut(needed, phases, 2 + levels, wanted, remakes=False)
        self.after_sources: dict[Any, Slot] = {}
        if loop is not None:
            _, self.n_carry = scan_operands(loop.params)
            for j, v in enumerate(loop.outvars):
                kind = Slot("sum", j) if j < self.n_carry else Slot("stack", j - self.n_carry)
                self.after_sources[v] = kind

    def cut_body(self) -> None:
        """Forward and backward."""
        loop = self.loop_eqn
        n_consts, n_carry = scan_operands(loop.params)
        body, consts = opened(loop.params["jaxpr"])
        if consts or body.constvars:
            raise InternalError("the loop over micro-batches has constants of its own")
        sources: dict[Any, Slot] = {}
        self.literals: dict[Any, Any] = {}
        for inner, x in zip(body.invars[:n_consts], loop.invars[:n_consts], strict=True):
            if is_literal(x) or x in self.constants:
                self.literals[inner] = x.val if is_literal(x) else self.constants[x]
            else:
                sources[inner] = Slot("port", self.port_of[x]) if x in self.port_of else Slot("held", x)
        self.starts = list(loop.invars[n_consts : n_consts + n_carry])
        for j, inner in enumerate(body.invars[n_consts : n_consts + n_carry]):
            sources[inner] = Slot("sum", j)
        arrive: dict[Any, int] = {}
        for inner, x in zip(body.invars[n_consts + n_carry :], loop.invars[n_consts + n_carry :], strict=True):
            if x not in self.port_of:
                raise InternalError("what comes with every micro-batch is changed before the loop over them")
            sources[inner] = Slot("port", self.port_of[x])
            arrive[inner] = int(self.source.takes[self.port_of[x]].key in self.backward_values)
        self.body_sources = sources
        # What leaves: by variable the ports, with the signature that the body gives it in.
        stack = self.loop.roles["stack"] if self.loop else []
        self.leaving: dict[Any, list[tuple[int, Signature]]] = {}
        leave: dict[Any, int] = {}
        ports = {op.outs[0].id: o for o, (op, p) in enumerate(
            zip((self.producer(o) for o in range(len(self.source.gives))), self.source.gives, strict=True))
            if p.kind == "part" and op is not None}  # fmt: skip
        # What the lowering lets a later op wait with has been made before.
        ys = [before_barriers(body.eqns, v) for v in body.outvars[n_carry:]]
        self.collected: dict[int, Any] = {}
        for j, (op, v) in enumerate(zip(stack, ys, strict=True)):
            o = ports.get(op.outs[0].id)
            if o is not None:
                src = self.plan.strategies[self.plan.nodes[op.index]][0][0]
                self.leaving.setdefault(v, []).append((o, src))
                leave[v] = int(self.source.gives[o].key in self.backward_values)
            needed = any(
                j + n_carry == k for k, x in enumerate(loop.outvars) if any(x in p.takes for p in self.readers())
            )
            if needed:
                self.collected[j] = v
        self.sums = list(body.outvars[:n_carry])

        def named(e: Any) -> int | None:
            # What is made once more is made where it is read: mostly by the backward part, but a plan may also have
            # it made again within the forward part.
            k = self.unit_of.get(self.node(e), -1)
            return int(self.phases.backward[k]) if k >= 0 and not self.is_again(e) else None

        eqns = body.eqns
        phases = phases_of(eqns, named, arrive, leave)
        results = [*self.sums, *ys]
        forward, backward = cut(eqns, phases, 2, results)
        self.body = [forward, backward]
        if self.splits:
            passed = [v for v in self.leaving if any(self.source.gives[o].key in self.backward_values
                                                     for o, _ in self.leaving[v])]  # fmt: skip

            def ends(e: Any) -> bool:
                ways = self.cut.ways.get(self.node(e))
                return ways is not None and any(c < -1 for c in ways[1]) and not self.is_again(e)

            self.body = [forward, *split_weights(backward, passed, ends)]

    def readers(self) -> list[Part]:
        """The parts that read what the loop collects."""
        return self.top[2:]

    def producer(self, o: int) -> Op | None:
        """The boundary op that gives a result of the stage."""
        x = self.source.program.output_ops[o].ins[0]
        for op in self.loop.roles["stack"] if self.loop else ():
            if op.outs[0] is x:
                return op
        return None

    def port_spec(self, port: int) -> PartitionSpec:
        leaf, kind = self.plan.inputs[port], self.source.takes[port].kind
        if kind in WITH_EVERY_PART:
            return to_partition_spec(part_of(leaf.signature), self.where, len(leaf.shape) - 1)
        return to_partition_spec(leaf.signature, self.where, len(leaf.shape))

    def part(self, name: str, part: Part, sources: Mapping[Any, Slot], level: int = -1) -> StagePart:
        """A part as a jitted function of global arrays. ``level`` is that of a part after the loop."""
        in_loop = name in _IN_LOOP
        own = PartitionSpec(self.where.axis_names)
        literals = self.literals if in_loop else self.constants
        results = self.results(name, part, in_loop, level)
        made = set(part.gives)
        passed = [r.value for r in results if not is_literal(r.value) and r.value not in made]
        wanted = [v for v in dict.fromkeys([*part.takes, *passed]) if v not in literals]
        takes = [sources.get(v) or self.source_of(v, in_loop) for v in wanted]
        in_specs = [self.port_spec(slot.key) if slot.kind == "port" else own for slot in takes]

        def local(*arguments: Any) -> list[Any]:
            env: dict[Any, Any] = dict(literals)
            for v, slot, x in zip(wanted, takes, arguments, strict=True):
                env[v] = self.operand(slot, x, level)
            env.update(zip(part.gives, part.run(*(env[v] for v in part.takes)), strict=True))
            return [r.of(r.value.val if is_literal(r.value) else env[r.value]) for r in results]

        mapped = jax.shard_map(
            local, mesh=self.mesh, check_vma=False,
            in_specs=tuple([s] * self.cut.count if t.kind == "stack" else s
                           for t, s in zip(takes, in_specs, strict=True)),
            out_specs=[r.spec for r in results],
        )  # fmt: skip

        def function(*arguments: Any) -> list[Any]:
            return mapped(*arguments)

        function.__name__ = f"stage{self.source.stage}_{name}"
        gives = [r.slot for r in results]
        donated = tuple(
            k for k, (t, v) in enumerate(zip(takes, wanted, strict=True)) if self.is_spent(t, v, gives, level)
        )
        jitted = jax.jit(function, donate_argnums=donated, compiler_options=self.options)
        shapes = [self.shape(t, v, spec) for t, v, spec in zip(takes, wanted, in_specs, strict=True)]
        effects = frozenset(x for e in part.equations for x in e.effects)
        return StagePart(name, takes, gives, jitted, shapes, local, [r.spec for r in results], effects)

    def operand(self, slot: Slot, x: Any, level: int) -> Any:
        """What a device reads of an argument of a part."""
        if slot.kind == "stack":
            return jnp.stack([y[0] for y in x])
        return x if slot.kind == "port" else x[0]

    def shape(self, slot: Slot, v: Any, spec: PartitionSpec) -> Any:
        """What a part is handed for an operand."""
        there = NamedSharding(self.mesh, spec)
        if slot.kind == "port":
            x, kind = self.source.program.input_ops[slot.key].outs[0], self.source.takes[slot.key].kind
            shape = x.shape[1:] if kind in WITH_EVERY_PART else x.shape
            return jax.ShapeDtypeStruct(shape, x.dtype, sharding=there, weak_type=x.weak)
        n = self.where.size
        if slot.kind == "stack":
            return [jax.ShapeDtypeStruct((n, *v.aval.shape[1:]), v.aval.dtype, sharding=there)] * self.cut.count
        return jax.ShapeDtypeStruct((n, *v.aval.shape), v.aval.dtype, sharding=there)

    def source_of(self, v: Any, in_loop: bool) -> Slot:
        if v in self.port_of:
            return Slot("port", self.port_of[v])
        return Slot("residual" if in_loop else "held", v)

    def is_spent(self, slot: Slot, v: Any, gives: Sequence[Slot], level: int) -> bool:
        """Whether nothing needs an operand after a part: its memory may be used again."""
        if slot.kind == "sum" and slot in gives:
            return True
        later = any(v in p.takes for p in self.top[3 + level :]) or v in self.passed_later(level)
        if level < 0 or later:
            return False
        donated = {i for i, _ in self.source.program.donated}
        return slot.kind == "port" and slot.key in donated and self.owns(slot.key)

    def passed_later(self, level: int) -> list[Any]:
        return [v for v, p in zip(self.out_vars, self.source.gives, strict=True)
                if p.kind == "late" and p.level > level and not is_literal(v)]  # fmt: skip

    def owns(self, port: int) -> bool:
        """Whether no other stage reads an argument."""
        return self.source.takes[port].key not in self.shared

    def results(self, name: str, part: Part, in_loop: bool, level: int) -> list[Result]:
        """What a part gives."""
        own = PartitionSpec(self.where.axis_names)
        made = set(part.gives)

        def kept(slot: Slot, v: Any, dtype: Any = None) -> Result:
            return Result(slot, v, own, lambda x: jnp.asarray(x, dtype)[None])

        if name == "before":
            found = [kept(Slot("held", v), v) for v in part.gives]
            if self.loop_eqn is not None:
                found += [kept(Slot("sum", j), v, v.aval.dtype) for j, v in enumerate(self.starts)]
            return found
        if in_loop:
            found = [kept(Slot("sum", j), v) for j, v in enumerate(self.sums) if v in made]
            found += [self.leaving_as(o, src, v) for v in part.gives for o, src in self.leaving.get(v, ())]
            found += [kept(Slot("stack", j), v) for j, v in self.collected.items() if v in made]
            later = {v for p in self.body[self.body.index(part) + 1 :] for v in p.takes}
            return found + [kept(Slot("residual", v), v) for v in part.gives if v in later]
        found = []
        made_late = {v for p in self.top[2:] for v in p.gives}
        for o, v in enumerate(self.out_vars):
            if not self.is_reported(o):
                continue
            given_at = -1 if is_literal(v) or v not in self.port_of else self.late_level(v)
            passes = (is_literal(v) or v not in made_late) and level == given_at + 1
            if passes or v in made:
                leaf = self.plan.outputs[o]
                spec = to_partition_spec(leaf.signature, self.where, len(leaf.shape))
                found.append(Result(Slot("port", o), v, spec, lambda x: x))
        later = {v for p in self.top[3 + level :] for v in p.takes}
        return found + [kept(Slot("held", v), v) for v in part.gives if v in later]

    def is_reported(self, o: int) -> bool:
        """Whether a result of the stage is known after the loop."""
        return self.source.gives[o].kind != "part"

    def late_level(self, v: Any) -> int:
        port = self.source.takes[self.port_of[v]]
        return port.level if port.kind == "late" else -1

    def leaving_as(self, o: int, src: Signature, v: Any) -> Result:
        """What leaves with every micro-batch; its terms are summed first."""
        shape, dtype = self.plan.outputs[o].shape[1:], self.plan.outputs[o].dtype
        dst = Signature(tuple(broadcast if isinstance(c, Partial) else c for c in src))
        self.leaves[o] = dst
        route = boxing.route(src, dst, self.where, shape, dtype)
        spec = to_partition_spec(dst, self.where, len(shape))
        return Result(Slot("port", o), v, spec, lambda x: boxing.apply(route, x, self.where.axis_names))
