"""What every version must compute, in the simulator and on a GPU alike."""

import mmap
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matrices import Layout
from places import GPU, SIMULATOR
from problems import Problem, extents, layouts, multiply, problems

import sgemm
from sgemm import LADDER, residual
from sgemm.multiply import ALIGNED_COPY_MIN_K

SMALL_INTEGERS = st.integers(-2, 2).map(float)


def assert_same(found, expected):
    """Equal, NaN to NaN, with the first difference named."""
    differs = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    assert not differs.any(), (
        f"{int(differs.sum())} of {differs.size} elements differ, the first at "
        f"{np.argwhere(differs)[0].tolist()}: {found[differs][0]}, not {expected[differs][0]}"
    )


@given(st.data())
def test_error_is_within_the_bound(place, version, data):
    product = multiply(data.draw(problems(version)), version, place)
    result = product.residual()
    assert result.ok, result.summary


@given(st.data())
def test_small_integers_are_exact(place, version, data):
    """Every sum is exact in FP32 (K * 3 * 3 is far below 2**24), so a single dropped or repeated
    term shows, which the error bound cannot promise."""
    drawn = problems(version, data=st.just("small integers"), scales=SMALL_INTEGERS)
    product = multiply(data.draw(drawn), version, place)
    expected = product.alpha * (product.a.astype(int) @ product.b.astype(int))
    if product.beta:
        expected = expected + product.beta * product.c0
    assert_same(product.c, expected)


@given(st.data())
def test_non_finite_values_reach_exactly_their_elements(place, version, data):
    """Infinities, NaNs and overflow: in every element that has such a term, and in no other."""
    drawn = problems(version, data=st.just("extreme"))
    product = multiply(data.draw(drawn), version, place)
    result = product.residual()
    assert result.ok, result.summary


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


@given(st.data())
def test_results_do_not_depend_on_the_order_of_threads(version, data):
    problem = data.draw(problems(version))
    a, b = (
        np.random.default_rng(problem.seed).standard_normal(shape, np.float32)
        for shape in ((problem.m, problem.k), (problem.k, problem.n))
    )
    results = []
    for seed in (problem.seed, data.draw(st.integers(0, 2**32 - 1))):
        with SIMULATOR.order(seed):
            results.append(sgemm.matmul(a, b, version=version))
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.gpu
@given(st.data())
def test_simulator_and_gpu_agree_bit_for_bit(version, data):
    problem = data.draw(problems(version))
    on_gpu, simulated = (multiply(problem, version, place).c for place in (GPU, SIMULATOR))
    assert_same(on_gpu.view(np.uint32), simulated.view(np.uint32))


@given(st.data())
def test_shapes_around_the_tiles(place, version, data):
    """Every dimension next to a tile's edge at once, in a slice of a larger buffer."""
    beside = st.sampled_from([-1, 0, 1])
    m, n, k = (max(1, tile + data.draw(beside)) for tile in version.tile)
    product = multiply(Problem(m, n, k, out=Layout(padding=2)), version, place)
    assert product.residual().ok


@pytest.mark.parametrize(("tiles", "beside"), [(1, -1), (1, 0), (2, 0), (3, 0), (3, 1)])
def test_depths_around_the_tiles(place, version, tiles, beside):
    """Fewer steps than there are buffers, as many, and more: again and again the same bits."""
    k = max(1, tiles * version.tile[2] + beside)
    problem = Problem(40, 36, k, data="small integers")
    first = multiply(problem, version, place)
    assert_same(first.c, first.a @ first.b)
    for seed in range(5):
        with place.order(seed):
            again = sgemm.matmul(
                place.xp.asarray(first.a), place.xp.asarray(first.b), version=version
            )
        assert place.to_host(again).tobytes() == first.c.tobytes()


@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
def test_tiny_shapes(place, version, k):
    for m in (1, 2, 3, 5, 7):
        for n in (1, 2, 3, 4, 5, 7):
            product = multiply(Problem(m, n, k, out=Layout(padding=1)), version, place)
            assert product.residual().ok, (m, n)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (35, 79, 19),
        (256, 128, 256),
        (128, 256, 64),
        (100, 100, 100),
        (100, 7, 129),
        (16, 16, 8),
        (5, 40, 3),
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
    assert_same(integers.c, integers.a @ integers.b)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_operands_off_the_16_byte_boundary(place, version, offset):
    for misaligned in ("a", "b", "out"):
        problem = replace(Problem(64, 64, 64, out=Layout()), **{misaligned: Layout(offset=offset)})
        assert multiply(problem, version, place).residual().ok
    everywhere = Layout(offset=offset)
    problem = Problem(64, 64, 64, everywhere, everywhere, everywhere)
    assert multiply(problem, version, place).residual().ok


@given(a=layouts(), b=layouts(), out=layouts())
@example(Layout(row_step=-1), Layout(col_step=-1), Layout(row_step=-1))
@example(Layout(transposed=True), Layout(transposed=True), Layout(transposed=True))
def test_views_are_read_and_written_where_they_point(place, version, a, b, out):
    """Slices, steps, flips and transposes, with beta so that out is also read."""
    problem = Problem(21, 37, 18, a, b, out, beta=1.0, data="small integers")
    product = multiply(problem, version, place)
    assert_same(product.c, product.a @ product.b + product.c0)


def test_examples_of_views(place, version):
    """Small enough to check by eye: what ignoring the strides would give is something else."""
    xp = place.xp

    def result(a, b):
        a, b = (xp.asarray(x, dtype=np.float32) for x in (a, b))
        return place.to_host(sgemm.matmul(a, b, version=version)).tolist()

    base, identity = xp.arange(12, dtype=np.float32).reshape(3, 4), np.eye(2)
    assert result(base[:, :2], identity) == [[0, 1], [4, 5], [8, 9]]
    assert result(base.T, np.eye(3)) == base.T.tolist()
    pairs = xp.arange(6, dtype=np.float32).reshape(3, 2)
    assert result(pairs[::-1], identity) == [[4, 5], [2, 3], [0, 1]]
    assert result(pairs[:, ::-1], identity) == [[1, 0], [3, 2], [5, 4]]
    repeated = xp.broadcast_to(xp.arange(1, 5, dtype=np.float32), (3, 4))
    assert result(repeated, np.ones((4, 1))) == [[10], [10], [10]]
    assert result(np.ones((1, 3)), repeated) == [[3, 6, 9, 12]]
    everywhere_2 = xp.broadcast_to(xp.asarray(2, dtype=np.float32), (5, 5))
    assert result(everywhere_2, everywhere_2) == [[20] * 5] * 5


def test_fortran_order_of_out(place, version):
    a = place.xp.asarray([[0, 1], [2, 3]], dtype=np.float32)
    out = place.xp.empty((2, 2), np.float32, order="F")
    assert sgemm.matmul(a, a, out=out, version=version) is out
    assert out.tolist() == [[2, 3], [6, 11]]
    assert out.flags.f_contiguous


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 16), (129, 130, 33)])
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


@pytest.mark.parametrize(("alpha", "k"), [(0.0, 5), (1e-60, 5), (-0.0, 5), (1.0, 0), (3.0, 0)])
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
    new = place.to_host(sgemm.matmul(a, b, alpha=alpha, version=version))
    assert new.shape == (33, 17)
    assert (new == 0).all()


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
            *_, a, lda, b, ldb, _beta, _c, _ldc = map(int, launch.args)
            misaligned = a % 16 or b % 16 or lda % 4 or ldb % 4
            assert launch.defines["VECTOR"] == int(version.float4 and not misaligned)


@pytest.mark.parametrize("misaligned", ["a", "b"])
def test_a_long_sum_is_worth_an_aligned_copy(place, version, misaligned):
    """From some K on a misaligned operand is copied, so that the float4 path can run."""
    with place.launches() as launches:
        for k in (ALIGNED_COPY_MIN_K - 4, ALIGNED_COPY_MIN_K):
            layouts = {"a": Layout(), "b": Layout(transposed=version.b_layout == "column")}
            layouts[misaligned] = replace(layouts[misaligned], offset=1)
            problem = Problem(8, 8, k, **layouts)
            assert multiply(problem, version, place).residual().ok
    expected = [("sgemm", 0), ("sgemm", 0)]
    if version.float4:
        expected = [("sgemm", 0), ("copy_strided", None), ("sgemm", 1)]
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
