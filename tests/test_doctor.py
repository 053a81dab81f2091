"""The doctor's findings in environments that are made up."""

from dataclasses import replace
from pathlib import Path

import pytest

from sgemm import MissingError, doctor
from sgemm.__main__ import main
from sgemm.doctor import Driver, Gpu, Probes

H200 = Gpu("NVIDIA H200", (9, 0))
PACKAGES = {"numpy": "2.4.6", "cupy-cuda13x": "14.2.0"}
GPU_MACHINE = Probes(
    python=(3, 12, 4),
    package=PACKAGES.get,
    driver=lambda: Driver("580.95.05", (13, 0), (H200,)),
    nvrtc=lambda: ("13.5", ["sm_75", "sm_90"]),
    cpp_compiler=lambda: "/usr/bin/g++: g++ 12.2.0",
    cache_folder=lambda: Path("/home/user/.cache/sgemm"),
    nvcc=lambda: ("/usr/local/cuda/bin/nvcc", "12.4"),
)
LAPTOP = replace(
    GPU_MACHINE, driver=lambda: None, package={"numpy": "2.4.6"}.get, nvcc=lambda: None
)


def fail(error):
    def probe(*arguments):
        raise error

    return probe


def on_driver(**changes):
    """The GPU machine with another driver."""
    return replace(
        GPU_MACHINE, driver=lambda: replace(Driver("580.95.05", (13, 0), (H200,)), **changes)
    )


def finding(probes, name):
    """The one finding of that name."""
    (found,) = [finding for finding in doctor.examine(probes) if finding.name == name]
    return found


def status(monkeypatch, probes, *, require_gpu=False):
    """How the command ends in that environment."""
    monkeypatch.setenv("SGEMM_REQUIRE_GPU", "1" if require_gpu else "0")
    examine = doctor.examine
    with monkeypatch.context() as patched:
        patched.setattr(doctor, "examine", lambda: examine(probes))
        return main(["doctor"])


def test_a_gpu_machine_where_all_is_well(monkeypatch):
    findings = doctor.examine(GPU_MACHINE)
    assert {found.verdict for found in findings} == {"ok"}
    assert doctor.has_gpu(findings)
    assert finding(GPU_MACHINE, "GPU 0").seen == "NVIDIA H200, compute capability 9.0"
    assert finding(GPU_MACHINE, "NVIDIA driver").seen == "580.95.05, supports CUDA up to 13.0"
    assert "12.4" in finding(GPU_MACHINE, "nvcc").seen
    assert status(monkeypatch, GPU_MACHINE) == 0
    assert status(monkeypatch, GPU_MACHINE, require_gpu=True) == 0


def test_a_laptop_without_a_gpu(monkeypatch):
    findings = doctor.examine(LAPTOP)
    assert not doctor.has_gpu(findings)
    assert not [found for found in findings if found.verdict == "problem"]
    assert {found.name for found in findings if found.verdict == "absent"} == {
        "NVIDIA driver",
        "GPU",
        "CuPy",
        "nvcc",
    }
    assert status(monkeypatch, LAPTOP) == 1
    assert status(monkeypatch, LAPTOP, require_gpu=True) == 2


NO_NVRTC = fail(MissingError("no NVRTC to compile kernels with"))
NO_COMPILER = fail(MissingError("the simulator needs a C++ compiler, and there is none"))


@pytest.mark.parametrize(
    ("probes", "name", "seen", "repair"),
    [
        (replace(LAPTOP, python=(3, 9, 2)), "Python", "3.9.2", "python3.11 -m venv"),
        (replace(LAPTOP, package=lambda name: None), "NumPy", "not installed", "pip install numpy"),
        (replace(LAPTOP, cpp_compiler=NO_COMPILER), "C++ compiler", "none", "apt install g++"),
        (
            replace(LAPTOP, cache_folder=fail(MissingError("/x cannot be written"))),
            "cache folder",
            "/x cannot be written",
            "SGEMM_CACHE_DIR",
        ),
        (
            on_driver(gpus=(), failure="error 999: unknown error"),
            "NVIDIA driver",
            "does not start: error 999: unknown error",
            "nvidia-smi",
        ),
        (
            replace(GPU_MACHINE, driver=fail(OSError("damaged"))),
            "NVIDIA driver",
            "damaged",
            "nvidia-smi",
        ),
        (on_driver(gpus=(Gpu("GTX 1080", (6, 1)),)), "GPU 0", "6.1", "CUDA_VISIBLE_DEVICES"),
        (
            on_driver(gpus=(Gpu("RTX 5070", (12, 0)),)),
            "GPU 0",
            "12.0",
            'pip install "sgemm[cuda13]" --upgrade',
        ),
        (
            replace(
                on_driver(gpus=(Gpu("RTX 5070", (12, 0)),), cuda=(12, 4)),
                nvrtc=lambda: ("12.4", ["sm_90"]),
            ),
            "GPU 0",
            "12.0",
            'pip install "sgemm[cuda12]" --upgrade',
        ),
        (replace(GPU_MACHINE, nvrtc=NO_NVRTC), "NVRTC", "no NVRTC", 'pip install "sgemm[cuda13]"'),
        (on_driver(cuda=(12, 4)), "NVRTC", "13.5", 'pip install "sgemm[cuda12]"'),
        (on_driver(cuda=(11, 8)), "NVRTC", "13.5", "update the driver"),
        (
            replace(GPU_MACHINE, package={"numpy": "2.4.6"}.get),
            "CuPy",
            "not installed",
            'pip install "sgemm[cuda13]"',
        ),
    ],
)
def test_each_problem_comes_with_its_repair(monkeypatch, probes, name, seen, repair):
    monkeypatch.delenv("CXX", raising=False)
    found = finding(probes, name)
    assert found.verdict == "problem"
    assert seen in found.seen
    assert found.why
    assert repair in found.repair
    assert status(monkeypatch, probes) == 1


def test_a_compiler_that_was_chosen_wrongly_is_not_installed(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = finding(replace(LAPTOP, cpp_compiler=doctor.find_cpp_compiler), "C++ compiler")
    assert found.verdict == "problem"
    assert "CXX=no-such-compiler" in found.seen
    assert found.repair == "unset CXX, or set it to a C++ compiler"


def test_a_problem_of_another_gpu_is_not_this_ones():
    probes = on_driver(gpus=(H200, Gpu("GTX 1080", (6, 1))))
    assert finding(probes, "GPU 0").verdict == "ok"
    assert finding(probes, "GPU 1").verdict == "problem"


@pytest.mark.parametrize(
    ("probes", "name"),
    [
        (replace(LAPTOP, nvrtc=NO_NVRTC), "NVRTC"),
        (replace(GPU_MACHINE, cpp_compiler=NO_COMPILER), "C++ compiler"),
        (replace(GPU_MACHINE, nvcc=lambda: None), "nvcc"),
        (replace(GPU_MACHINE, nvcc=fail(OSError("not executable"))), "nvcc"),
    ],
)
def test_what_is_absent_and_not_needed_is_no_problem(probes, name):
    assert finding(probes, name).verdict == "absent"


def test_without_libcuda_there_is_no_driver(monkeypatch):
    monkeypatch.setattr(doctor.ctypes, "CDLL", fail(OSError("libcuda.so.1: cannot open")))
    assert doctor.find_driver() is None


class DriverWithoutDevice:
    """A libcuda that starts on no GPU."""

    def cuDriverGetVersion(self, number):  # noqa: N802
        number._obj.value = 13020

    def cuInit(self, flags):  # noqa: N802
        return 100

    def cuGetErrorString(self, status, text):  # noqa: N802
        text._obj.value = b"no CUDA-capable device is detected"


def test_a_driver_that_does_not_start(monkeypatch):
    libraries = {"libcuda.so.1": DriverWithoutDevice}
    monkeypatch.setattr(
        doctor.ctypes, "CDLL", lambda name: libraries.get(name, fail(OSError(name)))()
    )
    assert doctor.find_driver() == Driver(
        "unknown release", (13, 2), failure="error 100: no CUDA-capable device is detected"
    )


@pytest.mark.gpu
def test_the_driver_itself():
    driver = doctor.find_driver()
    assert driver.cuda >= (12, 0)
    assert driver.release[0].isdigit()
    assert driver.gpus
    assert not driver.failure


def test_nvcc_on_the_path(monkeypatch, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.99'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.find_nvcc() == (str(nvcc), "12.4")
    nvcc.unlink()
    assert doctor.find_nvcc() is None


def test_the_numbers_of_nvcc_and_nvidia_smi_are_explained(monkeypatch, capsys):
    status(monkeypatch, GPU_MACHINE)
    output = " ".join(capsys.readouterr().out.split())
    assert "`nvcc -V` shows the CUDA toolkit that is installed" in output
    assert "newest CUDA that the driver supports" in output
