"""The published pages, as text: every figure is one of the results files, nothing is loaded from
elsewhere, and asv's own page gets links to them."""

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from published import History

from benchmarks.checkout import LADDER
from benchmarks.pages import asv_index, requests, roofline, site
from benchmarks.pages.ladder import PROBLEM
from benchmarks.trace import SHAPES as COUNTED

SHAPES = [PROBLEM, "1024x1024x1024"]
ARCHITECTURES = ["sm_80", "sm_90"]
SUBJECTS = [*LADDER, "cublas"]
SPEEDS = ("gflops", "ratio_to_cublas", "share_of_peak", "error_over_bound")
RESOURCES = ("registers", "spill_bytes", "shared_bytes")
PEAK = 60_000


class Page(HTMLParser):
    """Elements with their attributes and the text in each, in order."""

    VOID = ("meta", "link", "img", "input")

    def __init__(self, path):
        super().__init__()
        self.elements, self._open = [], []
        self.text = path.read_text()
        self.feed(self.text)
        assert not self._open

    def handle_starttag(self, tag, attributes):
        found = SimpleNamespace(
            tag=tag,
            text="",
            inside=[outer.attributes for outer in self._open],
            attributes=dict(attributes),
        )
        self.elements.append(found)
        if tag not in self.VOID:
            self._open.append(found)

    def handle_endtag(self, tag):
        assert tag in self.VOID or self._open.pop().tag == tag

    def handle_data(self, data):
        for found in self._open:
            found.text += data

    def all(self, tag, **attributes):
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            found
            for found in self.elements
            if found.tag == tag and wanted.items() <= found.attributes.items()
        ]

    def cells(self, section, **attributes):
        """The cells of a section: (version, label) to cell."""
        return {
            (row["data-version"], cell.attributes["data-label"]): cell
            for cell in self.all("td", **attributes)
            if any(outer.get("id") == section for outer in cell.inside)
            for row in cell.inside
            if "data-version" in row
        }


def define(history):
    """The benchmarks of the project."""
    for metric in SPEEDS:
        history.define(f"speed.Speed.track_{metric}", SUBJECTS, SHAPES)
    for metric in RESOURCES:
        history.define(f"resources.Resources.track_{metric}", list(LADDER), ARCHITECTURES)


def made_up(scale=1.0):
    """Results for all of them: benchmark to parameters to value."""
    speeds = {
        (name, shape): scale * (1000.5 + 997 * i) * (1 + j)
        for (i, name), (j, shape) in product(enumerate(SUBJECTS), enumerate(SHAPES))
    }
    figures = {
        "speed.Speed.track_gflops": speeds,
        "speed.Speed.track_ratio_to_cublas": {
            params: speed / speeds["cublas", params[1]]
            for params, speed in speeds.items()
            if params[0] != "cublas"
        },
        "speed.Speed.track_share_of_peak": {
            params: speed / PEAK for params, speed in speeds.items()
        },
        "speed.Speed.track_error_over_bound": dict.fromkeys(speeds, 0.00145),
    }
    for j, metric in enumerate(RESOURCES):
        figures[f"resources.Resources.track_{metric}"] = {
            (name, arch): 10 * i + j
            for i, (name, arch) in enumerate(product(LADDER, ARCHITECTURES))
        }
    return figures


@pytest.fixture
def history(tmp_path):
    made = History(tmp_path, ["First", "Second <script>alert(1)</script> & more", "Third"])
    define(made)
    return made


def write(history, commits=3):
    """The pages of so many commits of the history; the folder that they are in."""
    history.save()
    revisions = {commit: i for i, commit in enumerate(history.commits[:commits])}
    subjects = {history.commits[1]: "Second <script>alert(1)</script> & more"}
    sources = site.read(history.folder, history.results, revisions, subjects)
    site.write(history.folder / "html", sources)
    return history.folder / "html" / "ladder"


def page_of(folder, history, machine, commit):
    return Page(folder / f"{machine}-{history.commits[commit][:12]}.html")


def test_figures(history):
    """Each is that of the results file, unrounded in data-value and rounded for people."""
    results = made_up()
    history.add("m", 0, results)
    page = page_of(write(history), history, "m", 0)
    shown = page.cells("ladder")
    for name in SUBJECTS:
        for metric, label, form in (
            ("gflops", "GFLOPS", "{:,.0f}"),
            ("share_of_peak", "Of FFMA peak", "{:.1%}"),
            ("error_over_bound", "Error / bound", "{:.2g}"),
        ):
            value = results[f"speed.Speed.track_{metric}"][name, PROBLEM]
            cell = shown[name, label]
            assert float(cell.attributes["data-value"]) == value
            assert cell.text == form.format(value)
    for name, version in LADDER.items():
        ratio = results["speed.Speed.track_ratio_to_cublas"][name, PROBLEM]
        assert float(shown[name, "Of cuBLAS"].attributes["data-value"]) == ratio
        assert shown[name, "What changes"].text == version.change
        if version.article_gflops:
            assert shown[name, "Article, GFLOPS"].text == f"{version.article_gflops:,}"

    heat = page.cells("shapes")
    for (name, shape), value in results["speed.Speed.track_gflops"].items():
        assert float(heat[name, shape].attributes["data-value"]) == value

    compiled = page.cells("compiler")
    for metric, heading in zip(RESOURCES, ("registers", "spilled, b", "shared, b"), strict=True):
        for (name, arch), value in results[f"resources.Resources.track_{metric}"].items():
            assert float(compiled[name, f"{arch}, {heading}"].attributes["data-value"]) == value


def test_memory_requests(history):
    """Where they were counted: each as it is in the results, a dash for what a version never does;
    elsewhere there is no such section."""
    metrics = list(requests.FIGURES)
    counts = {
        f"trace.Trace.track_{metric}": {
            (name, shape): 100.5 * i + j for i, (name, shape) in enumerate(product(LADDER, COUNTED))
        }
        for j, metric in enumerate(metrics)
    }
    first, *_ = LADDER
    for metric in counts:
        history.define(metric, list(LADDER), COUNTED)
    del counts[f"trace.Trace.track_{metrics[-1]}"][first, COUNTED[0]]
    history.add("counted", 0, made_up() | counts)
    history.add("not", 0, made_up())
    folder = write(history)
    assert "requests" not in page_of(folder, history, "not", 0).text
    shown = page_of(folder, history, "counted", 0).cells("requests")
    for metric, (heading, form) in requests.FIGURES.items():
        for (name, shape), value in counts[f"trace.Trace.track_{metric}"].items():
            cell = shown[name, f"{heading}, {shape}"]
            assert float(cell.attributes["data-value"]) == value
            assert cell.text == form.format(value)
    assert shown[first, f"{heading}, {COUNTED[0]}"].text == "–"


def test_gain_is_over_the_version_before(history):
    results = made_up()
    history.add("m", 0, results)
    shown = page_of(write(history), history, "m", 0).cells("ladder")
    first, second, *_ = LADDER
    speeds = results["speed.Speed.track_gflops"]
    assert shown[first, "Gain"].text == "–"
    expected = speeds[second, PROBLEM] / speeds[first, PROBLEM]
    assert float(shown[second, "Gain"].attributes["data-value"]) == expected


def test_failed_and_skipped(history):
    """What failed says so, what was skipped is a dash: neither is a figure, or one of another."""
    failed, skipped, *_ = LADDER
    results = made_up()
    results["speed.Speed.track_gflops"][failed, PROBLEM] = None
    del results["speed.Speed.track_gflops"][skipped, PROBLEM]
    history.add("m", 0, results)
    page = page_of(write(history), history, "m", 0)
    for section, label in (("ladder", "GFLOPS"), ("shapes", PROBLEM)):
        shown = page.cells(section)
        assert shown[failed, label].text == "failed"
        assert shown[skipped, label].text == "–"


def test_nothing_measured_on_a_machine_without_gpu(history):
    results = {name: {} for name in made_up() if name.startswith("speed")}
    resources = {name: values for name, values in made_up().items() if name.startswith("resources")}
    history.add("no-gpu", 0, results | resources)
    page = page_of(write(history), history, "no-gpu", 0)
    assert {cell.text for key, cell in page.cells("ladder").items() if key[1] == "GFLOPS"} == {"–"}
    assert page.text.count("This run has no speeds.") == 2
    assert page.cells("compiler")


def test_results_of_another_version_of_a_benchmark_are_not_shown(history):
    history.add("m", 0, made_up(), version="0")
    page = page_of(write(history), history, "m", 0)
    assert {cell.text for key, cell in page.cells("ladder").items() if key[1] == "GFLOPS"} == {"–"}
    assert page.cells("shapes") == page.cells("compiler") == {}


@pytest.mark.parametrize("newer", [0, 1])
def test_of_two_environments_the_newer_counts(history, newer):
    for i, environment in enumerate(("one", "other")):
        results = made_up(scale=1 + i)
        history.add("m", 0, results, environment=environment, started=10 + (i == newer))
    shown = page_of(write(history), history, "m", 0).cells("ladder")
    expected = made_up(scale=1 + newer)["speed.Speed.track_gflops"]["v0", PROBLEM]
    assert float(shown["v0", "GFLOPS"].attributes["data-value"]) == expected


@pytest.mark.parametrize(
    ("scale", "text", "kind"),
    [
        (1.1, "+10.0% faster", "gain"),
        (0.9, "−10.0% slower", "loss"),
        (1.001, "+0.1%", "same"),
        (1, "±0.0%", "same"),
    ],
)
def test_change_since_the_commit_before(history, scale, text, kind):
    """On the same machine, whichever commits other machines have measured."""
    history.add("m", 0, made_up())
    history.add("other", 1, made_up(scale=5))
    history.add("m", 2, made_up(scale))
    page = page_of(write(history), history, "m", 2)
    changes = [change for change in page.all("small") if change.attributes.get("class") == kind]
    assert {change.text for change in changes} == {text}
    assert len(changes) == len(SUBJECTS)
    assert f"since {history.commits[0][:8]}" in page.text


def test_index_is_the_newest_commit_with_speeds(history):
    history.add("fast", 0, made_up())
    history.add("fast", 1, made_up(2))
    history.add("slow", 2, {name: {} for name in made_up()})
    folder = write(history)
    assert (folder / "index.html").read_text() == page_of(folder, history, "fast", 1).text


def test_no_results(history):
    assert "Nothing has been measured yet." in (write(history) / "index.html").read_text()


def test_commits_outside_the_history_are_left_out(history):
    history.add("m", 0, made_up())
    history.add("m", 1, made_up())
    assert len(list(write(history, commits=1).glob("m-*.html"))) == 1


def test_text_is_not_taken_for_markup(history):
    history.add("m", 1, made_up())
    page = page_of(write(history), history, "m", 1)
    assert page.all("script") == []
    assert "Second <script>alert(1)</script> & more" in page.all("h1")[0].text


def table(bus=None):
    """A document of ``python -m benchmarks table --json``."""
    environment = {"gpu": "G", "problem": PROBLEM, "max_memory_mhz": 1000}
    if bus:
        environment["memory_bus_bits"] = bus
    rows = [
        {
            "version": name,
            "gflops": 1000.0 * (i + 1),
            "share_of_peak": 0.1,
            "ratio_to_cublas": 0.2,
            "error_over_bound": 0.3,
            "verdict": "right",
        }
        for i, name in enumerate([*SUBJECTS, "FFMA peak"])
    ]
    rows[0] |= {"gflops": None, "share_of_peak": None, "ratio_to_cublas": None, "verdict": "wrong"}
    return {"environment": environment, "rows": rows}


def test_interleaved_run(history):
    (history.folder / "docs").mkdir()
    (history.folder / "docs" / "table-m.json").write_text(json.dumps(table()))
    history.add("m", 0, made_up())
    folder = write(history)
    page = Page(folder / "m-table.html")
    shown = page.cells("ladder")
    assert shown["v0", "GFLOPS"].text == "failed"
    assert shown["v1", "GFLOPS"].attributes["data-value"] == "2000.0"
    assert shown["FFMA peak", "GFLOPS"].text == f"{1000 * (len(SUBJECTS) + 1):,}"
    assert "m-table.html" in page_of(folder, history, "m", 0).text


def test_roofline(history):
    """Its points are the versions; the peak is the run's own, the slope the memory's bandwidth."""
    (history.folder / "docs").mkdir()
    (history.folder / "docs" / "table-m.json").write_text(json.dumps(table(bus=4096)))
    results = made_up()
    history.add("m", 0, results)
    page = page_of(write(history), history, "m", 0)
    assert len(page.all("circle")) == len(LADDER)
    (alternative,) = [title.text for title in page.all("title") if "Roofline" in title.text]
    speeds = results["speed.Speed.track_gflops"]
    for name in LADDER:
        assert f"{name}: {speeds[name, PROBLEM]:,.0f} GFLOPS" in alternative
    assert f"FFMA peak: {PEAK:,} GFLOPS" in alternative
    assert "memory: 1,024 GB/s" in alternative  # 2 · 1 GHz · 512 bytes
    assert len(page.all("line", class_="roof")) == 2


def test_intensity():
    """FLOP per byte of a tile of 128×128: 2·128·128 for 2·128 floats."""
    assert roofline.intensity("v3") == 2 * 128 * 128 / (4 * (128 + 128))


def test_profile(history):
    """The bottleneck, where Nsight Compute has been run, with its shares."""
    rows = [
        {
            "version": name,
            "bottleneck": f"reason {i}",
            "waits_for": "memory" if i else None,
            "stalls": {"long_scoreboard": 0.625, "wait": 0.25, "barrier": 0.0625, "drain": 0.01},
            "pipes": {"fma": 0.5, "shared_memory": None},
        }
        for i, name in enumerate(LADDER)
    ]
    environment = {"problem": PROBLEM, "gpu": "G", "nsight_compute": "2026.1"}
    (history.folder / "docs").mkdir()
    document = json.dumps({"environment": environment, "rows": rows})
    (history.folder / "docs" / "profile-m.json").write_text(document)
    history.add("m", 0, made_up())
    older = made_up()
    speeds = older["speed.Speed.track_gflops"]
    older["speed.Speed.track_gflops"] = {p: v for p, v in speeds.items() if p[0] in ("v0", "v3")}
    history.add("m", 1, older)
    folder = write(history)
    page = page_of(folder, history, "m", 0)
    assert "One profile for all commits, which does not tell whose it is." in page.text
    older_page = page_of(folder, history, "m", 1)
    assert {name for name, _ in older_page.cells("stalls")} == {"v0", "v3"}
    assert older_page.cells("ladder")["v1", "Bottleneck"].text == "–"
    for i, name in enumerate(LADDER):
        assert page.cells("ladder")[name, "Bottleneck"].text == f"reason {i}" + "memory" * bool(i)
        shown = page.cells("stalls")
        assert shown[name, "fma"].attributes["data-value"] == "0.5"
        assert shown[name, "shared memory"].text == "–"
        assert (
            shown[name, "Largest shares of the warps' time"].text
            == "long scoreboard 62%wait 25%barrier 6%"
        )


def test_accepted_slowdowns_are_remembered(history):
    changes = [
        {"version": "v3", "problem": PROBLEM, "before": 100.0, "after": 90.0, "unit": "GFLOPS"},
        {"version": "v4", "problem": PROBLEM, "before": None, "after": 8.0, "unit": "GFLOPS"},
    ]
    entry = {"commit": "c" * 40, "reason": "more <exact>", "gpu": "G", "changes": changes}
    history.add("m", 0, made_up())
    (history.results / "accepted.jsonl").write_text(json.dumps(entry) + "\n")
    page = page_of(write(history), history, "m", 0)
    rows = [row.text for row in page.all("tr", data_commit="c" * 40)]
    assert rows == [
        f"ccccccccv3, {PROBLEM}100 GFLOPS90 GFLOPS−10.0%Gmore <exact>",
        f"ccccccccv4, {PROBLEM}–8 GFLOPS–Gmore <exact>",
    ]


@pytest.fixture
def pages(history):
    """Pages with everything on them."""
    (history.folder / "docs").mkdir()
    (history.folder / "docs" / "table-m.json").write_text(json.dumps(table()))
    for commit in range(len(history.commits)):
        history.add("m", commit, made_up())
        history.add("a machine/with signs?", commit, {name: {} for name in made_up()})
    return {path: Page(path) for path in write(history).iterdir()}


def test_links_lead_somewhere(pages):
    for path, page in pages.items():
        for link in page.all("a"):
            target, _, anchor = link.attributes["href"].partition("#")
            if target == "../index.html":
                continue  # asv's
            other = pages[path.parent / target] if target else page
            assert not anchor or any(
                found.attributes.get("id") == anchor for found in other.elements
            )
    linked = {link.attributes["href"] for page in pages.values() for link in page.all("a")}
    assert {path.name for path in pages} - linked == {"index.html"}


def test_nothing_is_loaded_from_elsewhere(pages):
    for page in pages.values():
        assert "http" not in page.text
        assert page.all("script") == page.all("img") == []
        assert [link.attributes["href"] for link in page.all("link")] == ["data:,"]


def test_accessibility(pages):
    """Every picture has its text, every table its caption and headings, the page its language."""
    for page in pages.values():
        assert page.all("html", lang="en")
        assert page.all("meta", name="viewport", content="width=device-width, initial-scale=1")
        pictures = page.all("svg")
        titles = [
            title
            for title in page.all("title")
            if any("viewbox" in outer for outer in title.inside)
        ]
        assert len(titles) == len(pictures)
        for picture, title in zip(pictures, titles, strict=True):
            assert picture.attributes["role"] == "img"
            assert re.search(r"v1:? [\d,]+", title.text)
        assert len(page.all("caption")) == len(page.all("table"))
        assert all(heading.attributes["scope"] in ("row", "col") for heading in page.all("th"))


@pytest.fixture
def asv_page(tmp_path):
    """What asv publishes before the plugins' turn."""
    asv = pytest.importorskip("asv")
    shutil.copy(Path(asv.__file__).parent / "www" / "index.html", tmp_path)
    return tmp_path / "index.html"


def test_asv_page_loads_nothing_from_elsewhere(asv_page):
    before = asv_page.read_text()
    asv_index.adapt(asv_page.parent)
    page = Page(asv_page)
    loaded = [found.attributes["src"] for found in page.all("script") if "src" in found.attributes]
    loaded += [link.attributes["href"] for link in page.all("link")]
    assert len(loaded) > 15
    assert not [address for address in loaded if ":" in address]
    for address in loaded:
        if address.startswith("vendor/"):
            assert (asv_page.parent / address).exists()
    hrefs = [link.attributes.get("href", "") for link in page.all("a")]
    sections = ("ladder", "roofline", "shapes", "compiler")
    assert [href for href in hrefs if href.startswith("ladder/")] == [
        f"ladder/index.html#{section}" for section in sections
    ]
    assert before.count("nav-li-") == asv_page.read_text().count("nav-li-")


def test_vendored_scripts_are_those_that_asv_asks_for(asv_page):
    """Byte for byte, by the hashes in its page; but for Flot, which npm has unabridged, and
    stupidtable, which it has in a later release."""
    text = asv_page.read_text()
    hashes = dict(re.findall(r'/([^/"]+)" integrity="(sha\d+-[^"]+)"', text))
    same = []
    for name, wanted in hashes.items():
        (path,) = (
            path
            for path in asv_index.VENDOR.iterdir()
            if asv_index._stem(path.name) == asv_index._stem(name)
        )
        algorithm = wanted.partition("-")[0]
        digest = base64.b64encode(hashlib.new(algorithm, path.read_bytes()).digest()).decode()
        if f"{algorithm}-{digest}" == wanted:
            same.append(path.name)
    assert sorted(same) == [
        "bootstrap.min.css",
        "bootstrap.min.js",
        "jquery.flot.orderBars.js",
        "jquery.min.js",
        "md5.min.js",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("jquery-3.3.1", "other-1.0", "loads other-1.0.min.js, which .* lacks"),
        ("nav-li-regressions", "nav-li-changes", "has no <li"),
    ],
)
def test_another_asv_page_is_an_error(asv_page, old, new, reason):
    asv_page.write_text(asv_page.read_text().replace(old, new))
    with pytest.raises(LookupError, match=reason):
        asv_index.adapt(asv_page.parent)
