"""The doctor's findings: in environments that are made up, and under a made-up driver.

Names with "case" are numbers in the project's list of what users of other projects have met.
"""

import io
import json
import os
import re
import shutil
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import fake_driver
import pytest
from cases import CASES

from sgemm import MissingError, causes, compiler, doctor, inspection, probes, sass
from sgemm.__main__ import main
from sgemm.probes import Board, Driver, Gpu, Host, Probes
from sgemm.simulator import symbols

H200 = Gpu("NVIDIA H200", (9, 0), "0000:19:00.0")
ON_580 = Driver("580.95.05", (13, 0), (H200,))
ON_550 = Driver("550.54.15", (12, 4), (H200,))
ON_470 = Driver("470.256.02", (11, 4), (H200,))
BOARD = Board("NVIDIA H200", "0000:19:00.0", False, True, 1980, 1980)
NVRTC_13 = ("13.5", ["sm_75", "sm_90", "sm_120"])
NVRTC_12_6 = ("12.6", ["sm_50", "sm_61", "sm_75", "sm_90"])
GPU_MACHINE = Probes(
    python=(3, 12, 4),
    numpy=lambda: "2.4.6",
    cupy_wheels=lambda: {"cupy-cuda13x": "14.2.0"},
    cupy=lambda: "14.2.0",
    driver=lambda: ON_580,
    boards=lambda: [BOARD],
    host=lambda: Host(kernel_module=True, device_files=True, counters=True),
    nvrtc=lambda: NVRTC_13,
    headers=lambda: "/venv/nvidia/cu13/include",
    toolkit=lambda: None,
    cpp_compiler=lambda: "/usr/bin/g++: g++ 12.2.0",
    binutils=lambda: "GNU nm 2.40, GNU addr2line 2.40",
    nvdisasm=lambda: "/venv/nvidia/cu13/bin/nvdisasm",
    cache_folder=lambda: Path("/home/user/.cache/sgemm"),
    nvcc=lambda: ("/usr/local/cuda/bin/nvcc", "12.4"),
)
LAPTOP = replace(
    GPU_MACHINE,
    driver=lambda: None,
    boards=list,
    host=Host,
    cupy_wheels=dict,
    nvcc=lambda: None,
)


def fail(error):
    def probe(*arguments):
        raise error

    return probe


def machine(base=GPU_MACHINE, **changes):
    """The machine with other answers, each a value; an exception is raised."""
    return replace(
        base,
        **{
            name: fail(value) if isinstance(value, Exception) else lambda value=value: value
            for name, value in changes.items()
        },
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
    assert finding(GPU_MACHINE, "GPU, NVRTC, driver").seen == (
        "compute capability 9.0 needs CUDA 11.8 or later; NVRTC is 13.5; CUDA 13 needs driver "
        "580.65.06 or later (here 580.95.05, for CUDA up to 13.0)"
    )
    assert finding(GPU_MACHINE, "state of GPU 0").seen == "1980 of 1980 MHz; nobody else uses it"
    assert "12.4" in finding(GPU_MACHINE, "nvcc").seen
    assert status(monkeypatch, GPU_MACHINE) == 0
    assert status(monkeypatch, GPU_MACHINE, require_gpu=True) == 0


def test_a_laptop_without_a_gpu(monkeypatch, capsys):
    findings = doctor.examine(LAPTOP)
    assert not doctor.has_gpu(findings)
    assert not [found for found in findings if found.verdict in ("problem", "warning")]
    assert {found.name for found in findings if found.verdict == "absent"} == {
        "NVIDIA driver",
        "GPU",
        "CuPy",
        "nvcc",
    }
    assert status(monkeypatch, LAPTOP) == 1
    assert status(monkeypatch, LAPTOP, require_gpu=True) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "SGEMM_REQUIRE_GPU=1, and there is no GPU: GPU: none visible" in errors


NO_NVRTC = MissingError(
    causes.NVRTC_MISSING.of(detail="libnvrtc.so.13", install="pip install nvidia-cuda-nvrtc")
)
CONTAINER = Host(container=True, kernel_module=True)
MACHINE = Host(kernel_module=True, device_files=True)
NO_GPU_FOUND = Driver("580.95.05", (13, 0), status=100, failure="no CUDA-capable device")

PROBLEMS = {
    "Python 3.9": (replace(LAPTOP, python=(3, 9, 2)), "Python", "3.9.2", "python3.11 -m venv"),
    "no NumPy": (
        machine(LAPTOP, numpy=ModuleNotFoundError("No module named 'numpy'", name="numpy")),
        "NumPy",
        "not installed",
        "pip install numpy",
    ),
    "NumPy without its libraries": (
        machine(LAPTOP, numpy=ImportError("libopenblas.so.0: cannot open shared object file")),
        "NumPy",
        "cannot be imported (libopenblas.so.0: cannot open",
        "pip install --force-reinstall numpy",
    ),
    "no C++ compiler": (
        machine(LAPTOP, cpp_compiler=MissingError(causes.CPP_COMPILER_MISSING)),
        "C++ compiler",
        "no C++ compiler",
        "apt install g++",
    ),
    "no binutils": (
        machine(
            LAPTOP,
            binutils=MissingError(causes.BINUTILS_MISSING.of(tool="nm", detail="not found")),
        ),
        "binutils",
        "nm does not run here (not found)",
        "apt install binutils",
    ),
    "case 3.12: cache folder read-only": (
        machine(
            LAPTOP,
            cache_folder=MissingError(
                causes.CACHE_FOLDER_UNUSABLE.of(
                    folder="/home/user/.cache/sgemm",
                    objection="cannot be written (Read-only file system)",
                    repair="make it writable, or export SGEMM_CACHE_DIR=…",
                )
            ),
        ),
        "cache folder",
        "/home/user/.cache/sgemm cannot be written (Read-only file system)",
        "SGEMM_CACHE_DIR",
    ),
    "driver in disorder": (
        machine(driver=replace(ON_580, gpus=(), status=999, failure="unknown error")),
        "NVIDIA driver",
        "does not start: error 999: unknown error",
        "modprobe nvidia_uvm",
    ),
    "driver updated under a running system": (
        machine(driver=replace(ON_580, gpus=(), status=803, failure="driver mismatch")),
        "NVIDIA driver",
        "error 803",
        "restart the machine",
    ),
    "no fabric manager": (
        machine(driver=replace(ON_580, gpus=(), status=802, failure="system not ready")),
        "NVIDIA driver",
        "error 802",
        "systemctl start nvidia-fabricmanager",
    ),
    "driver that cannot be examined": (
        machine(driver=OSError("damaged")),
        "NVIDIA driver",
        "damaged",
        "nvidia-smi",
    ),
    "case 3.4: driver older than CUDA 12": (
        machine(driver=ON_470),
        "NVIDIA driver",
        "driver 470.256.02, for CUDA up to 11.4",
        "nvidia-driver-580",
    ),
    "case 3.4: driver older than the CuPy wheel": (
        machine(driver=ON_470),
        "CuPy",
        "cupy-cuda13x 14.2.0 with a driver for CUDA up to 11.4",
        "update the driver to 580.65.06 or later",
    ),
    "case 3.3: GPU that NVRTC dropped": (
        machine(driver=replace(ON_580, gpus=(Gpu("GTX 1080", (6, 1)),))),
        "GPU 0",
        "GTX 1080, compute capability 6.1",
        "newer GPU",
    ),
    "GPU below the ladder": (
        machine(
            driver=replace(ON_550, gpus=(Gpu("GTX 1080", (6, 1)),)),
            nvrtc=NVRTC_12_6,
        ),
        "GPU 0",
        "6.1",
        "newer GPU",
    ),
    "GPU below the ladder, without NVRTC": (
        machine(driver=replace(ON_580, gpus=(Gpu("GTX 1080", (6, 1)),)), nvrtc=NO_NVRTC),
        "GPU 0",
        "6.1",
        "newer GPU",
    ),
    "case 3.2: GPU newer than NVRTC": (
        machine(driver=replace(ON_550, gpus=(Gpu("RTX 5070", (12, 0)),)), nvrtc=NVRTC_12_6),
        "GPU 0",
        "RTX 5070, compute capability 12.0",
        'pip install --upgrade "nvidia-cuda-nvrtc-cu12>=12.8"',
    ),
    "GPU newer than anything known": (
        machine(driver=replace(ON_580, gpus=(Gpu("Next", (14, 0)),))),
        "GPU 0",
        "14.0",
        'pip install --upgrade "nvidia-cuda-nvrtc"',
    ),
    "case 3.7: no libnvrtc": (
        machine(nvrtc=NO_NVRTC),
        "NVRTC",
        "no NVRTC to compile kernels with (libnvrtc.so.13)",
        "pip install cupy-cuda13x cuda-bindings nvidia-cuda-nvrtc",
    ),
    "case 3.5: NVRTC newer than the driver": (
        machine(driver=ON_550),
        "NVRTC",
        "NVRTC 13.5, and a driver for CUDA up to 12.4",
        'pip install cupy-cuda12x "cuda-bindings<13" nvidia-cuda-nvrtc-cu12',
    ),
    "CuPy wheel of another CUDA major": (
        machine(driver=ON_550),
        "CuPy",
        "cupy-cuda13x 14.2.0 with a driver for CUDA up to 12.4",
        "nvidia-cuda-runtime-cu12, or update the driver to 580.65.06 or later",
    ),
    "CuPy wheel for CUDA 11": (
        machine(cupy_wheels={"cupy-cuda11x": "13.6.0"}),
        "CuPy",
        "cupy-cuda11x 13.6.0",
        "pip uninstall -y cupy-cuda11x; pip install cupy-cuda13x",
    ),
    "CuPy wheel for one release of CUDA": (
        machine(LAPTOP, cupy_wheels={"cupy-cuda112": "10.6.0"}),
        "CuPy",
        "cupy-cuda112 10.6.0",
        "pip uninstall -y cupy-cuda112; pip install",
    ),
    "CuPy wheel for AMD's GPUs": (
        machine(cupy_wheels={"cupy-rocm-7-0": "14.0.0"}),
        "CuPy",
        "cupy-rocm-7-0 14.0.0",
        "pip uninstall -y cupy-rocm-7-0; pip install cupy-cuda13x",
    ),
    "case 3.11: CuPy that a package beside it breaks": (
        machine(cupy=AttributeError("module 'cuda' has no attribute 'core'")),
        "CuPy",
        "cupy-cuda13x 14.2.0: CuPy cannot be imported (module 'cuda' has no attribute 'core')",
        "--force-reinstall",
    ),
    "case 3.12: a folder that CuPy cannot make": (
        machine(cupy=PermissionError(13, "Permission denied", os.path.expanduser("~/.cupy"))),
        "CuPy",
        "cupy-cuda13x 14.2.0: CuPy cannot make its cache folder",
        "export CUPY_CACHE_DIR=…",
    ),
    "two CuPy wheels": (
        machine(cupy_wheels={"cupy-cuda12x": "13.6.0", "cupy-cuda13x": "14.2.0"}),
        "CuPy",
        "cupy-cuda12x 13.6.0, cupy-cuda13x 14.2.0",
        "pip uninstall -y cupy-cuda12x cupy-cuda13x; pip install cupy-cuda13x",
    ),
    "no CuPy": (
        machine(cupy_wheels={}),
        "CuPy",
        "no CuPy (not installed)",
        "pip install cupy-cuda13x cuda-bindings nvidia-cuda-nvrtc",
    ),
    "GPU without a driver": (
        machine(LAPTOP, host=Host(gpus_on_bus=2)),
        "GPU",
        "2 NVIDIA GPUs on the PCI bus, and no libcuda.so.1",
        "nvidia-driver-580",
    ),
    "container without the GPU": (
        machine(LAPTOP, host=CONTAINER),
        "GPU",
        "this container has no libcuda.so.1",
        "docker run --gpus all",
    ),
    "container without device files": (
        machine(LAPTOP, driver=NO_GPU_FOUND, host=CONTAINER),
        "GPU",
        "this container has no /dev/nvidiactl",
        "docker run --gpus all",
    ),
    "container told to have no GPU": (
        machine(LAPTOP, host=replace(CONTAINER, variables={"NVIDIA_VISIBLE_DEVICES": "void"})),
        "GPU",
        "NVIDIA_VISIBLE_DEVICES=void",
        "NVIDIA_VISIBLE_DEVICES=all",
    ),
    "case 5.3: container that lost the GPU": (
        machine(
            LAPTOP,
            driver=NO_GPU_FOUND,
            host=replace(
                CONTAINER,
                device_files=True,
                denied=("/dev/nvidiactl", "Operation not permitted"),
            ),
        ),
        "GPU",
        "/dev/nvidiactl cannot be opened (Operation not permitted)",
        "restart the container",
    ),
    "driver's libraries missing": (
        machine(LAPTOP, host=MACHINE),
        "GPU",
        "NVIDIA's kernel module is loaded, and there is no libcuda.so.1",
        "ldconfig",
    ),
    "kernel module not loaded": (
        machine(LAPTOP, driver=NO_GPU_FOUND),
        "GPU",
        "no /dev/nvidiactl",
        "modprobe nvidia",
    ),
    "case 5.7: every GPU hidden": (
        machine(
            LAPTOP,
            driver=NO_GPU_FOUND,
            host=replace(MACHINE, variables={"CUDA_VISIBLE_DEVICES": ""}),
        ),
        "GPU",
        "CUDA_VISIBLE_DEVICES=",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "case 5.7: every GPU hidden, also of those in MIG mode": (
        machine(
            LAPTOP,
            driver=NO_GPU_FOUND,
            host=replace(MACHINE, variables={"CUDA_VISIBLE_DEVICES": "-1"}),
            boards=[replace(BOARD, mig=True)],
        ),
        "GPU",
        "CUDA_VISIBLE_DEVICES=-1",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "MIG without an instance that is named": (
        machine(
            LAPTOP,
            driver=NO_GPU_FOUND,
            host=replace(MACHINE, variables={"CUDA_VISIBLE_DEVICES": "0"}),
            boards=[replace(BOARD, mig=True)],
        ),
        "GPU",
        "NVIDIA H200 is in MIG mode, and no instance is visible",
        "nvidia-smi -L",
    ),
    "MIG without an instance": (
        machine(LAPTOP, driver=NO_GPU_FOUND, host=MACHINE, boards=[replace(BOARD, mig=True)]),
        "GPU",
        "NVIDIA H200 is in MIG mode, and no instance is visible",
        "nvidia-smi -L",
    ),
}
WARNINGS = {
    "MIG": (
        machine(boards=[replace(BOARD, mig=True)]),
        "state of GPU 0",
        "GPU 0 is in MIG mode",
        "nvidia-smi -mig 0",
    ),
    "persistence mode": (
        machine(boards=[replace(BOARD, persistence=False)]),
        "state of GPU 0",
        "persistence mode is off",
        "nvidia-smi -pm 1",
    ),
    "case 5.8: another process": (
        machine(boards=[replace(BOARD, processes=(4711, 4712))]),
        "state of GPU 0",
        "used by 2 processes (4711, 4712)",
        "wait for their end",
    ),
    "case 2.10: clocks held down by heat": (
        machine(boards=[replace(BOARD, sm_mhz=1200, throttled=("hardware thermal",))]),
        "state of GPU 0",
        "1200 of 1980 MHz (hardware thermal)",
        "cool it",
    ),
    "case 5.9: clocks that an earlier job locked": (
        machine(boards=[replace(BOARD, sm_mhz=600, throttled=("clock setting",))]),
        "state of GPU 0",
        "600 of 1980 MHz (clock setting)",
        "nvidia-smi --reset-gpu-clocks",
    ),
    "counters not permitted": (
        machine(host=replace(MACHINE, counters=False)),
        "GPU counters",
        "RmProfilingAdminOnly: 1",
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    "case 3.8: no CUDA headers": (
        machine(headers=None),
        "CUDA headers",
        "no CUDA headers",
        "pip install nvidia-cuda-runtime",
    ),
    "case 3.8: no CUDA 12 headers": (
        machine(headers=None, cupy_wheels={"cupy-cuda12x": "14.2.0"}),
        "CUDA headers",
        "no CUDA headers",
        "pip install nvidia-cuda-runtime-cu12",
    ),
    "case 3.8: CUDA_PATH leads nowhere": (
        machine(toolkit=("CUDA_PATH", "/no/such/folder")),
        "CUDA_PATH",
        "CUDA_PATH=/no/such/folder",
        "unset CUDA_PATH",
    ),
}


def named(table):
    """A table's names as parameters, with the marks of the cases that they name."""
    return [pytest.param(name, marks=list(map(pytest.mark.case, cases_in(name)))) for name in table]


def cases_in(name):
    return [number for number in re.findall(r"case ([\d.]+)", name) if number in CASES]


@pytest.mark.parametrize("name", named(PROBLEMS))
def test_each_problem_comes_with_its_repair(monkeypatch, capsys, name):
    found = one_line_finding(monkeypatch, capsys, *PROBLEMS[name], status_expected=1)
    assert found.verdict == "problem"


@pytest.mark.parametrize("name", named(WARNINGS))
def test_each_warning_comes_with_its_repair(monkeypatch, capsys, name):
    """What only spoils measurements is no failure of the machine."""
    found = one_line_finding(monkeypatch, capsys, *WARNINGS[name], status_expected=0)
    assert found.verdict == "warning"


def one_line_finding(monkeypatch, capsys, probes, name, seen, repair, *, status_expected):
    """The finding of that name, which the command prints on one line."""
    monkeypatch.delenv("CXX", raising=False)
    found = finding(probes, name)
    assert seen in found.seen
    assert found.why
    assert repair in found.repair
    assert "{" not in found.line
    assert status(monkeypatch, probes) == status_expected
    lines = capsys.readouterr().out.splitlines()
    assert f"{name}: {found.seen}: {found.why}; repair: {found.repair}" in lines
    return found


@pytest.mark.case("3.2", "3.3")
def test_a_gpu_that_nvrtc_does_not_compile_for_is_told_which_release_does():
    new = finding(PROBLEMS["case 3.2: GPU newer than NVRTC"][0], "GPU 0").line
    assert "needs CUDA 12.8 or later, and NVRTC here is 12.6" in new
    old = finding(PROBLEMS["case 3.3: GPU that NVRTC dropped"][0], "GPU 0").line
    assert "too new for this GPU: CUDA 12.9 is the last that compiles for it" in old


@pytest.mark.parametrize(
    "name", ["case 3.2: GPU newer than NVRTC", "case 3.5: NVRTC newer than the driver"]
)
def test_three_numbers_that_do_not_fit(name):
    probes, culprit, _, repair = PROBLEMS[name]
    found = finding(probes, "GPU, NVRTC, driver")
    assert found.verdict == "problem"
    assert found.why == finding(probes, culprit).why
    assert repair in found.repair


def test_a_toolkit_of_another_major(tmp_path):
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "cuda.h"
    probes = machine(toolkit=("CUDA_HOME", str(tmp_path)))
    header.write_text("#define CUDA_VERSION 11080\n")
    found = finding(probes, "CUDA_HOME")
    assert found.verdict == "warning"
    assert "holds CUDA 11.8, and NVRTC 13.5 is for CUDA 13" in found.why
    header.write_text("#pragma once\n#define CUDA_VERSION 13000\n")
    assert finding(probes, "CUDA_HOME").verdict == "ok"
    header.write_text("#pragma once\n")
    assert finding(probes, "CUDA_HOME").verdict == "warning"


def test_several_disturbances_are_several_findings():
    probes = machine(boards=[replace(BOARD, mig=True, persistence=False)])
    found = [f for f in doctor.examine(probes) if f.name == "state of GPU 0"]
    assert len(found) == 2


def test_boards_that_programs_do_not_see_disturb_nobody():
    other = replace(BOARD, pci_bus_id="0000:4C:00.0", processes=(1,))
    assert finding(machine(boards=[other, BOARD]), "state of GPU 0").verdict == "ok"


@pytest.mark.parametrize("name", ["cupy", "cupy-cuda12x", "cupy-cuda-of-somebody-else"])
def test_other_wheels_of_cupy_may_be_right(name):
    assert finding(machine(cupy_wheels={name: "14.2.0"}), "CuPy").verdict == "ok"


def test_low_clocks_of_an_idle_gpu_are_right():
    probes = machine(boards=[replace(BOARD, sm_mhz=345, idle=True)])
    assert finding(probes, "state of GPU 0").seen.startswith("345 of 1980 MHz, idle")


def test_a_problem_of_another_gpu_is_not_this_ones():
    probes = machine(driver=replace(ON_580, gpus=(H200, Gpu("GTX 1080", (6, 1)))))
    assert finding(probes, "GPU 0").verdict == "ok"
    assert finding(probes, "GPU 1").verdict == "problem"


@pytest.mark.parametrize(
    ("probes", "name"),
    [
        (machine(LAPTOP, nvrtc=NO_NVRTC), "NVRTC"),
        (machine(cpp_compiler=MissingError(causes.CPP_COMPILER_MISSING)), "C++ compiler"),
        (machine(binutils=MissingError(causes.BINUTILS_MISSING)), "binutils"),
        (machine(nvdisasm=None), "nvdisasm"),
        (machine(nvdisasm=OSError("damaged metadata")), "nvdisasm"),
        (machine(nvcc=None), "nvcc"),
        (machine(nvcc=OSError("not executable")), "nvcc"),
        (machine(LAPTOP, driver=NO_GPU_FOUND, host=MACHINE), "GPU"),
        (machine(LAPTOP, host=OSError("no /proc")), "GPU"),
    ],
)
def test_what_is_absent_and_not_needed_is_no_problem(probes, name):
    assert finding(probes, name).verdict == "absent"


def test_a_compiler_that_was_chosen_wrongly_is_not_installed(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = finding(replace(LAPTOP, cpp_compiler=probes.find_cpp_compiler), "C++ compiler")
    assert found.verdict == "problem"
    assert "CXX=no-such-compiler" in found.seen
    assert found.repair == "unset CXX, or correct it"


@pytest.mark.parametrize(
    ("tool", "use"),
    [("nm", symbols.shared_arrays), ("addr2line", lambda library: symbols.places(library, [1]))],
)
def test_a_missing_tool_of_the_simulator_is_told_by_both_in_the_same_words(
    monkeypatch, tmp_path, tool, use
):
    for other in {"nm", "addr2line"} - {tool}:
        (tmp_path / other).symlink_to(shutil.which(other))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = finding(replace(LAPTOP, binutils=probes.find_binutils), "binutils")
    assert found.seen.startswith(f"{tool} does not run here (")
    with pytest.raises(MissingError) as raised:
        use(tmp_path)
    assert str(raised.value) == f"{found.seen}: {found.why}; repair: {found.repair}"


@pytest.mark.parametrize("name", [probe.name for probe in fields(Probes) if probe.name != "python"])
def test_a_probe_that_fails_does_not_fail_the_doctor(name):
    findings = doctor.examine(machine(**{name: RuntimeError("broken\nin two lines")}))
    assert {f.name for f in findings} >= {"Python", "NumPy", "NVIDIA driver", "C++ compiler"}
    assert all("\n" not in found.line for found in findings)


# --- the probes themselves ---


def file_system(root, **files):
    for path, text in files.items():
        file = root / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_a_host_without_anything(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    assert probes.find_host(tmp_path) == Host()


def test_a_container_on_a_host_with_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    file_system(
        tmp_path,
        proc__driver__nvidia__version="NVRM version: 580.95.05",
        proc__1__cgroup="0::/system.slice/docker-4711.scope\n",
        dev__nvidiactl="",
        dev__nvidia0="",
    )
    gpu = tmp_path / "sys/bus/pci/devices/0000:19:00.0"
    network = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    for device, vendor, kind in ((gpu, "0x10de", "0x030200"), (network, "0x15b3", "0x020000")):
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    assert probes.find_host(tmp_path) == Host(
        container=True,
        gpus_on_bus=1,
        kernel_module=True,
        device_files=True,
        variables={"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"},
    )


def test_a_device_file_that_cannot_be_opened(tmp_path):
    (tmp_path / "dev" / "nvidiactl").mkdir(parents=True)  # which nobody can write, not even root
    assert probes.find_host(tmp_path).denied == (str(tmp_path / "dev/nvidiactl"), "Is a directory")


@pytest.mark.parametrize(
    ("restricted", "rights", "permitted"),
    [("1", "0", False), ("0", "0", True), ("1", "000001ffffffffff", True), ("1", "200000", True)],
)
def test_who_may_read_the_counters(tmp_path, restricted, rights, permitted):
    file_system(
        tmp_path,
        proc__driver__nvidia__params=f"EnableMSI: 1\nRmProfilingAdminOnly: {restricted}\n",
        proc__self__status=f"Name: python\nCapEff:\t{rights}\n",
    )
    assert probes.find_host(tmp_path).counters is permitted


def test_every_cupy_wheel_is_found(monkeypatch, tmp_path):
    """By its own name: look-alikes are other packages."""
    for name in ("cupy-cuda12x", "cupy-cuda13x", "cupy-helpers", "cupyx", "numpy"):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = probes.find_cupy_wheels()
    assert {"cupy-cuda12x", "cupy-cuda13x"} <= found.keys()
    assert not {"cupy-helpers", "cupyx", "numpy"} & found.keys()


@pytest.mark.parametrize(
    "said",
    [
        "libcuda.so.1: cannot open shared object file: No such file or directory",
        "Error loading shared library libcuda.so.1: No such file or directory",
    ],
)
def test_without_libcuda_there_is_no_driver(monkeypatch, said):
    monkeypatch.setattr(probes.ctypes, "CDLL", fail(OSError(said)))
    assert probes.find_driver() is None
    assert probes.find_boards() == []


@pytest.mark.parametrize(
    "said",
    [
        "libcuda.so.1: file too short",
        "libnvidia-ptxjitcompiler.so.1: cannot open shared object file: No such file or directory",
    ],
)
def test_a_libcuda_that_is_not_loaded_is_damaged(monkeypatch, said):
    monkeypatch.setattr(probes.ctypes, "CDLL", fail(OSError(said)))
    damaged = replace(LAPTOP, driver=probes.find_driver, host=lambda: MACHINE)
    found = finding(damaged, "NVIDIA driver")
    assert (found.verdict, said in found.seen, "-size 0" in found.repair) == ("problem", True, True)
    assert finding(damaged, "GPU").verdict == "absent"


def test_a_library_without_its_functions_is_damaged(monkeypatch):
    """libcuda's is a problem of the driver; without NVML's only its release is not known."""

    class Empty:
        def __getattr__(self, name):
            raise AttributeError(f"undefined symbol: {name}")

    monkeypatch.setattr(probes.ctypes, "CDLL", lambda name: Empty())
    with pytest.raises(MissingError, match=r"^libcuda\.so\.1 is there, and .* \(undefined"):
        probes.find_driver()
    assert probes.find_boards() == []
    assert probes._driver_release() == "unknown release"


def test_nvcc_on_the_path(monkeypatch, tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.99'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.find_nvcc() == (str(nvcc), "12.4")
    nvcc.unlink()
    assert probes.find_nvcc() is None


@pytest.mark.gpu
def test_the_driver_itself():
    driver = probes.find_driver()
    assert driver.cuda >= (12, 0)
    assert driver.release[0].isdigit()
    assert driver.gpus
    assert not driver.status
    boards = {board.pci_bus_id.lower(): board for board in probes.find_boards()}
    for gpu in driver.gpus:
        board = boards[gpu.pci_bus_id.lower()]
        assert board.name == gpu.name
        assert 0 < board.sm_mhz <= board.max_sm_mhz
    assert doctor.has_gpu(doctor.examine())


# --- the whole command, under a driver that is made up ---


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    fake_driver.build(folder)
    return folder


def examined(driver, **variables):
    """What ``doctor --json`` says under the driver: its rows by name, and its status."""
    process = fake_driver.python(driver, "-m", "sgemm", "doctor", "--json", **variables)
    assert not process.stderr
    rows = json.loads(process.stdout)["rows"]
    return {row["name"]: row for row in rows}, process.returncode


def test_a_driver_that_runs(driver):
    rows, _ = examined(driver)
    assert rows["NVIDIA driver"]["seen"] == "580.95.05, supports CUDA up to 13.0"
    assert rows["GPU 0"]["seen"] == "Fake GPU, compute capability 9.0"
    assert rows["state of GPU 0"]["seen"] == "1980 of 1980 MHz; nobody else uses it"


@pytest.mark.case("3.4")
def test_an_old_driver(driver):
    """Both versions are named, the status is no success, and the import works all the same."""
    rows, returncode = examined(driver, FAKE_CUDA="11040", FAKE_DRIVER="470.256.02")
    assert returncode == 1
    line = " ".join(rows["NVIDIA driver"].values())
    assert "470.256.02, for CUDA up to 11.4" in line
    assert "CUDA 12 or 13" in line
    script = "import numpy as np, sgemm; one = np.ones((2, 2), np.float32); sgemm.matmul(one, one)"
    process = fake_driver.python(driver, "-c", script, FAKE_CUDA="11040")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("variables", "name", "seen"),
    [
        ({"FAKE_STATUS": "999"}, "NVIDIA driver", "does not start: error 999: made up"),
        ({"FAKE_STATUS": "100"}, "NVIDIA driver", "finds no GPU"),
        ({"FAKE_MAJOR": "6", "FAKE_MINOR": "1"}, "GPU 0", "compute capability 6.1"),
        ({"FAKE_MIG": "1"}, "state of GPU 0", "GPU 0 is in MIG mode"),
        ({"FAKE_PERSISTENCE": "0"}, "state of GPU 0", "persistence mode is off"),
        ({"FAKE_PROCESSES": "2"}, "state of GPU 0", "4000, 4001"),
        ({"FAKE_MHZ": "900", "FAKE_REASONS": "4"}, "state of GPU 0", "900 of 1980 MHz (power cap)"),
        ({"FAKE_MHZ": "345", "FAKE_REASONS": "1"}, "state of GPU 0", "idle; nobody else"),
    ],
)
def test_what_the_driver_says_is_read(driver, variables, name, seen):
    rows, _ = examined(driver, **variables)
    assert seen in rows[name]["seen"]


def test_without_numpy_and_cuda_the_doctor_works(driver):
    script = """
import sys
for name in ("numpy", "cuda", "cuda.bindings", "cupy", "rich"):
    sys.modules[name] = None
from sgemm.__main__ import main
sys.exit(main(["doctor", "--json"]))
"""
    process = fake_driver.python(driver, "-c", script)
    assert process.returncode == 1, process.stderr
    rows = {row["name"]: row for row in json.loads(process.stdout)["rows"]}
    assert rows["NVRTC"]["verdict"] == "problem"
    assert rows["C++ compiler"]["verdict"] in ("absent", "problem")


@pytest.mark.case("3.6")
def test_the_numbers_of_nvcc_and_nvidia_smi_are_explained(monkeypatch, capsys):
    status(monkeypatch, GPU_MACHINE)
    output = " ".join(capsys.readouterr().out.split())
    assert "`nvcc -V` shows the CUDA toolkit that is installed" in output
    assert "newest CUDA that the driver supports" in output


@pytest.mark.case("3.6")
def test_a_driver_alone(monkeypatch, capsys):
    """Nothing but the driver and what ``pip install .`` brings: every package that is missing is
    named, by a command that installs it."""
    bare = machine(nvrtc=NO_NVRTC, cupy_wheels={}, nvcc=None)
    assert status(monkeypatch, bare) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if "repair: " in line]
    assert len(lines) == 2
    assert all("pip install cupy-cuda13x cuda-bindings nvidia-cuda-nvrtc" in line for line in lines)


def test_a_missing_disassembler_is_told_by_both_in_the_same_words(monkeypatch):
    monkeypatch.setattr(sass, "find_disassembler", lambda: None)
    found = finding(replace(LAPTOP, nvdisasm=sass.find_disassembler), "nvdisasm")
    assert found.repair == "pip install nvidia-cuda-nvdisasm"
    with pytest.raises(MissingError) as raised:
        inspection._disassembler.__wrapped__()
    assert str(raised.value) == f"{found.seen}: {found.why}; repair: {found.repair}"


@pytest.mark.case("3.12")
def test_a_full_cache_folder_is_a_problem(monkeypatch, tmp_path):
    """An empty file can still be made there."""
    monkeypatch.setenv("SGEMM_CACHE_DIR", str(tmp_path))
    here = replace(LAPTOP, cache_folder=Probes().cache_folder)
    assert finding(here, "cache folder").verdict == "ok"
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **place: io.FileIO("/dev/full", "w"))
    full = finding(here, "cache folder")
    assert full.verdict == "problem"
    assert full.seen == f"{tmp_path} is full (No space left on device)"
    assert "SGEMM_CACHE_DIR" in full.repair


def test_missing_nvrtc_is_told_by_both_in_the_same_words(monkeypatch):
    monkeypatch.setattr(compiler, "_nvrtc", fail(NO_NVRTC))
    with pytest.raises(MissingError) as raised:
        compiler.nvrtc_version()
    found = finding(replace(LAPTOP, nvrtc=probes.find_nvrtc), "NVRTC")
    assert str(raised.value) == f"{found.seen}: {found.why}; repair: {found.repair}"
    assert re.match(r"no NVRTC to compile kernels with \(libnvrtc", found.seen)


@pytest.mark.parametrize("status", [802, 803, 999])
def test_a_driver_that_does_not_start_is_the_only_cause(status):
    """Batch systems always name the GPUs."""
    driver = replace(NO_GPU_FOUND, status=status, failure="made up")
    named = replace(MACHINE, variables={"CUDA_VISIBLE_DEVICES": "0,1"})
    findings = doctor.examine(machine(driver=driver, host=named))
    assert [found.name for found in findings if found.verdict == "problem"] == ["NVIDIA driver"]
    assert "the driver is not usable" in finding(machine(driver=driver, host=named), "GPU").why


def test_what_a_container_runtime_reads_means_nothing_outside_of_a_container():
    named = replace(MACHINE, variables={"NVIDIA_VISIBLE_DEVICES": "void"})
    assert finding(machine(driver=NO_GPU_FOUND, host=named), "GPU").seen == causes.NO_GPU.seen


@pytest.mark.parametrize("probe", ["cpp_compiler", "binutils"])
def test_what_is_not_looked_for_without_numpy_is_not_blamed(probe):
    error = ImportError("libopenblas.so.0: cannot open shared object file")
    name = {"cpp_compiler": "C++ compiler", "binutils": "binutils"}[probe]
    found = finding(machine(LAPTOP, numpy=error, **{probe: error}), name)
    assert (found.verdict, found.seen) == ("absent", "not looked for without NumPy")
    assert finding(machine(LAPTOP, numpy=error), "NumPy").verdict == "problem"


def test_processes_that_are_not_told_are_not_none():
    found = finding(machine(boards=[replace(BOARD, processes=None)]), "state of GPU 0")
    assert (found.verdict, found.seen) == ("ok", "1980 of 1980 MHz; who uses it is not told")


class Nvml:
    """Tells of so many processes, where there is room for them, or with that status of none."""

    def __init__(self, processes, status=0):
        self.processes, self.status = processes, status

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device, count, found):  # noqa: N802
        room, count._obj.value = count._obj.value, self.processes
        if self.status or room < self.processes:
            return self.status or 7
        for number in range(self.processes):
            found[number].pid = number
        return 0


def test_more_processes_than_there_is_room_for():
    assert probes._processes(Nvml(80), None) == tuple(range(80))
    assert probes._processes(Nvml(0), None) == ()
    assert probes._processes(Nvml(3, status=4), None) is None
    assert probes._processes(Nvml(1 << 17), None) is None


@pytest.mark.parametrize("file", ["dxg", "nvmap"])
def test_gpus_that_have_other_device_files(tmp_path, file):
    """Under WSL 2, and on a Jetson."""
    file_system(tmp_path, **{f"dev__{file}": ""})
    assert probes.find_host(tmp_path).device_files
