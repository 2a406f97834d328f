"""A program's plan, or that of a program that computes the same and takes less: ``AutoParallelConfig(rewrite=...)``.

Candidates are priced by OneFlow's greedy search at the request's own costs; the cheapest of them is planned as the
program itself is, and kept where that plan is cheaper. So what is written otherwise is chosen together with how it is
split.
"""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from ..plan import PlanData, Rewritten
from ..trace import Program, fingerprint, user_line
from .amounts import seconds_text
from .budget import Budget
from .catalogue import lookup
from .decide import decide
from .memory.infeasible import TooSmall
from .methods import Task
from .pins import PinError
from .prepare import prepare
from .remat.search import plan_to_fit
from .request import Request
from .rewriting import Move, Rewriting, replay
from .rewriting.apply import apply
from .rewriting.substitution import lookup as substitution_of

# Parts of a time limit: the plan of the program as it is; of what is left then, the search among programs.
_FIRST, _SEARCH = 1 / 3, 1 / 2
# A plan counts as cheaper where it saves more than this part.
_SAVED = 1e-6
# The names in a stack of them, without transformations: ``transpose(jvp(block))/attention``.
_NAME = re.compile(r"[^/()]+(?=[/)]|$)")
# So many places are named in a note.
_NAMED = 2


def plan_or_rewrite(program: Program, request: Request, name: str = "function") -> PlanData:
    """The plan of a program; with ``request.rewrite`` that of the cheapest equal program found, where it is cheaper.

    Such a plan has ``rewritten``, which ``as_rewritten`` follows, and the fingerprint of the program given.
    """
    if request.rewrite is None:
        return plan_to_fit(program, request, name)
    start = time.perf_counter()
    first = request if request.time_limit is None else replace(request, budget=request.budget.share(_FIRST))
    plan = plan_to_fit(program, first, name)
    request.progress("rewriting")
    method = lookup(request.rewrite, "rewriting")
    clock = request.budget.share(_SEARCH)
    found: Rewriting = method.run(
        program,
        lambda p, origin: _greedy_seconds(p, asked_of(request, origin)),
        method.checked(request.rewrite_options),
        lambda: clock.seconds_left <= 0,
    )
    cut = ", when half of what was left of time_limit was over" if clock.seconds_left <= 0 else ""
    made = plan
    if found.moves:
        made = _planned(program, plan, found, request, name)
    if made is plan:
        plan.notes.append(f"rewrite: no program that is cheaper was found among {found.priced} priced{cut}")
    made.planning_seconds = time.perf_counter() - start
    made.statistics["programs_priced"] = found.priced
    return made


def as_rewritten(program: Program, request: Request, plan: PlanData) -> tuple[Program, Request]:
    """The program that a plan is of, before what it makes again, and what was asked of that."""
    if plan.rewritten is None:
        return program, request
    made, origin = follow(program, plan.rewritten)
    return made, asked_of(request, origin)


def follow(program: Program, rewritten: Rewritten) -> tuple[Program, list[int]]:
    """The program after a plan's substitutions, and the origin of its nodes. ``PlanError`` where they do not fit."""
    return replay(program, [Move(*move) for move in rewritten.moves], rewritten.fingerprint)


def asked_of(request: Request, origin: Sequence[int]) -> Request:
    """A request for a program whose nodes have these origins."""
    pins = {k: request.pins[o] for k, o in enumerate(origin) if o in request.pins}
    return replace(request, pins=pins, rewrite=None)


def _planned(program: Program, plan: PlanData, found: Rewriting, request: Request, name: str) -> PlanData:
    """The plan of the program found, told as one of the program given; ``plan`` where that is as cheap."""
    asked = replace(asked_of(request, found.origin), prepared=[], budget=request.budget.again())
    try:
        made = plan_to_fit(found.program, asked, name)
    except TooSmall:
        return plan
    if _overflows(made) > _overflows(plan) or not made.objective < (1 - _SAVED) * plan.objective:
        return plan
    made.rewritten = Rewritten(tuple((m.substitution, m.sites) for m in found.moves), fingerprint(found.program))
    made.fingerprint = fingerprint(program)
    told = "; ".join(_told(program, found.moves))
    made.notes.append(
        f"rewrite: {told}: {seconds_text(plan.objective)} -> {seconds_text(made.objective)}, {found.priced} programs "
        "priced; the bound is of this program, not of all that equal it"
    )
    return made


def _told(program: Program, moves: Sequence[Move]) -> list[str]:
    """What was done where, by the names of layers or lines of code."""
    found = []
    for move in moves:
        substitution = substitution_of(move.substitution)
        names = list(dict.fromkeys(_place(program, site[0]) for site in move.sites))
        places = ", ".join([*names[:_NAMED], *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])])
        found.append(f"{len(move.sites)} x {move.substitution}{f' in {places}' if places else ''}")
        program, _ = apply(program, substitution, move.sites)
    return found


def _place(program: Program, node: int) -> str:
    info = program.nodes[node].info
    return "/".join(_NAME.findall(str(getattr(info, "name_stack", "")))) or user_line(info)


def _overflows(plan: PlanData) -> bool:
    return any(n.startswith("does not fit") for n in plan.notes)


def _greedy_seconds(program: Program, request: Request) -> float:
    """What the greedy search finds for a program, without a memory limit."""
    asked = replace(
        request, solver="greedy", solver_options={}, memory_limit_bytes=None, prefer_less_memory=False, budget=Budget(),
        prepared=None, remat=False, progress=lambda _: None,
    )  # fmt: skip
    prepared = prepare(program, asked)
    task = Task(prepared.graph, prepared.footprint, None, asked.gap, asked.budget, find_roles=lambda: prepared.roles,
                n_axes=len(asked.placement.shape))  # fmt: skip
    try:
        decided = decide(task, asked)
    except (PinError, TooSmall):
        return math.inf
    return math.inf if decided is None else decided.found.seconds
