"""Devices, streams and other libraries' arrays, on two GPUs that ``fake_cupy.py`` plays: what is
launched where, and who waits for whom. What it takes a GPU to know is in ``test_gpu.py``."""

import gc
import sys
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from fake_cupy import LEGACY, CudaError, Device, Function, Stream, fake, freed, pool
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import Place
from problems import multiply, problems

import sgemm
from sgemm import simulator

__all__ = ["fake"]  # the fixture

case = pytest.mark.case


class Lent:
    """Another library's array, by the interfaces that ``wrap`` chooses."""

    def __init__(self, array, stream=None):
        self.array, self.asked_for = array, []
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": stream}


class LentByDLPack:
    def __init__(self, array):
        self.array, self.asked_for = array, []

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream, **options):
        self.asked_for.append(stream)
        return self.array


@pytest.fixture
def integers(fake):
    """Matrices on the current device, and their product."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((33, 20), (20, 17)))
    return fake.asarray(a), fake.asarray(b), a @ b


class MadeUp(Place):
    """The fake GPUs, as a place where problems are computed."""

    def __init__(self, cupy):
        self._cupy = cupy

    @property
    def xp(self):
        return self._cupy

    def order(self, seed):
        return simulator.order(seed)

    def own_stream(self):
        return Stream(non_blocking=True)

    def to_host(self, array):
        return self.xp.asnumpy(array)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_call(fake, version, data):
    """As in ``test_matmul.py``, by what plans and launches for a GPU."""
    product = multiply(data.draw(problems(version)), version, MadeUp(fake))
    result = product.residual()
    assert result.ok, result.summary


def test_the_current_stream_of_the_arrays_device(fake, integers, version):
    a, b, product = integers
    with Stream() as stream:
        c = sgemm.matmul(a[:, ::-1], b[::-1], version=version)
    assert np.array_equal(c, product)
    assert set(Function.launches) == {(0, stream.ptr)}


@case("1.44")
def test_memory_is_that_of_the_stream_that_uses_it(fake, integers, version, monkeypatch):
    """The result's and the workspaces': CuPy's pool gives it to no other stream before."""
    a, b, product = integers
    taken = []

    def spied(take):
        def spy(*arguments):
            taken.append((Device.current, Stream.current().ptr))
            return take(*arguments)

        return spy

    monkeypatch.setattr(fake, "empty", spied(fake.empty))
    monkeypatch.setattr(fake.cuda, "alloc", spied(fake.cuda.alloc))
    with Stream() as stream:
        assert np.array_equal(sgemm.matmul(a[:, ::-1], b[::-1], version=version), product)
    assert len(taken) == len(Function.launches)  # each copy's workspace, and the result
    assert set(taken) == set(Function.launches) == {(0, stream.ptr)}


@case("1.46")
@pytest.mark.parametrize("interface", ["DLPack", "__cuda_array_interface__"])
def test_temporary_arrays_live_until_all_is_launched(
    integers, fake, version, monkeypatch, interface
):
    a, b, product = integers
    alive = []

    def lend(array):
        lent = (LentByDLPack if interface == "DLPack" else Lent)(array)
        owners.append(weakref.ref(lent))
        return lent

    def spy(*arguments):
        gc.collect()
        alive.append([owner() is not None for owner in owners])
        launch(*arguments)

    owners, launch = [], simulator.launch
    monkeypatch.setattr(simulator, "launch", spy)
    c = sgemm.matmul(lend(a[:, ::-1]), lend(b[::-1]), version=version)
    assert np.array_equal(c, product)
    assert alive == [[True, True]] * len(Function.launches)
    assert [owner() for owner in owners] == [None, None]


@case("1.42")
def test_the_other_device(fake, integers, version):
    """The kernel is loaded for each device, and the current one stays as it is."""
    a, b, product = integers
    sgemm.matmul(a, b, version=version)
    with Device(1):
        a, b = fake.array(a), fake.array(b)
        a.number = b.number = 1
    c = sgemm.matmul(a, b, version=version)
    assert np.array_equal(c, product)
    assert c.device.id == 1
    assert Function.launches[-1] == (1, LEGACY)
    assert Device.current == 0


@case("1.42")
@pytest.mark.parametrize("name", ["b", "out"])
def test_matrices_on_two_devices(fake, name):
    matrices = {key: fake.ones((4, 4), np.float32) for key in ("a", "b", "out")}
    matrices[name].number = 1
    with pytest.raises(sgemm.ArgumentTypeError, match=f"^{name}: .*GPU 1.*GPU 0"):
        sgemm.matmul(**matrices)
    assert Function.launches == []


@case("1.47")
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_a_mix_with_numpy(fake, name):
    """Nothing is copied from one to the other."""
    for home, other in ((np, fake), (fake, np)):
        shapes = {"a": (4, 3), "b": (3, 5), "out": (4, 5)}
        matrices = {
            key: (other if key == name else home).ones(shape, np.float32)
            for key, shape in shapes.items()
        }
        with pytest.raises(sgemm.ArgumentTypeError, match=r"(NumPy.*GPU|GPU.*NumPy)") as raised:
            sgemm.matmul(**matrices)
        assert str(raised.value).startswith(f"{'b' if name == 'a' else name}: ")
        assert (matrices["out"] == 1).all()
    assert Function.launches == []


@case("1.45")
def test_dlpack_is_told_the_current_stream(integers, version):
    a, b, product = integers
    lent = LentByDLPack(a)
    sgemm.matmul(lent, b, version=version)
    with Stream() as stream:
        assert np.array_equal(sgemm.matmul(lent, b, version=version), product)
    assert lent.asked_for == [1, stream.ptr]  # 1 is the default stream


def test_the_owner_s_stream_waits(integers, fake):
    a, b, product = integers
    owners, other = Stream(), Stream()
    out = fake.empty((33, 17), np.float32)
    lent = Lent(out, stream=owners.ptr)
    with Stream() as stream:
        assert sgemm.matmul(Lent(a), b, out=lent) is lent
    assert np.array_equal(out, product)
    assert owners.waits_for == [stream.ptr]
    assert other.waits_for == []
    with owners:  # nothing to wait for
        sgemm.matmul(a, b, out=lent)
    assert owners.waits_for == [stream.ptr]


@pytest.mark.parametrize("stream", [1, None])
def test_the_default_stream_has_another_name_in_the_interface(integers, stream):
    a, b, _ = integers
    before = list(Stream.streams[LEGACY].waits_for)
    sgemm.matmul(Lent(a, stream=stream), b)
    assert Stream.streams[LEGACY].waits_for == before
    with Stream() as current:
        sgemm.matmul(Lent(a, stream=stream), b)
    waited = [current.ptr] if stream == 1 else []
    assert Stream.streams[LEGACY].waits_for == before + waited


def test_torch_s_current_stream_waits(integers, fake, monkeypatch):
    """torch is asked for it, if it is loaded: its tensors do not tell."""
    a, b, product = integers
    theirs = Stream()
    torch = ModuleType("torch")
    torch.Tensor = type("Tensor", (LentByDLPack,), {"device": "cuda:0"})
    torch.cuda = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=theirs.ptr)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    with Stream() as stream:
        assert np.array_equal(sgemm.matmul(torch.Tensor(a), torch.Tensor(b)), product)
    assert theirs.waits_for == [stream.ptr]


def test_capture_orders_no_other_stream(integers, version, fake):
    """And takes workspaces that belong to the graph."""
    a, b, product = integers
    owners = Stream()
    out = fake.empty((33, 17), np.float32)
    lent = LentByDLPack(a), Lent(b, stream=owners.ptr), Lent(out[::-1], stream=owners.ptr)
    with Stream() as stream, stream.capture():
        sgemm.matmul(*lent[:2], out=lent[2], version=version)
    assert np.array_equal(out[::-1], product)
    assert lent[0].asked_for == [-1]
    assert owners.waits_for == []


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_scale_on_the_gpu(integers, fake, name):
    a, b, product = integers
    out = fake.zeros((33, 17), np.float32)
    two = fake.asarray(2.0)
    for scale in (two, Lent(two), LentByDLPack(two)):
        sgemm.matmul(a, b, out=out, alpha=1)
        sgemm.matmul(a, b, out=out, **{name: scale})
        assert np.array_equal(out, product * (2 if name == "alpha" else 3))
    with Stream() as stream, stream.capture():
        with pytest.raises(sgemm.ArgumentError, match=f"^{name}: .*captured.*Python number"):
            sgemm.matmul(a, b, out=out, **{name: two})
        sgemm.matmul(a, b, out=out)
    assert np.array_equal(out, product)


@case("1.38")
@pytest.mark.parametrize("dtype", ["f8", "f2", "i4", "c8"])
def test_the_cast_is_the_library_s_own(fake, integers, dtype):
    a, b, _ = integers
    part = r"\.real" if dtype == "c8" else ""
    cast = rf"^a: .*pass a{part}\.astype\('float32'\)$"
    with pytest.raises(sgemm.ArgumentTypeError, match=cast):
        sgemm.matmul(a.astype(dtype), b)
    with pytest.raises(sgemm.ArgumentTypeError, match=rf"^a: .*pass a{part}\.float\(\)$"):
        sgemm.matmul(LentByDLPack(a.astype(dtype)), b)


@case("1.41")
def test_a_block_that_does_not_fit_an_sm(fake, integers, version):
    a, b, _ = integers
    fake.cuda.driver.funcGetAttribute = lambda attribute, function: version.threads - 1
    expected = rf"{version.threads} threads with 32 registers each.* {version.threads - 1} threads"
    with pytest.raises(sgemm.KernelError, match=expected):
        sgemm.matmul(a, b, version=version)
    assert Function.launches == []


@pytest.mark.parametrize(
    "interface", [None, {}, {"data": None}, {"data": (0, False), "stream": None}]
)
def test_an_interface_that_says_little_beside_dlpack(fake, integers, interface):
    """DLPack, which is preferred, says it all."""
    a, b, product = integers
    out = fake.empty((33, 17), np.float32)

    class Lender(LentByDLPack):
        __cuda_array_interface__ = interface

    lent = Lender(out)
    assert sgemm.matmul(Lender(a), Lender(b), out=lent) is lent
    assert np.array_equal(out, product)


@pytest.mark.parametrize("needed", ["result", "workspace"])
def test_no_memory_left(fake, integers, version, monkeypatch, needed):
    """Told in CuPy's words and with the repair, before anything is launched."""
    a, b, product = integers

    def fail(*arguments):
        raise MemoryError("Out of memory allocating 4,096 bytes\n(allocated so far: 1 byte)")

    with monkeypatch.context() as full:
        out = None if needed == "result" else fake.zeros((33, 17), np.float32)
        full.setattr(*(fake, "empty") if needed == "result" else (fake.cuda, "alloc"), fail)
        expected = r"^matmul: no memory left \(Out of memory allocating 4,096 bytes\): [^\n]+$"
        with pytest.raises(sgemm.OutOfMemoryError, match=expected) as raised:
            sgemm.matmul(a[:, ::-1], b[::-1], out=out, version=version)
    assert isinstance(raised.value, MemoryError)
    assert Function.launches == []
    assert np.array_equal(sgemm.matmul(a, b, version=version), product)


def test_a_failing_export_is_named(fake, integers):
    a, b, _ = integers

    class Broken(LentByDLPack):
        def __dlpack__(self, **options):
            raise CudaError("cudaErrorInvalidValue")

    with pytest.raises(sgemm.ArgumentTypeError, match=r"^b: Broken is not readable: cudaErr"):
        sgemm.matmul(a, Broken(b))


@pytest.mark.case("3.4")
@pytest.mark.parametrize(
    ("status", "kind"), [(35, sgemm.MissingError), (700, sgemm.GpuUnusableError)]
)
def test_an_error_of_the_driver_is_not_said_to_be_of_the_array(fake, monkeypatch, status, kind):
    """CuPy meets it when it takes another library's array."""

    class CUDARuntimeError(CudaError):
        def __init__(self):
            super().__init__("CUDA's own text")
            self.status = status

    def refuse(x):
        raise CUDARuntimeError

    monkeypatch.setattr(fake, "asarray", refuse)
    lent = SimpleNamespace(__cuda_array_interface__={"version": 3})
    with pytest.raises(kind, match=f"^matmul: CUDA error {status}, "):
        sgemm.matmul(lent, lent)


@pytest.mark.parametrize(
    "interface",
    [5, "x", {"data": 5}, {"data": (1,)}, {"stream": [1]}, {"stream": -1}, {"stream": 1 << 64}],
)
@pytest.mark.parametrize("name", ["b", "out"])
def test_an_interface_that_is_none_beside_dlpack(fake, integers, name, interface):
    """It is refused before the launch where what is wrong with it counts."""
    a, b, product = integers

    class Lender(LentByDLPack):
        __cuda_array_interface__ = interface

    lent = {"b": b, "out": fake.empty((33, 17), np.float32)}
    lent[name] = Lender(lent[name])
    if name == "b" and interface in ({"data": 5}, {"data": (1,)}):  # it is not written
        assert np.array_equal(sgemm.matmul(a, **lent), product)
        return
    with pytest.raises(sgemm.ArgumentTypeError, match=f"^{name}: Lender is not readable: "):
        sgemm.matmul(a, **lent)
    assert Function.launches == []


def test_a_scale_on_the_other_device(fake, integers):
    """It is read there."""
    a, b, product = integers
    with fake.cuda.Device(1):
        two = fake.array(2, np.float32)
    read_on = []
    get = type(two).get

    class Watched(type(two)):
        def get(self):
            read_on.append(fake.cuda.Device.current)
            return get(self)

    assert np.array_equal(sgemm.matmul(a, b, alpha=two.view(Watched)), 2 * product)
    assert read_on == [1]


def test_a_graph_gives_its_workspaces_back(integers, version):
    """Each launch of it allocates them anew."""
    a, b, product = integers
    with Stream() as stream, stream.capture():
        result = sgemm.matmul(a[:, ::-1], b[::-1], version=version)
    assert np.array_equal(result, product)
    assert pool[stream.ptr]
    assert freed == [memory.ptr for memory in pool[stream.ptr]]
