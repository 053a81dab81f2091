"""What only a GPU has: streams, graphs, devices, other libraries' arrays, large memory."""

import fcntl
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from problems import sharing

import sgemm
from sgemm import residual
from sgemm.source import from_file

pytestmark = pytest.mark.gpu
case = pytest.mark.case
two_gpus = pytest.mark.two_gpus

PLANTED = Path(__file__).parent / "planted_kernels"


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch


class CudaArray:
    """Another library's array: it has ``__cuda_array_interface__`` and nothing else."""

    def __init__(self, array, read_only=False, **changes):
        self._owner = array
        interface = dict(array.__cuda_array_interface__)
        interface["data"] = (interface["data"][0], read_only)
        self.__cuda_array_interface__ = {**interface, **changes}


class DLPackArray:
    """Another library's array: it has DLPack and nothing else."""

    def __init__(self, array):
        self._owner = array
        self.streams = []

    def __dlpack__(self, **options):
        self.streams.append(options["stream"])
        return self._owner.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._owner.__dlpack_device__()


class ProducedArray(DLPackArray):
    """One that its library writes on a stream of its own, for which whoever imports it waits."""

    def __init__(self, array, stream):
        super().__init__(array)
        self._stream = stream

    def __dlpack__(self, **options):
        with self._stream:
            return super().__dlpack__(**options)


def random_matrices(cupy, m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    return cupy.asarray(a), cupy.asarray(b)


def assert_right(c, a, b, **scales):
    result = residual.check(c, a, b, **scales)
    assert result.ok, result.summary


def delay(cupy, stream):
    """Keep the stream busy for about a tenth of a second."""
    with stream:
        busy = cupy.ones((4096, 4096), np.float32)
        for _ in range(40):
            busy = busy @ busy / 4096
    return busy


# --- streams and graphs ---


def test_runs_on_the_current_stream(cupy, version):
    """What the stream still has to write is read after it is written, and what is done on the
    stream next comes after the product; no other stream waits."""
    stream = cupy.cuda.Stream(non_blocking=True)
    a, b = random_matrices(cupy, 300, 200, 100)
    late_a, c = cupy.zeros_like(a), cupy.empty((300, 200), np.float32)

    def work():
        late_a[...] = a
        sgemm.matmul(late_a, b.T.copy().T, out=c, version=version)
        return c.copy()

    work()  # compiled and loaded
    late_a.fill(0)
    cupy.cuda.Device().synchronize()
    busy = delay(cupy, stream)
    with stream:
        copy = work()
        assert not stream.done  # nothing waited for the stream
    stream.synchronize()
    assert_right(copy, a, b)
    del busy


@case("1.44")
def test_memory_freed_after_the_call_is_not_reused_under_it(cupy, version):
    """A goes back to the pool while the stream is still to read it; the default stream then takes
    as much memory and fills it."""
    stream = cupy.cuda.Stream(non_blocking=True)
    a_values, b = random_matrices(cupy, 512, 512, 512)
    sgemm.matmul(a_values[:, ::-1], b, version=version)  # compiled and loaded
    cupy.cuda.Device().synchronize()
    busy = delay(cupy, stream)
    with stream:
        a = a_values.copy()
        c = sgemm.matmul(a[:, ::-1], b, version=version)  # by way of a workspace, freed as well
        del a
    taken = [cupy.full((512, 512), np.nan, np.float32) for _ in range(8)]
    stream.synchronize()
    assert_right(c, a_values[:, ::-1], b)
    del taken, busy


@pytest.mark.parametrize("layout", ["native", "other", "strided"])
def test_a_graph_captures_the_product(cupy, version, layout):
    """Also the workspaces; replayed on other values, it reads them."""
    a, b = random_matrices(cupy, 130, 70, 90)
    out = cupy.empty((130, 70), np.float32)
    if layout == "other":
        b = cupy.asfortranarray(b)
    elif layout == "strided":
        a, b = a[::-1, ::-1], b[:, ::-1]
        out = cupy.empty((260, 140), np.float32)[::2, ::2]
    sgemm.matmul(a, b, out=out, version=version)  # compiled and loaded
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        sgemm.matmul(a, b, out=out, version=version)
        graph = stream.end_capture()
    for seed in (1, 2):
        other_a, other_b = random_matrices(cupy, 130, 70, 90, seed)
        a[...], b[...], out[...] = other_a, other_b, np.nan
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert_right(out, a, b)


def test_a_graph_captures_a_prepared_product(cupy, version):
    """Its workspaces are there before, and its counts are cleared by every replay."""
    a, b = random_matrices(cupy, 130, 70, 900)
    out = cupy.empty((260, 140), np.float32)[::2, ::2]
    with sharing("always"):
        launch = sgemm.prepare(a[::-1, ::-1], b[:, ::-1], out=out, version=version)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    pool = cupy.get_default_memory_pool()
    with stream:
        used = pool.used_bytes()
        stream.begin_capture()
        launch()
        graph = stream.end_capture()
        assert pool.used_bytes() == used
    for seed in (1, 2, 3):
        a[...], b[...] = random_matrices(cupy, 130, 70, 900, seed)
        out.fill(np.nan)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert_right(out, a[::-1, ::-1], b[:, ::-1])


def test_a_graph_captures_arrays_of_other_libraries(cupy, version):
    """Their export orders nothing then: what is captured cannot wait for other streams."""
    a, b = random_matrices(cupy, 30, 20, 10)
    out = cupy.empty((30, 20), np.float32)
    lent = DLPackArray(a), DLPackArray(b), DLPackArray(out)
    sgemm.matmul(*lent[:2], out=lent[2], version=version)  # compiled and loaded
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        sgemm.matmul(*lent[:2], out=lent[2], version=version)
        graph = stream.end_capture()
        out.fill(np.nan)
        graph.launch(stream)
    stream.synchronize()
    assert [array.streams[-1] for array in lent] == [-1] * 3
    assert_right(out, a, b)


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_scale_on_the_gpu_while_capturing(cupy, name):
    """It cannot be read then; the error leaves the capture as it was."""
    a, b = random_matrices(cupy, 30, 20, 10)
    out, two = cupy.zeros((30, 20), np.float32), cupy.asarray(2.0)
    sgemm.matmul(a, b, out=out, alpha=two)  # compiled and loaded
    assert_right(out, a, b, alpha=2.0)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.raises(sgemm.ArgumentError, match=f"^{name}: .*captured.*Python number"):
            sgemm.matmul(a, b, out=out, **{name: two})
        sgemm.matmul(a, b, out=out)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert_right(out, a, b)


def test_a_scale_that_the_stream_still_computes(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    one = cupy.ones((1, 1), np.float32)
    ones = cupy.ones(1000, np.float32)
    cupy.cuda.Device().synchronize()
    busy = delay(cupy, stream)
    with stream:
        c = sgemm.matmul(one, one, alpha=ones.sum())
    stream.synchronize()
    assert c.tolist() == [[1000]]
    del busy


THREADS = """
import sys
import threading

import cupy
import numpy as np

import sgemm

def work(seed):
    try:
        with streams[seed]:
            rng = np.random.default_rng(seed)
            a, b = (rng.integers(-3, 4, shape).astype("f4") for shape in ((65, 67), (67, 66)))
            expected = cupy.asarray(a @ b)
            a, b = cupy.asarray(a), cupy.asarray(b)
            versions = list(sgemm.LADDER)
            for repeat in range(1000):
                c = sgemm.matmul(a, b[:, ::-1], version=versions[repeat % len(versions)])
                assert bool((c[:, ::-1] == expected).all()), (seed, repeat)
    except BaseException as error:
        failures.append(error)

failures = []
if sys.argv[1] == "per thread":
    streams = [cupy.cuda.Stream.ptds] * 4
else:
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failures:
    raise failures[0]
"""


@case("1.43")
@pytest.mark.parametrize("streams", ["own", "per thread"])
def test_four_threads_with_a_stream_each(streams):
    """In a process of its own: the default stream of each thread is a setting of the process."""
    run_child(THREADS, streams, CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=str(int(streams != "own")))


def run_child(script, *arguments, **environment):
    run = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert run.returncode == 0, run.stderr


@case("1.48")
def test_again_and_again_the_same_bits(cupy, version):
    a, b = random_matrices(cupy, 257, 300, 515)
    first = sgemm.matmul(a, b, version=version).tobytes()
    assert all(sgemm.matmul(a, b, version=version).tobytes() == first for _ in range(50))


@case("1.11", "1.12")
@pytest.mark.parametrize("depth", ["1 tile", "2 tiles", "3 tiles", "3 tiles + 1", "4096"])
def test_races_between_steps_of_k(cupy, version, depth):
    """Many blocks in many waves, integers whose sums are exact, again and again."""
    tiles, _, beside = depth.partition(" ")
    k = 4096 if depth == "4096" else int(tiles) * version.tile[2] + ("+" in beside)
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-3, 3, shape, endpoint=True) for shape in ((700, k), (k, 900)))
    expected = cupy.asarray((a @ b).astype(np.float32))
    a, b = cupy.asarray(a, np.float32), cupy.asarray(b, np.float32)
    for _ in range(100 if k == 4096 else 200):
        assert bool((sgemm.matmul(a, b, version=version) == expected).all())


def test_a_warm_call_compiles_nothing(cupy, version, monkeypatch):
    a, b = random_matrices(cupy, 8, 8, 8)
    sgemm.matmul(a, b, version=version)
    monkeypatch.setattr("sgemm.gpu.compile_kernel", None)
    sgemm.matmul(a, b, version=version)


def test_every_version_runs_on_this_device(version):
    """Otherwise the tests above were not what they seem."""
    from sgemm.gpu import Gpu

    cupy = pytest.importorskip("cupy")
    assert Gpu(cupy.cuda.Device()).hardware.runs(version)


@case("1.41")
def test_a_block_that_does_not_fit_an_sm(cupy):
    a, b = random_matrices(cupy, 4, 4, 200)
    with pytest.raises(sgemm.KernelError, match=r"too_many_registers\.cu.*1024.*registers"):
        sgemm.matmul(a, b, version=from_file(PLANTED / "too_many_registers.cu"))
    assert_right(sgemm.matmul(a, b), a, b)  # nothing is broken


# --- devices ---


@case("1.42")
@two_gpus
def test_the_second_device(cupy, version):
    """The arrays' device is used whichever is the current one, which stays as it is."""
    a, b = random_matrices(cupy, 100, 90, 80)
    sgemm.matmul(a, b, version=version)  # loaded on device 0 first
    with cupy.cuda.Device(1):
        a1, b1 = a.copy(), b.T.copy().T
        assert a1.device.id == b1.device.id == 1
    c = sgemm.matmul(a1, b1, version=version)
    assert c.device.id == 1
    assert cupy.cuda.runtime.getDevice() == 0
    with cupy.cuda.Device(1):
        assert_right(c, a1, b1)


@two_gpus
def test_streams_of_the_second_device(cupy, version):
    """The kernel joins the stream that is current there, not the one of the current device."""
    a, b = random_matrices(cupy, 100, 90, 80)
    with cupy.cuda.Device(1):
        a1, b1 = a.copy(), b.copy()
        late_a, stream = cupy.zeros_like(a1), cupy.cuda.Stream(non_blocking=True)
        sgemm.matmul(late_a, b1, version=version)  # compiled and loaded
        cupy.cuda.Device().synchronize()
        busy = delay(cupy, stream)
        with stream:
            late_a[...] = a1
            with cupy.cuda.Device(0):
                c = sgemm.matmul(late_a, b1, alpha=cupy.asarray(2.0), version=version)
        stream.synchronize()
        assert_right(c, a1, b1, alpha=2.0)
    assert cupy.cuda.runtime.getDevice() == 0
    del busy


@case("1.42")
@two_gpus
@pytest.mark.parametrize("name", ["b", "out"])
def test_matrices_on_two_devices(cupy, name):
    matrices = {key: cupy.ones((4, 4), np.float32) for key in ("a", "b", "out")}
    with cupy.cuda.Device(1):
        matrices[name] = cupy.ones((4, 4), np.float32)
    with pytest.raises(sgemm.ArgumentTypeError, match=f"^{name}: .*GPU 1.*GPU 0"):
        sgemm.matmul(**matrices)


# --- other libraries' arrays ---


@case("1.46")
@pytest.mark.parametrize("wrap", [CudaArray, DLPackArray])
def test_arrays_of_other_libraries(cupy, version, wrap):
    a, b = random_matrices(cupy, 33, 44, 55)
    c = sgemm.matmul(wrap(a), wrap(b), version=version)
    assert isinstance(c, cupy.ndarray)
    assert_right(c, a, b)
    out = cupy.zeros((33, 44), np.float32)
    wrapped = wrap(out)
    assert sgemm.matmul(wrap(a), wrap(b), out=wrapped, version=version) is wrapped
    assert_right(out, a, b)
    flipped = sgemm.matmul(wrap(a[::-1]), b, version=version)
    assert_right(flipped, a[::-1], b)


@case("1.45")
@pytest.mark.parametrize("imported", ["by matmul", "before"])
def test_arrays_in_the_making_on_another_stream(cupy, version, imported):
    """An exchange through DLPack makes the current stream wait for the producer's."""
    values, _ = random_matrices(cupy, 256, 256, 256)
    identity, late = cupy.eye(256, dtype=np.float32), cupy.zeros_like(values)
    sgemm.matmul(values, identity, version=version)  # compiled and loaded
    producer, current = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()
    busy = delay(cupy, producer)
    with producer:
        late[...] = values
    with current:
        a = ProducedArray(late, producer)
        a = a if imported == "by matmul" else cupy.from_dlpack(a)
        c = sgemm.matmul(a, identity, version=version)
    assert not producer.done  # the host did not wait
    current.synchronize()
    assert bool((c == values).all())
    del busy


@case("1.46")
@pytest.mark.parametrize(
    ("wrap", "imported"),
    [
        (CudaArray, "by asarray"),
        (DLPackArray, "by from_dlpack"),
        (CudaArray, ""),
        (DLPackArray, ""),
    ],
)
def test_a_temporary_array_is_kept_alive(cupy, version, wrap, imported):
    """By the array that CuPy has made of it, and by matmul until its kernels are launched."""
    a, b = random_matrices(cupy, 512, 512, 512)
    a_values, b_values = a.copy(), b.copy()
    lent = wrap(a)
    if imported:
        lent = getattr(cupy, imported.removeprefix("by "))(lent)
    del a
    gc.collect()
    taken = [cupy.full((512, 512), np.nan, np.float32) for _ in range(8)]
    assert_right(sgemm.matmul(lent, wrap(b.copy()), version=version), a_values, b_values)
    del taken


def test_a_read_only_out(cupy):
    a, b = random_matrices(cupy, 4, 4, 4)
    out = cupy.zeros((4, 4), np.float32)
    with pytest.raises(sgemm.ArgumentError, match=r"^out: .*read-only"):
        sgemm.matmul(a, b, out=CudaArray(out, read_only=True))
    assert not out.any()
    assert_right(sgemm.matmul(CudaArray(a, read_only=True), b), a, b)


@case("1.38")
def test_interfaces_that_are_not_float32_matrices(cupy):
    a, b = random_matrices(cupy, 4, 4, 4)
    for changes in ({"typestr": "<f8"}, {"typestr": ">f4"}, {"typestr": "<i4"}):
        with pytest.raises(sgemm.ArgumentTypeError, match=r"^b: "):
            sgemm.matmul(a, CudaArray(b, **changes))
    with pytest.raises(sgemm.ArgumentError, match=r"^b: .*4 bytes"):
        sgemm.matmul(a, CudaArray(b, shape=(4, 3), strides=(18, 4)))
    address = b.data.ptr + 2
    with pytest.raises(sgemm.ArgumentError, match=r"^b: .*4 bytes"):
        sgemm.matmul(a, CudaArray(b, shape=(4, 3), data=(address, False)))


def test_the_interface_s_stream_is_waited_for_and_waits(cupy, version):
    """The stream that an array of version 3 of the interface names has written it before the
    product, and goes on after it: what it does next to out comes later."""
    a, b = random_matrices(cupy, 256, 256, 256)
    sgemm.matmul(a, b, version=version)  # compiled and loaded
    late_a, out = cupy.zeros_like(a), cupy.empty_like(a)
    owner, current = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    cupy.cuda.Device().synchronize()
    busy = delay(cupy, owner)
    with owner:
        late_a[...] = a
    busy = busy, delay(cupy, current)
    lent = (CudaArray(array, stream=owner.ptr) for array in (late_a, out))
    with current:
        sgemm.matmul(next(lent), b, out=next(lent), version=version)
    with owner:
        copy = out.copy()
    owner.synchronize()
    assert_right(copy, a, b)
    del busy


def test_torch_tensors(torch, cupy, version):
    a = torch.randn(60, 50, device="cuda")
    b = torch.randn(70, 50, device="cuda").T
    c = sgemm.matmul(a, b, version=version)
    assert isinstance(c, cupy.ndarray)
    assert_right(c, cupy.asarray(a), cupy.asarray(b))
    out = torch.empty(60, 70, device="cuda")
    assert sgemm.matmul(a, b, out=out, version=version) is out
    assert_right(cupy.asarray(out), cupy.asarray(a), cupy.asarray(b))
    scale = torch.tensor(2.0, device="cuda")
    sgemm.matmul(a, b, out=out, alpha=scale, beta=torch.tensor(0), version=version)
    assert_right(cupy.asarray(out), cupy.asarray(a), cupy.asarray(b), alpha=2.0)


@case("1.38", "1.47")
def test_torch_tensors_that_are_not_accepted(torch, cupy):
    on_cpu, on_gpu = torch.ones(4, 4), torch.ones(4, 4, device="cuda")
    for name, tensor, mention in (
        ("a", on_cpu, "CuPy array"),
        ("a", on_gpu.clone().requires_grad_(), "grad"),
        ("a", on_gpu.to_sparse(), "not readable"),
        ("a", on_gpu.double(), r"a\.float\(\)"),
        ("a", on_gpu.half(), r"a\.float\(\)"),
        ("a", on_gpu.bfloat16(), "bfloat16"),
    ):
        with pytest.raises(sgemm.ArgumentTypeError, match=f"^{name}: .*{mention}"):
            sgemm.matmul(tensor, on_gpu)
    for scale in (on_gpu[0, 0].clone().requires_grad_(), torch.tensor(1j, device="cuda")):
        with pytest.raises(sgemm.ArgumentTypeError, match=r"^alpha: "):
            sgemm.matmul(on_gpu, on_gpu, alpha=scale)
    assert bool((sgemm.matmul(on_gpu, on_gpu) == 4).all())


@case("1.45")
@pytest.mark.parametrize("imported", ["by matmul", "before"])
def test_torch_tensors_in_the_making_on_another_stream(torch, cupy, version, imported):
    """An exchange through DLPack makes the current stream wait for the producer's."""
    values = torch.randn(256, 256, device="cuda")
    identity = cupy.eye(256, dtype=np.float32)
    sgemm.matmul(values, identity, version=version)  # compiled and loaded
    producer = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        busy = torch.ones(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy / 4096
        a = torch.zeros_like(values)
        a += values
        c = sgemm.matmul(
            a if imported == "by matmul" else cupy.from_dlpack(a), identity, version=version
        )
    assert bool((c == cupy.asarray(values)).all())


def test_torch_goes_on_after_the_product(torch, cupy, version):
    """torch's current stream waits: what it reads from out is the product, and memory of tensors
    that it frees is not written before the kernel has read it."""
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    values = cupy.asarray(a).copy()
    out = torch.zeros(512, 512, device="cuda")
    sgemm.matmul(a, b, out=out, version=version)  # compiled and loaded
    current = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    busy = delay(cupy, current)
    with current:
        sgemm.matmul(a, b, out=out, version=version)
        assert not current.done  # the host did not wait
    copy = out.clone()
    del a
    taken = [torch.full((512, 512), float("nan"), device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    assert_right(cupy.asarray(copy), values, cupy.asarray(b))
    del taken, busy


def test_a_graph_captures_torch_tensors(torch, cupy, version):
    a, b = torch.randn(30, 10, device="cuda"), torch.randn(10, 20, device="cuda")
    out = torch.zeros(30, 20, device="cuda")
    sgemm.matmul(a, b, out=out, version=version)  # compiled and loaded
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        sgemm.matmul(a, b, out=out, version=version)
        graph = stream.end_capture()
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert_right(cupy.asarray(out), cupy.asarray(a), cupy.asarray(b))


@case("1.46")
@pytest.mark.parametrize("wrap", ["from_dlpack", "asarray"])
def test_a_temporary_tensor_is_kept_alive(torch, cupy, version, wrap):
    """By the array that CuPy has made of it, and by matmul until its kernels are launched."""
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    expected = cupy.asarray(a).copy()
    wrapped = getattr(cupy, wrap)(a)
    del a
    gc.collect()
    taken = torch.full((1 << 28,), float("nan"), device="cuda")  # 1 GiB
    assert_right(sgemm.matmul(wrapped, b, version=version), expected, cupy.asarray(b))
    b_values = cupy.asarray(b).copy()
    c = sgemm.matmul(wrapped, torch.clone(b), version=version)
    taken.fill_(0)
    assert_right(c, expected, b_values)


# --- large matrices ---


@pytest.fixture
def memory(cupy):
    """Skips where the GPU has less free memory than asked for, in GB. One test of all processes
    has it at a time."""
    with open(Path(tempfile.gettempdir(), f"sgemm-large-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def memory(gigabytes):
            cupy.get_default_memory_pool().free_all_blocks()
            if cupy.cuda.runtime.memGetInfo()[0] < gigabytes * 1e9:
                pytest.skip(f"needs {gigabytes} GB of free GPU memory")

        yield memory
        cupy.get_default_memory_pool().free_all_blocks()


@case("1.15")
def test_results_past_2_to_the_31_elements(cupy, version, memory):
    memory(12)  # the result, and the comparison with what it must be
    n = 46341
    a = cupy.arange(n, dtype=np.float32)[:, None]
    c = sgemm.matmul(a, cupy.ones((1, n), np.float32), version=version)
    assert bool((c[-1] == n - 1).all())
    assert bool((c == a).all())


@case("1.17")
@pytest.mark.parametrize("name", ["a", "b"])
def test_inputs_past_2_to_the_31_elements(cupy, version, memory, name):
    memory(22)  # the matrix, and its copy in the other layout
    n = 46341
    large, vector = cupy.ones((n, n), np.float32), cupy.ones((n, 1), np.float32)
    a, b = (large, vector) if name == "a" else (vector.T, large)
    assert bool((sgemm.matmul(a, b, version=version) == n).all())


@case("1.30")
@pytest.mark.parametrize(
    "shape", [(4096, 64, 4096), (64, 4096, 4096), (2047, 3001, 1025), (999, 999, 999)]
)
def test_large_shapes(cupy, version, shape):
    a, b = random_matrices(cupy, *shape)
    assert_right(sgemm.matmul(a, b, version=version), a, b)


def test_grids_past_65535_in_one_dimension(cupy, version):
    """Which y and z of a grid could not hold."""
    rows = 65536 * version.tile[0] + 1
    a = cupy.arange(rows, dtype=np.float32)[:, None] % 1024
    one = cupy.ones((1, 1), np.float32)
    assert bool((sgemm.matmul(a, one, version=version) == a).all())
    assert bool((sgemm.matmul(one, a.T, version=version) == a.T).all())


@pytest.mark.parametrize("change", ["zeros", "nothing"])
def test_errors_stay_visible_at_large_sizes(cupy, change):
    a, b = random_matrices(cupy, 2048, 2048, 2048)
    version = from_file(PLANTED / f"writes_{change}.cu")
    out = cupy.full((2048, 2048), np.nan, np.float32)
    sgemm.matmul(a, b, out=out, version=version)
    result = residual.check(out, a, b)
    assert not result.ok
    assert result.wrong > 0.99 * out.size  # a few sums are as near to 0 as the bound
