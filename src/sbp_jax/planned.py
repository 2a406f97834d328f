"""``sbp.Plan``: the plan's data with what one does with it: print it, verify it against what XLA compiled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .cluster import Cluster
from .errors import PlanError
from .lower.verify import verify_plan
from .plan import PlanData
from .report.text import render
from .signature import Signature
from .simulate import Simulation, simulate


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

    def __str__(self) -> str:
        return render(self)

    __repr__ = __str__

    def simulate(self, cluster: Cluster | str | None = None) -> Simulation:
        """One step, simulated: ``sbp.simulate(plan)``."""
        return simulate(self, cluster)

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
