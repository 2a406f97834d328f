"""The report as HTML: well-formed, whole, offline, small; in a browser where there is one."""

import html.parser
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import sbp_jax as sbp
from report_case import line_of
from sbp_jax.report import flow, pictures
from sbp_jax.report.html import body
from sbp_jax.report.layers import rows
from sbp_jax.report.streams import streams

CHROMIUM = next((p for n in ("chromium", "google-chrome", "chromium-browser") if (p := shutil.which(n))), None)
VOID = {"meta", "input", "br", "link", "img", "hr"}
SECTIONS = ["Where the time goes", "When it happens", "What is split how", "Who holds what", "Memory",
            "Where data moves", "What would change it", "Layer by layer", "Arguments"]  # fmt: skip


class Checker(html.parser.HTMLParser):
    """Every element is closed where it should be; headings, links and pictures are noted."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self.pictures: list[str] = []
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [v for k, v in attrs if k in ("href", "src", "action", "data", "xlink:href") and v]
        if tag == "svg":
            self.pictures.append(found.get("aria-label") or "")
        if tag == "h2":
            self.headings.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> where {self.open[-3:]} are open, line {self.getpos()}")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings[-1] += data


def check(text: str) -> Checker:
    """A text read as HTML, which must be well-formed and self-contained."""
    found = Checker()
    found.feed(text)
    found.close()
    assert found.faults == [] and found.open == []
    assert found.addresses == []
    assert re.findall(r"url\(|@import|//cdn|https?://(?!www\.w3\.org/2000/svg)", text) == []
    return found


def test_the_checker_finds_faults() -> None:
    for bad in ("<div><p></div>", "<b>", '<a href="https://x"></a>', "<style>@import 'x'</style>"):
        with pytest.raises(AssertionError):
            check(bad)


def test_a_page_has_all_and_nothing_from_outside(plan: sbp.Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    plan.to_html(path)
    text = path.read_text(encoding="utf-8")
    found = check(text)
    assert found.headings[: len(SECTIONS)] == SECTIONS
    assert len(found.pictures) >= 5 and all(len(p) > 20 for p in found.pictures)
    assert len(text) < 150_000
    for words in ("state/params/up/w", line_of("the second product"), "all_reduce", "optimizer state", "proven"):
        assert words in text
    assert "prefers-color-scheme:dark" in text


def test_a_notebook_gets_the_same_without_script(plan: sbp.Plan, loaded: sbp.Plan) -> None:
    text = plan._repr_html_()
    assert check(text).headings[: len(SECTIONS)] == SECTIONS and "<script" not in text and "<html" not in text
    assert loaded._repr_html_() == text


def test_users_words_are_escaped(plan: sbp.Plan) -> None:
    from dataclasses import replace

    text = replace(plan, function="<script>alert(1)</script>", notes=["a < b & c"])._repr_html_()
    check(text)
    assert "<script" not in text and "a &lt; b &amp; c" in text


def test_a_plan_that_nothing_is_known_of(plan: sbp.Plan) -> None:
    from dataclasses import replace

    from sbp_jax.plan.insight import Insight
    from sbp_jax.plan.timeline import Timeline

    bare = replace(plan, make_insight=Insight, timeline=Timeline(), hardware="", statistics={}, boxing_list=[])
    check(bare._repr_html_())
    assert "nothing moves between devices" in str(bare)


def test_where_it_cannot_be_written(plan: sbp.Plan, tmp_path: Path) -> None:
    with pytest.raises(sbp.PlanError, match=r"cannot write the report to .*missing/plan.html.*No such file"):
        plan.to_html(tmp_path / "missing" / "plan.html")
    with pytest.raises(sbp.PlanError, match="Is a directory"):
        plan.to_html(tmp_path)


def pixels(png: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of an 8-bit PNG without interlacing, its filters undone."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8
    size = {2: 3, 6: 4}[kind]
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    raw, stride, rows = zlib.decompress(data), width * size, []
    before = bytearray(stride)
    for y in range(height):
        how, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for x in range(stride):
            a, b = line[x - size] if x >= size else 0, before[x]
            c = before[x - size] if x >= size else 0
            if how == 1:
                line[x] = (line[x] + a) & 255
            elif how == 2:
                line[x] = (line[x] + b) & 255
            elif how == 3:
                line[x] = (line[x] + (a + b) // 2) & 255
            elif how == 4:
                p = a + b - c
                near = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
                line[x] = (line[x] + near) & 255
        rows.append(b"".join(bytes(line[x : x + 3]) for x in range(0, stride, size)))
        before = line
    return width, height, rows


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the PATH")
@pytest.mark.parametrize(("scheme", "page"), [(1, b"\xff\xff\xff"), (0, b"\x14\x17\x1b")], ids=["light", "dark"])
def test_a_browser_draws_it(plan: sbp.Plan, tmp_path: Path, scheme: int, page: bytes) -> None:
    path, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    plan.to_html(path)
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
         f"--user-data-dir={tmp_path / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}",
         "--window-size=1100,1500", f"--screenshot={picture}", path.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    width, height, rows = pixels(picture.read_bytes())
    assert (width, height) == (1100, 1500)
    assert rows[2][:3] == page, "the page's own background"
    colours = [len({row[x : x + 3] for row in rows[y : y + 150] for x in range(0, 3 * width, 3)})
               for y in range(0, 1350, 150)]  # fmt: skip
    # Tiles, bars, layers, the mesh and the curve: no stretch of the page is empty.
    assert min(colours) > 4, colours
    drawn = {row[x : x + 3] for row in rows for x in range(0, 3 * width, 3)}
    bars = (b"\x2a\x6f\xc9", b"\x7f\xa9\xe0") if scheme else (b"\x5b\x9b\xf0", b"\x3c\x6c\xae")
    assert set(bars) <= drawn, "bars of forward and backward compute"
    assert {b"\x1f\x66\xc1", b"\xad\x4b\x08", b"\x6c\x3b\xb5"} <= drawn, "chips of S(0), S(1) and P"


def resnet(p: Any, x: jax.Array) -> jax.Array:
    """Residual blocks whose weights differ in size, so that none are alike; 18 of them, and small norms between."""
    for k, block in enumerate(p["blocks"]):
        h = jnp.tanh(x @ block["up"]) @ block["down"]
        x = x + h * p["scales"][f"scale{k}"]["g"]
    return jnp.sum(x @ p["out"]["w"])


@pytest.fixture(scope="module")
def deep() -> sbp.Plan:
    f = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)  # noqa: E731
    blocks = [{"up": f(256, 256 + 64 * k), "down": f(256 + 64 * k, 256)} for k in range(18)]
    scales = {f"scale{k}": {"g": f(256)} for k in range(18)}
    where = sbp.placement.abstract((4,), axis_names=("dp",), cluster="h100")
    params = {"blocks": blocks, "scales": scales, "out": {"w": f(256, 8)}}

    def step(p: Any, x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(resnet)(p, x)
        return jax.tree.map(lambda a, b: a - b, p, grads), value

    return sbp.plan(step, params, f(2048, 256), placement=where, donate_argnums=0, in_sbp=(None, "S(0)"))


def test_the_flow_picture_leaves_no_layer_and_no_skip_out(deep: sbp.Plan) -> None:
    layers = rows(deep)
    shown = flow.tiles(layers)
    wanted = [r.name for r in layers if r.parameters or r.activations]
    assert [r.name for some in shown for r in some] == wanted and len(wanted) > 30
    picture = flow.flow(deep, layers)
    assert all(name in picture for name in wanted)
    drawn = flow.edges(deep, shown)
    far = {(a, b) for a, b in drawn if b - a != 1}
    assert far and picture.count('class="arc"') == len(far)
    lanes = flow.lanes(sorted(far))
    for a, lane in lanes.items():
        for b, other in lanes.items():
            ends = [(min(x, *(e for s, e in far if s == x)), max(x, *(e for s, e in far if s == x))) for x in (a, b)]
            assert a == b or lane != other or ends[0][1] <= ends[1][0] or ends[1][1] <= ends[0][0]


def test_the_legend_has_what_the_plan_uses(plan: sbp.Plan) -> None:
    text = flow.legend(plan)
    assert "S(1): dimension 1 is cut" in text and "P: a sum still to be made" in text and "S(3)" not in text
    assert "skip connection" in text

    def f(x: jax.Array) -> jax.Array:
        return jnp.tanh(x).max()

    where = sbp.placement.abstract((2,), axis_names=("dp",), cluster="h100")
    other = sbp.plan(f, jax.ShapeDtypeStruct((4, 4, 4, 64), jnp.float32), placement=where, in_sbp=("S(3)",))
    assert "S(3): dimension 3 is cut" in flow.legend(other) and "S(1)" not in flow.legend(other)


def test_streams_are_drawn_over_time(plan: sbp.Plan, deep: sbp.Plan) -> None:
    for p in (plan, deep):
        facts = p.facts()
        assert facts is not None
        picture = streams(p, facts)
        assert "compute" in picture and "node" in picture and picture in body(p, facts)
        widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="6.0" width="([\d.]+)"', picture)]
        busy = sum(widths[1:]) / widths[0]
        assert busy == pytest.approx(facts.compute_seconds / facts.step_seconds, rel=0.1)
        assert picture.count("<rect") < 3000


def test_bars_sum_to_the_whole(deep: sbp.Plan) -> None:
    facts = deep.facts()
    picture = pictures.costs(rows(deep, facts.exposed if facts else None), facts)
    assert "smaller ones" in picture
