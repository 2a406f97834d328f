"""Schedules as text and as SVG."""

import xml.etree.ElementTree as ET

from sbp_jax.schedules import StageSeconds, by_name, simulate, to_svg, to_text

SVG = "{http://www.w3.org/2000/svg}"


def test_text_of_one_stage_a_rank() -> None:
    assert to_text(simulate(by_name("1f1b", 2, 3))) == (
        "rank 0  F0 F1 .  .  B0 -  F2 B1 -  .  B2 -\n"
        "rank 1  .  F0 B0 -  F1 B1 -  F2 B2 -  .  ."
    )  # fmt: skip


def test_text_names_stages_and_directions_where_a_rank_has_several() -> None:
    assert to_text(simulate(by_name("chimera", 2, 2), StageSeconds(2, 1, 1)), slot_seconds=2.0) == (
        "rank 0  F0@0  F1@1' B1@1' B0@0\n"
        "rank 1  F1@0' F0@1  B0@1  B1@0'"
    )  # fmt: skip


def test_a_slot_may_be_given() -> None:
    timing = simulate(by_name("gpipe", 1, 1), StageSeconds(0.25, 0.5, 0.25))
    assert to_text(timing) == "rank 0  F0 B0 -  -"
    assert to_text(timing, slot_seconds=0.125) == "rank 0  F0 -  B0 -  -  -  -  -"


def test_svg_has_a_box_for_each_task_at_its_time() -> None:
    timing = simulate(by_name("chimera", 4, 4))
    root = ET.fromstring(to_svg(timing, width=968.0))
    boxes = root.findall(f"{SVG}rect")
    assert len(boxes) == 4 * 4 * 2
    assert root.findtext(f"{SVG}title") == "Schedule chimera: 4 ranks, 4 micro-batches"
    titles = [box.findtext(f"{SVG}title") for box in boxes]
    first = timing.runs[0][0]
    assert titles[0] == f"{first.task}: 0 to 1 s"
    # The drawing is 968 - 64 - 8 wide, and the last task ends at its right.
    assert max(float(b.attrib["x"]) + float(b.attrib["width"]) for b in boxes) == 960.0
    assert float(boxes[0].attrib["width"]) == round(896 / timing.makespan_seconds, 2)


def legend(root: ET.Element) -> list[str | None]:
    return [text.text for text in root.findall(f"{SVG}g/{SVG}text")]


def test_chunks_of_a_rank_have_shades_and_a_legend() -> None:
    timing = simulate(by_name("interleaved_1f1b", 2, 4, chunks=3))
    root = ET.fromstring(to_svg(timing))
    assert legend(root) == ["chunk 0: stages 0 to 1", "chunk 1: stages 2 to 3", "chunk 2: stages 4 to 5"]
    fills: dict[tuple[str, int], set[str]] = {}
    runs = [run for runs in timing.runs for run in runs]
    for run, box in zip(runs, root.findall(f"{SVG}rect"), strict=True):
        fills.setdefault((run.task.kind, run.task.stage // 2), set()).add(box.attrib["fill"])
    assert all(len(own) == 1 for own in fills.values())  # one for each kind and chunk
    assert len(set.union(*fills.values())) == 6
    brightness = [sum(bytes.fromhex(min(fills["F", c])[1:])) for c in range(3)]
    assert brightness == sorted(brightness, reverse=True) and len(set(brightness)) == 3
    swatches = [box.attrib["fill"] for box in root.findall(f"{SVG}g/{SVG}rect")]
    assert swatches == [min(fills[kind, c]) for c in range(3) for kind in "FB"]


def test_chunks_of_two_directions_and_of_one_rank() -> None:
    assert legend(ET.fromstring(to_svg(simulate(by_name("chimera", 4, 4))))) == [
        "chunk 0: stages 0 to 3", "chunk 1: stages 0 to 3 of the second direction (')"
    ]  # fmt: skip
    assert legend(ET.fromstring(to_svg(simulate(by_name("zb_v", 1, 2))))) == ["chunk 0: stage 0", "chunk 1: stage 1"]
    assert not legend(ET.fromstring(to_svg(simulate(by_name("zb_h1", 4, 4)))))


def test_a_narrow_box_says_its_task_without_the_stage() -> None:
    timing = simulate(by_name("interleaved_1f1b", 2, 4))

    def words(width: float) -> list[str | None]:
        texts = ET.fromstring(to_svg(timing, width)).findall(f"{SVG}text")
        return [t.text for t in texts if t.attrib["text-anchor"] == "middle"]

    assert "F3@2" in words(2000.0) and "F3" not in words(2000.0)
    assert "F3" in words(600.0) and "F3@2" not in words(600.0)
