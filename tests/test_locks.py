"""What is installed for a GPU: exactly these packages, by hash, and as the constraints pin them."""

import re
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
import yaml

from benchmarks import gpu_packages

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    "cupy-cuda{}x",
    "cuda-bindings",
    "cuda-pathfinder",
    "markdown-it-py",
    "mdurl",
    "numpy",
    "nvidia-cuda-cuobjdump",
    "nvidia-cuda-nvdisasm",
    "nvidia-cuda-nvrtc{}",
    "nvidia-cuda-runtime{}",
    "pygments",
    "rich",
}
"""With the CUDA major: "x" follows it in CuPy's names, and NVIDIA's end with -cu12 for CUDA 12."""


def locked(text):
    """Package to version and hashes, of a lock file's text."""
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())
    found = {}
    for entry in entries:
        first, *hashes = entry.replace("\\\n", "").split()
        name, version = first.split("==")
        found[name] = version, [re.fullmatch("--hash=sha256:([0-9a-f]{64})", h)[1] for h in hashes]
    return found


@pytest.fixture(params=[12, 13])
def major(request):
    return request.param


@pytest.fixture
def lock(major):
    return locked((ROOT / "locks" / f"cuda{major}.txt").read_text())


@pytest.mark.case("3.10")
def test_only_known_packages_are_locked_each_by_hash(major, lock):
    """A name that only looks like one of these, such as nvidia-cuda-nvrtc-cu13, is none of them."""
    suffix = {12: "-cu12", 13: ""}[major]
    names = {name.format(major if name.startswith("cupy") else suffix) for name in NAMES}
    assert lock.keys() == names
    assert all(hashes for _, hashes in lock.values())


@pytest.mark.case("3.10")
def test_what_pyproject_names_is_locked(major, lock):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    waiting, required = [*project["dependencies"], *extras[f"cuda{major}"]], set()
    while waiting:
        requirement = waiting.pop()
        if own := re.fullmatch(r"sgemm\[(.+)\]", requirement):
            waiting += extras[own[1]]
        else:
            required.add(re.match(r"[\w-]+", requirement)[0])
    assert required <= lock.keys()


@pytest.mark.case("3.10")
def test_the_instrument_installs_no_other_packages(major, lock):
    for requirement in gpu_packages.PACKAGES[major]:
        name = re.match(r"[\w-]+", requirement)[0]
        suffix = {12: "-cu12", 13: ""}[major]
        assert name in lock.keys() | {f"nvidia-cublas{suffix}", "nvidia-ml-py"}


def test_locks_and_constraints_agree(major, lock):
    pins = (ROOT / gpu_packages.CONSTRAINTS[major]).read_text().splitlines()
    for name, version in (pin.split("==") for pin in pins if "==" in pin):
        assert lock.get(name, (version,))[0] == version, name


@pytest.mark.case("3.11")
def test_both_the_lock_and_the_newest_packages_are_tried():
    jobs = yaml.safe_load((ROOT / ".github/workflows/cpu.yml").read_text())["jobs"]
    matrix = jobs["environments"]["strategy"]["matrix"]
    assert matrix == {"cuda": ["12", "13"], "choice": ["locked", "newest"]}
    (command,) = filter(None, (step.get("run") for step in jobs["environments"]["steps"]))
    assert command == 'python3 .ci/smoke.py "$CUDA" "$CHOICE"'
    for arguments in product(*matrix.values()):
        result = subprocess.run(
            [sys.executable, "-c", "from smoke import *; parse(sys.argv[1:])", *arguments],
            cwd=ROOT / ".ci",
        )
        assert result.returncode == 0


def test_a_lock_without_a_hash_is_noticed():
    assert locked("# by uv\na==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb==2\n") == {
        "a": ("1", ["0" * 64]),
        "b": ("2", []),
    }
