"""The page in a real browser: what it shows, sorts, loads and looks like."""

import json
import re
import shutil
import struct
import subprocess

import pytest
import written_runs

from keras_fm.lab import report as html_report

CHROMIUM = next(
    filter(
        None,
        map(shutil.which, ("chromium", "chromium-browser", "google-chrome")),
    ),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed"
)
LIGHT, DARK = 1, 0

# Run in the page; its own policy would forbid it, and is left out for it.
PROBE = """
const found = {};
found.wide = [...document.querySelectorAll("body *")].filter((e) =>
  !e.closest(".scroll, nav, .skip, pre.aligned") &&
  e.getBoundingClientRect().right > innerWidth + 1
).map((e) => e.tagName + "." + e.className);
found.width = innerWidth;
found.loaded = performance.getEntriesByType("resource").map((e) => e.name)
  .filter((name) => !name.startsWith("data:"));
document.querySelectorAll("details").forEach((e) => { e.open = true; });
const parts = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) =>
    v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behind = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const color = parts(getComputedStyle(e).backgroundColor);
    if (color.length < 4 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const contrast = (color, element) => {
  const [a, b] = [light(parts(color)), light(behind(element))];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
// The accuracies, whole, without scrolling sideways.
const first = document.querySelector("table").tBodies[0];
found.seen = [...first.rows].every((row) =>
  row.cells[2].getBoundingClientRect().right <= innerWidth);
found.texts = 0;
found.faint = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some(
    (n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
  found.texts += 1;
  const style = getComputedStyle(e);
  const ratio = contrast(e.closest("svg") ? style.fill : style.color, e);
  if (ratio < 4.5) found.faint.push([e.textContent, ratio]);
}
found.pale = [...document.querySelectorAll("svg use, svg path")].map((e) =>
  [getComputedStyle(e).stroke, e]).filter(([color]) =>
  /rgb/.test(color)).map(([color, e]) => contrast(color, e));
const table = document.querySelectorAll("table")[1];
const column = (i) => [...table.tBodies[0].rows].map(
  (row) => row.cells[i].textContent);
const heads = [...table.tHead.rows[0].cells];
const at = heads.findIndex((h) => h.textContent.startsWith("\u03b5 proven"));
found.sorted = [0, 1, 2].map(() => {
  heads[at].querySelector("button").click();
  return [heads[at].getAttribute("aria-sort"), column(at)];
});
console.log("PROBE" + JSON.stringify(found));
"""


def chromium(page, *arguments, scheme=LIGHT, size=(1400, 1000)):
    """Output and log of Chromium on a file."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--user-data-dir={page.parent / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            f"--window-size={size[0]},{size[1]}",
            *arguments,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    place = tmp_path_factory.mktemp("browser")
    runs = [
        html_report.read(getattr(written_runs, kind)(place / kind))
        for kind in ("compare", "audit", "compose", "reproduce")
    ]
    html_report.write(runs, str(place / "page.html"))
    return place / "page.html"


def probed(page, **kwargs):
    """What `PROBE` finds in the page."""
    text, replaced = re.subn(
        '<meta http-equiv="Content-Security-Policy"[^>]*>',
        "",
        page.read_text(encoding="utf-8"),
    )
    assert replaced == 1
    width = kwargs["size"][0]
    # A window may get its size only after the page was read.
    script = f"""
    const probe = () => {{ {PROBE} }};
    const start = () => innerWidth === {width} && setTimeout(probe);
    if (start() === false) addEventListener("resize", start);
    """
    text = text.replace("</body>", f"<script>{script}</script></body>")
    probe = page.parent / "probe.html"
    probe.write_text(text, encoding="utf-8")
    # With a screenshot a window may be narrower than a desktop's.
    shot = page.parent / "probe.png"
    _, console = chromium(probe, f"--screenshot={shot}", **kwargs)
    assert len(console) == 1, console
    return json.loads(re.findall(r'"PROBE(.*)", source:', console[0])[0])


def test_the_page_is_shown_without_an_error(page):
    dom, console = chromium(page, "--dump-dom")
    assert console == []
    assert dom.count("<article") == 4 and dom.count("<table>") == 8
    # The script ran: without it the heads are plain text.
    assert dom.count("<button") == dom.count('scope="col"') > 20
    assert dom.count('class="badge is-proven"') > 4
    assert dom.count('class="badge is-claimed"') > 4
    assert "no valid proof" in dom


def test_a_smuggled_script_does_not_run(page):
    """The policy holds even if something got past the escaping."""
    smuggled = page.parent / "smuggled.html"
    text = page.read_text(encoding="utf-8")
    evil = "<script>document.title = 'taken'</script>"
    evil += "<img src='x.png' onerror=\"document.title = 'taken'\">"
    smuggled.write_text(text.replace("</h1>", "</h1>" + evil), encoding="utf-8")
    dom, console = chromium(smuggled, "--dump-dom")
    assert "<title>4 runs of keras_fm</title>" in dom
    assert any("Content Security Policy" in line for line in console)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_wide_and_narrow_light_and_dark(page, scheme):
    width = 1400 if scheme == LIGHT else 390
    found = probed(page, scheme=scheme, size=(width, 900))
    assert found["width"] == width
    assert found["seen"]
    assert found["wide"] == [] and found["loaded"] == []
    assert found["texts"] > 200 and found["faint"] == []
    # Lines need less contrast than text (grid lines are not for reading).
    assert max(found["pale"]) > 3
    first, second, third = found["sorted"]
    proofs = ["no valid proof"] * 3
    assert first == ["ascending", ["0.9999", "7.9", "8", *proofs]]
    assert second == ["descending", [*proofs, "8", "7.9", "0.9999"]]
    assert third == [None, [*proofs, "0.9999", "8", "7.9"]]


def test_a_screenshot_is_taken(page):
    shot = page.parent / "shot.png"
    chromium(page, f"--screenshot={shot}", scheme=DARK, size=(800, 600))
    content = shot.read_bytes()
    assert struct.unpack(">II", content[16:24]) == (800, 600)
    # A blank picture is far smaller.
    assert len(content) > 20_000
