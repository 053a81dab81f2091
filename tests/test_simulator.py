"""The simulator: what threads wait for, when copies land, how the seed orders both; and when a
kernel is compiled again."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from kernel_faults import FAULTS, KERNELS
from test_simulator_checks import multiply, shape_for

import sgemm
from sgemm import simulator
from sgemm.simulator import build, launches
from sgemm.source import from_file

SEEDS = range(30)


@pytest.mark.parametrize("kernel", ["tiles", "pipeline", "bulk"])
def test_every_order_gives_the_same_bits(kernel):
    version = from_file(KERNELS / f"{kernel}.cu")
    rng = np.random.default_rng(1)
    m, n, k = 24, 64, 40
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    results = []
    for seed in SEEDS:
        with simulator.order(seed):
            results.append(sgemm.matmul(a, b, version=version))
    assert all(np.array_equal(result, results[0]) for result in results)


SHOWS_WITHOUT_CHECKS = [
    "reads shared memory that nobody wrote",
    "no barrier after the copies",
    "a barrier too early",
    "overwrites the buffer in use",
    "overwrites what others still read",
    "a warp that is not waited for",
    "arrives before it has read",
    "does not wait for an empty buffer",
    "uses mbarriers before they are there",
    "no wait for the copies",
    "a wait that is too weak",
    "no commit",
    "does not wait for a full buffer",
    "arrives before the copies have",
    "expects fewer bytes than come",
    "not all reach the barrier",
    "wait at different barriers",
    "a named barrier for too many",
    "a missing arrival",
    "one arrival too many",
    "too large a frame",
]


@pytest.mark.parametrize("name", SHOWS_WITHOUT_CHECKS)
def test_a_fault_shows_in_some_order(name, tmp_path):
    """Without any check of accesses: a wrong result, or an error with the line."""
    fault = FAULTS[name]
    kernel = tmp_path / "planted.cu"
    kernel.write_text((KERNELS / f"{fault.kernel}.cu").read_text().replace(fault.old, fault.new))
    version = from_file(kernel)

    def shows(seed):
        try:
            result, expected = multiply(version, seed, **shape_for(fault.kernel))
        except sgemm.KernelError as error:
            return "planted.cu:" in str(error) or fault.kind == "stack"
        return not np.array_equal(result, expected)

    assert any(map(shows, SEEDS))


PROBE = """
extern "C" __global__ void probe(int mode, float* out) {
    __shared__ mbarrier_t bar;
    const int thread = threadIdx.x;
    if (mode == 0) { // a fresh mbarrier: the phase before the first one has completed
        if (thread == 0) mbarrier_init(&bar, 1);
        __syncthreads();
        mbarrier_wait(&bar, 1);
        out[thread] = 1;
    } else if (mode == 1) { // lanes pass values on
        out[thread] = __shfl_sync(0xffffffff, float(thread), 3);
        out[thread] += 100 * __shfl_xor_sync(0xffffffff, float(thread), 1);
    } else if (mode == 2) { // a barrier that half of the block has
        if (thread < 32) named_barrier_sync(1, 32);
        out[thread] = thread;
    } else if (mode == 3) {
        named_barrier_sync(16, 32);
    } else if (mode == 4) {
        named_barrier_sync(1, thread % 2 ? 32 : 64);
    } else if (mode == 5) {
        if (thread == 0) mbarrier_init(&bar, 1);
        __syncthreads();
        mbarrier_arrive(&bar);
        mbarrier_wait(&bar, 2);
    } else if (mode == 6) {
        if (thread == 0) mbarrier_init(&bar, 0);
    } else if (mode == 7) {
        mbarrier_arrive((mbarrier_t*)out);
    } else {
        __syncwarp(1u << 5);
    }
}
"""


@pytest.fixture
def probe(tmp_path):
    source = tmp_path / "probe.cu"
    source.write_text(f'#include "portable.cuh"\n{PROBE}')
    out = np.full(64, np.nan, np.float32)

    def launch(mode):
        simulator.launch(source, "probe", {}, 1, 64, (np.int32(mode), np.uintp(out.ctypes.data)))
        return out

    return launch


def test_what_threads_wait_for(probe):
    assert (probe(0) == 1).all()
    lanes = np.arange(64, dtype=np.float32)
    expected = lanes // 32 * 32 + 3 + 100 * (np.arange(64) ^ 1)
    assert np.array_equal(probe(1), expected)
    assert np.array_equal(probe(2), lanes)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (3, "a named barrier is 1 to 15"),
        (4, "and others with"),
        (5, "a phase has parity 0 or 1"),
        (6, "cannot expect 0 arrivals"),
        (7, "not in shared memory"),
        (8, "is none of them"),
    ],
)
def test_misuse_is_named(probe, mode, message):
    with pytest.raises(sgemm.KernelError, match=rf"probe\.cu:\d+: block 0 .*{message}"):
        probe(mode)


def test_a_kernel_is_built_again_once_a_file_has_changed(tmp_path, monkeypatch):
    """Otherwise a launch looks at the files' time stamps alone."""
    kernel = tmp_path / "mine.cu"
    header = tmp_path / "factor.cuh"
    text = (Path(sgemm.__file__).parents[1] / "kernels" / "template.cu").read_text()
    kernel.write_text(
        text.replace("static_assert", '#include "factor.cuh"\nstatic_assert', 1).replace(
            "alpha * sum", "FACTOR * alpha * sum"
        )
    )
    header.write_text("#define FACTOR 2\n")
    one = np.ones((3, 3), np.float32)
    built = []
    monkeypatch.setattr(
        launches, "build", lambda *arguments: built.append(1) or build.build(*arguments)
    )

    def product():
        return sgemm.matmul(one, one, version=from_file(kernel))[0, 0]

    time.sleep(1.5 * launches.FRESH_SECONDS)
    assert [product(), product(), product()] == [6, 6, 6]
    assert len(built) == 1
    header.write_text("#define FACTOR 3\n")
    assert product() == 9
    (tmp_path / "another.cuh").write_text("")
    assert product() == 9
    assert len(built) == 3


COMPILERS = [name for name in ("gcc", "clang", "clang++") if shutil.which(name)]


@pytest.mark.parametrize("command", COMPILERS)
def test_other_compilers(command, version, monkeypatch):
    """Those of C too, which link less by themselves."""
    monkeypatch.setenv("CXX", command)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((33, 20), (20, 17)))
    assert (sgemm.matmul(a, b[::-1], version=version) == a @ b[::-1]).all()
    with simulator.checked() as findings:
        assert (sgemm.matmul(a, b[::-1], version=version) == a @ b[::-1]).all()
    assert findings == []


def test_libraries_share_the_stacks(version):
    """Each has a page that nobody may touch: they are too many to have them for every kernel."""
    one = np.ones((3, 3), np.float32)
    sgemm.matmul(one, one, version=version)
    stacks = list(launches._free_stacks)
    sgemm.matmul(one, one, version="v0")
    sgemm.matmul(one, one, version=version)
    assert launches._free_stacks == stacks


FORK = """
import os, signal, sys, threading, time
import numpy as np, sgemm

rng = np.random.default_rng(0)
a, b = (rng.integers(-3, 4, s).astype(np.float32) for s in ((90, 80), (80, 300)))
product = a @ b

def is_right():
    return np.array_equal(sgemm.matmul(a, b, version="v5"), product)

def fork(holds=lambda: True):
    \"\"\"Whether all is well in a child, within a time.\"\"\"
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if holds() and is_right() else 1)
    return os.waitpid(child, 0)[1] == 0

assert is_right()
"""
FORKS = {
    "while a thread launches": """
stopped = threading.Event()
def launch():
    while not stopped.is_set():
        assert is_right()
thread = threading.Thread(target=launch)
thread.start()
well = [fork() for _ in range(30)]
stopped.set()
thread.join()
assert all(well)
""",
    "not before the launch is over": """
large = np.ones((512, 512), np.float32)
out = np.full((512, 512), np.nan, np.float32)
thread = threading.Thread(target=sgemm.matmul, args=(large, large), kwargs={"out": out})
thread.start()
while np.isnan(out).all():
    time.sleep(0.001)
assert np.isnan(out).any(), "it was over too soon to tell"
assert fork(lambda: (out == 512).all())
thread.join()
""",
    "in a launch's own thread": """
well = []
signal.signal(signal.SIGUSR1, lambda number, frame: well.append(fork()))
large = np.ones((300, 300), np.float32)
timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
timer.start()
assert (sgemm.matmul(large, large, version="v5") == 300).all()
timer.join()
assert well == [True]
""",
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
@pytest.mark.parametrize("when", FORKS)
def test_a_process_that_forks(when):
    """Its child lacks the other threads, and so must not have what they had begun."""
    command = [sys.executable, "-W", "ignore", "-c", FORK + FORKS[when]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr


FAILING_REALLOC = """
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
// Fails when a library of the folder that FAILS_FOR names calls it for the first time.
extern "C" void* realloc(void* memory, size_t size) noexcept {
    static auto* next = reinterpret_cast<void* (*)(void*, size_t)>(dlsym(RTLD_NEXT, "realloc"));
    static bool failed;
    Dl_info caller;
    if (!failed && dladdr(__builtin_return_address(0), &caller) && caller.dli_fname &&
        strstr(caller.dli_fname, getenv("FAILS_FOR"))) {
        failed = true;
        return nullptr;
    }
    return next(memory, size);
}
"""


def test_a_launch_that_finds_no_memory_harms_no_later_one(tmp_path):
    library = tmp_path / "realloc.so"
    subprocess.run(
        [*build._compiler()[0], "-shared", "-fPIC", "-x", "c++", "-", "-o", library, "-ldl"],
        input=FAILING_REALLOC,
        text=True,
        check=True,
    )
    script = """
import os
os.environ["LD_PRELOAD"] = ""  # what is started from here is spared
import numpy as np, sgemm
one = np.ones((64, 64), np.float32)
try:
    sgemm.matmul(one, one, version="v4")
except sgemm.KernelError as error:
    assert "no memory left for the asynchronous copies" in str(error), error
else:
    raise AssertionError("nothing failed")
assert (sgemm.matmul(one, one, version="v4") == 64).all()
"""
    environment = {"LD_PRELOAD": str(library), "FAILS_FOR": str(build.cache.folder())}
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_one_thread_can_be_followed_in_gdb(tmp_path):
    script = tmp_path / "multiply.py"
    script.write_text(
        "import numpy as np, sgemm\nfrom sgemm import simulator\n"
        "one = np.ones((40, 40), np.float32)\n"
        "with simulator.checked(): sgemm.matmul(one, one, version='v1')\n"
    )
    line = next(
        number
        for number, text in enumerate(
            (Path(sgemm.__file__).parents[1] / "kernels" / "v1_coalesced.cu")
            .read_text()
            .splitlines(),
            1,
        )
        if "sum = fmaf" in text
    )
    run = subprocess.run(
        [
            "gdb", "-batch", "-nx",
            "-iex", "set auto-load no",
            "-iex", "set breakpoint pending on",
            "-ex", f"break v1_coalesced.cu:{line} if threadIdx.x == 37 && blockIdx.x == 2",
            "-ex", "run",
            "-ex", "print threadIdx.x",
            "-ex", "print blockIdx.x",
            "--args", sys.executable, str(script),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "$1 = 37" in run.stdout, run.stdout + run.stderr
    assert "$2 = 2" in run.stdout
