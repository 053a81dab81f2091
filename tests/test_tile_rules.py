"""Tiles that break a rule of their kernel fail at compile time, and the error names the rule."""

import re
from dataclasses import replace

import numpy as np
import pytest

import sgemm
from sgemm import LADDER, CompileError, Version, residual
from sgemm.kernel_files import kernels_folder

ASSERTION = re.compile(r'static_assert\([^"]*,\s*((?:"[^"]*"\s*)+)\);')
INCLUDE = re.compile(r'#include "([^"]+)"')


def rules(source):
    """The rules about tiles that a kernel and its headers state."""
    found = set()
    unread, read = [source], {"portable.cuh"}  # which has no rules about tiles
    while unread:
        name = unread.pop()
        read.add(name)
        text = (kernels_folder() / name).read_text()
        unread += [header for header in INCLUDE.findall(text) if header not in read]
        for literals in ASSERTION.findall(text):
            found.add("".join(re.findall('"([^"]*)"', literals)))
    return found


def other_tiles(version: Version) -> list[Version]:
    """Entries of the ladder with one number changed, or with a few that belong together."""
    tile_m, tile_n, tile_k = version.tile
    micro_m, micro_n = version.micro_tile
    threads_per_output = version.threads / (tile_m * tile_n)

    def with_tile(m: int, n: int, k: int) -> Version:
        return replace(version, tile=(m, n, k), threads=max(1, int(m * n * threads_per_output)))

    others = [
        replace(version, threads=version.threads * 2),
        replace(version, threads=2048),
        replace(version, threads=version.threads // 2),
        replace(version, tile=(tile_m + 1, tile_n, tile_k)),
        replace(version, tile=(tile_m, tile_n + 32, tile_k)),
        with_tile(tile_m, tile_n + 2, tile_k),
        with_tile(tile_m * 16, tile_n, tile_k),
        with_tile(tile_m, tile_n, tile_k + 2),
        with_tile(tile_m, tile_n, 24),
        with_tile(tile_m, tile_n, tile_k * 16),
        replace(version, slices=3),
        replace(version, slices=4, micro_tile=(8, micro_n)),
        replace(version, micro_tile=(micro_m, micro_n + 2)),
        replace(version, micro_tile=(micro_m + 2, micro_n)),
    ]
    return [launched_with_enough(other) for other in others]


def launched_with_enough(version: Version) -> Version:
    """The version with the shared memory that a launch must add for its tiles."""
    geometry = version.tile, version.micro_tile, version.blocks_per_sm, version.stages
    needed = version.reshaped(*geometry, version.slices).dynamic_shared_bytes
    return replace(version, dynamic_shared_bytes=needed)


@pytest.mark.parametrize("wrong", [-16, 16])
def test_the_launch_adds_as_much_shared_memory_as_the_kernel_has(version, wrong):
    """Whatever else: on a GPU too little would be an access out of bounds."""
    if not version.dynamic_shared_bytes:
        pytest.skip("its launch adds none")
    other = replace(version, dynamic_shared_bytes=version.dynamic_shared_bytes + wrong)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(CompileError, match=r"the launch must add sizeof\(Buffers\)"):
        sgemm.matmul(one, one, version=other)
    with pytest.raises(CompileError, match=r"the launch must add sizeof\(Buffers\)"):
        sgemm.compile(other)


def broken_rules(version, error: CompileError) -> set[str]:
    """The rules that a failed compilation names."""
    message = str(error)
    named = {rule for rule in rules(version.source) if rule in message}
    assert named, f"{version.tile} fails to compile without naming a rule:\n{message}"
    return named


def test_bad_tiles_are_rejected_and_others_are_right(place, version):
    """Nothing in between: no tile that compiles and then fails, or is wrong."""
    rng = np.random.default_rng(0)
    rejected = 0
    for other in other_tiles(version):
        m, n, k = (extent + 1 for extent in version.tile)
        a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
        try:
            c = sgemm.matmul(place.xp.asarray(a), place.xp.asarray(b), version=other)
        except CompileError as error:
            broken_rules(version, error)
            rejected += 1
        else:
            result = residual.check(place.to_host(c), a, b)
            assert result.ok, f"{other.tile}: {result.summary}"
    assert rejected


@pytest.mark.case("1.14")
def test_a_tile_that_does_not_fit_its_threads(place, version):
    """A configuration that another project compiles and that fails when it is run."""
    micro_tile = (1, 1) if version.micro_tile == (1, 1) else (8, 4)
    broken = replace(version, tile=(128, 256, 8), threads=128, micro_tile=micro_tile)
    a = place.xp.ones((256, 256), np.float32)
    with pytest.raises(CompileError) as caught:
        sgemm.matmul(a, a, version=broken)
    broken_rules(version, caught.value)


@pytest.mark.case("1.14")
@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("name", None, "a string"),
        ("title", ["mine"], "a string"),
        ("change", None, "a string"),
        ("source", None, "a file's name"),
        ("tile", (0, 32, 8), "a tuple of three positive integers"),
        ("tile", (32, 32, -8), "a tuple of three positive integers"),
        ("tile", (8, 32), "a tuple of three positive integers"),
        ("tile", [8, 32, 1], "a tuple of three positive integers"),
        ("tile", (8.0, 32, 1), "a tuple of three positive integers"),
        ("micro_tile", (0, 1), "a tuple of two positive integers"),
        ("micro_tile", 1, "a tuple of two positive integers"),
        ("threads", 0, "a positive integer"),
        ("threads", "256", "a positive integer"),
        ("blocks_per_sm", 0, "a positive integer"),
        ("stages", 0, "a positive integer"),
        ("slices", -1, "a positive integer"),
        ("slices", True, "a positive integer"),
        ("shared_bytes", None, "an integer from 0 up"),
        ("dynamic_shared_bytes", -4, "an integer from 0 up"),
        ("b_layout", "x", "'row' or 'column'"),
        ("b_layout", ["row"], "'row' or 'column'"),
        ("stream_k", None, "True or False"),
        ("float4", "no", "True or False"),
        ("a_by_floats", 2, "True or False"),
        ("min_compute_capability", (8,), "a tuple of two integers from 0 up"),
        ("min_compute_capability", 80, "a tuple of two integers from 0 up"),
        ("peak_share", [], "a number"),
        ("article_gflops", "800", "a number or None"),
    ],
)
def test_fields_that_make_no_version(place, version, field, value, accepted):
    broken = replace(version, **{"name": "mine", field: value})
    expected = f"version: {broken.name} has {field}={value!r}; it must be {accepted}"
    one = place.xp.ones((1, 1), np.float32)
    with place.launches() as launches:
        for call in (lambda: sgemm.matmul(one, one, version=broken), lambda: sgemm.compile(broken)):
            for _ in range(2):
                with pytest.raises(sgemm.ArgumentError) as caught:
                    call()
                assert str(caught.value) == expected
    assert launches == []


def test_numbers_of_other_libraries_are_sizes(place):
    tile = tuple(map(np.int64, LADDER["v1"].tile))
    one = place.xp.ones((1, 1), np.float32)
    assert sgemm.matmul(one, one, version=replace(LADDER["v1"], tile=tile)).tolist() == [[1.0]]


@pytest.mark.case("1.14")
def test_every_rule_is_reported():
    """By NVRTC, which names all the rules that one tile breaks; rules of shared templates concern
    the versions that use them."""
    pytest.importorskip("cuda.bindings.nvrtc")
    stated, reported = set(), set()
    for version in LADDER.values():
        stated |= rules(version.source)
        for other in other_tiles(version):
            try:
                sgemm.compile(other)
            except CompileError as error:
                reported |= broken_rules(version, error)
    assert reported == stated


def test_the_ladder_states_rules():
    assert all(rules(version.source) for version in LADDER.values())
