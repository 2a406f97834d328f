"""What text and HTML both say of a plan: its proof, its boxings grouped, its memory, what would change it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..paths import fold, plain, starred
from ..plan import Boxing, Leaf, PlanData
from .facts import Facts
from .layers import shown_names
from .units import brief, human_bytes, human_seconds, percent, short_line


def proof(plan: PlanData) -> str:
    """How good the plan is known to be."""
    gap, among = plan.optimality_gap, " among even splits" if plan.only_even else ""
    among += " at prices of what sticks out of compute" if plan.priced == "exposed" else ""
    return f"proven optimal{among}" if gap == 0 else f"at most {gap:.2%} from the best possible{among} (proven)"


def lowering(plan: PlanData) -> str:
    """Who chooses the collectives of the compiled step, where it is not the plan."""
    if plan.lowering == "manual":
        return ""
    return (
        "lowering is gspmd: the plan is given to XLA as sharding constraints, and its partitioner chooses the "
        "collectives between them (plan.verify() lists them)"
    )


def simulated(facts: Facts) -> str:
    """The simulated step in a sentence."""
    busy = ", ".join(f"{level} links busy {human_seconds(s)}" for level, s in sorted(facts.busy.items()))
    waiting = f"{human_seconds(facts.exposed_seconds)} ({percent(facts.exposed_seconds, facts.step_seconds)})"
    return (
        f"{human_seconds(facts.step_seconds)} simulated with overlap: {human_seconds(facts.compute_seconds)} compute, "
        f"{waiting} waits for data{f'; {busy}' if busy else ''}"
    )


@dataclass(slots=True)
class Group:
    """Boxings alike in all that is shown. Bytes and seconds are those of a step, all of them; ``exposed`` seconds are
    those that compute waits for them."""

    first: Boxing
    layer: str
    values: list[str] = field(default_factory=list)
    times: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0
    exposed: float = 0.0

    @property
    def change(self) -> str:
        """``S(0),P -> S(0),B``."""
        return f"{brief(self.first.src)} -> {brief(self.first.dst)}"

    @property
    def value(self) -> str:
        """The values' names, as ranges."""
        return folded(self.values or [self.first.value])

    @property
    def lines(self) -> str:
        """The user's line that makes the value, and the one that needs it otherwise."""
        return lines_of(self.first)


def folded(names: Iterable[str]) -> str:
    """Names in a few words: those that differ in numbers as ranges, and how many others there are."""
    first, *others = fold(names)
    return f"{first} and {len(others)} more" if others else first


def shown_arguments(plan: PlanData) -> dict[str, str]:
    """Each argument's path as reports show it."""
    paths = [leaf.path for leaf in plan.inputs]
    return {path: plan.called(name) for path, name in zip(paths, plain(paths), strict=True)}


def lines_of(b: Boxing) -> str:
    """``gpt.py:148 -> :150``: where a value is made, and where it is needed in another signature."""
    made, used = short_line(b.source), short_line(b.user)
    if made == used or not (made and used):
        return made or used
    file, _, number = used.partition(":")
    return f"{made} -> {f':{number}' if made.startswith(f'{file}:') else used}"


def grouped(
    plan: PlanData, boxings: Iterable[Boxing] | None = None, exposed: Mapping[int, float] | None = None
) -> list[Group]:
    """The boxings that send something, alike ones together, the most expensive first. ``exposed``: seconds that are
    waited for each, by its id."""
    insight = plan.insight
    layers = {}
    if insight.crossings:
        names = shown_names(plan)
        layers = {
            b.id: names.get(layer, layer)
            for b, c in zip(plan.boxing_list, insight.crossings, strict=True)
            for layer in [insight.spots[c.made_in].layer]
        }
    arguments = shown_arguments(plan)
    groups: dict[object, Group] = {}
    for b in plan.boxing_list if boxings is None else boxings:
        if b.collective == "none":
            continue
        layer = layers.get(b.id, "")
        key = (b.src, b.dst, b.collective, b.axes, b.source, b.user, b.shape, starred(b.value), layer)
        group = groups.setdefault(key, Group(b, layer))
        group.values.append(arguments.get(b.value, b.value))
        group.times += b.times
        group.bytes += b.bytes * b.times
        group.seconds += b.seconds * b.times
        group.exposed += exposed.get(b.id, 0.0) if exposed else 0.0
    return sorted(groups.values(), key=lambda g: -g.seconds)


def local_copies(boxings: Iterable[Boxing]) -> tuple[float, float]:
    """(times, seconds) a step of the boxings that send nothing: slices and copies on the device itself."""
    local = [b for b in boxings if b.collective == "none"]
    return sum(b.times for b in local), sum(b.seconds * b.times for b in local)


@dataclass(frozen=True, slots=True)
class ByKind:
    """What a device holds of one kind at the peak, and of which layers most."""

    kind: str
    bytes: float
    layers: Sequence[tuple[str, float]]


def at_peak(plan: PlanData) -> list[ByKind]:
    """The peak by kind, the most first; layers of one look together."""
    found: dict[str, dict[str, float]] = {}
    names = shown_names(plan)
    for held in plan.insight.at_peak:
        layers = found.setdefault(held.kind, {})
        name = names.get(held.layer, held.layer)
        layers[name] = layers.get(name, 0.0) + held.bytes
    kinds = [ByKind(k, sum(x.values()), sorted(x.items(), key=lambda kv: -kv[1])) for k, x in found.items()]
    return sorted(kinds, key=lambda k: -k.bytes)


def peak_text(plan: PlanData) -> str:
    """How much, of how much, when."""
    limit = plan.statistics.get("memory_limit_bytes")
    text = f"{human_bytes(plan.memory_per_device)} at the peak"
    if limit:
        text += f", {percent(plan.memory_per_device, limit)} of the {human_bytes(limit)} that it may hold"
    insight = plan.insight
    if 0 <= insight.peak_node < len(insight.node_spots):
        spot = insight.spots[insight.node_spots[insight.peak_node]]
        text += f"; reached in {spot.layer}, {spot.phase}"
    return text


def changes(plan: PlanData, facts: Facts | None) -> list[tuple[str, str]]:
    """What more memory or faster links would bring: (what, what comes of it)."""
    found: list[tuple[str, str]] = []
    free, limit = plan.statistics.get("free_seconds"), plan.statistics.get("memory_limit_bytes")
    is_seconds = plan.step_seconds and abs(plan.objective - plan.step_seconds) < 0.01 * plan.step_seconds
    if free is not None and limit and is_seconds:
        saved = plan.objective - free
        if saved > 1e-3 * plan.objective:
            instead = _instead(free, plan.objective, "predicted")
            found.append(("memory without limit", f"{instead}, with the cheapest plan there is"))
        else:
            found.append(("memory without limit", "nothing: the plan is as cheap as the cheapest without a limit"))
    elif free is not None and limit and plan.priced == "exposed":
        saved = (plan.objective - free) / plan.objective if plan.objective else 0.0
        more = f"{saved:.1%} less of compute and what sticks out of it, with the cheapest plan there is"
        none = "nothing: the plan is as cheap as the cheapest without a limit"
        found.append(("memory without limit", more if saved > 1e-3 else none))
    for what, seconds in facts.faster if facts else ():
        now = facts.step_seconds if facts else 0.0
        found.append((what, f"{_instead(seconds, now, 'simulated')}, with this same plan"))
    return found


def _instead(seconds: float, now: float, how: str) -> str:
    change = f" ({(seconds - now) / now:+.1%})" if now else ""
    return f"{human_seconds(seconds)} instead of {human_seconds(now)} {how}{change}"


def argument_groups(plan: PlanData) -> list[tuple[str, Leaf, int]]:
    """Arguments alike but for numbers in their names: (name with ranges, the first, how many), the largest first."""
    shown = shown_arguments(plan)
    looks: dict[object, dict[str, Leaf]] = {}
    for leaf in plan.inputs:
        looks.setdefault((leaf.dtype, leaf.shape, leaf.signature), {})[shown[leaf.path]] = leaf
    groups = [(name, some[members[0]], len(members)) for some in looks.values() for name, members in fold(some).items()]
    return sorted(groups, key=lambda g: -math.prod(g[1].shape) * g[2])
