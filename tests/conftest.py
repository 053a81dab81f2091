"""Where every property is tested, for which versions, and how many examples Hypothesis tries."""

import importlib.util
import os
import shutil
from functools import cache

import pytest
from hypothesis import settings
from places import GPU, SIMULATOR

from sgemm import LADDER

_EXAMPLES = {"dev": 25, "ci": 40, "nightly": 2000}
for _profile, _examples in _EXAMPLES.items():
    settings.register_profile(
        _profile,
        max_examples=int(os.environ.get("SGEMM_EXAMPLES", _examples)),
        deadline=None,  # the first example of a kernel compiles it
        print_blob=True,
    )
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev")
)


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU and CuPy")
    config.addinivalue_line("markers", "alone: needs the GPU to itself, so no other test process")
    config.addinivalue_line("markers", "browser: needs Chromium and Playwright")


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
    """Why nothing can run on a GPU here; None if it can. Asked without starting CUDA in this
    process, which would then be on the GPU beside a test that needs it to itself."""
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy not installed, no driver, no device, a driver too old
        return f"there is no usable GPU: {str(error).splitlines()[0]}"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """After an illegal access every later call on the GPU fails: report one failure, then stop."""
    report = yield
    if report.failed and item.get_closest_marker("gpu") and _no_gpu() is None:
        import cupy

        try:
            cupy.cuda.runtime.deviceSynchronize()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            item.session.shouldstop = f"the GPU is unusable since {item.nodeid}: {error}"
    return report
