"""The asv suite: what it measures, what it does with failures, and how asv finds it."""

import json
import subprocess
import sys
import threading
from math import isnan
from pathlib import Path

import asv
import numpy as np
import pytest

import sgemm
from benchmarks import (
    child,
    compile_ahead,
    gpu,
    gpu_packages,
    measure,
    products,
    resources,
    speed,
    timing,
)
from benchmarks.checkout import LADDER, pinned_version
from benchmarks.problems import PROBLEMS, Problem, parse

pytest_plugins = ["fake_gpu"]

ROOT = Path(__file__).resolve().parent.parent
PTXAS_LOG = """\
ptxas info    : Function properties for sgemm
ptxas         .     0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1024 bytes smem
"""


class TestProblems:
    def test_are_those_that_break_kernels(self):
        assert any(p.k % 4 for p in PROBLEMS.values())
        assert any(p.a_offset % 4 for p in PROBLEMS.values())
        assert any(len({p.m, p.n, p.k}) == 3 for p in PROBLEMS.values())
        assert any(p.b_layout == "column" for p in PROBLEMS.values())
        assert any(p.flops < 2 * 1000**3 for p in PROBLEMS.values())

    @pytest.mark.case("2.14")
    @pytest.mark.parametrize("integer", [int, np.int32])
    def test_count_operations_exactly(self, integer):
        """46341 cubed is beyond 32 bits, and twice that beyond a float's 53."""
        assert Problem(*[integer(46341)] * 3).flops == 2 * 46341**3

    def test_count_bytes_of_all_three_matrices(self):
        assert Problem(3, 5, 7).operand_bytes == 4 * (3 * 7 + 7 * 5 + 3 * 5)

    @pytest.mark.parametrize("name", PROBLEMS)
    def test_are_found_by_name(self, name):
        assert parse(name) is PROBLEMS[name]

    def test_are_made_of_shapes(self):
        assert parse("3x5x7") == Problem(3, 5, 7)

    @pytest.mark.parametrize("text", ["", "3x5", "0x5x7", "3x5x7x9", "-3x5x7", "3X5X7", "ax5x7"])
    def test_bad_shapes_are_rejected(self, text):
        with pytest.raises(ValueError, match="neither a shape"):
            parse(text)


class TestOperands:
    def operands(self, problem, native_b="row"):
        return products.Operands(
            problem, native_b, products.random_values(products.Operands.floats(problem))
        )

    @pytest.mark.case("2.9")
    def test_are_random_and_always_the_same(self, fake_gpu):
        values = products.random_values(1000)
        assert values.min() >= -1
        assert values.max() < 1
        assert values.std() == pytest.approx(3**-0.5, rel=0.05)
        assert (values == products.random_values(1000)).all()

    @pytest.mark.case("2.9")
    def test_all_sets_hold_them(self, fake_gpu):
        problem = Problem(24, 16, 8, a_offset=1)
        values = products.random_values(products.Operands.floats(problem))
        operands = products.Operands(problem, "column", values, places=3)
        a, b = np.split(values, [24 * 8])
        assert len(operands.a) == len(operands.b) == operands.sets
        assert all((copy == a.reshape(24, 8)).all() for copy in operands.a)
        assert all((copy == b.reshape(8, 16)).all() for copy in operands.b)

    @pytest.mark.case("2.8")
    def test_each_launch_takes_another_set(self, fake_gpu):
        launched = []
        operands = self.operands(Problem(16, 16, 16))
        product = products.Product(lambda *matrices: launched.append(matrices), operands)
        for i in range(product.sets):
            product.launch(i)
        for matrices in zip(*launched, strict=True):  # A, B and C
            assert len({matrix.ctypes.data for matrix in matrices}) == product.sets > 1

    @pytest.mark.case("2.8")
    @pytest.mark.parametrize("size", [16, 64, 128])
    def test_the_other_sets_fill_the_cache(self, fake_gpu, size):
        problem = Problem(size, size, size)
        l2_bytes = fake_gpu.cupy.cuda.Device.attributes["L2CacheSize"]
        sets = self.operands(problem).sets
        assert (sets - 1) * problem.operand_bytes >= l2_bytes
        assert (sets - 2) * problem.operand_bytes < l2_bytes

    def test_are_in_as_many_places_as_asked_for(self, fake_gpu):
        problem = Problem(64, 64, 64)
        values = products.random_values(products.Operands.floats(problem))
        least = products.Operands(problem, "row", values).sets
        for places in (1, least, 2 * least):
            operands = products.Operands(problem, "row", values, places)
            addresses = {array.ctypes.data for array in (*operands.a, *operands.b)}
            assert operands.sets == max(least, places)
            assert len(addresses) == 2 * operands.sets

    def test_a_is_as_misaligned_as_the_problem_says(self, fake_gpu):
        aligned, shifted = Problem(8, 8, 8), Problem(8, 8, 8, a_offset=1)
        for problem in (aligned, shifted):
            operands = self.operands(problem)
            a = operands.a[0]
            assert a.base.size == 64 + problem.a_offset
            assert a.ctypes.data - a.base.ctypes.data == 4 * problem.a_offset
        assert (self.operands(aligned).a[0] == self.operands(shifted).a[0]).all()

    @pytest.mark.parametrize("native_b", ["row", "column"])
    def test_b_has_the_native_layout_unless_the_problem_says_otherwise(self, fake_gpu, native_b):
        native = self.operands(Problem(4, 8, 12), native_b).b[0]
        column = self.operands(Problem(4, 8, 12, b_layout="column"), native_b).b[0]
        assert native.flags.c_contiguous == (native_b == "row")
        assert column.flags.f_contiguous
        assert (native == column).all()


class TestProducts:
    def product(self, multiply):
        problem = Problem(8, 8, 8)
        values = products.random_values(products.Operands.floats(problem))
        return products.Product(multiply, products.Operands(problem, "row", values))

    @pytest.mark.parametrize("place", [0, 1, -1])
    def test_every_output_is_verified_as_a_whole(self, fake_gpu, place):
        product = self.product(lambda a, b, out: np.matmul(a, b, out=out))
        for i in range(product.sets):
            product.launch(i)
        product.verify(product.sets)
        product._outs[place][7, 7] += 1
        with pytest.raises(timing.WrongResultError, match="wrong: 1 of 64 elements"):
            product.verify(product.sets)

    def test_what_was_written_before_is_spoilt(self, fake_gpu):
        product = self.product(lambda a, b, out: np.matmul(a, b, out=out))
        product.launch(0)
        product.verify(1)
        product.poison()
        with pytest.raises(timing.WrongResultError, match="wrong: 64 of 64 elements"):
            product.verify(1)


SMALL = {
    problem.name: problem
    for problem in (Problem(16, 16, 16), Problem(24, 8, 7), Problem(16, 16, 16, a_offset=1))
}


@pytest.fixture
def small_problems(monkeypatch):
    monkeypatch.setattr(measure, "PROBLEMS", SMALL)


@pytest.mark.usefixtures("fake_gpu", "small_problems")
class TestMeasuring:
    def answer(self, *subjects, problems=SMALL):
        """Subject and problem to record, and the environment."""
        records = {}
        keys = [f"{subject} {problem}" for problem in problems for subject in subjects]
        measure.answer([], keys, records.__setitem__)
        assert list(records) == [measure.ENVIRONMENT, *keys]
        found = {s: {p: records[f"{s} {p}"] for p in problems} for s in subjects}
        return found | {measure.ENVIRONMENT: records[measure.ENVIRONMENT]}

    @pytest.mark.parametrize("subject", measure.SUBJECTS)
    def test_one_measurement_gives_every_metric(self, subject, fake_gpu):
        records = json.loads(json.dumps(self.answer(subject)))
        surroundings = records[measure.ENVIRONMENT]
        assert surroundings["cublas_math"] == "CUBLAS_DEFAULT_MATH, TF32 off"
        peak = surroundings["ffma_peak_gflops"]
        for name, record in records[subject].items():
            seconds = record["seconds"]
            assert timing.MIN_SAMPLES <= len(seconds) == len(record["readings"])
            assert record["stopped"]
            assert record["low_end_seconds"] == min(seconds)
            for second, cycles in zip(seconds, record["cycles"], strict=True):
                assert cycles > 0.9 * second * fake_gpu.MHZ * 1e6
            assert record["gflops"] == pytest.approx(
                [SMALL[name].flops / second / 1e9 for second in seconds]
            )
            assert record["share_of_peak"] == pytest.approx(
                [gflops / peak for gflops in record["gflops"]]
            )
            assert record["residual"]["wrong"] == 0
            assert 0 < record["error_over_bound"] == record["residual"]["worst"] < 1
            assert record["operand_sets"] >= products.PLACES
            assert record["wall_seconds"] > sum(seconds)

    @pytest.mark.parametrize("subject", LADDER)
    def test_cublas_is_sampled_in_turn_with_a_version(self, subject, monkeypatch):
        turns = []
        sample = timing.Sampler.sample

        def spy(sampler):
            turns.append(sampler)
            return sample(sampler)

        monkeypatch.setattr(timing.Sampler, "sample", spy)
        record = self.answer(subject, problems=["16x16x16"])[subject]["16x16x16"]
        pairs = list(zip(record["cublas_seconds"], record["seconds"], strict=True))
        assert record["ratio_to_cublas"] == [theirs / mine for theirs, mine in pairs]
        timed = turns[-2 * len(pairs) :]
        assert timed == [timed[0], timed[1]] * len(pairs)
        assert timed[0] is not timed[1]

    def test_cublas_is_not_compared_with_itself(self):
        (record,) = self.answer(measure.CUBLAS, problems=["16x16x16"])[measure.CUBLAS].values()
        assert "ratio_to_cublas" not in record

    def test_cublas_has_new_samples_beside_every_version(self):
        records = self.answer("v1", "v2", measure.CUBLAS, problems=["16x16x16"])
        beside = [records[version]["16x16x16"]["cublas_seconds"] for version in ("v1", "v2")]
        samples = [*beside, records[measure.CUBLAS]["16x16x16"]["seconds"]]
        assert all(len(seconds) >= timing.MIN_SAMPLES for seconds in samples)
        assert len({second for seconds in samples for second in seconds}) == sum(map(len, samples))

    def test_a_wrong_cublas_is_named(self, fake_gpu, monkeypatch):
        monkeypatch.setattr(fake_gpu.Cublas, "multiply", lambda self, a, b, out: out.fill(0))
        records = self.answer("v0", measure.CUBLAS, problems=["16x16x16"])
        for subject in ("v0", measure.CUBLAS):
            error = records[subject]["16x16x16"]["error"]
            assert error.startswith("cuBLAS is wrong: 256 of 256")

    def test_a_wrong_result_costs_its_own_problem(self, monkeypatch):
        right = sgemm.matmul

        def wrong_for_odd_k(a, b, *, out, version):
            right(a, b, out=out, version=version)
            if a.shape[1] % 2:
                out[0, 0] = 0

        monkeypatch.setattr(sgemm, "matmul", wrong_for_odd_k, raising=False)
        records = self.answer("v3")["v3"]
        assert records["24x8x7"]["error"].startswith(
            "wrong: 1 of 192 elements, the first at (0, 0)"
        )
        assert records["16x16x16"]["seconds"]
        assert records["16x16x16 A+1"]["seconds"]

    def test_a_kernel_that_stops_writing_when_timed_is_wrong(self, monkeypatch):
        launches = []

        def lazy(a, b, *, out, version):
            launches.append(out)
            if len(launches) == 1:  # as many as are verified before the timing starts
                np.matmul(a, b, out=out)

        monkeypatch.setattr(sgemm, "matmul", lazy, raising=False)
        (record,) = self.answer("v3", problems=["16x16x16"])["v3"].values()
        assert record["error"].startswith("wrong: 256 of 256 elements")

    def test_a_failing_kernel_ends_the_child(self, fake_gpu, monkeypatch):
        def fail(a, b, *, out, version):
            raise fake_gpu.CudaError("an illegal memory access was encountered")

        monkeypatch.setattr(sgemm, "matmul", fail, raising=False)
        with pytest.raises(fake_gpu.CudaError):
            self.answer("v3")

    def test_a_version_that_the_commit_lacks_is_skipped(self, monkeypatch):
        monkeypatch.setattr(sgemm, "LADDER", {"v0": LADDER["v0"]})
        records = self.answer("v0", "v1")
        assert records["v1"] == {name: {"skip": "this commit has no v1"} for name in SMALL}
        assert all(record["seconds"] for record in records["v0"].values())

    def test_a_key_that_kills_the_child_costs_no_other(self, monkeypatch):
        """Another child takes the rest of them, on the same problem too."""
        calls = []

        def run(module, args, keys, timeout):
            assert module == "measure"
            calls.append(keys)
            found = {measure.ENVIRONMENT: {"gpu": "Fake GPU"}}
            for key in keys:
                if key == "v1 16x16x16":
                    break
                found[key] = {"seconds": [1.0]}
            return found, "an illegal memory access was encountered"

        monkeypatch.setattr(compile_ahead, "run", lambda device: None)
        monkeypatch.setattr(child, "_run", run)
        monkeypatch.setattr(measure, "SUBJECTS", ("v0", "v1", "cublas"))
        measurements = measure.run()
        assert calls[1][0] == "cublas 16x16x16"
        dead = measurements["v1"].pop("16x16x16")
        assert dead == {"error": "an illegal memory access was encountered"}
        assert measurements.pop(measure.ENVIRONMENT) == {"gpu": "Fake GPU"}
        for records in measurements.values():
            assert all(record == {"seconds": [1.0]} for record in records.values())

    @pytest.mark.case("5.8")
    def test_a_busy_gpu_is_refused(self, fake_gpu, monkeypatch):
        """Before anything is measured."""
        monkeypatch.setattr(fake_gpu.Monitor, "processes", 1)
        with pytest.raises(gpu.GpuBusyError):
            measure.answer([], ["v0 16x16x16"], pytest.fail)


class TestCompilingAhead:
    @pytest.fixture(autouse=True)
    def package(self, tmp_path, monkeypatch):
        """An installed ``sgemm`` of v0, v1 and v2, which notes what it compiles: v0 kills the
        compiler, v1 does not compile."""
        self.compiled = tmp_path / "compiled"
        (tmp_path / "sgemm.py").write_text(
            f"""
import os

class SgemmError(Exception):
    pass

def compile(version, arch="sm_90"):
    if version == "v0":
        os.abort()
    if version != "v2":
        raise SgemmError("does not compile")
    with open({str(self.compiled)!r}, "a") as file:
        print(version, arch, file=file)
"""
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    @pytest.mark.parametrize("cores", [1, 2, 16])
    def test_makes_what_can_be_made_for_this_gpu(self, monkeypatch, cores):
        monkeypatch.setattr(child.os, "cpu_count", lambda: cores)
        compile_ahead.run(gpu.Gpu("", "", (8, 9), "13.0"))
        assert self.compiled.read_text() == "v2 sm_89\n"

    def test_comes_before_measuring(self, fake_gpu, monkeypatch):
        modules = []

        def run(module, args, keys, timeout):
            modules.append(module)
            return {key: {"seconds": [1.0]} for key in keys}, ""

        monkeypatch.setattr(child, "_run", run)
        measure.run()
        assert set(modules[:-1]) == {"compile_ahead"}
        assert modules[-1] == "measure"


class TestSpeed:
    @pytest.mark.skipif(gpu.find() is not None, reason="there is a GPU")
    def test_is_not_available_without_a_gpu(self):
        measurements = speed.Speed().setup_cache()
        for subject in measure.SUBJECTS:
            for problem in PROBLEMS:
                with pytest.raises(NotImplementedError, match="there is no GPU"):
                    speed.Speed().setup(measurements, subject, problem)

    @pytest.mark.skipif(gpu.find() is not None, reason="there is a GPU")
    def test_fails_without_a_gpu_where_one_is_required(self, monkeypatch):
        monkeypatch.setenv("SGEMM_REQUIRE_GPU", "1")
        with pytest.raises(RuntimeError, match="there is no GPU"):
            speed.Speed().setup_cache()

    def test_reads_its_samples_from_the_measurement(self):
        record = {
            "seconds": [0.1, 0.2],
            "gflops": [20.0, 10.0],
            "ratio_to_cublas": [0.8, 0.4],
            "share_of_peak": [0.6, 0.3],
            "error_over_bound": 0.125,
        }
        measurements = {"v0": {"p": record}}
        suite = speed.Speed()
        suite.setup(measurements, "v0", "p")
        seconds = suite.track_seconds(measurements, "v0", "p")
        assert seconds == {"samples": [0.1, 0.2], "number": 1}
        assert suite.track_gflops(measurements, "v0", "p")["samples"] == [20.0, 10.0]
        assert suite.track_ratio_to_cublas(measurements, "v0", "p")["samples"] == [0.8, 0.4]
        assert suite.track_share_of_peak(measurements, "v0", "p")["samples"] == [0.6, 0.3]
        assert suite.track_error_over_bound(measurements, "v0", "p") == 0.125

    def test_cublas_s_ratio_to_itself_is_not_available(self):
        """NaN is what asv records for a benchmark that is skipped."""
        measurements = {"cublas": {"p": {"seconds": [0.1]}}}
        assert isnan(speed.Speed().track_ratio_to_cublas(measurements, "cublas", "p"))

    def test_a_failed_measurement_fails_its_benchmarks(self):
        measurements = {"v0": {"p": {"error": "wrong: 1 of 4 elements"}}}
        speed.Speed().setup(measurements, "v0", "p")
        with pytest.raises(RuntimeError, match="wrong: 1 of 4 elements"):
            speed.Speed().track_gflops(measurements, "v0", "p")

    def test_everything_measured_is_kept(self, monkeypatch, tmp_path):
        measured = {"v0": {name: {"seconds": [1.0]} for name in PROBLEMS}}
        monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("", "", (9, 0), "13.0"))
        monkeypatch.setattr(measure, "run", lambda: measured)
        monkeypatch.setenv("ASV_CONF_DIR", str(tmp_path))
        monkeypatch.setenv("ASV_COMMIT", "0123abc")
        measurements = speed.Speed().setup_cache()
        kept = json.loads((tmp_path / ".asv" / "measurements" / "0123abc.json").read_text())
        assert kept == measurements == measured


@pytest.fixture
def old_package(tmp_path, monkeypatch):
    """An installed ``sgemm`` of v0 and v1: v0 kills the compiler on sm_89, v1 fails on sm_90."""
    package = tmp_path / "site" / "sgemm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        f"""
import os
from types import SimpleNamespace

LADDER = {{"v0": None, "v1": None}}

class SgemmError(Exception):
    pass

def compile(version, arch):
    print("noise on standard output")
    if (version, arch) == ("v0", "sm_89"):
        os.abort()
    if (version, arch) == ("v1", "sm_90"):
        raise SgemmError("does not compile")
    return SimpleNamespace(log={PTXAS_LOG!r})
"""
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package.parent


def pretend_compiler(site, version):
    """Let NVRTC be installed in that version."""
    metadata = site / f"nvidia_cuda_nvrtc-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: nvidia-cuda-nvrtc\nVersion: {version}\n")


class TestResources:
    def test_an_old_commit_gives_what_it_has(self, old_package):
        pretend_compiler(old_package, pinned_version("nvidia-cuda-nvrtc"))
        records = resources.Resources().setup_cache()
        figures = {"registers": 32, "spill_bytes": 12, "shared_bytes": 1024}
        for version, arch in [("v0", "sm_80"), ("v0", "sm_90"), ("v1", "sm_80"), ("v1", "sm_89")]:
            assert records[f"{version} {arch}"] == figures
        assert "the process ended with status -6" in records["v0 sm_89"]["error"]
        assert records["v1 sm_90"] == {"error": "does not compile"}
        for arch in resources.ARCHITECTURES:
            assert records[f"v2 {arch}"] == {"skip": "this commit has no v2"}

    def test_figures_are_read_from_the_records(self):
        record = {"registers": 32, "spill_bytes": 12, "shared_bytes": 1024}
        records = {"v0 sm_90": record, "v1 sm_90": {"error": "does not compile"}}
        suite = resources.Resources()
        suite.setup(records, "v0", "sm_90")
        assert suite.track_registers(records, "v0", "sm_90") == 32
        assert suite.track_spill_bytes(records, "v0", "sm_90") == 12
        assert suite.track_shared_bytes(records, "v0", "sm_90") == 1024
        suite.setup(records, "v1", "sm_90")
        with pytest.raises(RuntimeError, match="does not compile"):
            suite.track_registers(records, "v1", "sm_90")

    def test_another_compiler_is_not_compared(self, old_package):
        pretend_compiler(old_package, "12.0")
        records = resources.Resources().setup_cache()
        with pytest.raises(NotImplementedError, match=r"nvidia-cuda-nvrtc is 12\.0, not 13"):
            resources.Resources().setup(records, "v0", "sm_80")


class TestChildren:
    @pytest.mark.parametrize("cores", [1, 2, 3, 16])
    def test_at_once_share_the_keys(self, monkeypatch, cores):
        """Each key is asked for once, and all shares before the first is answered."""
        asked, all_asked = [], threading.Barrier(min(cores, 7))

        def ask(keys):
            asked.append(keys)
            all_asked.wait(timeout=10)
            return {key: {"of": len(keys)} for key in keys}

        monkeypatch.setattr(child.os, "cpu_count", lambda: cores)
        keys = [f"v{i}" for i in range(7)]
        records = child.in_shares(ask, keys)
        assert sorted(key for share in asked for key in share) == sorted(records) == keys
        assert max(map(len, asked)) - min(map(len, asked)) <= 1

    def test_none_are_started_for_no_keys(self):
        assert child.collect_at_once("resources", [], [], timeout=60) == {}

    def test_one_that_cannot_start_costs_all_its_keys(self, tmp_path, monkeypatch):
        started = tmp_path / "started"
        (tmp_path / "sgemm.py").write_text(
            f"open({str(started)!r}, 'a').write('.')\nraise ImportError('no such library')"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        keys = ["v0 sm_80", "v1 sm_80", "v2 sm_80", "v3 sm_80"]
        records = child.collect("resources", [], keys, timeout=60)
        assert list(records) == keys
        assert all("no such library" in record["error"] for record in records.values())
        assert started.read_text() == ".."  # the second in case that the first died of its key

    def test_one_that_dies_of_its_first_key_costs_no_other(self, old_package):
        pretend_compiler(old_package, pinned_version("nvidia-cuda-nvrtc"))
        records = child.collect("resources", [], ["v0 sm_89", "v0 sm_80"], timeout=60)
        assert "status -6" in records["v0 sm_89"]["error"]
        assert "error" not in records["v0 sm_80"]

    def test_one_that_hangs_is_ended(self, tmp_path, monkeypatch):
        (tmp_path / "sgemm.py").write_text("import time\ntime.sleep(60)")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        records = child.collect("resources", [], ["v0 sm_80"], timeout=0.5)
        assert records == {"v0 sm_80": {"error": "no answer within 0 s"}}


class TestGpuPackages:
    def test_are_not_installed_without_a_gpu(self, monkeypatch):
        monkeypatch.setattr(gpu, "find", lambda: None)
        monkeypatch.setattr(gpu_packages.subprocess, "run", pytest.fail)
        gpu_packages.main()

    @pytest.mark.parametrize(
        ("cuda", "major"), [("12.4", 12), ("13.0", 13), ("14.1", 13)], ids=lambda value: str(value)
    )
    def test_are_those_that_the_driver_runs(self, monkeypatch, cuda, major):
        calls = []
        monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("", "", (9, 0), cuda))
        monkeypatch.setattr(gpu_packages.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(
            gpu_packages.subprocess, "run", lambda command, check: calls.append(command)
        )
        gpu_packages.main()
        (command,) = calls
        expected = gpu_packages.PACKAGES[major]
        assert command[-len(expected) :] == list(expected)
        assert f"cupy-cuda{major}x" in command

    @pytest.mark.case("3.4")
    def test_of_a_driver_that_is_too_old_there_are_none(self):
        """Both versions are named."""
        old = gpu.Gpu("a GPU", "", (8, 0), "11.4")
        for ask in (gpu_packages.packages, gpu_packages.constraints):
            with pytest.raises(
                gpu_packages.DriverTooOldError, match=r"CUDA up to 11\.4, and 12\.0"
            ):
                ask(old)

    @pytest.mark.parametrize("major", gpu_packages.CONSTRAINTS)
    def test_are_of_the_major_that_the_constraints_pin(self, major):
        """The binding decides which NVRTC compiles, so both are pinned to one major."""
        pins = dict(
            line.split("==")
            for line in (ROOT / gpu_packages.CONSTRAINTS[major]).read_text().splitlines()
            if not line.startswith("#")
        )
        compiler = "nvidia-cuda-nvrtc" if major == 13 else f"nvidia-cuda-nvrtc-cu{major}"
        assert {pins[name].split(".")[0] for name in (compiler, "cuda-bindings")} == {str(major)}


# Since what asynchronous copies cost is what an H200 counts.
COUNTED_ANEW = {
    "track_sectors_per_global_load",
    "track_wavefronts_per_shared_store",
    "track_bytes",
}
HIGHER_IS_BETTER = {
    *("track_gflops", "track_ratio_to_cublas", "track_share_of_peak"),
    *("track_ffma_share", "track_occupancy"),
    *("track_fmas_per_global_load", "track_fmas_per_shared_load"),
}


def discover(tmp_path, **environment):
    """The suite as asv discovers it: with none of the packages that only a measurement needs."""
    found = tmp_path / "found.json"
    runner = Path(asv.__file__).parent / "benchmark.py"
    bare = f"""
import runpy, sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {{"cuda", "cupy", "numpy", "pynvml", "rich", "sgemm"}}:
            raise ImportError(name)

sys.meta_path.insert(0, Bare())
sys.argv = ["benchmark.py", "discover", {str(ROOT / "benchmarks")!r}, {str(found)!r}]
runpy.run_path({str(runner)!r}, run_name="__main__")
"""
    subprocess.run([sys.executable, "-P", "-c", bare], check=True, cwd=tmp_path)
    return {benchmark["name"]: benchmark for benchmark in json.loads(found.read_text())}


class TestDiscovery:
    @pytest.mark.case("4.15")
    def test_every_benchmark_has_a_version_and_the_checkout_s_parameters(self, tmp_path):
        suite = discover(tmp_path)
        assert {name.rpartition(".")[2] for name in suite} == {
            "track_gflops",
            "track_seconds",
            "track_ratio_to_cublas",
            "track_share_of_peak",
            "track_error_over_bound",
            "track_registers",
            "track_spill_bytes",
            "track_shared_bytes",
            "track_ffma_share",
            "track_occupancy",
            "track_sectors_per_global_load",
            "track_sectors_per_global_store",
            "track_wavefronts_per_shared_load",
            "track_wavefronts_per_shared_store",
            "track_bytes",
            "track_fmas",
            "track_fmas_per_global_load",
            "track_fmas_per_shared_load",
            "track_barriers",
            "track_asynchronous_copies",
        }
        for name, benchmark in suite.items():
            series = name.rpartition(".")[2]
            assert benchmark["version"] == ("2" if series in COUNTED_ANEW else "1")
            assert benchmark["higher_is_better"] == (series in HIGHER_IS_BETTER)
            versions = [*LADDER, "cublas"] if "speed" in name else list(LADDER)
            assert benchmark["params"][0] == [repr(version) for version in versions]

    @pytest.mark.case("4.15")
    def test_other_sampling_is_another_version(self):
        """Figures of other samples are not comparable: raise the version of ``Speed``'s series with
        whatever is changed here."""
        sampling = {
            "version": speed.Speed.track_gflops.version,
            "what counts": timing.Sampler._result.__doc__,
            "seconds of a batch": timing.BATCH_SECONDS,
            "batches": timing.BATCHES_PER_SAMPLE,
            "a graph below": timing.GRAPH_BELOW_SECONDS,
            "a lead-in below": timing.LEAD_IN_BELOW_SECONDS,
            "settled": (timing.SETTLED_SAMPLES, timing.SETTLED_WITHIN),
            "inputs": products.SEED,
        }
        assert sampling == {
            "version": "1",
            "what counts": "What counts of a sample's batches: the fastest.",
            "seconds of a batch": 0.004,
            "batches": 5,
            "a graph below": 0.001,
            "a lead-in below": 0.05,
            "settled": (4, 0.002),
            "inputs": 20,
        }

    def test_the_recorded_suite_is_this_one(self, tmp_path):
        """Otherwise everybody's run would change a file that git tracks. asv writes it:
        ``asv run --bench just-discover``."""
        recorded = json.loads((ROOT / "results" / "benchmarks.json").read_text())
        del recorded["version"]
        assert recorded == discover(tmp_path)


def test_pins():
    assert pinned_version("nvidia-cuda-nvrtc").count(".") == 2
    with pytest.raises(LookupError):
        pinned_version("numpy")
