"""Installs the package for a CUDA major in a fresh virtual environment, and uses what needs no GPU.

``locked`` takes exactly what the lock file names, by hash; ``newest`` what pyproject.toml allows,
with cuda-core beside it, which CuPy must bear.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USE = """
import cupy, numpy, sgemm
from cuda.bindings import nvrtc
for name in sgemm.LADDER:
    assert sgemm.compile(name, "sm_90").cubin.startswith(b"\\x7fELF"), name
one = numpy.ones((3, 3), numpy.float32)
assert (sgemm.matmul(one, one) == 3).all()
print(f"CuPy {cupy.__version__}, NVRTC {nvrtc.nvrtcVersion()[1:]}, NumPy {numpy.__version__}")
"""
DOCTOR_WITHOUT_GPU = 1


def main(major: str, choice: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")

        def run(*arguments: str, status: int = 0) -> None:
            # Elsewhere, so that the package comes from the environment and not from the checkout.
            finished = subprocess.run([python, *arguments], cwd=folder)
            if finished.returncode != status:
                sys.exit(f"smoke.py: {' '.join(arguments)[:80]}: status {finished.returncode}")

        def install(*arguments: str) -> None:
            run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)

        if choice == "locked":
            install("--require-hashes", "--requirement", str(ROOT / "locks" / f"cuda{major}.txt"))
            install("--no-deps", str(ROOT))
        else:
            install(f"{ROOT}[cuda{major}]", "cuda-core" if major == "13" else "cuda-core[cu12]")
        run("-m", "pip", "check")
        run("-c", USE)
        run("-m", "sgemm", "doctor", status=DOCTOR_WITHOUT_GPU)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="smoke.py", description=__doc__)
    parser.add_argument("major", choices=["12", "13"])
    parser.add_argument("choice", choices=["locked", "newest"])
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse(sys.argv[1:])
    main(options.major, options.choice)
