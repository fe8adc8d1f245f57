"""The page in a real browser: what it shows, how wide it is, and what it refuses to run."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fake_results import HOSTILE, SEVERAL, fake_results
from PIL import Image
from report_pages import page_of
from run_folders import by_class, write_run

from retouch.plotting.theme import THEME

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


NAMES = [*HOSTILE, "unbroken" * 30, "a name that is long and goes on " * 6]


WIDTHS = (390, 1400)


WRAPPER = """<!doctype html><pre id="found"></pre><script>
const found = {}, pages = PAGES, widths = WIDTHS;
for (const page of pages) for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = page; frame.name = page + " " + width;
  document.body.append(frame);
}
window.onload = () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, every = [...page.querySelectorAll("*")];
    page.querySelectorAll("details").forEach(one => { one.open = true; });
    found[frame.name] = {
      wide: page.documentElement.scrollWidth,
      named: [...page.querySelectorAll(".list tbody th")].map(e => e.offsetWidth),
      scripts: page.scripts.length,
      handlers: every.filter(e => [...e.attributes].some(a => /^on/.test(a.name))).length,
      pictures: [...page.images].map(image => [image.src.slice(0, 16), image.naturalWidth]),
      apart: [...page.querySelectorAll("bdi")].map(e => e.textContent),
      text: page.body.textContent,
    };
  }
  document.getElementById("found").textContent = JSON.stringify(found);
};
</script>"""


def browse(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    logged = ["--enable-logging=stderr", "--v=0", "--allow-file-access-from-files"]
    return subprocess.run(
        [*command, *logged, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds of pages, in folders, and one that does everything that no page must do."""
    folder = tmp_path_factory.mktemp("pages")
    evil = fake_results(HOSTILE[0], classes=NAMES, notes=[HOSTILE[1], NAMES[6]], model=HOSTILE[1])
    story = write_run(folder / "one", evil, by_class(NAMES))
    page_of(story, story, drawn=True)
    page_of(folder / "several", *SEVERAL, evil, drawn=True)
    page_of(folder / "no-control", fake_results(control=None), drawn=True)
    page_of(folder / "under-way", fake_results(accuracy=(80, 70)), drawn=True)
    names = [f"class {i} {NAMES[i % 8]}" for i in range(200)]
    many = write_run(folder / "many", fake_results(), by_class(names))
    page_of(many, many, drawn=True)
    (folder / "bad").mkdir()
    (folder / "bad" / "report.html").write_text(
        '<!doctype html><meta http-equiv="Content-Security-Policy" content="img-src data:">'
        '<body onclick=""><div style="width: 2000px">wide</div><img src="x.png"><script>1</script>'
    )
    return folder


@pytest.fixture(scope="module")
def seen(pages: Path) -> tuple[dict[str, Any], str]:
    """What the browser made of every page at both widths, and what it complained of."""
    names = sorted(f"{page.parent.name}/report.html" for page in pages.glob("*/report.html"))
    filled = WRAPPER.replace("PAGES", json.dumps(names)).replace("WIDTHS", json.dumps(WIDTHS))
    (pages / "wrapper.html").write_text(filled)
    done = browse(f"--user-data-dir={pages / 'profile'}", "--dump-dom", pages / "wrapper.html")
    told = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told, done.stderr
    assert told[1], done.stderr
    return json.loads(unescape(told[1])), done.stderr


def good(seen: tuple[dict[str, Any], str]) -> dict[str, Any]:
    return {name: page for name, page in seen[0].items() if not name.startswith("bad/")}


def test_the_browser_complains_of_nothing(seen: tuple[dict[str, Any], str]):
    complaints = [line for line in seen[1].splitlines() if "CONSOLE" in line]
    assert [line for line in complaints if "bad/report.html" in line], "it would not have told"
    assert not [line for line in complaints if "bad/report.html" not in line]


def test_no_page_is_wider_than_the_screen(seen: tuple[dict[str, Any], str]):
    assert seen[0]["bad/report.html 390"]["wide"] > 2000
    assert len(good(seen)) == 5 * len(WIDTHS)
    for name, page in good(seen).items():
        assert page["wide"] <= int(name.split()[1]), name
        assert min(page["named"], default=100) >= 100, "a name needs room beside its numbers"


def test_hostile_names_do_no_harm_in_the_dom(seen: tuple[dict[str, Any], str]):
    assert seen[0]["bad/report.html 390"]["scripts"] == 1
    assert seen[0]["bad/report.html 390"]["handlers"] == 1
    for page in good(seen).values():
        assert (page["scripts"], page["handlers"]) == (0, 0)
    for which in ("one", "several"):
        page = seen[0][f"{which}/report.html 390"]
        for name in NAMES[:6]:
            assert name in page["apart"], "set apart, so that Arabic turns nothing else around"
            assert name in page["text"]


def test_the_images_are_in_the_page(seen: tuple[dict[str, Any], str]):
    shown = seen[0]["one/report.html 390"]["pictures"]
    assert len(shown) >= 9
    assert all(start == "data:image/jpeg;" and wide == 120 for start, wide in shown)


@pytest.mark.parametrize(("width", "scheme"), [(390, 1), (1400, 0)])
def test_it_is_drawn_in_light_and_dark(pages: Path, tmp_path: Path, width: int, scheme: int):
    """Not blank, and on the paper of its scheme."""
    file = tmp_path / "shot.png"
    browse(
        f"--user-data-dir={pages / 'profile'}",
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--window-size={width},3000",
        f"--screenshot={file}",
        pages / "one" / "report.html",
    )
    with Image.open(file) as picture:
        shot = picture.convert("RGB")
    assert shot.size == (width, 3000)
    found = {f"#{r:02x}{g:02x}{b:02x}" for _, (r, g, b) in shot.getcolors(10**7) or []}
    light_or_dark = 0 if scheme else 1
    for name in ("paper", "ink", "card", "series0", "neutral"):
        assert THEME[name][light_or_dark] in found, name
    assert THEME["paper"][1 - light_or_dark] not in found
