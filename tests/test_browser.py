"""The published site in Chromium: opened from files and from a web server, clicked through, on a
phone and in the dark. The results are the recorded ones of the reference machine."""

import json
import re
import shutil
from contextlib import nullcontext
from itertools import product
from math import isnan

import pytest
from published import ROOT, History, served

from benchmarks.pages.ladder import PROBLEM

pytestmark = pytest.mark.browser
MACHINE = "nvidia-h200"
LAPTOP = "a laptop"
RESOURCES = {"registers": 32, "spill_bytes": 4, "shared_bytes": 16384}
PHONE = {"viewport": {"width": 360, "height": 780}}
ELSEWHERE = re.compile(r"^(?!file:|data:|http://127\.0\.0\.1)")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """The newest recorded results, of made-up commits, and a machine that has no GPU."""
    paths = (ROOT / "results" / MACHINE).glob("????????-*.json")
    documents = sorted(map(load, paths), key=lambda document: document["date"])[-4:]
    messages = [f"Commit {i}" for i in range(len(documents))]
    history = History(tmp_path_factory.mktemp("site"), messages)
    recorded = documents[-1]["results"]  # a benchmark that none has yet is a missing file to asv
    benchmarks = load(ROOT / "results" / "benchmarks.json")
    history.benchmarks = {name: benchmarks[name] for name in recorded}
    folder = history.results / MACHINE
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "results" / MACHINE / "machine.json", folder)
    for document, commit in zip(documents, history.commits, strict=True):
        path = folder / f"{commit[:8]}.json"
        path.write_text(json.dumps(document | {"commit_hash": commit}))
    (history.folder / "docs").mkdir()
    shutil.copy(ROOT / "docs" / f"table-{MACHINE}.json", history.folder / "docs")

    skipped = {name: {} for name in recorded}
    compiled = {}
    for metric, value in RESOURCES.items():
        name = f"resources.Resources.track_{metric}"
        keys = product(*history.benchmarks[name]["params"])
        params = (tuple(text.strip("'") for text in texts) for texts in keys)
        compiled[name] = dict.fromkeys(params, value)
    history.add(LAPTOP, len(documents) - 1, skipped | compiled)
    return history


def load(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def html(history):
    return history.publish()


@pytest.fixture(params=["file", "http"])
def address(request, html):
    """Where the site is: in a folder, or on a web server."""
    site = nullcontext(html.as_uri()) if request.param == "file" else served(html)
    with site as found:
        yield found


@pytest.fixture
def new_page(browser):
    """Opens pages, and fails for what goes wrong on them: errors, requests to somewhere else."""
    problems, contexts = [], []

    def opened(**options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("requestfailed", lambda request: problems.append(f"not loaded: {request.url}"))
        page.on(
            "request",
            lambda request: (
                problems.append(f"elsewhere: {request.url}")
                if ELSEWHERE.match(request.url)
                else None
            ),
        )
        page.on(
            "response",
            lambda response: (
                problems.append(f"{response.status}: {response.url}")
                if response.status >= 400
                else None
            ),
        )
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def recorded(document, metric):
    """A metric in a file of asv's: parameters to value."""
    (row,) = (row for name, row in document["results"].items() if name.endswith(f".track_{metric}"))
    columns = dict(zip(document["result_columns"], row, strict=False))
    keys = product(*([text.strip("'") for text in texts] for texts in columns["params"]))
    return dict(zip(keys, columns["result"], strict=True))


def cells(page, section):
    """What the section's cells say: (version, label) to (unrounded figure or None, text)."""
    found = page.locator(f"#{section} tr[data-version] td").evaluate_all(
        """cells => cells.map(cell => [cell.parentNode.dataset.version, cell.dataset.label,
            cell.dataset.value, cell.firstChild ? cell.firstChild.textContent : ""])"""
    )
    return {
        (version, label): (value and float(value), text) for version, label, value, text in found
    }


def test_figures_are_those_of_the_results_files(history, html, new_page):
    page = new_page()
    files = [
        path for path in history.results.glob(f"{MACHINE}/*.json") if path.name != "machine.json"
    ]
    compared = 0
    for path in files:
        document = load(path)
        page.goto((html / "ladder" / f"{MACHINE}-{document['commit_hash'][:12]}.html").as_uri())
        assert document["commit_hash"][:8] in page.locator("h1").inner_text()
        ladder, shapes = cells(page, "ladder"), cells(page, "shapes")
        for (version, problem), value in recorded(document, "gflops").items():
            if isnan(value):
                assert shapes.get((version, problem), (None, ""))[0] is None
                continue
            assert shapes[version, problem] == (value, f"{value:,.0f}")
            compared += 1
            if problem == PROBLEM:
                assert ladder[version, "GFLOPS"] == (value, f"{value:,.0f}")
    assert compared > 100


def test_compiler_figures(html, new_page):
    page = new_page()
    (path,) = html.glob("ladder/a_laptop-*.html")
    page.goto(path.as_uri())
    headings = ("registers", "spilled, b", "shared, b")
    for (_, label), (value, text) in cells(page, "compiler").items():
        expected = dict(zip(headings, RESOURCES.values(), strict=True))[label.split(", ", 1)[1]]
        assert (value, text) == (expected, f"{expected:,}")


def test_interleaved_run(html, new_page):
    page = new_page()
    page.goto((html / "ladder" / f"{MACHINE}-table.html").as_uri())
    table = load(ROOT / "docs" / f"table-{MACHINE}.json")
    shown = cells(page, "ladder")
    for row in table["rows"]:
        for metric, label in (
            ("gflops", "GFLOPS"),
            ("share_of_peak", "Of FFMA peak"),
            ("ratio_to_cublas", "Of cuBLAS"),
            ("error_over_bound", "Error / bound"),
        ):
            assert shown[row["version"], label][0] == row[metric]


def test_clicked_through(address, new_page, history):
    """Sections, machines and commits, without a script."""
    page = new_page(java_script_enabled=False)
    page.goto(f"{address}/ladder/index.html")
    for name, section in (
        ("Roofline", "roofline"),
        ("Versions × shapes", "shapes"),
        ("Compiler", "compiler"),
        ("Ladder", "ladder"),
    ):
        page.get_by_role("link", name=name, exact=True).click()
        assert page.url.endswith(f"#{section}")
        assert page.locator(f"#{section} h2").is_visible()
    page.get_by_text(f"Runs on {MACHINE}").click()
    page.get_by_role("link", name="Commit 0").click()
    assert "Commit 0" in page.locator("h1").inner_text()
    page.get_by_role("link", name=LAPTOP, exact=True).click()
    assert page.locator("h1").inner_text().startswith(LAPTOP)
    page.get_by_role("link", name=MACHINE, exact=True).click()
    page.locator("#compiler").get_by_role("link", name=LAPTOP).click()
    assert page.url.endswith("#compiler")
    assert page.locator("#compiler td").first.inner_text() == "32"


def test_asv_leads_to_the_pages_and_back(html, new_page):
    page = new_page()
    with served(html) as address:
        page.goto(f"{address}/index.html")
        page.locator(".benchmark-container").first.wait_for()
        page.wait_for_load_state("networkidle")  # leaving it earlier breaks its requests off
        for name in ("Ladder", "Roofline", "Shapes", "Compiler"):
            page.get_by_role("link", name=name, exact=True).click()
            page.locator("h1").get_by_text(MACHINE).wait_for()
            assert page.url.endswith(f"#{name.lower()}")
            page.get_by_role("link", name="History by asv").click()
            page.locator(".benchmark-container").first.wait_for()
            page.wait_for_load_state("networkidle")


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("/", ".benchmark-container canvas"),
        ("/summarylist", "#summarylist-body tbody tr"),
        ("/regressions", "#regressions-body"),
        ("speed.Speed.track_gflops", "#main-graph canvas"),
    ],
)
def test_asv_pages_without_a_network(html, new_page, view, shown):
    page = new_page()
    with served(html) as address:
        page.goto(f"{address}/index.html#{view}")
        page.locator(shown).first.wait_for()
        page.wait_for_load_state("networkidle")


def test_asv_page_from_a_file_gives_way(html, new_page):
    """It cannot read its data there: the ladder's page can."""
    page = new_page()
    page.goto((html / "index.html").as_uri())
    page.locator("#ladder").wait_for()
    assert page.url == (html / "ladder" / "index.html").as_uri()


@pytest.mark.parametrize("name", ["index.html", f"{MACHINE}-table.html"])
def test_on_a_phone(html, new_page, name):
    """Nothing is wider than the window, or it scrolls by itself; text is large enough to read."""
    page = new_page(**PHONE)
    page.goto((html / "ladder" / name).as_uri())
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    smallest = page.evaluate(
        """() => Math.min(...[...document.querySelectorAll("svg text, td, th, p, a")].map(node => {
            const matrix = node.getScreenCTM ? node.getScreenCTM().a : 1;
            return parseFloat(getComputedStyle(node).fontSize) * matrix;
        }))"""
    )
    assert smallest >= 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(html, new_page, scheme):
    """Text stands out from what is behind it, by WCAG's 4.5, in either scheme."""
    page = new_page(color_scheme=scheme)
    page.goto((html / "ladder" / "index.html").as_uri())
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) < 0.1) == (scheme == "dark")
    texts = page.evaluate(
        """() => [...document.querySelectorAll("h1, p, th, td, small, a, svg text")]
            .filter(node => node.textContent.trim())
            .map(node => {
                const behind = [];
                for (let at = node; at; at = at.parentElement)
                    behind.push(getComputedStyle(at).backgroundColor);
                const style = getComputedStyle(node);
                const color = node instanceof SVGElement ? style.fill : style.color;
                return [node.textContent, color, behind];
            })"""
    )
    assert len(texts) > 100
    for text, color, behind in texts:
        assert contrast(color, behind) >= 4.5, text


def test_pictures_can_be_read_aloud(html, new_page):
    page = new_page()
    page.goto((html / "ladder" / "index.html").as_uri())
    pictures = page.get_by_role("img")
    assert pictures.count() == page.locator("svg").count() == 2
    for name in (re.compile(r"GFLOPS at .*v4 [\d,]+"), re.compile(r"Roofline.*v4: [\d,]+ GFLOPS")):
        assert page.get_by_role("img", name=name).count() == 1


def channels(color):
    red, green, blue, alpha = ([float(n) for n in re.findall(r"[\d.]+", color)] + [1.0])[:4]
    return red, green, blue, alpha


def luminance(color):
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in channels(color)[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(color, behind):
    """Of a text in front of backgrounds, nearest first."""
    below = (255.0, 255.0, 255.0)
    for layer in reversed(behind):
        *mine, alpha = channels(layer)
        below = tuple(alpha * a + (1 - alpha) * b for a, b in zip(mine, below, strict=True))
    lighter, darker = sorted(
        (luminance(color), luminance("rgb({}, {}, {})".format(*below))), reverse=True
    )
    return (lighter + 0.05) / (darker + 0.05)
