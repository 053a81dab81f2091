"""A rise of GFLOPS is a gain and a rise of seconds a loss, on the pages that asv publishes."""

import json
from collections import Counter

import pytest
from published import History, served

from benchmarks.series import series

COMMITS = 6
RISE = (100, 100, 100, 160, 160, 160)
FALL = (160, 160, 160, 50, 50, 50)
GFLOPS, SECONDS, SCALAR = "made_up.track_rate", "made_up.track_time", "made_up.track_share"


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """A site on which each benchmark has risen for one parameter and fallen for another."""
    history = History(tmp_path_factory.mktemp("direction"), [f"Commit {i}" for i in range(COMMITS)])
    history.define(GFLOPS, ["up", "down"], unit="GFLOPS", higher_is_better=True)
    history.define(SECONDS, ["up", "down"], unit="seconds")
    history.define(SCALAR, unit="share", higher_is_better=True)
    for i in range(COMMITS):
        both = {("up",): RISE[i], ("down",): FALL[i]}
        history.add("machine", i, {GFLOPS: both, SECONDS: both, SCALAR: {(): FALL[i]}})
    return history.publish()


@pytest.mark.case("4.1")
def test_regressions(html):
    """asv lists 160 → 50 of what is better the higher it is, and 100 → 160 of the others."""
    found = json.loads((html / "regressions.json").read_text())["regressions"]
    jumps = {
        name: (last, best, [(old, new) for _, _, old, new in steps])
        for name, _, _, _, last, best, steps in found
    }
    expected = {
        f"{GFLOPS}('down')": (50, 160, [(160, 50)]),
        SCALAR: (50, 160, [(160, 50)]),
        f"{SECONDS}('up')": (160, 100, [(100, 160)]),
    }
    assert jumps.keys() == expected.keys()
    for name, (last, best, steps) in expected.items():
        assert jumps[name][:2] == (pytest.approx(last), pytest.approx(best))
        assert jumps[name][2] == [pytest.approx(step) for step in steps]


def test_feed(html):
    feed = (html / "regressions.xml").read_text()
    assert f"-68.75% {GFLOPS}('down')" in feed
    assert f"60.00% {SECONDS}('up')" in feed
    assert feed.count("<entry>") == 3


def test_a_benchmark_says_so_itself():
    """By an attribute of its function, which asv keeps in benchmarks.json."""

    @series(unit="GFLOPS", version="1", higher_is_better=True)
    def track():
        pass

    assert track.higher_is_better is True


@pytest.mark.browser
def test_published_pages(html, browser):
    """What a person reads: asv's Regressions page and its list of benchmarks."""
    with served(html) as address:
        page = browser.new_page()
        problems = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))

        page.goto(f"{address}/index.html#/regressions")
        rows = page.locator("#regressions-body table").first.locator("tbody tr")
        rows.first.wait_for()
        losses = {}
        for cells in (row.locator("td").all_inner_texts() for row in rows.all()):
            losses[cells[0]] = cells[3:6]
        assert losses == {
            f"{GFLOPS}('down')": ["0.31x", "160 GFLOPS", "50.0 GFLOPS"],
            SCALAR: ["0.31x", "160 share", "50.0 share"],
            f"{SECONDS}('up')": ["1.60x", "1.667m", "2.667m"],
        }

        page.goto(f"{address}/index.html#/summarylist")
        cells = page.locator("#summarylist-body td.change[data-direction]")
        cells.first.wait_for()
        changes = Counter()
        for row in page.locator("#summarylist-body tbody tr").all():
            name = row.locator("td").first.inner_text().replace(" ", "")
            change = row.locator("td.change")
            text = change.inner_text()
            direction = change.get_attribute("data-direction")
            assert text.endswith(direction)
            red, green, _ = change.evaluate(
                "cell => getComputedStyle(cell).backgroundColor.match(/[0-9]+/g).map(Number)"
            )
            assert (green > red) == (direction == "improvement")
            changes[name, text.partition("%")[0], direction] += 1
        assert changes == Counter(
            {
                (f"{GFLOPS}('up')", "+60.0", "improvement"): 1,
                (f"{GFLOPS}('down')", "−68.8", "regression"): 1,
                (f"{SECONDS}('up')", "+60.0", "regression"): 1,
                (f"{SECONDS}('down')", "−68.8", "improvement"): 1,
                (SCALAR, "−68.8", "regression"): 1,
            }
        )
        assert problems == []
        page.close()
