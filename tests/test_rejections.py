"""What is not accepted: a clear error that names the argument, and nothing is launched."""

import ctypes
import os
import re
import shutil
from array import array
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest
from places import SIMULATOR

import sgemm
from sgemm import LADDER
from sgemm.simulated import Simulated
from sgemm.simulator import build

case = pytest.mark.case

# CuPy has no such arrays; those of other libraries on a GPU are tested with them.
numpy_only = pytest.mark.parametrize("place", [SIMULATOR], ids=["simulator"])


@pytest.fixture
def rejects(place):
    """Asserts that matmul refuses the arguments, naming one, before anything runs: with every
    version unless one is given."""

    def rejects(error, named, *mentions, a=None, b=None, **arguments):
        a = place.xp.ones((4, 3), np.float32) if a is None else a
        b = place.xp.ones((3, 5), np.float32) if b is None else b
        versions = [arguments.pop("version")] if "version" in arguments else [None, *LADDER]
        for version in versions:
            with place.launches() as launches, pytest.raises(error) as caught:
                sgemm.matmul(a, b, version=version, **arguments)
            assert launches == []
            assert isinstance(caught.value, sgemm.SgemmError)
            message = str(caught.value)
            assert message.startswith(f"{named}: "), message
            for mention in mentions:
                assert str(mention) in message, message

    return rejects


@case("1.38")
@pytest.mark.parametrize("dtype", ["f8", "f2", "i4", "i8", "u1", "c8", "c16", "?"])
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_dtypes(place, rejects, name, dtype):
    shape = {"a": (4, 3), "b": (3, 5), "out": (4, 5)}[name]
    wrong = place.xp.zeros(shape, np.dtype(dtype))
    part = ".real" if wrong.dtype.kind == "c" else ""
    cast = f"pass {name}{part}.astype('float32')"
    remedy = "none and take what is returned" if name == "out" else cast
    rejects(TypeError, name, wrong.dtype, remedy, **{name: wrong})


@numpy_only
@pytest.mark.parametrize("dtype", [">f4", "S4", "O"])
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_dtypes_of_numpy_alone(place, rejects, name, dtype):
    test_dtypes(place, rejects, name, dtype)


@numpy_only
def test_a_structured_dtype(place, rejects):
    records = np.zeros((4, 3), [("x", "f4"), ("y", "f4")])
    rejects(TypeError, "a", "pass a['x'].astype('float32')", a=records)


@pytest.mark.parametrize("depth", [2, 4])
def test_depths_that_do_not_match(place, rejects, depth):
    rejects(ValueError, "b", 3, depth, b=place.xp.ones((depth, 5), np.float32))


def test_depth_0_against_another(place, rejects):
    rejects(ValueError, "b", 3, 0, a=place.xp.ones((4, 0), np.float32))


@pytest.mark.parametrize("shape", [(), (3,), (1, 4, 3)])
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_numbers_of_dimensions(place, rejects, name, shape):
    passed = {0: "[None, None]", 1: "[:, None] or ", 3: " one by one"}[len(shape)]
    rejects(ValueError, name, len(shape), passed, **{name: place.xp.ones(shape, np.float32)})


@pytest.mark.parametrize("shape", [(5, 4), (4, 4), (1, 5), (0, 5)])
def test_shapes_of_out(place, rejects, shape):
    rejects(ValueError, "out", shape, (4, 5), out=place.xp.ones(shape, np.float32))


class CpuTensor:
    """What torch answers for a tensor in host memory."""

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("Can't get __cuda_array_interface__ on non-CUDA tensor type")

    def __dlpack_device__(self):
        return 1, 0

    def __array__(self, *_arguments, **_options):
        raise AssertionError("converted without being asked to")


@case("1.47")
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param([[1.0, 2.0, 3.0]] * 4, id="list"),
        pytest.param(CpuTensor(), id="CPU tensor"),
        pytest.param(((1.0, 2.0, 3.0),) * 4, id="tuple"),
        pytest.param(2.0, id="number"),
        pytest.param(memoryview(np.ones((4, 3), np.float32)), id="memoryview"),
        pytest.param(np.float32(2), id="NumPy scalar"),
        pytest.param("text", id="text"),
    ],
)
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_what_is_no_array(place, rejects, name, wrong):
    rejects(TypeError, name, type(wrong).__name__, "NumPy", **{name: wrong})


@pytest.mark.parametrize("name", ["a", "b"])
def test_none_as_an_operand(name):
    with pytest.raises(TypeError, match=f"^{name}: "):
        sgemm.matmul(**{"a": np.ones((4, 3), "f4"), "b": np.ones((3, 5), "f4"), name: None})


@numpy_only
@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_masked_arrays(rejects, place, name):
    shape = {"a": (4, 3), "b": (3, 5), "out": (4, 5)}[name]
    rejects(TypeError, name, "mask", **{name: np.ma.ones(shape, dtype=np.float32)})


@numpy_only
def test_proxies_of_arrays(rejects, place):
    """They pass isinstance(), and have no memory of their own."""
    for proxy in (Mock(spec=np.ndarray), MagicMock(spec=np.ndarray)):
        assert isinstance(proxy, np.ndarray)
        rejects(TypeError, "a", "Mock is not ", a=proxy)


class Misleading(np.ndarray):
    """Says of itself what does not hold of its memory."""

    shape = property(lambda self: (7, 7, 7))
    strides = property(lambda self: (0, 0))
    ndim = property(lambda self: 1)

    @property
    def __array_interface__(self):
        raise RuntimeError("not to be asked")


def test_subclasses_are_taken_for_the_memory_that_they_have():
    values = np.arange(12, dtype=np.float32)
    a, b, out = (values.reshape(shape).copy() for shape in ((3, 4), (4, 3), (3, 4)))
    expected = a @ b
    lent = out[:, :3].view(Misleading)
    assert sgemm.matmul(a.view(Misleading), b.view(Misleading), out=lent) is lent
    assert (out[:, :3] == expected).all()
    matrix = a.view(np.matrix)
    assert type(sgemm.matmul(matrix, b)) is np.ndarray
    assert (sgemm.matmul(matrix, b) == expected).all()


@numpy_only
def test_read_only_out(place, rejects):
    out = np.ones((4, 5), np.float32)
    out.flags.writeable = False
    rejects(ValueError, "out", "read-only", out=out)
    assert (out == 1).all()
    read_only = np.broadcast_to(np.float32(1), (4, 3))  # inputs may be
    assert (sgemm.matmul(read_only, np.ones((3, 5), np.float32)) == 3).all()


@case("1.22")
def test_out_that_repeats_elements(place, rejects):
    xp = place.xp
    strides = {"row": (0, 4), "column": (4, 0), "both": (0, 0), "overlapping rows": (8, 4)}
    for row, column in strides.values():
        buffer = xp.ones(40, np.float32)
        out = xp.lib.stride_tricks.as_strided(buffer, (4, 5), (row, column))
        rejects(ValueError, "out", out=out)
        assert bool((buffer == 1).all())


@case("1.25")
def test_out_that_is_an_input(place, rejects):
    """At a size where a product in place would be wrong for sure."""
    a, b = (place.xp.ones((999, 999), np.float32) for _ in range(2))
    rejects(ValueError, "out", a=a, b=b, out=a)
    rejects(ValueError, "out", a=a, b=b, out=b)
    rejects(ValueError, "out", a=a, b=a, out=a)
    assert bool((a == 1).all())
    assert bool((b == 1).all())


@case("1.25")
def test_out_that_overlaps_an_input(place, rejects):
    xp = place.xp
    square = xp.ones((4, 4), np.float32)
    rejects(ValueError, "out", "a", a=square, b=xp.ones((4, 4), np.float32), out=square)
    rejects(ValueError, "out", "b", a=xp.ones((4, 4), np.float32), b=square, out=square)
    rejects(ValueError, "out", a=square, b=square, out=square)
    rejects(ValueError, "out", "a", a=square, b=square.copy(), out=square.T)
    rejects(ValueError, "out", "a", a=square, b=square.copy(), out=square[::-1, ::-1])
    buffer = xp.ones(32, np.float32)
    first, shifted = buffer[:16].reshape(4, 4), buffer[15:31].reshape(4, 4)
    rejects(ValueError, "out", "a", a=first, b=square, out=shifted)
    rejects(ValueError, "out", "b", a=square, b=shifted, out=first, beta=1.0)
    assert bool((buffer == 1).all())


def test_beta_without_out(rejects):
    rejects(ValueError, "beta", "out", beta=1.0)
    rejects(ValueError, "beta", "out", beta=float("nan"))


class TooLargeToConvert:
    """Raises what an int beyond float64 does, and compares with nothing."""

    def __float__(self):
        raise OverflowError


class WithoutDtype:
    @property
    def dtype(self):
        raise RuntimeError("closed")

    def __float__(self):
        return 1.0


class WithoutDimensions(WithoutDtype):
    @property
    def ndim(self):
        raise RuntimeError("closed")


class WithAnArrayOfDimensions(WithoutDtype):
    ndim = np.zeros(2)


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize(
    "wrong",
    [
        *(1j, "1", b"1", bytearray(b"1"), None, [1.0], object()),
        *(np.ones(1), np.ones((200, 200)), np.complex64(1), np.ma.masked, np.timedelta64(1, "ns")),
        *(np.array("1"), np.array(b"1"), np.array("1", dtype=object), np.array(1j, dtype=object)),
        *(TooLargeToConvert(), WithoutDtype(), Decimal("sNaN")),
        *(WithoutDimensions(), WithAnArrayOfDimensions()),
        *(array("B", b"12"), memoryview(b"12"), ctypes.c_char(b"2")),  # of which float() makes 12
    ],
)
def test_alpha_and_beta_that_are_no_numbers(place, rejects, name, wrong):
    """Said on one line, whatever they look like."""
    out = place.xp.ones((4, 5), np.float32)
    rejects(TypeError, name, "expected a real number", out=out, **{name: wrong})
    with pytest.raises(TypeError, match=r"^[^\n]{,90}$"):
        sgemm.matmul(out, out.T, **{name: wrong})


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_scales_in_the_place_that_are_no_numbers(place, rejects, name):
    xp = place.xp
    for wrong in (xp.asarray(1j), xp.ones(1, np.float32), xp.ones((1, 1), np.float32)):
        rejects(TypeError, name, out=xp.ones((4, 5), np.float32), **{name: wrong})


@pytest.mark.parametrize("number", [Fraction(1, 2), Decimal("0.5")])
def test_other_real_numbers_are_numbers(place, number):
    one = place.xp.ones((1, 1), np.float32)
    assert sgemm.matmul(one, one, alpha=number).tolist() == [[0.5]]


@pytest.mark.parametrize("wrong", ["v", "V0", "v00", "", "cublas"])
def test_unknown_versions(rejects, wrong):
    rejects(ValueError, "version", repr(wrong), *LADDER, version=wrong)


@pytest.mark.parametrize("wrong", [0, 1.0, b"v0", ["v0"]])
def test_versions_of_the_wrong_type(rejects, wrong):
    rejects(TypeError, "version", type(wrong).__name__, version=wrong)


@case("1.15")
def test_grids_that_are_too_large(place, version, rejects):
    """Stride 0 gives the shape without the memory; the result would take exabytes."""
    xp = place.xp
    one = xp.ones((1, 1), np.float32)
    largest = 2**31 - 1
    a, b = xp.broadcast_to(one, (largest, 1)), xp.broadcast_to(one, (1, largest))
    rejects(ValueError, "version", version.name, largest, a=a, b=b, version=version)
    tile_m, tile_n, _ = version.tile
    a, b = xp.broadcast_to(one, (2**20 * tile_m, 1)), xp.broadcast_to(one, (1, 2**11 * tile_n))
    rejects(ValueError, "version", 2**31, largest, a=a, b=b, version=version)


@pytest.mark.parametrize("name", ["a", "b"])
def test_dimensions_past_int32(place, rejects, name):
    xp = place.xp
    one, too_large = xp.ones((1, 1), np.float32), 2**31
    a = xp.broadcast_to(one, (too_large, 1) if name == "a" else (1, 1))
    b = xp.broadcast_to(one, (1, too_large) if name == "b" else (1, 1))
    rejects(ValueError, name, too_large, a=a, b=b)


@numpy_only
def test_addresses_and_strides_that_are_no_floats(rejects, place):
    raw = np.zeros(100, np.uint8)
    raw = raw[-raw.ctypes.data % 4 :]
    for beside in (1, 2, 3):
        beside_a_float = raw[beside : beside + 48].view(np.float32).reshape(4, 3)
        rejects(ValueError, "a", "4 bytes", a=beside_a_float)
    record = np.zeros((4, 3), np.dtype([("value", "f4"), ("tag", "u1")]))
    rejects(ValueError, "a", "4 bytes", a=record["value"])


@case("1.47")
@pytest.mark.parametrize("error", [KeyError, RuntimeError, NotImplementedError])
def test_arrays_that_cannot_be_exported(rejects, error):
    """As torch answers for a tensor of a type that other libraries do not know, or one that
    requires gradients."""

    class Tensor:
        @property
        def __cuda_array_interface__(self):
            raise error("float8\nin many lines")

    rejects(TypeError, "a", "Tensor is not readable: ", "float8", a=Tensor())
    rejects(TypeError, "alpha", "Tensor", "float8", alpha=Tensor())
    with pytest.raises(TypeError, match=r"^[^\n]+$"):
        sgemm.matmul(Tensor(), Tensor())


@pytest.mark.parametrize("version", [None, "v0"])
def test_a_place_that_runs_no_version(monkeypatch, rejects, place, version):
    class TooOld:
        name, versions = "a GPU", ()

        def runs(self, version):
            return False

    hardware = property(lambda place: TooOld(), lambda place, found: None)
    monkeypatch.setattr(place.backend, "hardware", hardware, raising=False)
    rejects(ValueError, "version", "compute capability 7.5", version=version)


def test_products_too_large_to_simulate(monkeypatch):
    """Estimated before anything is compiled or allocated; the way to allow it is in the message."""
    one = np.ones((1, 1), np.float32)
    a, b = np.broadcast_to(one, (30000, 30000)), np.broadcast_to(one, (30000, 30000))
    with pytest.raises(sgemm.SimulatorLimitError, match="SGEMM_SIMULATOR_LIMIT=") as caught:
        sgemm.matmul(a, b)
    assert isinstance(caught.value, ValueError)
    assert re.search(r"\d+ s\b", str(caught.value))
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", "1e-9")
    with pytest.raises(sgemm.SimulatorLimitError):
        sgemm.matmul(one, one)


@pytest.mark.parametrize("size", [1, 10, 100, 300, 1300, 10_000])
@pytest.mark.parametrize("limit", ["0", "1e-9"])
def test_the_way_to_allow_a_product_allows_it(monkeypatch, size, limit):
    """And is as large as it need be, not more."""
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", limit)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(sgemm.SimulatorLimitError) as caught:
        sgemm.matmul(np.broadcast_to(one, (size, size)), np.broadcast_to(one, (size, size)))
    told = r"about (\S+) s for .* SGEMM_SIMULATOR_LIMIT=(\S+) to"
    seconds, enough = re.search(told, str(caught.value)).groups()
    assert 0 < float(seconds) < float(enough) < 3 * float(seconds)
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", enough)
    Simulated().check_work(size, size, size)


def test_a_product_that_is_not_computed_takes_no_time(monkeypatch):
    """Alpha is 0, and the result not too large."""
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", "1e-3")
    one, most = np.ones((1, 1), np.float32), 2**31 - 1
    a, b = np.broadcast_to(one, (3, most)), np.broadcast_to(one, (most, 3))
    assert (sgemm.matmul(a, b, alpha=0) == 0).all()


def test_a_result_past_all_addresses(monkeypatch):
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", "inf")
    most = 2**31 - 1
    a, b = np.empty((most, 0), np.float32), np.empty((0, most), np.float32)
    with pytest.raises(sgemm.OutOfMemoryError, match=r"^matmul: no memory left"):
        sgemm.matmul(a, b)


@pytest.mark.parametrize(("depth", "alpha"), [(0, 1.0), (3, 0.0)])
def test_results_too_large_to_simulate(depth, alpha):
    """Without a product, too: every output is written."""
    one, most = np.ones((1, 1), np.float32), 2**31 - 1
    a, b = np.broadcast_to(one[:, :depth], (most, depth)), np.broadcast_to(one, (depth, most))
    with pytest.raises(sgemm.SimulatorLimitError, match="SGEMM_SIMULATOR_LIMIT="):
        sgemm.matmul(a, b, alpha=alpha)


@pytest.mark.parametrize("limit", ["soon", "nan", "-1", " "])
def test_limits_that_are_no_numbers(monkeypatch, limit):
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", limit)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(sgemm.ArgumentError, match=f"^SGEMM_SIMULATOR_LIMIT: '{limit}'"):
        sgemm.matmul(one, one)


@pytest.mark.parametrize("limit", ["", "inf"])
def test_limits_that_are_numbers(monkeypatch, limit):
    monkeypatch.setenv("SGEMM_SIMULATOR_LIMIT", limit)
    one = np.ones((1, 1), np.float32)
    assert sgemm.matmul(one, one).tolist() == [[1.0]]


@pytest.mark.parametrize("command", ["no-such-compiler", "g++ 'unfinished"])
def test_compilers_that_are_none(monkeypatch, command):
    monkeypatch.setenv("CXX", command)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(sgemm.MissingError, match=f"^CXX={re.escape(command)} is no C"):
        sgemm.matmul(one, one)


SLOW_COMPILER = '#!/bin/sh\nsleep 10\nexec c++ "$@"\n'


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "program",
    ["\x7fELF no program", "#!/no/such/interpreter\n", SLOW_COMPILER, "#!/bin/cat\n"],
    ids=["of another machine", "without interpreter", "that hangs", "that is another program"],
)
def test_a_program_that_is_no_compiler(monkeypatch, tmp_path, program):
    """Is told where CXX names it; the first on PATH that is one is taken."""
    monkeypatch.setattr(build, "COMPILER_SECONDS", 3)
    wrong = executable(tmp_path / "g++", program)
    one = np.ones((1, 1), np.float32)
    monkeypatch.setenv("CXX", str(wrong))
    with pytest.raises(sgemm.MissingError, match=f"^CXX={re.escape(str(wrong))} is no C"):
        build.find_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert shutil.which("c++")
    assert not build.find_compiler().startswith(str(wrong))
    assert sgemm.matmul(one, one).tolist() == [[1.0]]


def test_a_machine_without_proc(monkeypatch):
    """Has a CPU of which nothing is known."""
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=FileNotFoundError))
    assert build._cpu_flags.__wrapped__() == ()


def test_a_compiler_that_writes_nothing(monkeypatch, tmp_path):
    pretender = tmp_path / "pretender"
    pretender.write_text("#!/bin/sh\necho 'pretender 1.0'\n")
    pretender.chmod(0o755)
    monkeypatch.setenv("CXX", str(pretender))
    monkeypatch.setenv("SGEMM_CACHE_DIR", str(tmp_path / "cache"))
    one = np.ones((1, 1), np.float32)
    with pytest.raises(sgemm.CompileError, match="wrote no library"):
        sgemm.matmul(one, one)


@case("1.47")
@pytest.mark.gpu
def test_a_mix_of_numpy_and_cupy():
    cupy = pytest.importorskip("cupy")
    arrays = {"a": (4, 3), "b": (3, 5), "out": (4, 5)}
    for one in ("b", "out"):
        for home, other in ((np, cupy), (cupy, np)):
            arguments = {
                name: (other if name == one else home).ones(shape, np.float32)
                for name, shape in arrays.items()
            }
            with pytest.raises(sgemm.ArgumentTypeError, match=f"^{one}: .*(NumPy.*GPU|GPU.*NumPy)"):
                sgemm.matmul(**arguments)


class SaysThatItCanBeWritten(np.ndarray):
    @property
    def flags(self):
        return SimpleNamespace(writeable=True)


@numpy_only
def test_what_a_subclass_says_of_itself_does_not_count(place, rejects):
    out = np.zeros((4, 5), np.float32)
    out.flags.writeable = False
    rejects(ValueError, "out", "is read-only", out=out.view(SaysThatItCanBeWritten))


@numpy_only
@pytest.mark.parametrize("shape", [(4, 0), (0, 4)])
def test_strides_of_what_has_no_elements_do_not_matter(place, shape):
    rows, depth = shape
    empty = np.zeros((4, 5), [("x", "f4"), ("t", "u1")])["x"][:rows, :depth]
    a, b = (empty, empty.T) if rows else (empty, np.ones((depth, 2), np.float32))
    assert (sgemm.matmul(a, b) == np.zeros((a.shape[0], b.shape[1]))).all()


def test_the_result_of_a_prepared_product_cannot_be_exchanged(place):
    one = place.xp.ones((1, 1), np.float32)
    prepared = sgemm.prepare(one, one)
    with pytest.raises(AttributeError):
        prepared.out = one
