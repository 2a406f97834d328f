"""plan + program -> a function of whole arrays, with the plan's signatures as sharding constraints.

XLA's partitioner makes the local program and chooses the collectives between two constraints. What constraints cannot
say stays explicit: an op that takes or makes a partial value, and a boxing from or to one, is a ``shard_map`` of its
own, run by the same code as in the manual lowering (``emit.py``); so is an op that XLA cuts wrongly. Between two of
them a partial value is the stack of its terms: one more dimension at the end, split over the partial axes, so
that every device holds its own term (docs/decisions/0010-gspmd-lowering.md).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from .. import boxing
from ..errors import PlanError
from ..pieces import is_even
from ..plan import Boxing, PlanData
from ..rules import is_opaque_kernel
from ..shardings import to_partition_spec
from ..signature import Partial, Signature, broadcast
from ..trace import Atom, Op, Program, Value
from .emit import Emitter, Scope, check_program


def global_function(program: Program, plan: PlanData) -> Callable[..., list[Any]]:
    """The program on whole arrays: flat arguments (constants last) to flat results, to be called under ``jax.jit``."""
    check_program(program, plan)
    return GlobalEmitter(program, plan).run


class GlobalEmitter(Emitter):
    """Emits ops on whole arrays, with their shardings as constraints."""

    def __init__(self, program: Program, plan: PlanData) -> None:
        super().__init__(program, plan)
        self.takes_turns = False  # XLA's partitioner gives its collectives channels of their own
        for op in program.nodes:
            sides = self.decision[op.index] or ((), ())
            for v, s in zip((*op.ins, *op.outs), (*sides[0], *sides[1]), strict=False):
                if not is_even(v.shape, s, self.placement.shape):
                    raise PlanError(
                        f"{plan.function} was planned with pad=True: {v} is ({s}) there, in pieces of different "
                        'lengths, which sharding constraints cannot say. Use lowering="manual", or plan without pad'
                    )
        self.mesh = plan.placement.mesh

    def define(self, scope: Scope, value: Value, signature: Signature, x: Any) -> None:
        scope[value.id] = {signature: self.constrained(x, signature)}

    def constrained(self, x: Any, signature: Signature) -> Any:
        """The array, to lie as the signature says. Without elements or dimensions it is on every device anyway."""
        return lax.with_sharding_constraint(x, self.sharding(x, signature)) if x.ndim and x.size else x

    def sharding(self, x: Any, signature: Signature) -> NamedSharding:
        """Of the array that stands for a value: where it is partial, of the stack of its terms."""
        return NamedSharding(self.mesh, self.spec(signature, x.ndim - signature.has_partial))

    def spec(self, signature: Signature, ndim: int) -> PartitionSpec:
        """The same, for a value of rank ``ndim``."""
        names = self.placement.axis_names
        terms = tuple(n for n, c in zip(names, signature, strict=True) if isinstance(c, Partial))
        kept = Signature(tuple(broadcast if isinstance(c, Partial) else c for c in signature))
        spec = to_partition_spec(kept, self.placement, ndim)
        return PartitionSpec(*spec, terms) if terms else spec

    def stored_bytes(self, x: Any, signature: Signature) -> int:
        return math.prod(self.sharding(x, signature).shard_shape(x.shape)) * x.dtype.itemsize

    def compute(self, scope: Scope, op: Op, ins: Sequence[Signature], outs: Sequence[Signature]) -> Sequence[Any]:
        """Run one op: on whole arrays; on pieces where a value is partial or the op a kernel of the user's."""
        arguments = [self.read(scope, x, s) for x, s in zip(op.ins, ins, strict=True)]
        on_pieces = op.runs_once or is_opaque_kernel(op.name) or _needs_pieces(op)
        if on_pieces or any(s.has_partial for s in (*ins, *outs)):
            ranks = [len(v.shape) for v in op.outs]
            return self.island(lambda xs: self.on_pieces(op, ins, outs, xs), arguments, ins, outs, ranks)
        if op.primitive is None:  # a constant
            whole = Signature((broadcast,) * self.placement.ndim)
            return self.on_pieces(op, [whole] * len(ins), [whole] * len(outs), arguments)
        y = op.primitive.bind(*arguments, **op.params)
        return y if op.primitive.multiple_results else [y]

    def box(self, planned: Boxing, x: Any) -> Any:
        steps, names = self.steps(planned), self.placement.axis_names
        if not any(s.has_partial for s in (planned.src, *(step.dst for step in steps))):  # a way may lead through P
            for step in steps:  # the plan's own way: where XLA finds none in one go, it gathers the whole
                x = self.constrained(x, step.dst)
            return x

        def on_piece(xs: Sequence[Any]) -> list[Any]:
            return [boxing.execute(steps, xs[0], names, planned.shape)]

        return self.island(on_piece, [x], [planned.src], [planned.dst], [len(planned.shape)])[0]

    def make_partial(self, x: Any, atom: Atom, src: Signature, dst: Signature) -> Any:
        make = super().make_partial
        return self.island(lambda xs: [make(xs[0], atom, src, dst)], [x], [src], [dst], [len(atom.shape)])[0]

    def island(
        self, on_pieces: Callable[[Sequence[Any]], Sequence[Any]], arguments: Sequence[Any],
        ins: Sequence[Signature], outs: Sequence[Signature], ranks: Sequence[int],
    ) -> list[Any]:  # fmt: skip
        """Whole arrays (stacks of terms) to such, of ``ranks`` as values, by a function of one device's pieces."""

        def on_device(*xs: Any) -> list[Any]:
            pieces = [lax.squeeze(x, (x.ndim - 1,)) if s.has_partial else x for x, s in zip(xs, ins, strict=True)]
            results = on_pieces(pieces)
            return [lax.expand_dims(y, (y.ndim,)) if s.has_partial else y for y, s in zip(results, outs, strict=True)]

        run = jax.shard_map(
            on_device,
            mesh=self.mesh,
            in_specs=tuple(self.spec(s, x.ndim - s.has_partial) for x, s in zip(arguments, ins, strict=True)),
            out_specs=[self.spec(s, n) for s, n in zip(outs, ranks, strict=True)],
            check_vma=False,
        )
        return run(*arguments)


def _needs_pieces(op: Op) -> bool:
    """Whether XLA may make wrong numbers of the op on whole arrays, or cannot run it.

    A convolution in groups whose result is split along the channels comes back with its channels in another order (JAX
    0.10.2 and 0.12). A slice at a position out of bounds, whose result is cut, is read past its end (JAX 0.10.2); so is
    what XLA makes slices of, a lookup or an update at one position. An update is overwritten while it is still read
    (JAX 0.10.2 and 0.12, on CPUs). A Fourier transform whose result is gathered does not run (see its rule). The rules'
    local ops clamp positions, compute an update before it is written, and fix the order in memory of a transform.
    """
    if op.name == "conv_general_dilated":
        return op.params["feature_group_count"] > 1 or op.params["batch_group_count"] > 1
    return op.name in _ON_PIECES or op.name.startswith("scatter")


_ON_PIECES = {"gather", "dynamic_slice", "dynamic_update_slice", "fft"}
