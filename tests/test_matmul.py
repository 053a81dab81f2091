"""What every version must compute, in the simulator and on a GPU alike."""

import ctypes
import logging
import mmap
import subprocess
import threading
from dataclasses import replace
from itertools import product as every

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matrices import Layout, between_fences
from places import GPU, SIMULATOR
from problems import Problem, extents, layouts, multiply, problems, sharing, windows

import sgemm
from sgemm import LADDER, residual, simulator
from sgemm.kernel_files import kernel_path
from sgemm.recipe import ALIGNED_COPY_MIN_K, ALIGNED_COPY_MIN_M
from sgemm.simulated import SMS, simulated_sms

case = pytest.mark.case


def assert_same_bits(found, expected):
    """Bit for bit the same floats, zeros' signs too; NaN for NaN, whose bits no standard settles:
    a GPU makes one NaN of all, a CPU hands the operand's on. The first differences are named."""
    bits, others = found.view(np.uint32), expected.view(np.uint32)
    differs = (bits != others) & ~(np.isnan(found) & np.isnan(expected))
    examples = [
        f"[{', '.join(map(str, index))}] is {bits[*index]:#010x} ({found[*index]}), "
        f"not {others[*index]:#010x} ({expected[*index]})"
        for index in np.argwhere(differs)[:5].tolist()
    ]
    assert not examples, f"{differs.sum()} of {differs.size} elements differ: {'; '.join(examples)}"


def assert_same(found, expected):
    """Equal, NaN to NaN, with the first difference named."""
    differs = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    assert not differs.any(), (
        f"{int(differs.sum())} of {differs.size} elements differ, the first at "
        f"{np.argwhere(differs)[0].tolist()}: {found[differs][0]}, not {expected[differs][0]}"
    )


@case("1.2", "1.27", "1.30", "1.31", "1.50")
@given(st.data())
def test_every_call(place, version, data):
    """The whole space of arguments: shapes, strides, offsets, orders, scales, with and without out,
    on either stream. Integers small enough for every sum to be exact must come out exactly, as a
    dropped or repeated term among them shows, which the error bound cannot promise; infinities,
    NaNs and overflow must reach the elements that have such a term, and no other."""
    problem = data.draw(problems(version))
    product = multiply(problem, version, place)
    if problem.data == "small integers":
        assert_same(product.c, product.in_integers())
    else:
        result = product.residual()
        assert result.ok, result.summary


@case("1.25")
@given(st.data())
def test_windows_of_one_buffer(place, version, data):
    """A, B and out anywhere in the same memory: the product is right and nothing else is written;
    it is refused if and only if out shares an element with an input or with itself."""
    m, n, k = (data.draw(st.integers(1, 4)) for _ in range(3))
    shapes = {"a": (m, k), "b": (k, n), "out": (m, n)}
    size = 200
    values = np.random.default_rng(0).integers(-9, 9, size).astype(np.float32)
    buffer = place.xp.asarray(values)
    views, places = {}, {}
    for name, (rows, cols) in shapes.items():
        offset, *strides = data.draw(windows(size, rows, cols))
        places[name] = offset + np.add.outer(
            np.arange(rows) * strides[0], np.arange(cols) * strides[1]
        )
        views[name] = place.xp.lib.stride_tricks.as_strided(
            buffer[offset:], (rows, cols), [stride * 4 for stride in strides]
        )
    written = set(places["out"].ravel().tolist())
    read = set(places["a"].ravel().tolist()) | set(places["b"].ravel().tolist())
    expected = values.copy()
    if written & read or len(written) < m * n:
        with pytest.raises(sgemm.ArgumentError, match=r"^out: "):
            sgemm.matmul(**views, version=version)
    else:
        expected[places["out"]] = values[places["a"]] @ values[places["b"]]
        sgemm.matmul(**views, version=version)
    assert_same(place.to_host(buffer), expected)


@given(st.data())
def test_permuted_identity_returns_the_input(place, version, data):
    """Also subnormals and the largest numbers, bit for bit."""
    rows, cols = data.draw(extents(version.tile[2])), data.draw(extents(version.tile[1]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    values = rng.standard_normal((rows, cols)) * 2.0 ** rng.integers(-149, 126, (rows, cols))
    values = place.xp.asarray(values.astype(np.float32))
    order = place.xp.asarray(rng.permutation(rows))
    permuted_identity = place.xp.eye(rows, dtype=np.float32)[order]
    result = sgemm.matmul(permuted_identity, values, version=version)
    assert_same(place.to_host(result), place.to_host(values[order]))
    result = sgemm.matmul(values.T, permuted_identity.T, version=version)
    assert_same(place.to_host(result), place.to_host(values[order].T))


@case("1.11", "1.12", "1.48")
@given(st.data())
def test_results_do_not_depend_on_the_order_of_threads(version, data):
    problem = data.draw(problems(version))
    a, b = (
        np.random.default_rng(problem.seed).standard_normal(shape, np.float32)
        for shape in ((problem.m, problem.k), (problem.k, problem.n))
    )
    results = []
    for seed in (problem.seed, data.draw(st.integers(0, 2**32 - 1))):
        with SIMULATOR.order(seed), sharing(problem.sharing):
            results.append(sgemm.matmul(a, b, version=version))
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.gpu
@given(st.data())
def test_simulator_and_gpu_agree_bit_for_bit(version, data):
    problem = data.draw(problems(version))
    problem = replace(problem, sharing="never")  # which depends on the number of SMs
    on_gpu, simulated = (multiply(problem, version, place).c for place in (GPU, SIMULATOR))
    assert_same_bits(on_gpu, simulated)


def test_bits_that_differ_are_named():
    """Every difference that IEEE settles, with both bit patterns."""
    values = np.array([[0.0, 1.0, np.inf, np.nan, 1e-45]], np.float32)
    another_nan = values.copy()
    another_nan.view(np.uint32)[0, 3] = 0xFFFFFFFF
    assert_same_bits(another_nan, values)
    for column, other in enumerate([-0.0, np.nextafter(np.float32(1), 2), np.nan, 1.0, 0.0]):
        changed = values.copy()
        changed[0, column] = other
        found, expected = (f"{x.view(np.uint32)[0, column]:#010x}" for x in (changed, values))
        named = rf"1 of 5 .*: \[0, {column}\] is {found} .*, not {expected} "
        with pytest.raises(AssertionError, match=named):
            assert_same_bits(changed, values)


@case("1.6", "1.10")
@pytest.mark.parametrize("m_beside", [-1, 0, 1])
def test_shapes_around_the_tiles(place, version, m_beside):
    """Every dimension next to a tile's edge at once, in a slice of a larger buffer."""
    for n_beside, k_beside in every([-1, 0, 1], repeat=2):
        beside = m_beside, n_beside, k_beside
        m, n, k = (max(1, tile + more) for tile, more in zip(version.tile, beside, strict=True))
        product = multiply(Problem(m, n, k, out=Layout(padding=2)), version, place)
        assert product.residual().ok, (m, n, k)


@case("1.12", "1.13", "1.48")
@pytest.mark.parametrize(
    ("tiles", "beside"),
    [(0, 1), (1, -1), (1, 0), (1, 1), (2, 0), (3, 0), (3, 1), (4, 0), (5, -1), (5, 0)],
)
def test_depths_around_the_tiles(place, version, tiles, beside):
    """Fewer steps than there are buffers, as many, and more: again and again the same bits."""
    k = max(1, tiles * version.tile[2] + beside)
    problem = Problem(40, 36, k, data="small integers")
    first = multiply(problem, version, place)
    assert_same(first.c, first.in_integers())
    for seed in range(200 if place is GPU else 5):
        with place.order(seed):
            again = sgemm.matmul(
                place.xp.asarray(first.a), place.xp.asarray(first.b), version=version
            )
        assert place.to_host(again).tobytes() == first.c.tobytes()


@case("1.11")
def test_many_steps_of_k(place, version):
    """Shared memory is used again and again; in the simulator in other orders of the threads."""
    problem = Problem(40, 36, 4096, data="small integers")
    first = multiply(problem, version, place)
    assert_same(first.c, first.in_integers())
    for seed in range(1, 100 if place is GPU else 4):
        again = multiply(replace(problem, seed=seed), version, place)
        assert_same(again.c, again.in_integers())


@pytest.mark.parametrize(
    ("tiles", "sms"),
    [
        *((tiles, SMS) for tiles in [(1, 1, 40), (1, 2, 7), (2, 4, 5), (5, 3, 4)]),
        ((1, 1, 81), 81),  # 8 add up for 8, which add up for 2; one is left over
        ((1, 2, 90), 75),
    ],
)
@pytest.mark.parametrize("beta", [0.0, 3.0])
@pytest.mark.parametrize("name", [name for name, version in LADDER.items() if version.stream_k])
def test_blocks_that_share_tiles(place, name, beta, tiles, sms):
    """Of fewer tiles than there are SMs, of more, and of some that are not shared. A GPU has as
    many SMs as it has, in the simulator there are ``sms``."""
    version = LADDER[name]
    sizes = (count * tile - 3 for count, tile in zip(tiles, version.tile, strict=True))
    problem = Problem(
        *sizes, out=Layout(), alpha=2.0, beta=beta, data="small integers", sharing="always"
    )
    with simulated_sms(sms):
        for seed in range(3):
            product = multiply(replace(problem, seed=seed), version, place)
            assert_same(product.c, product.in_integers())


@case("1.2")
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
def test_tiny_shapes(place, version, k):
    for m in (1, 2, 3, 5, 7):
        for n in (1, 2, 3, 4, 5, 7):
            product = multiply(Problem(m, n, k, out=Layout(padding=1)), version, place)
            assert product.residual().ok, (m, n)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        pytest.param(35, 79, 19, marks=case("1.7")),
        pytest.param(256, 128, 256, marks=case("1.7")),
        pytest.param(128, 256, 256, marks=case("1.7")),
        pytest.param(100, 100, 100, marks=case("1.5")),
        pytest.param(100, 7, 129, marks=case("1.5")),
        pytest.param(16, 16, 8, marks=case("1.6")),
        pytest.param(5, 40, 3, marks=case("1.9")),
        (1, 300, 40),
        (300, 1, 40),
        (3, 2, 4096),
    ],
)
def test_known_troublesome_shapes(place, version, m, n, k):
    """Rectangles, sizes below a tile, and tiles that do not divide the matrix: right, and nothing
    is written past the end of a row, where it would be the start of the next one."""
    product = multiply(Problem(m, n, k, out=Layout(padding=4)), version, place)
    assert product.residual().ok, product.residual().summary
    integers = multiply(Problem(m, n, k, data="small integers"), version, place)
    assert_same(integers.c, integers.in_integers())


@case("1.8")
def test_every_row_and_column_is_written(place, version):
    """1000 is no multiple of a tile. The simulator's K is small: the grid is the same."""
    k = 1000 if place is GPU else 3
    problem = Problem(1000, 1000, k, out=Layout(), data="small integers")
    product = multiply(problem, version, place)  # into a matrix full of NaN
    assert_same(product.c, product.in_integers())


@case("1.30")
@pytest.mark.parametrize("k", [1, 255, 4097, 65536])
def test_long_sums(place, version, k):
    assert multiply(Problem(3, 5, k), version, place).residual().ok
    ones = Problem(3, 5, k, Layout(same_rows=True), Layout(same_cols=True), data="small integers")
    integers = multiply(ones, version, place)
    assert_same(integers.c, integers.in_integers())


@case("1.31")
@pytest.mark.parametrize("k", [64, 1001])
def test_terms_that_cancel(place, version, k):
    """Terms of 1e8 and a result near 0, of which FP32 has few digits right."""
    product = multiply(Problem(33, 7, k, data="cancelling"), version, place)
    result = product.residual()
    assert result.ok, result.summary


@case("1.4", "1.9", "1.50")
@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("b_order", ["C", "F"])
def test_nothing_outside_is_touched(version, b_order, at_end):
    """Matrices that end or begin at memory that cannot be read or written."""
    rng = np.random.default_rng(0)
    for m, n, k in [(33, 33, 33), (128, 128, 128), (100, 7, 129), (5, 40, 3), (17, 19, 259)]:
        shapes = (m, k), (k, n), (m, n)
        a, b, c0 = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
        b = np.asarray(b, order=b_order)
        with (
            between_fences(a, at_end=at_end) as fenced_a,
            between_fences(b, at_end=at_end) as fenced_b,
            between_fences(c0, at_end=at_end) as out,
        ):
            sgemm.matmul(fenced_a, fenced_b, out=out, beta=1.0, version=version)
            assert_same(out, a @ b + c0)


@case("1.1")
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_operands_off_the_16_byte_boundary(place, version, offset):
    everywhere = Layout(offset=offset)
    for k in (64, ALIGNED_COPY_MIN_K):
        for misaligned in ("a", "b", "out"):
            problem = replace(
                Problem(64, 64, k, out=Layout()), **{misaligned: Layout(offset=offset)}
            )
            assert multiply(problem, version, place).residual().ok
        problem = Problem(64, 64, k, everywhere, everywhere, everywhere)
        assert multiply(problem, version, place).residual().ok


@case("1.19", "1.21", "1.22", "1.24")
@given(a=layouts(), b=layouts(), out=layouts(inputs=False))
@example(Layout(row_step=-1), Layout(col_step=-1), Layout(row_step=-1))
@example(Layout(transposed=True), Layout(transposed=True), Layout(transposed=True))
def test_views_are_read_and_written_where_they_point(place, version, a, b, out):
    """Slices, steps, flips and transposes, with beta so that out is also read."""
    problem = Problem(21, 37, 18, a, b, out, beta=1.0, data="small integers")
    product = multiply(problem, version, place)
    assert_same(product.c, product.a @ product.b + product.c0)


@pytest.fixture
def result(place, version):
    """Multiplies, and gives the result as lists."""

    def result(a, b):
        a, b = (place.xp.asarray(x, dtype=np.float32) for x in (a, b))
        return place.to_host(sgemm.matmul(a, b, version=version)).tolist()

    return result


@case("1.19")
def test_views_that_can_be_checked_by_eye(place, result):
    """What ignoring the strides would give is something else."""
    xp = place.xp
    base, identity = xp.arange(12, dtype=np.float32).reshape(3, 4), np.eye(2)
    assert result(base[:, :2], identity) == [[0, 1], [4, 5], [8, 9]]
    assert result(base.T, np.eye(3)) == base.T.tolist()


@case("1.21")
def test_negative_strides_that_can_be_checked_by_eye(place, version, result):
    xp, identity = place.xp, np.eye(2)
    pairs = xp.arange(6, dtype=np.float32).reshape(3, 2)
    assert result(pairs[::-1], identity) == [[4, 5], [2, 3], [0, 1]]
    assert result(pairs[:, ::-1], identity) == [[1, 0], [3, 2], [5, 4]]
    buffer = xp.empty((3, 2), np.float32)
    flipped = buffer[::-1]
    sgemm.matmul(pairs, xp.asarray(identity, dtype=np.float32), out=flipped, version=version)
    assert buffer.tolist() == [[4, 5], [2, 3], [0, 1]]


@case("1.22")
def test_stride_0_that_can_be_checked_by_eye(place, result):
    xp = place.xp
    repeated = xp.broadcast_to(xp.arange(1, 5, dtype=np.float32), (3, 4))
    assert result(repeated, np.ones((4, 1))) == [[10], [10], [10]]
    assert result(np.ones((1, 3)), repeated) == [[3, 6, 9, 12]]
    everywhere_2 = xp.broadcast_to(xp.asarray(2, dtype=np.float32), (5, 5))
    assert result(everywhere_2, everywhere_2) == [[20] * 5] * 5


@pytest.mark.parametrize("layout", [Layout(row_step=5), Layout(col_step=-7), Layout(padding=3)])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 9, 5), (9, 1, 5), (9, 5, 1), (1, 5, 1)])
def test_axes_of_size_1(place, version, m, n, k, layout):
    """Whatever their strides are, nobody walks along them."""
    for transposed in (True, False):
        layout = replace(layout, transposed=transposed)
        problem = Problem(m, n, k, layout, layout, layout, beta=1.0, data="small integers")
        product = multiply(problem, version, place)
        assert_same(product.c, product.in_integers())


@case("1.24")
def test_fortran_order_of_out(place, version):
    a = place.xp.asarray([[0, 1], [2, 3]], dtype=np.float32)
    out = place.xp.empty((2, 2), np.float32, order="F")
    assert sgemm.matmul(a, a, out=out, version=version) is out
    assert out.tolist() == [[2, 3], [6, 11]]
    assert out.flags.f_contiguous


@case("1.27")
@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 128), (129, 130, 131)])
def test_beta_0_never_reads_out(place, version, m, n, k, poison):
    xp = place.xp
    a, b = xp.ones((m, k), np.float32), xp.ones((k, n), np.float32)
    for order in "CF":
        out = xp.full((m, n), poison, np.float32, order=order)
        sgemm.matmul(a, b, out=out, beta=0.0, version=version)
        assert (out == k).all()
        out[1, 2] = np.nan
        sgemm.matmul(a, b, out=out, beta=1.0, version=version)
        assert int(xp.isnan(out).sum()) == 1
        assert bool(xp.isnan(out[1, 2]))


@pytest.mark.parametrize(
    ("alpha", "k"),
    [
        *(pytest.param(alpha, 5, marks=case("1.28")) for alpha in (0.0, 1e-60, -0.0)),
        *(pytest.param(alpha, 0, marks=case("1.35", "1.36")) for alpha in (1.0, 3.0)),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_without_terms_the_result_is_beta_times_out(place, version, alpha, k, order):
    """alpha 0 (also one that rounds to 0) and K 0: A and B are not read, nor C where beta is 0."""
    xp = place.xp
    a = xp.full((33, k), np.nan, np.float32)
    b = xp.full((k, 17), np.inf, np.float32)

    def result(value, beta):
        out = xp.full((33, 17), value, np.float32, order=order)
        sgemm.matmul(a, b, out=out, alpha=alpha, beta=beta, version=version)
        return place.to_host(out)

    assert (result(1.0, 2.0) == 2).all()
    assert (result(3.0, 1.0) == 3).all()
    assert np.isnan(result(np.nan, 1.0)).all()
    assert (result(np.nan, 0.0) == 0).all()
    assert (result(7.0, 0.0) == 0).all()
    new = place.to_host(sgemm.matmul(a, b, alpha=alpha, version=version))
    assert new.shape == (33, 17)
    assert (new == 0).all()


@case("1.37")
@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 5), (3, 0, 5), (0, 0, 5), (0, 3, 0), (0, 0, 0)])
def test_empty_results_launch_nothing(place, version, m, n, k):
    a, b = place.xp.ones((m, k), np.float32), place.xp.ones((k, n), np.float32)
    out = place.xp.empty((m, n), np.float32)
    with place.launches() as launches:
        assert sgemm.matmul(a, b, version=version).shape == (m, n)
        assert sgemm.matmul(a, b, out=out, beta=1.0, version=version) is out
    assert launches == []
    one = place.xp.ones((1, 1), np.float32)
    assert sgemm.matmul(one, one, version=version).tolist() == [[1]]  # no error was left behind


def test_beta_1_without_terms_launches_nothing(place):
    one = place.xp.ones((1, 1), np.float32)
    with place.launches() as launches:
        sgemm.matmul(one, one, out=one.copy(), alpha=0, beta=1)
    assert launches == []


@pytest.mark.parametrize("beside", [0, 1], ids=["whole tiles", "parts of tiles"])
@pytest.mark.parametrize(("alpha", "beta"), [(2, 0), (1, 3), (-2, 1), (3, -2)])
def test_scales(place, version, beside, alpha, beta):
    m, n, k = (tile + beside for tile in version.tile)
    problem = Problem(
        m, n, k, out=Layout(padding=beside), alpha=alpha, beta=beta, data="small integers"
    )
    product = multiply(problem, version, place)
    assert_same(product.c, product.in_integers())


def test_non_finite_alpha_and_beta_follow_the_arithmetic(place, version):
    xp = place.xp
    a = xp.asarray([[1, 0], [-1, 0], [0, 0]], dtype=np.float32)
    b = xp.asarray([[1, 2], [3, 4]], dtype=np.float32)
    result = place.to_host(sgemm.matmul(a, b, alpha=np.inf, version=version))
    assert_same(result, np.array([[np.inf] * 2, [-np.inf] * 2, [np.nan] * 2]))
    assert np.isnan(place.to_host(sgemm.matmul(a, b, alpha=np.nan, version=version))).all()
    out = xp.ones((3, 2), np.float32)
    result = place.to_host(sgemm.matmul(a, b, out=out, beta=-np.inf, version=version))
    assert (result == -np.inf).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_non_finite_values_beside_the_padding(place, version, value):
    """In the last row, column and step of K, next to the zeros that fill the tiles: they reach one
    row or one column of the result, and a zero there makes no NaN of an infinity."""
    m, n, k = (extent + 1 for extent in version.tile)
    for row, col in ((m - 1, None), (None, n - 1)):
        a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
        expected = np.full((m, n), k, np.float32)
        if row is not None:
            a[row, -1] = expected[row, :] = value
        else:
            b[-1, col] = expected[:, col] = value
        result = sgemm.matmul(place.xp.asarray(a), place.xp.asarray(b), version=version)
        assert_same(place.to_host(result), expected)


def test_sums_that_leave_the_range(place, version):
    """Infinite, of the sign of the sum, whichever the scale; and none where the scale is 0."""
    xp = place.xp
    a = xp.asarray([[3e38, 3e38], [-3e38, -3e38], [3e38, -3e38]], dtype=np.float32)
    ones = xp.ones((2, 1), np.float32)
    for alpha in (1.0, 0.25):
        result = place.to_host(sgemm.matmul(a, ones, alpha=alpha, version=version))
        assert_same(result, np.array([[np.inf], [-np.inf], [0]], np.float32))
    assert not sgemm.matmul(a, ones, alpha=0, version=version).any()


def test_multiply_adds_round_once(place, version):
    """(1 + u) * (1 - u) - 1 is -u * u, which is lost if the product is rounded by itself. Both
    terms are in the same slice of K."""
    u = np.float32(2.0**-23)
    a, b = np.zeros((1, version.slices + 1), np.float32), np.zeros((version.slices + 1, 1))
    a[0, [0, -1]], b[[0, -1], 0] = (-1, 1 + u), (1, 1 - u)
    b = b.astype(np.float32)
    result = sgemm.matmul(place.xp.asarray(a), place.xp.asarray(b), version=version)
    assert result.tolist() == [[-(float(u) ** 2)]]


@pytest.mark.parametrize("power", [-127, -135, -149])
def test_subnormals_are_kept(place, version, power):
    """As inputs, as products, as results, and by the copies of a view and the scaling by beta."""
    xp = place.xp
    # CuPy's own kernels flush subnormals to zero, so the values come from NumPy.
    tiny = xp.asarray(np.full((5, 5), 2.0**power, np.float32))
    identity = xp.eye(5, dtype=np.float32)
    expected = np.full((5, 5), 2.0**power, np.float32)
    assert_same(place.to_host(sgemm.matmul(tiny, identity, version=version)), expected)
    assert_same(place.to_host(sgemm.matmul(identity, tiny[::-1, ::-1], version=version)), expected)
    twice = np.full((5, 5), 2.0 ** (power + 1), np.float32)
    out = xp.array(twice)
    sgemm.matmul(tiny, tiny, out=out, beta=0.5, version=version)
    assert_same(place.to_host(out), expected)
    out = xp.array(twice)
    sgemm.matmul(tiny, tiny, out=out, alpha=0, beta=0.5, version=version)
    assert_same(place.to_host(out), expected)
    left, right = (
        xp.asarray(np.eye(5, dtype=np.float32) * np.float32(2.0**half))
        for half in (-100, power + 100)
    )
    assert_same(place.to_host(sgemm.matmul(left, right, version=version)), expected * np.eye(5))


@given(st.data())
def test_float4_is_used_exactly_where_it_may_be(place, version, data):
    """The float4 path runs if and only if the version has one and the addresses and leading
    dimensions of A and B, as the kernel is given them, allow it."""
    with place.launches() as launches:
        multiply(data.draw(problems(version, scales=st.just(1.0))), version, place)
    for launch in launches:
        if launch.entry == "sgemm":
            _m, _n, _k, _alpha, a, lda, b, ldb, *_ = map(int, launch.args)
            misaligned = b % 16 or ldb % 4
            if not version.a_by_floats:
                misaligned |= a % 16 or lda % 4
            assert launch.defines["VECTOR"] == int(version.float4 and not misaligned)


@case("1.1")
@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("beside", range(5))
@pytest.mark.parametrize("of", ["address", "rows"])
def test_float4_needs_16_bytes(place, version, name, beside, of):
    """Of the operand's address and between its rows."""
    offset, gap = (beside, 0) if of == "address" else (0, beside)
    xp = place.xp
    matrix = xp.ones(8 * (8 + gap) + offset, np.float32)[offset:].reshape(8, 8 + gap)[:, :8]
    matrices = {"a": xp.ones((8, 8), np.float32), "b": xp.ones((8, 8), np.float32), name: matrix}
    if version.b_layout == "column":
        matrices["b"] = matrices["b"].T
    with place.launches() as launches:
        sgemm.matmul(**matrices, version=version)
    (launch,) = launches
    allowed = beside % 4 == 0 or (name == "a" and version.a_by_floats)
    assert launch.defines["VECTOR"] == (version.float4 and allowed)


def test_float4_reads_a_single_row_wherever_the_next_one_would_be(place, version):
    row = place.xp.ones((2, 9), np.float32)[:1, :8]
    other = place.xp.ones((8, 8), np.float32)
    with place.launches() as launches:
        sgemm.matmul(row, other if version.b_layout == "row" else other.T, version=version)
    (launch,) = launches
    assert launch.defines["VECTOR"] == version.float4


@pytest.mark.parametrize("misaligned", ["a", "b"])
def test_a_large_product_is_worth_an_aligned_copy(place, version, misaligned):
    """From some K on a misaligned operand is copied, so that the float4 path can run; where that
    path copies A float by float as well, B is from some M on."""
    sizes = [(8, 8, ALIGNED_COPY_MIN_K - 4), (8, 8, ALIGNED_COPY_MIN_K)]
    if version.a_by_floats:
        sizes = [(ALIGNED_COPY_MIN_M - 1, 8, 8), (ALIGNED_COPY_MIN_M, 8, 8)]
    layouts = {"a": Layout(), "b": Layout(transposed=version.b_layout == "column")}
    layouts[misaligned] = replace(layouts[misaligned], offset=1)
    with place.launches() as launches:
        for size in sizes:
            assert multiply(Problem(*size, **layouts), version, place).residual().ok
    expected = [("sgemm", 0), ("copy_strided", None), ("sgemm", 1)]
    if not version.float4:
        expected = [("sgemm", 0), ("sgemm", 0)]
    elif version.a_by_floats and misaligned == "a":
        expected = [("sgemm", 1), ("sgemm", 1)]
    assert [(launch.entry, launch.defines.get("VECTOR")) for launch in launches] == expected


def test_aligned_operands_run_one_kernel(place, version):
    """B is taken as it is in the layout that the version reads, and in the other through a copy."""
    a, b = place.xp.ones((8, 12), np.float32), place.xp.ones((12, 16), np.float32)
    native, other = b, place.xp.asfortranarray(b)
    if version.b_layout == "column":
        native, other = other, native
    with place.launches() as launches:
        sgemm.matmul(a, native, version=version)
    assert [launch.entry for launch in launches] == ["sgemm"]
    assert launches[0].defines["VECTOR"] == int(version.float4)
    with place.launches() as launches:
        sgemm.matmul(a, other, version=version)
    assert [launch.entry for launch in launches] == ["copy_strided", "sgemm"]


@pytest.mark.parametrize("lengthened", ["rows", "none"])
def test_views_that_the_kernels_take_are_not_copied(place, version, lengthened):
    """Slices of larger matrices, flipped rows and single rows; in C's order and in Fortran's."""
    gap = 4 if lengthened == "rows" else 0
    big_a, big_b, big_c = (
        place.xp.ones((2 * rows, cols + gap), np.float32)
        for rows, cols in ((8, 12), (12, 16), (8, 16))
    )
    a, b, out = big_a[:8, :12], big_b[:12, :16], big_c[:8, :16]
    native_b = b if version.b_layout == "row" else place.xp.asfortranarray(b)
    calls = [(a, native_b, out), (a[::-1], native_b, out[::-2]), (a[:1], native_b, out[-1:])]
    if version.b_layout == "row":  # the product of the transposes is the same one
        calls.append((b.T, a.T, out.T))
    for a, b, out in calls:
        rows = min(len(a), len(out))
        with place.launches() as launches:
            sgemm.matmul(a[:rows], b, out=out[:rows], beta=2.0, version=version)
        assert [launch.entry for launch in launches] == ["sgemm"]


def test_the_log_says_what_was_done(place, version, caplog):
    a, b = place.xp.ones((8, 12), np.float32), place.xp.ones((24, 16), np.float32)[::2]
    with caplog.at_level(logging.DEBUG, "sgemm"), place.launches() as launches:
        sgemm.matmul(a[:, ::-1], b, version=version)
    assert [record.name for record in caplog.records] == ["sgemm"] * len(caplog.records)
    messages = [record.getMessage() for record in caplog.records]
    assert f"8x16x12 on {'GPU 0' if place is GPU else 'the simulator'}" in messages[0]
    assert f"with {version.name}" in messages[0]
    copied = [message for message in messages if "is copied" in message]
    assert copied[0].startswith("a is copied: ")
    assert len(copied) == (1 if version.b_layout == "row" else 2)
    assert sum("blocks of" in message for message in messages) == len(launches)
    assert f"{version.source}: {version.tiles(8, 16)} blocks of" in messages[-1]


def test_without_a_version_the_result_is_right(place):
    a, b = (place.xp.asarray(np.eye(9, dtype=np.float32) * x) for x in (2, 3))
    assert_same(place.to_host(sgemm.matmul(a, b)), 6 * np.eye(9))


@pytest.mark.parametrize("name", LADDER)
def test_a_version_goes_by_its_name(place, name):
    a = place.xp.eye(3, dtype=np.float32)
    with place.launches() as launches:
        sgemm.matmul(a, a, version=name)
    expected = LADDER[name].defines(vector=False)
    assert {macro: launches[-1].defines[macro] for macro in expected} == expected


@pytest.mark.parametrize("scalar", [2, np.float64(2), np.int8(2), np.float32(2), np.array(2), True])
def test_kinds_of_alpha(place, scalar):
    a = place.xp.eye(3, dtype=np.float32)
    assert sgemm.matmul(a, a, alpha=scalar)[1, 1] == float(scalar)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "?"])
def test_scales_that_live_where_the_matrices_do(place, dtype):
    """Arrays without dimensions, such as what a reduction returns."""
    one = place.xp.ones((1, 1), np.float32)
    scalar = place.xp.ones(3, dtype).max()
    assert sgemm.matmul(one, one, out=one.copy(), alpha=scalar, beta=scalar).tolist() == [[2]]


@case("1.25")
def test_out_may_interleave_with_an_input(place, version):
    """Disjoint views of one buffer share no element."""
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    buffer = place.xp.asarray(values)
    a, out = buffer[:, ::2], buffer[:, 1::2]
    sgemm.matmul(a, place.xp.eye(4, dtype=np.float32), out=out, version=version)
    result = place.to_host(buffer)
    assert_same(result[:, ::2], values[:, ::2])
    assert_same(result[:, 1::2], values[:, ::2])


def test_one_matrix_may_be_both_inputs(place, version):
    a = np.random.default_rng(0).standard_normal((20, 20), np.float32)
    on_place = place.xp.asarray(a)
    for b in (on_place, on_place.T):
        result = place.to_host(sgemm.matmul(on_place, b, version=version))
        assert residual.check(result, a, place.to_host(b)).ok


MAP_NORESERVE = 0x4000  # which Python's mmap has no name for


@case("1.43")
def test_four_threads_at_once(version):
    """Each with its own matrices, in the simulator."""
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((33, 20), (20, 17)))
        try:
            for _ in range(20):
                assert_same(sgemm.matmul(a, b[::-1], version=version), a @ b[::-1])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


FLUSH_SUBNORMALS = r"""
#ifdef __x86_64__
#include <xmmintrin.h>
extern "C" void flush_subnormals() { _mm_setcsr(_mm_getcsr() | 0x8040); } // FTZ and DAZ
#else
extern "C" void flush_subnormals() {
    unsigned long long mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    asm volatile("msr fpcr, %0" ::"r"(mode | 1 << 24));
}
#endif
"""


def test_subnormals_are_kept_in_a_thread_that_flushes_them(version, tmp_path):
    """As code that was compiled with -ffast-math makes the thread do that loads it; and as the
    thread wants it, it stays."""
    library = tmp_path / "flush.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=FLUSH_SUBNORMALS, text=True, check=True)
    bits = np.arange(1, 36, dtype=np.uint32).reshape(5, 7)
    outs = [np.full((5, 7), 2, np.uint32) for _ in range(2)]
    flushed = []

    def work():
        tiny, identity = bits.view(np.float32), np.eye(7, dtype=np.float32)
        ctypes.CDLL(str(library)).flush_subnormals()
        flushed.append((tiny * np.float32(1)).any())
        for alpha, out in zip((1, 0), outs, strict=True):
            scaled = out.view(np.float32)
            sgemm.matmul(tiny, identity, out=scaled, alpha=alpha, beta=0.5, version=version)
        flushed.append((tiny * np.float32(1)).any())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert flushed == [False, False]
    assert (outs[0] == bits + 1).all()
    assert (outs[1] == 1).all()


@case("1.15", "1.17")
@pytest.mark.parametrize("stride", [2**29 - 1, 2**29 + 4, 2**31 + 4, 2**31 + 5])
def test_offsets_past_2_to_the_31(version, stride):
    """Rows of A, B and out lie 2**31 bytes or elements apart, in memory that is reserved only."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    buffers = [np.frombuffer(mmap.mmap(-1, 8 * stride, flags), np.float32) for _ in range(3)]
    a, b, out = (buffer.reshape(2, -1)[:, :3] for buffer in buffers)
    a[...] = [[1, 2, 3], [4, 5, 6]]
    b[...] = [[1, 0, 2], [0, 1, 3]]
    sgemm.matmul(a[:, :2], b, out=out, version=version)
    assert out.tolist() == [[1, 2, 8], [4, 5, 23]]


def far_apart(rows, pitch):
    """A matrix of three columns whose rows lie that many floats apart, in memory that is reserved
    only."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = np.frombuffer(mmap.mmap(-1, 4 * rows * pitch, flags), np.float32)
    return memory.reshape(rows, pitch)[:, :3]


@case("1.15", "1.17")
def test_products_of_strides_past_2_to_the_31(version):
    """Each row is near the one before, and the last ones lie 2**31 elements behind the first; of
    shared tiles the last block begins there."""
    rows, pitch = 330, 2**23 + 4
    large, out = far_apart(rows, pitch), far_apart(rows, pitch)
    rng = np.random.default_rng(0)
    large[...] = rng.integers(-3, 4, large.shape)
    few = rng.integers(-3, 4, (3, rows)).astype(np.float32)
    sgemm.matmul(large, few[:, :3], out=out, version=version)
    assert_same(out, large @ few[:, :3])
    for when in ("never", "always"):
        with sharing(when):
            assert_same(sgemm.matmul(few, large, version=version), few @ large)
    assert_same(sgemm.matmul(few, large[:, ::-1], version=version), few @ large[:, ::-1])
    assert_same(sgemm.matmul(few[:, :3].T, large.T, version=version), few[:, :3].T @ large.T)


@case("1.15", "1.17")
def test_copies_of_strides_past_2_to_the_31(version):
    """Of views that no version takes: of rows that run backwards, and of their transposes."""
    rows, pitch = 300, 2**23 + 4
    backwards, out = (far_apart(rows, pitch)[:, ::-1] for _ in range(2))
    rng = np.random.default_rng(0)
    backwards[...] = rng.integers(-3, 4, backwards.shape)
    few = rng.integers(-3, 4, (3, rows)).astype(np.float32)
    tall = few.T.copy()
    assert_same(sgemm.matmul(few, backwards, version=version), few @ backwards)
    assert_same(sgemm.matmul(backwards.T, tall, version=version), backwards.T @ tall)
    sgemm.matmul(tall, few[:, :3], out=out, version=version)
    assert_same(out, tall @ few[:, :3])
    sgemm.matmul(few[:, :3], few, out=out.T, version=version)
    assert_same(out.T, few[:, :3] @ few)


@case("1.15")
def test_a_step_along_k_past_2_to_the_31(version):
    """The second tile's rows of B lie that far behind the first one's."""
    _, _, step = version.tile
    k = step + 1
    b = far_apart(k, 2**31 // step + 4)
    b[...] = np.random.default_rng(0).integers(-3, 4, b.shape)
    a = np.ones((2, k), np.float32)
    assert_same(sgemm.matmul(a, b, version=version), a @ b)


@case("1.15", "1.17")
def test_scaling_of_strides_past_2_to_the_31():
    out = far_apart(300, 2**23 + 4)
    values = np.random.default_rng(0).integers(-3, 4, out.shape).astype(np.float32)
    for view in (out, out.T):
        out[...] = values
        rows, cols = view.shape
        a, b = np.empty((rows, 0), np.float32), np.empty((0, cols), np.float32)
        sgemm.matmul(a, b, out=view, beta=2)
        assert_same(out, 2 * values)


def test_scaling_counts_in_64_bits():
    """The elements of a matrix that has 2**32, of which one block scales the first."""
    c = np.ones(256, np.float32)
    rows = cols = 2**16
    arguments = (np.int32(rows), np.int32(cols), np.float32(3))
    place = np.uintp(c.ctypes.data), np.int64(cols), np.int64(1)
    simulator.launch(
        kernel_path("scale.cu"), "scale", {"THREADS": 256}, 1, 256, (*arguments, *place)
    )
    assert (c == 3).all()
