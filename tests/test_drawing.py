"""Pictures of rows of boxes, and the files that they are written to."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import sbp_jax as sbp
from sbp_jax.actors import Actor, ActorGraph, Record, Span, run
from sbp_jax.drawing import Box, Drawing, save, to_svg
from sbp_jax.errors import ActorError, SbpError, ScheduleError
from sbp_jax.schedules import by_name, save_picture, simulate

SVG = "{http://www.w3.org/2000/svg}"
RED, BLUE = "#ff0000", "#0000ff"
TWO = Drawing(
    "two <rows>", 4.0,
    (("a", (Box(0.0, 2.0, RED, "first", "long label", "l"),)), ("b & c", (Box(2.0, 4.0, BLUE, "", is_low=True),))),
)  # fmt: skip


def pixels(path: Path) -> np.ndarray:
    from matplotlib import image

    return (255 * image.imread(path)[:, :, :3]).round().astype(int)


def test_svg_places_boxes_by_their_seconds() -> None:
    root = ET.fromstring(to_svg(TWO, 472.0))
    first, second = root.findall(f"{SVG}rect")
    # Names take the least room, 64; 8 are left free at the right: 100 pixels a second.
    assert [float(first.attrib[k]) for k in ("x", "y", "width", "height")] == [64.0, 4.0, 200.0, 26.0]
    assert [float(second.attrib[k]) for k in ("x", "y", "width", "height")] == [264.0, 42.0, 200.0, 8.0]
    assert root.findtext(f"{SVG}title") == "two <rows>" and first.findtext(f"{SVG}title") == "first"
    assert [t.text for t in root.findall(f"{SVG}text")] == ["a", "long label", "b & c"]


def test_a_label_gives_way_to_a_shorter_one_and_that_to_none() -> None:
    def words(width: float) -> list[str | None]:
        return [t.text for t in ET.fromstring(to_svg(TWO, width)).findall(f"{SVG}text")]

    assert words(300.0) == ["a", "long label", "b & c"]
    assert words(100.0) == ["a", "l", "b & c"]
    assert words(80.0) == ["a", "b & c"]


def test_long_names_have_room() -> None:
    named = Drawing("", 1.0, (("a name of thirty letters or so", ()),))
    assert named.left > 150
    assert to_svg(Drawing("nothing", 0.0, ()), 100.0).startswith("<svg")


def test_a_png_shows_what_the_svg_says(tmp_path: Path) -> None:
    save(TWO, tmp_path / "two.PNG", 472.0, SbpError)
    found = pixels(tmp_path / "two.PNG")
    assert found.shape == (2 * TWO.height, 2 * 472, 3)
    # Twice as many pixels as in the test of the SVG.
    assert tuple(found[20, 2 * 70]) == (255, 0, 0) and tuple(found[20, 2 * 290]) == (255, 255, 255)
    assert tuple(found[2 * 46, 2 * 290]) == (0, 0, 255) and tuple(found[2 * 37, 2 * 290]) == (255, 255, 255)
    names = found[: 2 * 30, : 2 * 60]
    assert names.min() < 100  # something is written there


def test_an_svg_file_is_the_svg(tmp_path: Path) -> None:
    save(TWO, tmp_path / "two.svg", 472.0, SbpError)
    assert (tmp_path / "two.svg").read_text(encoding="utf-8") == to_svg(TWO, 472.0)


RECORD = Record({"x$_1": ("f",)}, {"f": ()}, (Span("x$_1", "f", "compute", 0, 0.0, 1.0, 0.0, 0.0),), {})


def test_a_run_a_schedule_and_a_plan_are_written_alike(tmp_path: Path) -> None:
    RECORD.save_picture(tmp_path / "run.svg", 500.0)
    assert (tmp_path / "run.svg").read_text(encoding="utf-8") == RECORD.to_svg(500.0)
    RECORD.save_picture(str(tmp_path / "run.png"), 500.0)
    timing = simulate(by_name("zb_v", 2, 4))
    save_picture(timing, tmp_path / "schedule.png", 500.0)
    plan = sbp.PipelinePlan("f", by_name("1f1b", 2, 4), [], [sbp.schedules.StageSeconds()] * 2, [0.0, 0.0], [0.0],
                            [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])  # fmt: skip
    plan.save_picture(tmp_path / "plan.png", 500.0)
    plan.save_picture(tmp_path / "plan.svg", 500.0)
    assert (tmp_path / "plan.svg").read_text(encoding="utf-8") == plan.to_svg(500.0)
    # A schedule with two chunks has a legend.
    heights = {name: pixels(tmp_path / f"{name}.png").shape[:2] for name in ("run", "schedule", "plan")}
    assert heights == {"run": (76, 1000), "schedule": (196, 1000), "plan": (136, 1000)}


def test_many_lanes_of_a_real_run(tmp_path: Path) -> None:
    graph = ActorGraph(tuple(Actor(f"a{i}", lambda k, *_: k, (f"a{i - 1}",) if i else (), count=None if i else 50)
                             for i in range(10)))  # fmt: skip
    run(graph).save_picture(tmp_path / "run.png")
    assert pixels(tmp_path / "run.png").shape == (2 * 308, 1920, 3)


@pytest.mark.parametrize("name", ["run.pdf", "run", "run.svg.gz"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ActorError, match=r"a picture is written as \.svg or \.png, as its name ends; got '.*run"):
        RECORD.save_picture(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_file_that_cannot_be_written(ending: str, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=rf"cannot write the picture to '.*nowhere/run\.{ending}': No such file"):
        save_picture(simulate(by_name("1f1b", 2, 2)), tmp_path / "nowhere" / f"run.{ending}")


def test_without_matplotlib_a_png_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ActorError, match=r"pip install 'sbp-jax\[plot\]', or write the picture as \.svg"):
        RECORD.save_picture(tmp_path / "run.png")
    RECORD.save_picture(tmp_path / "run.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["run.svg"]
