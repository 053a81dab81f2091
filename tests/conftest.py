"""Where every property is tested, for which versions, how many examples Hypothesis tries, and the
report of the cases that tests are about."""

import importlib.util
import os
import shutil
from collections import Counter, defaultdict
from functools import cache

if "PYTEST_XDIST_WORKER" in os.environ:  # before NumPy is imported: the cores are taken
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from cases import CASES
from hypothesis import HealthCheck, settings
from places import GPU, SIMULATOR

from sgemm import LADDER

_EXAMPLES = {"dev": 25, "ci": 40, "nightly": 2000}
for _profile, _examples in _EXAMPLES.items():
    settings.register_profile(
        _profile,
        max_examples=int(os.environ.get("SGEMM_EXAMPLES", _examples)),
        deadline=None,  # the first example of a kernel compiles it
        suppress_health_check=[HealthCheck.too_slow],  # which a busy machine fails
        print_blob=True,
    )
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev")
)


def pytest_addoption(parser):
    parser.addoption("--cases", action="store_true", help="report the outcome of every case")


def pytest_configure(config):
    config.addinivalue_line("markers", "case(number, ...): which cases of cases.py it covers")
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU and CuPy")
    config.addinivalue_line("markers", "two_gpus: needs a second GPU as well")
    config.addinivalue_line("markers", "alone: needs the GPU to itself, so no other test process")
    config.addinivalue_line("markers", "browser: needs Chromium and Playwright")


def pytest_itemcollected(item):
    """The numbers of its cases travel with a test's report, also to JUnit files."""
    for marker in item.iter_markers("case"):
        for number in marker.args:
            if number not in CASES:
                raise pytest.UsageError(f"{item.nodeid}: cases.py lists no case {number}")
            item.user_properties.append(("case", number))


def pytest_collection_modifyitems(items):
    """What needs the GPU to itself comes first, before this process is on it too."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is None)


def pytest_terminal_summary(terminalreporter, config):
    if not config.getoption("cases"):
        return
    outcomes, reasons, tests = defaultdict(Counter), defaultdict(set), defaultdict(set)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            properties = getattr(report, "user_properties", [])  # a module's own report has none
            for number in {value for name, value in properties if name == "case"}:
                outcomes[number][outcome] += 1
                tests[number].add(report.nodeid.partition("[")[0])
                if outcome == "skipped":
                    reasons[number].add(report.longrepr[2].removeprefix("Skipped: "))
    terminalreporter.section("cases")
    for number, title in CASES.items():
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes[number].items())
        terminalreporter.line(f"case {number}: {counts or 'not run'}: {title}")
        for line in sorted(tests[number]) + sorted(reasons[number]):
            terminalreporter.line(f"    {line}")


@pytest.fixture(
    scope="session",
    params=[SIMULATOR, pytest.param(GPU, marks=pytest.mark.gpu)],
    ids=lambda place: place.name,
)
def place(request):
    """Where the product is computed."""
    return request.param


@pytest.fixture(scope="session", params=LADDER.values(), ids=LADDER)
def version(request):
    """Every version of the ladder."""
    return request.param


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # As root, which containers run as, Chromium starts without its sandbox only.
        chromium = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        yield chromium
        chromium.close()


def pytest_runtest_setup(item):
    for marker, variable, missing in (
        ("gpu", "SGEMM_REQUIRE_GPU", _no_gpu),
        ("browser", "SGEMM_REQUIRE_BROWSER", _no_browser),
    ):
        if item.get_closest_marker(marker) and (reason := missing()):
            if os.environ.get(variable) == "1":
                pytest.fail(f"{variable}=1, but {reason}", pytrace=False)
            pytest.skip(reason)
    if item.get_closest_marker("two_gpus") and _gpus() < 2:
        pytest.skip("needs two GPUs")


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@cache
def _no_browser() -> str | None:
    """Why no page can be looked at here; None if one can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed"
    return None if _chromium() else "there is no Chromium"


@cache
def _no_gpu() -> str | None:
    """Why nothing can run on a GPU here; None if it can."""
    try:
        _gpus()
    except Exception as error:  # CuPy not installed, no driver, no device, a driver too old
        return f"there is no usable GPU: {str(error).splitlines()[0]}"
    return None


@cache
def _gpus() -> int:
    """How many there are. Asked without starting CUDA in this process, which would then be on the
    GPU beside a test that needs it to itself."""
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """After an illegal access every later call on the GPU fails, and a kernel that nobody has
    waited for fails in a later test: wait here, report the one failure, then stop."""
    report = yield
    marks = {marker.name for marker in item.iter_markers()}
    # Waiting would put this process on the GPU beside the tests that need it alone.
    if call.when == "call" and "gpu" in marks and "alone" not in marks and not _no_gpu():
        import cupy

        try:
            cupy.cuda.runtime.deviceSynchronize()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            item.session.shouldstop = f"the GPU is unusable since {item.nodeid}: {error}"
            if report.passed:
                report.outcome, report.longrepr = "failed", item.session.shouldstop
    return report
