"""``prepare``: a product that is checked and planned once and launched many times."""

import copy
import pickle
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from fake_cupy import Function, Memory, Stream, fake, pool
from problems import sharing

import sgemm
from sgemm import gpu, multiply

__all__ = ["fake"]  # the fixture

M, N, K = 35, 79, 70
LAYOUTS = {
    "as they are": lambda matrix: matrix,
    "flipped": lambda matrix: matrix[::-1, ::-1],
    "Fortran's": lambda matrix: matrix.T,
}


@pytest.fixture
def values():
    """Of A and B, small integers."""
    rng = np.random.default_rng(0)

    def values():
        return tuple(rng.integers(-3, 4, s).astype(np.float32) for s in ((M, K), (K, N)))

    return values


@pytest.fixture
def integers(fake, values):
    """Matrices on the fake GPU, and their product."""
    a, b = values()
    return fake.asarray(a), fake.asarray(b), a @ b


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("when", ["never", "always"])
def test_every_launch_computes_anew(place, version, values, layout, when):
    """With what is in A, B and C by then; blocks that share tiles count from 0 again."""
    view = LAYOUTS[layout]
    transposed = layout == "Fortran's"
    a, b, out = (
        view(place.xp.zeros(shape[::-1] if transposed else shape, np.float32))
        for shape in ((M, K), (K, N), (M, N))
    )
    with sharing(when):
        launch = sgemm.prepare(a, b, out=out, alpha=2, beta=-1, version=version)
    expected = np.zeros((M, N), np.float32)
    for _ in range(3):
        a_values, b_values = values()
        a[...], b[...] = place.xp.asarray(a_values), place.xp.asarray(b_values)
        expected = 2 * a_values @ b_values - expected
        assert launch() is out
        assert np.array_equal(place.to_host(out), expected)


def test_the_result_is_one_array(place, version, values):
    a, b = map(place.xp.asarray, values())
    launch = sgemm.prepare(a, b, version=version)
    first = launch()
    assert launch() is first is launch.out
    assert np.array_equal(place.to_host(first), place.to_host(a) @ place.to_host(b))


@pytest.mark.parametrize(("alpha", "beta", "factor"), [(0, 3, 27), (0, 1, 1), (0, 0, 0)])
def test_products_without_terms(place, alpha, beta, factor):
    one = place.xp.ones((1, 1), np.float32)
    out = one.copy()
    launch = sgemm.prepare(one, one, out=out, alpha=alpha, beta=beta)
    for _ in range(3):
        launch()
    assert out.tolist() == [[factor]]


def test_nothing_is_launched_before_it_is_called(place, version):
    a = place.xp.eye(9, dtype=np.float32)
    out = place.xp.zeros((9, 9), np.float32)
    with place.launches() as launches:
        launch = sgemm.prepare(a[:, ::-1], a, out=out, version=version)
        assert launches == []
        launch()
        once = len(launches)
        launch()
    assert len(launches) == 2 * once > 0


def test_what_matmul_refuses_is_refused(place):
    a = place.xp.ones((4, 3), np.float32)
    with pytest.raises(sgemm.ArgumentError, match=r"^b: has 4 rows where a has 3 columns"):
        sgemm.prepare(a, a)
    with pytest.raises(sgemm.ArgumentError, match=r"^out: overlaps a"):
        sgemm.prepare(a[:3], a[:3], out=a[:3])


def test_nothing_is_decided_again(monkeypatch, integers):
    a, b, product = integers
    launch = sgemm.prepare(a[:, ::-1], b[::-1])
    for name in ("locate", "_decide", "_multiply"):
        monkeypatch.delattr(multiply, name)
    monkeypatch.delattr(gpu, "compile_kernel")
    assert np.array_equal(launch(), product)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied(place, duplicate):
    """A copy would write to the addresses of the original's matrices."""
    one = place.xp.ones((1, 1), np.float32)
    launch = sgemm.prepare(one, one)
    with pytest.raises(sgemm.ArgumentTypeError, match=r"call sgemm\.prepare anew$"):
        duplicate(launch)
    assert launch().tolist() == [[1.0]]


def test_it_keeps_its_matrices(fake):
    a, b = fake.eye(8, dtype=np.float32), fake.eye(8, dtype=np.float32)
    kept = weakref.ref(a), weakref.ref(b)
    launch = sgemm.prepare(a, b)
    del a, b
    assert all(matrix() is not None for matrix in kept)
    assert np.array_equal(launch(), np.eye(8))
    del launch
    assert not any(matrix() is not None for matrix in kept)


def test_it_keeps_its_workspaces_and_gives_them_back(integers, fake, version, monkeypatch):
    a, b, _ = integers
    taken = []

    def spy(size):
        memory = Memory(size)
        taken.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(fake.cuda, "alloc", spy)
    launch = sgemm.prepare(a[:, ::-1], b[:, ::-1], version=version)
    workspaces = len(taken)
    for _ in range(3):
        launch()
    assert len(taken) == workspaces > 0
    assert all(memory() for memory in taken)
    del launch
    assert not any(memory() for memory in taken)


def test_the_stream_that_is_current_by_then(integers, version):
    a, b, product = integers
    with sharing("always"):
        launch = sgemm.prepare(a[:, ::-1], b[::-1], version=version)
    Function.launches.clear()
    for stream in (Stream(), Stream()):
        with stream:
            assert np.array_equal(launch(), product)
        assert set(Function.launches) == {(0, stream.ptr)}
        Function.launches.clear()


def test_counts_are_cleared_on_the_current_stream(integers, fake, monkeypatch):
    a, b, _ = integers
    cleared = []
    memset = fake.cuda.runtime.memsetAsync
    monkeypatch.setattr(
        fake.cuda.runtime, "memsetAsync", lambda *args: (cleared.append(args[-1]), memset(*args))
    )
    with sharing("always"):
        launch = sgemm.prepare(a, b, version="v7")
    streams = [Stream(), Stream()]
    for stream in streams:
        with stream:
            launch()
    assert cleared == [stream.ptr for stream in streams]


@pytest.mark.parametrize("prepared", ["before", "in it"])
def test_a_capture_takes_no_memory(integers, version, prepared):
    """The workspaces are not the graph's, and stay when it is gone."""
    a, b, product = integers

    def prepare():
        with sharing("always"):
            return sgemm.prepare(a[:, ::-1], b[::-1], version=version)

    launch = prepare()
    with Stream() as stream, stream.capture():
        launch = launch if prepared == "before" else prepare()
        launch()
    assert stream.ptr not in pool
    assert np.array_equal(launch.out, product)


def test_the_owner_s_stream_waits_for_every_launch(integers, fake):
    a, b, product = integers
    owners = Stream()
    lent = SimpleNamespace(
        __cuda_array_interface__={**a.__cuda_array_interface__, "stream": owners.ptr}
    )
    launch = sgemm.prepare(lent, b)
    with Stream() as stream:
        for _ in range(2):
            assert np.array_equal(launch(), product)
    assert owners.waits_for == [stream.ptr] * 2


def test_a_launch_that_fails_is_explained(integers, fake, monkeypatch):
    a, b, _ = integers
    with sharing("always"):
        launch = sgemm.prepare(a, b, version="v7")
    CUDARuntimeError = type("CUDARuntimeError", (RuntimeError,), {"status": 700})  # noqa: N806

    def fail(*arguments):
        raise CUDARuntimeError("cudaErrorIllegalAddress")

    monkeypatch.setattr(fake.cuda.runtime, "memsetAsync", fail)
    with pytest.raises(sgemm.GpuUnusableError, match=r"^matmul: CUDA error 700"):
        launch()
