"""``sbp.Plan``: the plan's data with what one does with it: print it, verify it against what XLA compiled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..cluster import Cluster, parse
from ..errors import PlanError
from ..lower.verify import verify_plan
from ..plan import PlanData
from ..report import html
from ..report.explain import Explanation, Replanned, explain, find
from ..report.facts import Facts, Span
from ..report.profile import Profile, section
from ..report.text import render
from ..signature import Signature, SignatureLike, signature_for
from ..simulate import Simulation, simulate, with_faster_links
from .profiler import profile


@dataclass
class Plan(PlanData):
    """What ``sbp.plan`` and ``train_step.plan`` return. See ``PlanData`` for its contents.

    It can be pickled; read back it is as a loaded one (``Plan.load``), but knows the trees of arguments and results
    where their classes can be pickled. A copy (``copy.copy``, ``copy.deepcopy``) can do all that the plan can.
    """

    compile: Callable[[], Any] | None = None
    # Plans once more, with signatures forced on the results of some nodes.
    again: Callable[[Mapping[int, Signature]], PlanData] | None = None
    # The same plan made by a search, where it came from a cache of plans.
    anew: Callable[[], "Plan"] | None = None
    # The step compiled with names, once, to be profiled; a call's arguments as the step takes them, by position and by
    # name, and what is done to them before.
    named_step: Callable[[], Any] | None = None
    taken_apart: Callable[[Sequence[Any], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    prepare: Callable[..., tuple[Any, ...]] | None = None

    @classmethod
    def of(cls, data: PlanData, compile: Callable[[], Any] | None = None) -> "Plan":
        """The same plan, able to compile its own step."""
        return cls(**{k: getattr(data, k) for k in PlanData.__dataclass_fields__}, compile=compile)

    _facts: "Facts | bool | None" = field(default=False, init=False, repr=False, compare=False)
    _profile: Profile | None = field(default=None, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return render(self, self.facts())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.fragment(self, self.facts(), self._measured())

    def to_html(self, path: str | Path) -> None:
        """Write the report as one HTML file that needs nothing else. ``PlanError`` if it cannot be written."""
        html.write(self, path, self.facts(), self._measured())

    def _measured(self) -> str:
        return section(self._profile) if self._profile else ""

    def explain(self, what: str, alternative: SignatureLike | None = None) -> Explanation:
        """Why something has the signature that it has.

        Args:
            what: the path of an argument ("state/params/blocks/0/w_in", by number "0/params/blocks/0/w_in"), a layer
                ("blocks/0"), a line of your code ("model.py:51") or the name of a value ("dot_general"). Paths and
                layers may have stars.
            alternative: plan once more with this signature there and everything else decided anew, and say the true
                difference. Only for a plan made in this process, and where ``what`` means one decision, or arguments.

        Returns:
            An ``Explanation``: its decisions with who makes and reads the value, the boxings around it, and what each
            other signature would add to a step if only that decision changed. Of a loaded plan, too.

        Raises:
            PlanError: for unknown names, with the nearest; for an alternative that cannot be.
        """
        plans_again = alternative is not None
        found = explain(self, what, plans_again)
        if alternative is None:
            return found
        kind, numbers = find(self, what, plans_again)
        if kind != "argument" and len(numbers) > 1:
            lines = ", ".join(dict.fromkeys(x.title for x in found.items))
            raise PlanError(
                f"{what!r} means {len(numbers)} decisions ({lines}): an alternative is of one. Ask for the path of an "
                "argument, or for a line on which there is one op"
            )
        if self.anew is not None and not self.insight.members:
            return self.anew().explain(what, alternative)
        if self.again is None or not self.insight.members:
            raise PlanError(
                "this plan was loaded from a file, or made elsewhere, and cannot plan again: make it with sbp.plan in "
                "this process. Without alternative=, explain says what each signature adds if only it changed"
            )
        forced = {
            self.insight.members[k][0]: signature_for(
                alternative, len(self.insight.decisions[k].shape), self.placement.shape
            )
            for k in numbers
        }
        other = self.again(forced)
        text = str(next(iter(forced.values())))
        return replace(found, replanned=Replanned(
            text, other.step_seconds - self.step_seconds, other.compute_seconds - self.compute_seconds,
            other.boxing_seconds - self.boxing_seconds, other.memory_per_device - self.memory_per_device,
            other.optimality_gap, Plan.of(other),
        ))  # fmt: skip

    def simulate(self, cluster: Cluster | str | None = None) -> Simulation:
        """One step, simulated: ``sbp.simulate(plan)``."""
        return simulate(self, cluster)

    def profile(self, *args: Any, repetitions: int = 5, **kwargs: Any) -> Profile:
        """Run the step on these arguments and measure, by layer, where its time goes: beside what the plan predicted.

        The step is compiled once more, with the same ops and a name in each; it runs a few times to get warm, then
        ``repetitions`` times without and with JAX's profiler. The arguments stay as they are, donated ones too (the
        device holds a copy meanwhile). Reports as HTML show the profile from then on.

        Args:
            args, kwargs: arguments of a call, arrays of the shapes that were planned for.
            repetitions: steps to take the mean of.

        Returns:
            A ``Profile``; seconds a step on one device. Its rows sum to the measured step.

        Raises:
            PlanError: a plan that was loaded from a file or is on an abstract placement, other arguments, or a backend
                whose profiler records no ops: nothing is estimated instead.
        """
        if self.named_step is None or self.taken_apart is None:
            raise PlanError(
                "this plan was loaded from a file and does not know its function: profile the plan that runs it, "
                "step.plan(*args).profile(*args), with step = sbp.auto_parallel(fn, plan=plan)"
            )
        if self.placement.is_abstract:
            raise PlanError(f"{self.placement} is abstract: no device is there to run {self.function} on")
        facts = self.facts()
        if facts is None:
            raise PlanError(f"the plan of {self.function} predicts nothing to compare with: it has no timeline")
        if self.prepare is not None:
            args, kwargs = self.prepare(*args, **kwargs), {}
        step = self.named_step()
        leaves = step.placed(*self.taken_apart(args, kwargs))
        self._profile = profile(self, step.text, lambda: step.fresh(leaves), step.run, facts, repetitions)
        return self._profile

    def facts(self) -> Facts | None:
        """The simulated step as reports show it, made once; None for a plan without a timeline."""
        if isinstance(self._facts, bool):
            self._facts = _facts(self)
        return self._facts

    def verify(self, compiled: Any = None, strict: bool | None = None) -> Any:
        """Check a compiled step (``.as_text()``) against the plan; compiles the step itself when none is given.

        Args:
            compiled: what ``step.lower(...).compile()`` gives.
            strict: raise where XLA added a collective. None: only with the manual lowering, where XLA has nothing to
                decide; with ``lowering="gspmd"`` its partitioner chooses, and the report says what it chose.

        Returns:
            A report of every collective: ``matched``, ``added`` and ``left_out`` by XLA; ``ok`` where nothing was
            added, ``exact`` where nothing was left out either; ``expected_bytes`` and ``found_bytes`` that each device
            sends in a step.

        Raises:
            PlanMismatch: with what XLA added or left out.
        """
        if compiled is None:
            if self.compile is None:
                raise PlanError(
                    "this plan was loaded from a file and does not know its function: pass the compiled step, "
                    "plan.verify(step.lower(...).compile()), with step = sbp.auto_parallel(fn, plan=plan)"
                )
            compiled = self.compile()
        return verify_plan(self, compiled.as_text(), strict)


def _facts(plan: Plan) -> Facts | None:
    """The plan's step simulated on the hardware it was made for, and with each level of links it uses twice as fast."""
    if not plan.timeline.runs or not plan.hardware:
        return None
    cluster = parse(plan.hardware)
    found = simulate(plan, cluster)
    faster = [
        (f"{level} links twice as fast", with_faster_links(plan, cluster, {level: 2.0}).step_seconds)
        for level in sorted(found.communication_seconds)
    ]
    return Facts(
        found.step_seconds, found.compute_seconds, found.communication_seconds, found.memory,
        dict(found.waits), faster,
        [Span(e.track, e.name, e.start_seconds, e.seconds, e.detail, e.node, e.count) for e in found.events],
    )  # fmt: skip
