"""``sbp.Plan``: the plan's data with what one does with it: print it, verify it against what XLA compiled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cluster import Cluster, parse
from .errors import PlanError
from .lower.verify import verify_plan
from .plan import PlanData
from .report import html
from .report.facts import Facts
from .report.text import render
from .signature import Signature
from .simulate import Simulation, simulate, waits, with_faster_links


@dataclass
class Plan(PlanData):
    """What ``sbp.plan`` and ``train_step.plan`` return. See ``PlanData`` for its contents."""

    compile: Callable[[], Any] | None = None
    # Plans once more, with signatures forced on the results of some nodes.
    again: Callable[[Mapping[int, Signature]], PlanData] | None = None

    @classmethod
    def of(cls, data: PlanData, compile: Callable[[], Any] | None = None) -> "Plan":
        """The same plan, able to compile its own step."""
        return cls(**{k: getattr(data, k) for k in PlanData.__dataclass_fields__}, compile=compile)

    _facts: "Facts | bool | None" = field(default=False, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return render(self, self.facts())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.fragment(self, self.facts())

    def to_html(self, path: str | Path) -> None:
        """Write the report as one HTML file that needs nothing else. ``PlanError`` if it cannot be written."""
        html.write(self, path, self.facts())

    def simulate(self, cluster: Cluster | str | None = None) -> Simulation:
        """One step, simulated: ``sbp.simulate(plan)``."""
        return simulate(self, cluster)

    def facts(self) -> Facts | None:
        """The simulated step as reports show it, made once; None for a plan without a timeline."""
        if isinstance(self._facts, bool):
            self._facts = _facts(self)
        return self._facts

    def verify(self, compiled: Any = None) -> Any:
        """Check a compiled step (``.as_text()``) against the plan; compiles the step itself when none is given.

        Returns a report of every collective. Raises ``PlanMismatch`` with what XLA added or left out.
        """
        if compiled is None:
            if self.compile is None:
                raise PlanError(
                    "this plan was loaded from a file and does not know its function: pass the compiled step, "
                    "plan.verify(step.lower(...).compile()), with step = sbp.auto_parallel(fn, plan=plan)"
                )
            compiled = self.compile()
        return verify_plan(self, compiled.as_text())


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
        waits(found, plan.timeline), faster,
    )  # fmt: skip
