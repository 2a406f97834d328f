"""What a record says of a run, and its pictures."""

import itertools
import json
import math
import threading
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from actors.random_graphs import in_time
from sbp_jax.actors import Actor, ActorGraph, Record, Span, run
from sbp_jax.errors import ActorError

SVG = "{http://www.w3.org/2000/svg}"


def act(k: int, *payloads: object) -> int:
    return k


# Lane x: f 0 at 1 to 3, then it waits for a register until 5, f 1 until 6. Lane y: g 0 at 3.5 to 5, g 1 at 6 to 8.
HAND = Record(
    {"x": ("f",), "y": ("g",), "z": ("h",)},
    {"f": (), "g": ("f",), "h": ()},
    (
        Span("x", "f", "load", 0, 1.0, 3.0, 0.0, 0.0),
        Span("y", "g", "compute", 0, 3.5, 5.0, 3.0, 0.0),
        Span("x", "f", "load", 1, 5.0, 6.0, 0.5, 1.25),
        Span("y", "g", "compute", 1, 6.0, 8.0, 1.0, 0.0),
    ),
    {},
)


def test_times_of_a_record_written_by_hand() -> None:
    assert HAND.makespan_seconds == 8.0
    assert [HAND.busy_seconds(lane) for lane in "xyz"] == [3.0, 3.5, 0.0]
    assert [HAND.bubble_fraction(lane) for lane in "xyz"] == [1 - 3 / 8, 1 - 3.5 / 8, 1.0]
    assert HAND.bubble_fraction() == 1 - 3.5 / 8  # of the lane that computes


def test_pieces_of_a_record_written_by_hand() -> None:
    def pieces(lane: str) -> list[tuple]:
        return [(p.category, p.actor, p.index, p.start_seconds, p.end_seconds) for p in HAND.slices(lane)]

    assert pieces("x") == [
        ("runtime", "f", 0, 0.0, 1.0),
        ("load", "f", 0, 1.0, 3.0),
        ("wait for input", "f", 1, 3.0, 3.5),
        ("wait for register", "f", 1, 3.5, 4.75),
        ("runtime", "f", 1, 4.75, 5.0),
        ("load", "f", 1, 5.0, 6.0),
        ("finished", "", -1, 6.0, 8.0),
    ]
    assert pieces("z") == [("finished", "", -1, 0.0, 8.0)]
    with pytest.raises(ActorError, match="there is no lane 'w'; there are 'x', 'y', 'z'"):
        HAND.slices("w")


def test_registers_are_in_use_until_the_last_reader_has_finished() -> None:
    assert HAND.registers_in_use() == {
        "f": [(1.0, 1), (5.0, 0), (5.0, 1), (8.0, 0)],
        "g": [(3.5, 1), (5.0, 0), (6.0, 1), (8.0, 0)],
        "h": [],
    }
    assert HAND.peak_registers == {"f": 1, "g": 1, "h": 0}


@pytest.fixture(scope="module")
def record() -> Record:
    graph = ActorGraph(
        (
            Actor("load", act, registers=2, kind="load", count=30),
            Actor("f", act, ("load",), lane="rank 0"),
            Actor("g", act, ("f",), lane="rank 1"),
            Actor("b", act, ("g", "f"), lane="rank 0"),
        ),
        {"rank 0": tuple((n, k) for k in range(30) for n in ("f", "b"))},
    )
    return in_time(lambda: run(graph, collect=("b", "load")))


def test_pieces_of_a_lane_add_up_to_the_makespan(record: Record) -> None:
    assert sorted(s.start_seconds for s in record.spans) == [s.start_seconds for s in record.spans]
    for lane in record.lanes:
        pieces = record.slices(lane)
        assert pieces[0].start_seconds == 0.0 and pieces[-1].end_seconds == record.makespan_seconds
        assert all(a.end_seconds == b.start_seconds for a, b in itertools.pairwise(pieces))
        busy = sum(p.end_seconds - p.start_seconds for p in pieces if p.is_busy)
        assert math.isclose(busy, record.busy_seconds(lane))
        assert sum(p.is_busy for p in pieces) == len(record.lane_spans(lane))


def test_collected_results_are_by_actor_and_index(record: Record) -> None:
    assert record.results == {"b": {k: k for k in range(30)}, "load": {k: k for k in range(30)}}


def test_waits_are_told_apart() -> None:
    """A lane whose input comes late, one that has no register: events, not sleeps, decide which is late."""
    filled, first = threading.Event(), threading.Event()

    def load(k: int) -> int:
        if k == 1:
            filled.set()  # both registers are taken
        return k

    def step(k: int, x: int) -> int:
        assert filled.wait(30)
        first.set()
        return x

    def last(k: int, x: int) -> int:
        return x

    graph = ActorGraph(
        (Actor("load", load, registers=2, count=3), Actor("step", step, ("load",)), Actor("last", last, ("step",)))
    )
    record = in_time(lambda: run(graph))
    spans = {(s.actor, s.index): s for s in record.spans}
    # The third load waited for the first step, which ended after the second load had.
    assert spans["load", 2].register_wait_seconds > 0 and spans["load", 2].input_wait_seconds == 0
    assert spans["last", 0].input_wait_seconds >= spans["step", 0].end_seconds > 0
    assert all(s.register_wait_seconds == 0 for s in record.spans if s.actor == "last")


def test_the_trace_is_what_perfetto_reads(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "run.json")
    data = json.loads((tmp_path / "run.json").read_text())
    assert data == json.loads(json.dumps(record.to_json()))
    events = data["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X", "C"} and {e["pid"] for e in events} == {1}
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {0: "load", 1: "rank 0", 2: "rank 1"}
    end = record.makespan_seconds * 1e6
    for tid, lane in tracks.items():
        pieces = [e for e in events if e["ph"] == "X" and e["tid"] == tid]
        assert all(e["dur"] >= 0 for e in pieces)
        assert math.isclose(sum(e["dur"] for e in pieces), end)
        assert [e["name"] for e in pieces if e["cat"] in ("compute", "load")] == [
            f"{s.actor}[{s.index}]" for s in record.lane_spans(lane)
        ]
        assert {e["cat"] for e in pieces} <= {
            "compute", "load", "wait for input", "wait for register", "runtime", "finished"
        }  # fmt: skip
    counters = [e for e in events if e["ph"] == "C" and e["name"] == "registers of load"]
    assert {e["args"]["in use"] for e in counters} <= {0, 1, 2} and counters[-1]["args"] == {"in use": 0}


def test_a_trace_that_cannot_be_written(record: Record, tmp_path: Path) -> None:
    with pytest.raises(ActorError, match=r"cannot write the trace to '.*nowhere/run.json': No such file"):
        record.save(tmp_path / "nowhere" / "run.json")


def test_the_picture_has_a_box_for_each_firing_and_wait() -> None:
    root = ET.fromstring(HAND.to_svg(width=968.0))
    boxes = root.findall(f"{SVG}rect")
    titles = [box.findtext(f"{SVG}title") for box in boxes]
    assert root.findtext(f"{SVG}title") == "Run of actors: 3 lanes, 4 firings, 8 s"
    assert "load" not in titles and "f[1]: 5 to 6 s" in titles and "wait for register of f[1]: 3.5 to 4.75 s" in titles
    assert len(boxes) == len([p for lane in "xyz" for p in HAND.slices(lane) if p.category != "finished"])
    assert [t.text for t in root.findall(f"{SVG}text") if t.attrib["text-anchor"] == "end"] == ["x", "y", "z"]
    # The last firing ends at the right of the picture, 8 from its edge.
    assert max(float(b.attrib["x"]) + float(b.attrib["width"]) for b in boxes) == pytest.approx(960.0, abs=0.02)


def test_names_in_a_picture_are_escaped() -> None:
    record = in_time(lambda: run(ActorGraph((Actor("a<b", act, count=2, lane='<"x">'),))))
    ET.fromstring(record.to_svg())
