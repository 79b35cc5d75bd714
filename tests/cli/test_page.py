"""The page of `hsplan report --html`: valid, alone, the same each time, and what a browser makes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import html5lib
import pytest
from reports import written
from spec_text import GLM_5_2

from hsplan.planner import plan
from hsplan.report.charts import memory_parts
from hsplan.report.curves import Curves, curves_of

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("HSPLAN_BROWSER") != "required", reason="needs Debian's chromium"
)
SPECS = ("glm-5.2-fp8", "deepseek-v4-flash", "longcat-2.0-fp8")
NASTY = "<script>document.title='run'</script>&\"'"


@pytest.fixture
def page(run, tmp_path):
    """The page of two specs with a validation of one, of a refused one, and of one with a hostile name; its path."""
    cases = json.loads((ROOT / "benchmarks/results/validate-h200-2026-11-29.json").read_text("utf-8"))["cases"]
    measured = written(tmp_path / "measured.json", cases[0]["measurement"])
    nasty = written(tmp_path / "nasty.yaml", GLM_5_2.replace("name: my-glm", f"name: {json.dumps(NASTY)}"))
    target = tmp_path / "page.html"
    assert run("report", *SPECS, nasty, "--html", str(target), "--validated", measured)[:2] == (3, "")
    return target


def test_the_page_is_valid_html_with_unique_ids(page):
    text = page.read_text("utf-8")
    html5lib.HTMLParser(strict=True).parse(text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 100
    used = re.findall(r'(?:href="#|url\(#|labelledby=")([^")]+)', text)
    assert set(used) <= set(ids)


def test_the_page_runs_nothing_and_loads_nothing(page):
    text = page.read_text("utf-8")
    assert "<script" not in text
    assert NASTY.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")[:20] in text
    assert not re.search(r"(?:src|href)=\"(?!#)", text)
    assert not re.search(r"@import|<(?:link|iframe|object|img)\b|\bon\w+=", text)
    assert "default-src 'none'" in text


def test_the_same_specs_give_the_same_page(page, process, tmp_path):
    args = ("report", *SPECS, "nasty.yaml", "--html", "again.html", "--validated", "measured.json")
    assert process(*args, env={"PYTHONHASHSEED": "5", "MPLCONFIGDIR": str(tmp_path)}).returncode == 3
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_the_page_shows_the_crossover_the_host_memory_and_what_was_validated(page):
    text = page.read_text("utf-8")
    assert "offload holds more from 8,192 tokens on" in text
    assert "Host memory needed on a node" in text
    assert "Validated on NVIDIA H200, elided+offload: all claims hold" in text
    assert "3,833,856,000 rows of 656 B in 1,000 steps and 78 layers" in text
    assert "Refused: longcat-2.0-fp8.yaml" in text


def test_no_chart_has_a_colour_of_ink_that_a_dark_page_hides(page):
    svg = "".join(re.findall(r"<svg.*?</svg>", page.read_text("utf-8"), re.DOTALL))
    assert not re.search(r"#(?:000000|ffffff|010203)\b", svg)
    texts = re.findall(r"<text [^>]*>", svg)
    assert len(texts) > 100
    assert all("currentColor" in text for text in texts)


def test_the_parts_of_a_rank_add_up_to_its_gpu():
    from hsplan.report import report  # noqa: PLC0415 - beside its use

    for entry in report(["glm-5.2-fp8", "deepseek-v4-flash", "minimax-m3-bf16"]).specs:
        reported = plan(entry.name).launch.gpu.reported_bytes
        assert sum(memory_parts(entry.planned).values()) == reported


def test_requests_against_context_are_those_of_estimate(run):
    curves = curves_of(plan("glm-5.2-fp8"))
    assert curves.contexts[0] == 4096
    assert curves.contexts[-1] == 1_048_576
    for context, without, offload in zip(curves.contexts, curves.without, curves.offload, strict=True):
        found = json.loads(run("estimate", "glm-5.2-fp8", "--context", str(context), "--json")[1])["scenarios"]
        assert without == found["elided"]["concurrency"]["requests"]
        assert offload == found["offload"]["concurrency"]["requests"]


@pytest.mark.parametrize(
    ("without", "offload", "crossover"),
    [
        ((96, 48, 24), (78, 78, 39), 8192),
        ((96, 48, 24), (95, 48, 24), None),
        ((0, 0, 0), (1, 1, 1), 4096),
        ((None, None, None), (0, 0, 1), 16384),
        ((9, 9, 9), (None, None, None), None),
    ],
)
def test_the_crossover_is_the_first_context_at_which_offload_holds_more(without, offload, crossover):
    assert Curves((4096, 8192, 16384), without, offload).crossover == crossover


def test_a_spec_without_room_for_a_cache_has_a_page_too(run, tmp_path):
    path = written(tmp_path / "small.yaml", GLM_5_2.replace("gpu: h200", "gpu: l40s"))
    target = tmp_path / "page.html"
    assert run("report", path, "--html", str(target))[0] == 1
    text = target.read_text("utf-8")
    html5lib.HTMLParser(strict=True).parse(text)
    assert "<strong>Does not fit: nothing is left for the cache" in text


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "hsplan.plan/1"}', '{"schema": "hsplan.measurement/1"}'])
def test_a_file_that_is_no_measurement_is_refused(run, tmp_path, text):
    target = tmp_path / "page.html"
    bad = written(tmp_path / "bad.json", text)
    code, out, err = run("report", "glm-5.2-fp8", "--html", str(target), "--validated", bad)
    assert (code, out) == (2, "")
    assert err.startswith(f"{bad}: ")
    assert not target.exists()
    assert run("report", "glm-5.2-fp8", "--validated", bad)[0] == 2


def browse(page: Path, *options: str) -> str:
    """The document after Chromium has drawn it; with scripts only what `measured` puts in."""
    assert CHROMIUM is not None, "HSPLAN_BROWSER=required: install Debian's chromium"
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={page.parent / 'profile'}",
    ]
    done = subprocess.run(
        [*command, *options, "--dump-dom", page.as_uri()], capture_output=True, timeout=120, check=True
    )
    return done.stdout.decode()


MEASURE = """<script>
const keyed = [...document.querySelectorAll("a, summary, [tabindex]")];
const seen = (e) => { const b = e.getBoundingClientRect(); return b.width > 50 && b.height > 20; };
document.title = JSON.stringify({
  wide: document.documentElement.scrollWidth, window: window.innerWidth,
  charts: [...document.querySelectorAll("svg")].filter(seen).length,
  paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.querySelector("svg")).color,
  keys: keyed.filter((e) => { e.focus(); return document.activeElement === e; }).length, all: keyed.length,
});
</script></body>"""


def measured(page: Path, *options: str) -> dict:
    """What a script that is added to a copy of the page measures."""
    copy = page.with_name("copy.html")
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8"))
    copy.write_text(text.replace("</body>", MEASURE), encoding="utf-8")
    title = re.search(r"<title>(.*?)</title>", browse(copy, *options))
    assert title is not None
    return json.loads(title[1])


@NEEDS_CHROMIUM
def test_chromium_draws_every_chart_and_runs_no_script_of_a_name(page):
    assert re.search(r"<title>Capacity of 4 deployments</title>", browse(page))
    assert measured(page)["charts"] == page.read_text("utf-8").count("<svg") == 12


@NEEDS_CHROMIUM
def test_the_page_fits_a_phone_and_a_desk_without_scrolling_sideways(page):
    for width in (500, 1280):
        found = measured(page, f"--window-size={width},900")
        assert found["wide"] <= found["window"] <= width


@NEEDS_CHROMIUM
def test_dark_mode_is_light_ink_on_dark_paper(page):
    light, dark = (measured(page, f"--blink-settings=preferredColorScheme={scheme}") for scheme in (1, 0))
    assert (light["paper"], light["ink"]) == ("rgb(255, 255, 255)", "rgb(27, 31, 36)")
    assert (dark["paper"], dark["ink"]) == ("rgb(13, 17, 23)", "rgb(230, 237, 243)")


@NEEDS_CHROMIUM
def test_everything_that_scrolls_or_opens_takes_the_keyboard(page):
    found = measured(page)
    assert found["keys"] == found["all"] > 10
