"""What only a GPU has: streams, graphs, devices, other libraries' arrays, large memory."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import sgemm
from sgemm import LADDER, residual
from sgemm.source import from_file

pytestmark = pytest.mark.gpu

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


@pytest.fixture
def two_devices(cupy):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")


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

    def __dlpack__(self, **options):
        return self._owner.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._owner.__dlpack_device__()


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


def test_memory_freed_after_the_call_is_not_reused_under_it(cupy):
    """A goes back to the pool while the stream is still to read it; the default stream then takes
    as much memory and fills it."""
    stream = cupy.cuda.Stream(non_blocking=True)
    a_values, b = random_matrices(cupy, 512, 512, 512)
    sgemm.matmul(a_values[::-1], b)  # compiled and loaded
    cupy.cuda.Device().synchronize()
    busy = delay(cupy, stream)
    with stream:
        a = a_values.copy()
        c = sgemm.matmul(a[::-1], b)  # by way of a workspace, which is freed as well
        del a
    taken = [cupy.full((512, 512), np.nan, np.float32) for _ in range(8)]
    stream.synchronize()
    assert_right(c, a_values[::-1], b)
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


def test_four_threads_with_a_stream_each(cupy):
    failures = []

    def work(seed):
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                a, b = random_matrices(cupy, 65, 66, 67, seed)
                names = list(LADDER)
                for repeat in range(250):
                    c = sgemm.matmul(a, b.T.copy().T, version=names[repeat % len(names)])
                    stream.synchronize()
                    assert_right(c, a, b)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_again_and_again_the_same_bits(cupy, version):
    a, b = random_matrices(cupy, 257, 300, 515)
    first = sgemm.matmul(a, b, version=version).tobytes()
    assert all(sgemm.matmul(a, b, version=version).tobytes() == first for _ in range(50))


@pytest.mark.parametrize("k", [16, 64, 128, 129, 4096])
def test_races_between_steps_of_k(cupy, version, k):
    """Many blocks in many waves, integers whose sums are exact, a hundred times."""
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-3, 3, shape, endpoint=True) for shape in ((700, k), (k, 900)))
    expected = cupy.asarray((a @ b).astype(np.float32))
    a, b = cupy.asarray(a, np.float32), cupy.asarray(b, np.float32)
    for _ in range(100):
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
    assert Gpu(cupy.cuda.Device()).runs(version)


def test_a_block_that_does_not_fit_an_sm(cupy):
    a, b = random_matrices(cupy, 4, 4, 200)
    with pytest.raises(sgemm.KernelError, match=r"too_many_registers\.cu.*1024.*registers"):
        sgemm.matmul(a, b, version=from_file(PLANTED / "too_many_registers.cu"))
    assert_right(sgemm.matmul(a, b), a, b)  # nothing is broken


# --- devices ---


def test_the_second_device(cupy, two_devices, version):
    """The arrays' device is used whichever is the current one, which stays as it is."""
    a, b = random_matrices(cupy, 100, 90, 80)
    sgemm.matmul(a, b, version=version)  # loaded on device 0 first
    with cupy.cuda.Device(1):
        a1, b1 = a.copy(), b.copy()
        assert a1.device.id == 1
    c = sgemm.matmul(a1, b1.T.copy().T, version=version)
    assert c.device.id == 1
    assert cupy.cuda.runtime.getDevice() == 0
    with cupy.cuda.Device(1):
        assert_right(c, a1, b1)


@pytest.mark.parametrize("name", ["b", "out"])
def test_matrices_on_two_devices(cupy, two_devices, name):
    matrices = {key: cupy.ones((4, 4), np.float32) for key in ("a", "b", "out")}
    with cupy.cuda.Device(1):
        matrices[name] = cupy.ones((4, 4), np.float32)
    with pytest.raises(sgemm.ArgumentTypeError, match=f"^{name}: .*GPU 1.*GPU 0"):
        sgemm.matmul(**matrices)


# --- other libraries' arrays ---


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


def test_a_read_only_out(cupy):
    a, b = random_matrices(cupy, 4, 4, 4)
    out = cupy.zeros((4, 4), np.float32)
    with pytest.raises(sgemm.ArgumentError, match=r"^out: .*read-only"):
        sgemm.matmul(a, b, out=CudaArray(out, read_only=True))
    assert not out.any()
    assert_right(sgemm.matmul(CudaArray(a, read_only=True), b), a, b)


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


def test_torch_tensors(torch, cupy, version):
    a = torch.randn(60, 50, device="cuda")
    b = torch.randn(70, 50, device="cuda").T
    c = sgemm.matmul(a, b, version=version)
    assert isinstance(c, cupy.ndarray)
    assert_right(c, cupy.asarray(a), cupy.asarray(b))
    out = torch.empty(60, 70, device="cuda")
    assert sgemm.matmul(a, b, out=out, version=version) is out
    assert_right(cupy.asarray(out), cupy.asarray(a), cupy.asarray(b))


def test_torch_tensors_that_are_not_accepted(torch, cupy):
    on_cpu, on_gpu = torch.ones(4, 4), torch.ones(4, 4, device="cuda")
    for name, tensor in (
        ("a", on_cpu),
        ("a", on_gpu.clone().requires_grad_()),
        ("a", on_gpu.to_sparse()),
        ("a", on_gpu.double()),
        ("a", on_gpu.bfloat16()),
    ):
        with pytest.raises(sgemm.ArgumentTypeError, match=f"^{name}: "):
            sgemm.matmul(tensor, on_gpu)
    assert bool((sgemm.matmul(on_gpu, on_gpu) == 4).all())


def test_torch_tensors_in_the_making_on_another_stream(torch, cupy):
    """An exchange through DLPack makes the current stream wait for the producer's."""
    values = torch.randn(256, 256, device="cuda")
    producer = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(producer):
        busy = torch.ones(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy / 4096
        a = torch.zeros_like(values)
        a += values
        c = sgemm.matmul(a, cupy.eye(256, dtype=np.float32))
    assert bool((c == cupy.asarray(values)).all())


def test_a_temporary_tensor_is_kept_alive(torch, cupy):
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    expected = cupy.asarray(a).copy()
    wrapped = cupy.from_dlpack(a)
    del a
    gc.collect()
    taken = torch.full((1 << 26,), float("nan"), device="cuda")
    assert_right(sgemm.matmul(wrapped, b), expected, cupy.asarray(b))
    del taken


# --- large matrices ---


@pytest.fixture
def memory(cupy):
    """Skips where the GPU has less free memory than asked for, in GB."""

    def memory(gigabytes):
        cupy.get_default_memory_pool().free_all_blocks()
        if cupy.cuda.runtime.memGetInfo()[0] < gigabytes * 1e9:
            pytest.skip(f"needs {gigabytes} GB of free GPU memory")

    yield memory
    cupy.get_default_memory_pool().free_all_blocks()


def test_results_past_2_to_the_31_elements(cupy, version, memory):
    memory(10)
    n = 46341
    a = cupy.arange(n, dtype=np.float32)[:, None]
    c = sgemm.matmul(a, cupy.ones((1, n), np.float32), version=version)
    assert bool((c == a).all())


@pytest.mark.parametrize("name", ["a", "b"])
def test_inputs_past_2_to_the_31_elements(cupy, version, memory, name):
    memory(22)  # the matrix, and its copy in the other layout
    n = 46341
    large, vector = cupy.ones((n, n), np.float32), cupy.ones((n, 1), np.float32)
    a, b = (large, vector) if name == "a" else (vector.T, large)
    assert bool((sgemm.matmul(a, b, version=version) == n).all())


@pytest.mark.parametrize("shape", [(4096, 64, 4096), (64, 4096, 4096), (2047, 3001, 1025)])
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
