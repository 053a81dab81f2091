"""The kernels are found wherever the package lies: in a wheel, an sdist, an editable install and a
bare checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import sgemm
from sgemm.kernel_files import kernels_folder

CHECKOUT = Path(sgemm.__file__).parent.parent
CHOICES = "sgemm/choices/made-up.json"  # of which the package need have none
BUILD_NEEDS = ("pyproject.toml", "README.md", "LICENSE", "kernels", "sgemm")

USE = """
import site, sys
from pathlib import Path
numpy_home, site_packages, location = sys.argv[1:]
sys.path.append(numpy_home)
import numpy as np
sys.path.remove(numpy_home)
site.addsitedir(site_packages)
import sgemm
from sgemm.kernel_files import kernels_folder
assert Path(sgemm.__file__).is_relative_to(location), sgemm.__file__
assert kernels_folder().is_relative_to(location), kernels_folder()
one = np.ones((3, 3), np.float32)
for name in sgemm.LADDER:
    assert (sgemm.matmul(one, one[::-1], version=name) == 3).all()
    assert (sgemm.matmul(one, one, out=one.copy(), alpha=0, beta=2, version=name) == 2).all()
"""


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def use(location, cwd, site_packages=None):
    """Multiply with the package that lies at ``location`` and is found in ``site_packages``, if
    that is another folder; started elsewhere, and without the environment's own install."""
    numpy_home = Path(np.__file__).parent.parent
    arguments = map(str, (numpy_home, site_packages or location, location))
    run(sys.executable, "-S", "-P", "-c", USE, *arguments, cwd=cwd)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What is built from, without what earlier builds left in the checkout."""
    folder = tmp_path_factory.mktemp("sources")
    for name in BUILD_NEEDS:
        path = CHECKOUT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, folder)
    (folder / CHOICES).parent.mkdir(exist_ok=True)
    (folder / CHOICES).write_text("{}")
    return folder


@pytest.fixture(scope="module")
def distributions(sources, tmp_path_factory):
    """An sdist, and a wheel built from what is in it."""
    folder = tmp_path_factory.mktemp("distributions")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(sources))
    return folder


@pytest.fixture(scope="module")
def wheel(distributions):
    (wheel,) = distributions.glob("*.whl")
    return wheel


def files_of_the_package():
    """The package's and the kernels' files as the wheel names them."""
    for root, folder in (("sgemm", CHECKOUT / "sgemm"), ("sgemm/kernels", kernels_folder())):
        for path in folder.rglob("*"):
            if path.suffix in (".py", ".h", ".cpp", ".cu", ".cuh", ".json"):
                yield f"{root}/{path.relative_to(folder)}"


def test_the_wheel_is_complete(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {*files_of_the_package(), CHOICES}


def test_a_wheel(wheel, tmp_path):
    location = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", location, wheel)
    use(location, tmp_path)


def test_an_sdist(distributions, tmp_path):
    """Unpacked, it is what a checkout is; and the wheel above was built from it."""
    (sdist,) = distributions.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path)
    (location,) = tmp_path.glob("sgemm-*")
    use(location, tmp_path)


def test_a_bare_checkout(sources, tmp_path):
    use(sources, tmp_path)


def test_an_editable_install(sources, tmp_path):
    options = ("--no-deps", "--no-build-isolation", "--target", str(tmp_path))
    run(sys.executable, "-m", "pip", "install", "-q", *options, "--editable", str(sources))
    use(sources, tmp_path, site_packages=tmp_path)
