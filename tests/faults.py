"""The faults that ``mutants.py`` plants, and the tests that must see each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """Every place in a kernel that ``pattern`` matches has the fault when it is replaced. ``tests``
    are those that should see it, if they are not those of all faults."""

    fault: str
    pattern: str
    replacement: str
    tests: tuple[str, ...] = ()


# In the order in which they are run: what is checked cannot harm the process.
VERSION_TESTS = (
    "test_simulator_checks.py::test_the_ladder_has_no_findings_around_its_tiles",
    "test_matmul.py::test_blocks_that_share_tiles",
    "test_matmul.py::test_depths_around_the_tiles",
    "test_matmul.py::test_known_troublesome_shapes",
    "test_matmul.py::test_beta_0_never_reads_out",
    "test_matmul.py::test_nothing_outside_is_touched",
)
CONVERSION_KEYWORD = "v1 or scaling or coalesce or copies_have"
CONVERSION_TESTS = (
    "test_simulator_checks.py::test_copies_have_no_findings",
    "test_trace.py::test_copies_coalesce",
    "test_matmul.py::test_without_terms_the_result_is_beta_times_out",
)
FAR_APART_TESTS = (
    "test_matmul.py::test_offsets_past_2_to_the_31",
    "test_matmul.py::test_products_of_strides_past_2_to_the_31",
    "test_matmul.py::test_copies_of_strides_past_2_to_the_31",
    "test_matmul.py::test_a_step_along_k_past_2_to_the_31",
    "test_matmul.py::test_scaling_of_strides_past_2_to_the_31",
    "test_matmul.py::test_scaling_counts_in_64_bits",
)

_MATRIX = r"(?:ld[abc]?|(?:source|target)_(?:row|col)|(?:row|col)_stride)\b"
_FACTOR = r"(?:\b(?:\w+ [/%] )?\w+|\((?:[^()]|\([^()]*\))*\))"

KERNEL_RULES = (
    # Who waits for whom.
    Rule("a barrier removed", r"\b(?:__sync\w+|named_barrier_sync)\([^;]*\);", ";"),
    Rule("a wait for copies removed", r"\bcopy_async_wait<[^>]*>\(\);", ";"),
    Rule("a wait for copies too weak", r"\bcopy_async_wait<([^>]*)>", r"copy_async_wait<\1 + 1>"),
    Rule("a commit removed", r"\bcopy_async_commit\(\);", ";"),
    Rule("a wait at an mbarrier removed", r"\bmbarrier_wait\([^;]*\);", ";"),
    Rule("the other parity", r"\b(mbarrier_wait\([^;]*, )([^;]*)\);", r"\1(\2) ^ 1);"),
    Rule("an arrival removed", r"\b\w+_arrive\w*\([^;]*\);", ";"),
    Rule("an arrival before the copies", r"\bcopy_async_arrive\(", "mbarrier_arrive("),
    Rule("an arrival too many expected", r"\b(mbarrier_init\([^;]*)\);", r"\1 + 1);"),
    Rule("an arrival too few expected", r"\b(mbarrier_init\([^;]*)\);", r"\1 - 1);"),
    Rule("a parity that never turns", r"\bparity \^= 1", "parity ^= 0"),
    Rule("a stage too few in the round", r"(== )STAGES\b", r"\1STAGES - 1"),
    Rule("a stage too few at the start", r"(stage < STAGES(?: - 1)?);", r"\1 - 1;"),
    Rule("the buffers not exchanged", r"\bcurrent = 1 - current;", ";"),
    # Where matrices and tiles end.
    Rule("an edge one too far", r">= (M|N|rows|cols|ROWS)\b", r"> \1"),
    Rule("an edge one too far", r"< (rows|cols|depth|left)\b", r"<= \1"),
    Rule("an edge one too far", r"<= left\b", "<= left + 1"),
    Rule("an edge one too far", r"\b(rows|cols) - 1\)(?! /)", r"\1)"),
    Rule("an edge one too near", r">= (M|N|rows|cols)\b", r">= \1 - 1"),
    Rule("an edge one too near", r"< (rows|cols|depth|left)\b", r"< \1 - 1"),
    Rule("AND for OR", r"\|\|", "&&"),
    Rule("OR for AND", r"(?<!&)&&", "||"),
    Rule("an unguarded float4", r"&& is_float4_address\(\w+\)", ""),
    Rule("an unguarded float4", r"VECTOR && valid == 4", "VECTOR"),
    Rule("an unguarded float4", r"cols_to\(j\) \+ 4 <= left && ", ""),
    Rule("floor for ceil", r"\((\w+) - 1\) / (TILE\w*) \+ 1", r"max(1, \1 / \2)"),
    Rule("floor for ceil", r"\((\w+) \+ (\w+) - 1\) / \2\b", r"\1 / \2"),
    # All of k, from the right places.
    Rule("a k dropped", r"(\bk < (?:K|TILE_K))(?=; \+\+k)", r"\1 - 1"),
    Rule("a k dropped", r"\b(depth|to_copy) > 0", r"\1 > 1"),
    Rule("a k dropped", r"\bdepth > TILE_K", "depth > TILE_K + 1"),
    Rule("a whole tile assumed too early", r"\bdepth >= TILE_K", "depth >= TILE_K - 1"),
    Rule("the depth that is left forgotten", r"\bdepth - TILE_K\b", "depth"),
    Rule("a step along k too short", r"(\+= TILE_K\b(?! \*))", r"\1 - 1"),
    Rule("M and N swapped", r"\brow >= M \|\| col >= N", "row >= N || col >= M"),
    Rule("M and N swapped", r"\b(M) - row0", "N - row0"),
    Rule("M and N swapped", r"\b(N) - col0", "M - col0"),
    Rule("M and N swapped", r"\bN - 1\) / TILE_N", "M - 1) / TILE_N"),
    Rule("M and N swapped", r"\brows, cols(, alpha|\))", r"cols, rows\1"),
    Rule("tiles in the wrong order", r"\bblockIdx\.x / (\w+)\)", r"blockIdx.x % \1)"),
    Rule("tiles in the wrong order", r"\bblockIdx\.x % (\w+)\)", r"blockIdx.x / \1)"),
    Rule("threads in the wrong order", r"\bthreadIdx\.x / (TILE\w*)", r"threadIdx.x % \1"),
    Rule("the neighbour's step", r"\ba\[i\]\[k\]", "a[i][k ^ 1]"),
    Rule(
        "an address in 32 bits",
        rf"({_FACTOR} \* {_MATRIX})",
        r"static_cast<int>(\1)",
        FAR_APART_TESTS,
    ),
    Rule("an index in 32 bits", r"static_cast<long long>\(rows\)", "rows", FAR_APART_TESTS),
    # Tiles that blocks share.
    Rule("a block too early", r"< others\)", "< others - 1)"),
    Rule("the last block forgotten", r"\bother <= others\b", "other < others"),
    Rule("a level too few", r"\bapart <= last - first\b", "apart < last - first"),
    Rule("levels with one count", r"\(block \+ apart\) \* MULTIPLIERS", "block * MULTIPLIERS"),
    Rule("neighbours on one level only", r"% \(apart \* FAN_IN\)", "% FAN_IN"),
    Rule("a block's sums lost", r"\+= __ldcg", "= __ldcg"),
    Rule("sums left twice in one place", r"\(share\.begin_of\(block\) < first_step\)", "0"),
    Rule("the step of another block", r"\(step \+ 1\)", "step"),
    Rule("a segment before its tile", r"\bmax\((begin - start), 0LL\)", r"(\1)"),
    Rule("a tile in no turn", r"\bn -= last_tile - first_tile \+ 1", "n -= last_tile - first_tile"),
    Rule("a slice lost", r"\bkept \+ __shfl", "__shfl"),
    Rule("another slice's rows", r"\brows_to\(slice \* ROWS\)", "0"),
    # The scales.
    Rule("C read though beta is 0", r"beta == 0\.0f \? ([^:;]+) : ", ""),
    Rule("C read though beta is 0", r"beta != 0\.0f && ", ""),
    Rule("alpha forgotten", r"\balpha \* sum", "sum"),
    Rule("beta forgotten", r"\bbeta \* (\*\w+|to\b)", r"\1"),
)

# What looks as a rule says and is no fault: file, fault and line, and why.
NO_FAULTS: dict[tuple[str, str, str], str] = {}

ON_A_GPU_ONLY = ("portable.cuh", "template.cu")
CONVERSIONS = ("copy_strided.cu", "scale.cu")

HOST_TESTS = tuple(
    f"test_matmul.py::{test}"
    for test in (
        "test_float4_needs_16_bytes",
        "test_float4_reads_a_single_row_wherever_the_next_one_would_be",
        "test_a_large_product_is_worth_an_aligned_copy",
        "test_known_troublesome_shapes",
        "test_scales",
        "test_without_terms_the_result_is_beta_times_out",
        "test_beta_1_without_terms_launches_nothing",
        "test_out_may_interleave_with_an_input",
        "test_axes_of_size_1",
        "test_fortran_order_of_out",
        "test_copies_of_strides_past_2_to_the_31",
        "test_windows_of_one_buffer",
    )
)


@dataclass(frozen=True)
class Faults:
    """Faults of a Python file: what is wrong, and the text that is replaced, which is there once.
    ``tests`` must see all of them; ``keyword`` selects some of those."""

    file: str
    tests: tuple[str, ...]
    planted: tuple[tuple[str, str, str], ...]
    keyword: str = ""


PYTHON_FAULTS = (
    # Launch geometry, guards and padding.
    Faults(
        "sgemm/ladder.py",
        ("test_ladder.py", "test_matmul.py::test_float4_needs_16_bytes"),
        (
            ("floor for ceil of M", "-(-m // self.tile[0])", "m // self.tile[0]"),
            ("floor for ceil of N", "-(-n // self.tile[1])", "n // self.tile[1]"),
            ("M and N swapped", "-(-m // self.tile[0]) * -(-n", "-(-n // self.tile[0]) * -(-m"),
            ("float4 whatever the operands", "int(vector and self.float4)", "int(self.float4)"),
            ("float4 never", "int(vector and self.float4)", "0"),
            ("another tree than the kernels'", "FAN_IN = 8", "FAN_IN = 4"),
            ("one level of the tree", "while parts > 1:", "if parts > 1:"),
        ),
        "v0 or v2 or add_up",
    ),
    Faults(
        "sgemm/choices.py",
        ("test_choices.py",),
        (
            ("a choice for any GPU", 'content["gpu"] != gpu_name', "False"),
            ("any schema", 'content["schema"] != SCHEMA', "False"),
            ("a choice however far away", "distance(m, n, k) <= WITHIN", "distance(m, n, k) > 0"),
            ("the farthest choice", "nearest = min(known", "nearest = max(known"),
            ("a version that cannot run", "if choice.version.name in names", "if True"),
            ("sizes that are none", "slices) < 1:", "slices) < -9999:"),
            ("the launch's shared memory", "max(buffers, version.dynamic_shared_bytes)", "buffers"),
            ("half a file", "unfinished.write_text", "file.write_text"),
        ),
    ),
    Faults(
        "sgemm/ceiling.py",
        ("test_ceiling.py",),
        (
            ("producers forgotten", "issued += producers * ", "issued += 0 * "),
            ("every producer for each", "version.threads / multiplying - 1", "1"),
            ("a last wave where tiles are shared", "if plan.shared_tiles:", "if False:"),
            ("no last wave of blocks that stay", "if plan.shared_tiles:", "if version.stream_k:"),
            ("tiles shared by every SM", "min(gpu.sms, plan.blocks)", "gpu.sms"),
            ("a block for each tile resident", "-(-plan.blocks // gpu", "-(-tiles // gpu"),
            ("pauses beside another block", "if resident == 1:", "if resident:"),
            ("pauses forgotten", "warps * pass_cycles + idle", "warps * pass_cycles"),
        ),
    ),
    Faults(
        "benchmarks/tune.py",
        ("test_tune.py",),
        (
            ("spills timed", "if spill_bytes:", "if False:"),
            ("no path without float4", "compile(other, arch, vector=False)", "pass"),
            ("other warps with tasks", "and other.threads != version.threads", "and False"),
            ("the slowest saved", "max(to_the_end, key", "min(to_the_end, key"),
            ("noise saved", "> WORTH * by_rule", "> by_rule"),
            ("what is short saved", 'timed if not row["pruned"]', "timed"),
            ("a version saved twice", 'setdefault(row["version"]', 'setdefault(row["gflops"]'),
            ("a wrong result not told", "if version in contest.wrong:", "if False:"),
            ("matmul's own not timed", "and version != by_rule", ""),
            ("two blocks that wait for each other", ">= DEALS_OUT_REGISTERS", "> (99, 0)"),
            ("more results in memory", "self._samplers.pop(slower)", "self._samplers[slower]"),
            ("time that is over", "monotonic() > until", "False"),
            ("memory forgotten", "/ (target.gigabytes_per_second * 1e9)", "/ inf"),
            ("repetitions timed", "blocks_per_sm != version.blocks_per_sm", "False"),
            ("nowhere to save", "_require_writable(Path(options.save))", "pass"),
            ("seconds that are none", "if not 0 < seconds < inf:", "if not 0 < seconds:"),
        ),
    ),
    Faults(
        "sgemm/multiply.py",
        ("test_rejections.py", *HOST_TESTS),
        (
            (
                "floor for ceil of a copy's blocks",
                "-(-rows // COPY_TILE)",
                "max(1, rows // COPY_TILE)",
            ),
            (
                "floor for ceil of the scaling's blocks",
                "-(-rows * cols // THREADS)",
                "max(1, rows * cols // THREADS)",
            ),
            ("a stale result", "if recipe.copies[-1]:", "if not recipe.copies[-1]:"),
            ("C not copied where beta reads it", "or beta != 0:", "or beta == 0:"),
            ("AND for OR", "k > 0 and ab_scale != 0", "k > 0 or ab_scale != 0"),
            ("A and B read though alpha is 0", "k > 0 and ab_scale != 0", "k > 0"),
            ("beta 0 left out", "reads_ab and c_scale != 1", "reads_ab and c_scale not in (0, 1)"),
            ("a guard removed", "if k != k_of_b:", "if k < k_of_b:"),
            ("a guard removed", "out is None and c_scale != 0", "out is None and c_scale > 1"),
            ("a guard removed", "if c.overlaps(operand):", "if c == operand:"),
            ("a guard removed", "if c.form.repeats_an_element:", "if not c:"),
            ("a guard removed", "if array.dtype != FLOAT32:", "if array.dtype == bool:"),
            ("a guard removed", "if offset % FLOAT_BYTES and", "if offset % 2 and"),
            ("strides of nothing", "and rows > 1 and cols)", "and rows > 1)"),
            ("time for what is not computed", "k if reads_ab else 0", "k"),
            (
                "text for a number",
                "if not (hasattr(type(value), ",
                "if not (True or hasattr(type(value), ",
            ),
            ("a cast of out", 'if name == "out":  # a cast', 'if name == "C":  # a cast'),
            ("a limit of 64 bits", "MAX_DIMENSION = 2**31 - 1", "MAX_DIMENSION = 2**63 - 1"),
            ("a limit of 32 bits", "MAX_BLOCKS = 2**31 - 1", "MAX_BLOCKS = 2**32 - 1"),
        ),
        "v0 or v2 or v5 or beta_1 or test_rejections",
    ),
    Faults(
        "sgemm/multiply.py",
        ("test_choices.py",),
        (
            ("tiles of C for C.T", "recipe.transposed and requested is None", "False"),
            # Where copies are made as well, it writes beyond them and may hang.
            (
                "a product that is not transposed",
                "a, b, c = b.transposed(), a.transposed(), c.transposed()",
                "a, b, c = a.transposed(), b.transposed(), c.transposed()",
            ),
        ),
        "transposed",
    ),
    Faults(
        "sgemm/multiply.py",
        ("test_prepare.py",),
        (
            (
                "counts not cleared",
                "launches.append(place.clearing(arrivals, recipe.arrivals))",
                "pass",
            ),
            ("matrices not kept", "(a, b, arrays)", "()"),
            ("a graph's workspaces for all graphs", "reusable=not at_once", "reusable=False"),
            ("the streams of owners forgotten", "        self._place.hand_back()\n", ""),
        ),
    ),
    Faults(
        "sgemm/recipe.py",
        HOST_TESTS,
        (
            (
                "M and N swapped in the arguments",
                "np.int32(c.rows), np.int32(c.cols)",
                "np.int32(c.cols), np.int32(c.rows)",
            ),
            ("a k dropped", "np.int32(a.cols)", "np.int32(a.cols - 1)"),
            ("float4 though A forbids it", 'a.allows_float4("row") or version', "True or version"),
            (
                "float4 though B forbids it",
                "float4 &= b.allows_float4(version.b_layout)",
                "",
            ),
            (
                "a product that is not transposed",
                "b.transposed(), a.transposed(), c.transposed()",
                "a.transposed(), b.transposed(), c.transposed()",
            ),
            (
                "an edge one too far",
                "a.cols >= ALIGNED_COPY_MIN_K",
                "a.cols > ALIGNED_COPY_MIN_K",
            ),
            (
                "a copy of B one row too late",
                "a.rows >= ALIGNED_COPY_MIN_M",
                "a.rows > ALIGNED_COPY_MIN_M",
            ),
            ("a copy that does not pay", "by_float4s=not version.a_by_floats", "by_float4s=True"),
            (
                "B's leading dimension",
                "b.leading_dimension(version.b_layout)",
                'b.leading_dimension("row")',
            ),
        ),
        "v0 or v2 or v5",
    ),
    Faults(
        "sgemm/matrix.py",
        ("test_rejections.py", *HOST_TESTS),
        (
            ("floor for ceil", "-(-length // 4) * 4", "length // 4 * 4"),
            ("AND for OR", "% FLOAT4_BYTES == 0 and", "% FLOAT4_BYTES == 0 or"),
            ("rows of 8 bytes for float4", "(layout) % 4 == 0", "(layout) % 2 == 0"),
            ("addresses of 8 bytes for float4", "FLOAT4_BYTES = 16", "FLOAT4_BYTES = 8"),
            ("steps taken for contiguous", "length <= 1 or step == 1", "length <= 1 or step >= 1"),
            ("the leading dimension of one row", "if count > 1 else", "if count > 0 else"),
            (
                "strides that stay",
                "self.cols, self.rows, self.col_stride, self.row_stride",
                "self.cols, self.rows, self.row_stride, self.col_stride",
            ),
            ("OR for AND", "down < self.rows and across", "down < self.rows or across"),
            ("an edge one too far", "down < self.rows and", "down <= self.rows and"),
            ("a span one too short", "abs(across) + 1)", "abs(across))"),
            ("a span from the first element", "(min(down, 0) + min(across, 0))", "0"),
            ("strides of one byte", "form.row_stride * FLOAT_BYTES", "form.row_stride"),
        ),
        "v0 or v2 or v5 or beta_1 or test_rejections",
    ),
    # The numerical check and the command around it.
    Faults(
        "sgemm/residual.py",
        ("test_residual.py",),
        (
            ("a bound too wide", "UNIT_ROUNDOFF = 2.0**-24", "UNIT_ROUNDOFF = 2.0**-20"),
            (
                "a bound too narrow",
                "gamma = (depth + 2) * UNIT_ROUNDOFF /",
                "gamma = 0.01 * UNIT_ROUNDOFF /",
            ),
            ("a bound without C", "(size * magnitude + abs(addend))", "(size * magnitude)"),
            (
                "a bound without subnormals",
                "HALF_LEAST_SUBNORMAL = 2.0**-150",
                "HALF_LEAST_SUBNORMAL = 0.0",
            ),
            ("blocks forgotten", "wrong += wrong_here", "wrong = wrong_here"),
            ("the last block left out", "range(0, extent, step)", "range(0, extent - 1, step)"),
            ("the last wrong element named", "index < first", "index > first"),
            ("a wrong kind accepted", "xp.where(right_kind, error, inf)", "error"),
            (
                "signs swapped",
                "xp.where(found > 0, self._positive, self._negative)",
                "xp.where(found > 0, self._negative, self._positive)",
            ),
            ("the sign of alpha", "if alpha < 0.0:", "if alpha > 0.0:"),
            ("the sign of beta", "(c0 > 0) == (beta > 0)", "c0 > 0"),
            ("zero times infinity", "inf_times_zero + zero_times_inf > 0", "inf_times_zero > 0"),
            ("NaN of B forgotten", "| b_nan.any(axis=0)[None, :]", ""),
            ("a sum's overflow before alpha", "largest = max(1.0, size)", "largest = size"),
            (
                "C read though beta is 0",
                "if beta != 0.0 else None,",
                "if c0 is not None else None,",
            ),
            ("A and B read though alpha is 0", "alpha != 0.0 and depth > 0", "depth > 0"),
            ("scales in float64", "rounded = float(np.float32(value))", "rounded = float(value)"),
            ("always right", "return self.wrong == 0", "return self.wrong >= 0"),
        ),
        "not exact_arithmetic and not one_wrong_element",
    ),
    Faults(
        "sgemm/check.py",
        (
            "test_cli.py::test_a_wrong_kernel_is_red",
            "test_cli.py::test_a_dropped_term_that_the_bound_cannot_see_is_red",
            "test_cli.py::test_check_finds_every_version_right",
        ),
        (
            ("integers not compared", "exact = whole.relative == 0", "exact = whole.ok"),
            ("stale output accepted", "xp.full_like(c0, nan)", "xp.full_like(c0, 0)"),
            (
                "C's surroundings not looked at",
                "if not out.surroundings_are_intact():",
                "if out is None:",
            ),
            (
                "A's surroundings not looked at",
                "unchanged and buffer.surroundings_are_intact()",
                "unchanged",
            ),
            ("the bound not looked at", "if not uniform.ok:", "if uniform is None:"),
            ("beta forgotten", "alpha=case.alpha, beta=case.beta, c0=c0)", "alpha=case.alpha)"),
        ),
    ),
    # The instrument.
    Faults(
        "benchmarks/problems.py",
        ("test_benchmarks.py::TestProblems", "test_benchmarks.py::TestOperands"),
        (
            ("half of the operations", "return 2 * m * n * k", "return m * n * k"),
            ("a dimension not counted", "return 2 * m * n * k", "return 2 * m * n"),
            (
                "operations in 32 bits",
                "int(self.m), int(self.n), int(self.k)",
                "self.m, self.n, self.k",
            ),
            ("bytes of C forgotten", " + m * n)", ")"),
        ),
    ),
    Faults(
        "benchmarks/timing.py",
        ("test_timing.py",),
        (
            ("unsynchronised", "end.departure.synchronize()", "pass"),
            (
                "the reading in the seconds",
                "start.departure, end.arrival",
                "start.arrival, end.arrival",
            ),
            ("milliseconds for seconds", "milliseconds / 1000", "milliseconds"),
            ("the slowest batch", "return min(batches,", "return max(batches,"),
            ("seconds of a batch", "result.seconds / launches,", "result.seconds,"),
            ("cycles of a batch", "result.cycles / launches, reading", "result.cycles, reading"),
            (
                "slow samples dropped",
                "self.samples.append(sample)",
                "self.samples = sorted([*self.samples, sample], key=lambda s: s.seconds)[:5]",
            ),
            ("time not counted", "self.spent_seconds += sum", "self.spent_seconds = sum"),
            ("one set of operands", "next(self._rotation) % self._workload.sets", "0"),
            (
                "a first result not verified",
                "self._workload.launch(0)\n        self._workload.verify(1)",
                "self._workload.launch(0)",
            ),
            (
                "a stale first result",
                "self._workload.poison()\n        self._workload.launch(0)",
                "self._workload.launch(0)",
            ),
            (
                "stale output timed",
                "by the warm device's\n        self._workload.poison()",
                "by the warm device's",
            ),
            ("one output verified", "min(self._workload.sets, next(self._rotation))", "1"),
            ("no warm-up", "while not self.settled and", "while self.settled and"),
            ("half of a graph's round", "ceil(launches / sets) * sets", "launches"),
            ("memory kept", "self._rotation = count()", "self._rotation, self._me = count(), self"),
            (
                "a graph not replayed",
                "self._replay()\n\n    def _queue_lead",
                "pass\n\n    def _queue_lead",
            ),
            ("a lead-in left out", "if self.plan.lead_in:", "if not self.plan.lead_in:"),
            ("OR for AND", "all(map(_is_precise", "any(map(_is_precise"),
            ("too few samples", "taken >= MIN_SAMPLES and", "taken >= 1 and"),
            ("a precision for one sample", " * sqrt(len(seconds))", " * len(seconds)"),
            ("the high end", "return min(sample.seconds", "return max(sample.seconds"),
            ("any clock accepted", "_CLOCK_TOLERANCE = 1.05", "_CLOCK_TOLERANCE = 2.0"),
            ("a dead counter accepted", "if not lowest < mhz", "if not 0 <= mhz"),
        ),
    ),
    Faults(
        "benchmarks/clock.py",
        ("test_timing.py::TestCycles",),
        (
            ("cycles of any SM", "after[sm] - before[sm]", "after[sm] - min(before.values())"),
            ("the slowest SM", "float(median(", "float(max("),
            ("too few SMs accepted", "2 * len(in_both) < len(start)", "len(in_both) < 1"),
        ),
    ),
    Faults(
        "benchmarks/products.py",
        ("test_benchmarks.py::TestOperands", "test_benchmarks.py::TestProducts", "test_table.py"),
        (
            ("stale output", "out.fill(nan)", "pass"),
            ("no output verified", "self._outs[:launched]", "self._outs[:0]"),
            ("a wrong result timed", "if not self.residual.ok:", "if self.residual is None:"),
            (
                "one right element is enough",
                "(out != self._right).any()",
                "(out != self._right).all()",
            ),
            ("operands in the cache", "max(places, 1 + ", "max(places, "),
            (
                "constant operands",
                ".random(count, np.float32) * 2 - 1",
                ".random(count, np.float32) * 0 + 1",
            ),
            (
                "operands without sign",
                ".random(count, np.float32) * 2 - 1",
                ".random(count, np.float32)",
            ),
            (
                "A where it is aligned",
                "buffer[problem.a_offset :].reshape",
                "buffer[: m * k].reshape",
            ),
            (
                "B without values",
                "reshape(k, n).copy(order)",
                "reshape(k, n).copy(order) * 0 + 1",
            ),
            (
                "always the same operands",
                "self._multiply(self.operands.a[i], self.operands.b[i], self._outs[i])",
                "self._multiply(self.operands.a[0], self.operands.b[0], self._outs[i])",
            ),
        ),
    ),
    Faults(
        "sgemm/gpu.py",
        ("test_gpu_calls.py",),
        (
            (
                "one device for all",
                "self.hardware = _devices[device.id]",
                "self.hardware = _devices[0]",
            ),
            (
                "kernels of another device",
                "self.functions: dict[Kernel, Any] = {}",
                "self.functions: dict[Kernel, Any] = _devices.setdefault(-1, {})",
            ),
        ),
        "the_other_device",
    ),
    Faults(
        "sgemm/gpu.py",
        ("test_gpu_calls.py",),
        (
            ("a graph's memory kept", "and not self._of_the_graph:", "or True:"),
            ("a scale of another device", "    with array.device:\n", "    if True:\n"),
        ),
        "graph_gives or other_device or none_beside or capture_orders",
    ),
    Faults(
        "sgemm/causes.py",
        ("test_causes.py",),
        (
            ("the last release too new", "if last and last < here:", "if last and last <= here:"),
            ("the system's errors bare", "if isinstance(error, OSError):", "if False:"),
            ("CuPy's compiler bare", "_is_of_cupys_compiler(error):", "False:"),
            ("facts of many lines", '" ".join(str(fact).splitlines())', "str(fact)"),
        ),
        "last_release or refuses or cannot_compile or on_one_line",
    ),
    Faults(
        "sgemm/doctor.py",
        ("test_doctor.py",),
        (
            ("a container anywhere", "if host.container and named in", "if named in"),
            (
                "a variable blamed",
                "if not _starts(driver):\n        return None",
                "if False:\n        return None",
            ),
            ("MIG forgotten", 'if split and named not in ("", "-1"):', "if split and not named:"),
            ("a compiler blamed", "if isinstance(found, ImportError):", "if False:"),
        ),
        "only_cause or outside_of_a_container or each_problem or not_blamed",
    ),
    Faults(
        "sgemm/probes.py",
        ("test_doctor.py",),
        (
            ("a damaged driver for none", "if _NO_LIBCUDA.search(str(error)):", "if True:"),
            (
                "a crowd for nobody",
                "return None if status else tuple(",
                "return () if status else tuple(",
            ),
            ("WSL without a GPU", '"dev/dxg", "dev/nvmap"', '"dev/nvmap",'),
        ),
        "damaged or room_for or other_device_files",
    ),
    Faults(
        "sgemm/cache.py",
        ("test_cache.py",),
        (
            ("libraries that cannot run", "if for_libraries and", "if False and"),
            ("cubins that could", "_folder(suffix == LIBRARY)", "_folder(True)"),
            ("a name not quoted", "shlex.quote(str(path.absolute()))", "str(path.absolute())"),
        ),
        "runs_no_code or pasted",
    ),
    Faults(
        "sgemm/simulator/build.py",
        ("test_rejections.py",),
        (
            ("a compiler that hangs", "timeout=seconds,", ""),
            ("any program", "output_of(*command, *nothing, seconds=COMPILER_SECONDS)", "pass"),
            ("what cannot be run", "with suppress(OSError, ", "with suppress("),
        ),
        "is_no_compiler",
    ),
    Faults(
        "benchmarks/gpu.py",
        ("test_figures.py",),
        (
            ("others on the GPU", "if len(processes) <= own_processes:", "if True:"),
            ("no patience", "if time.monotonic() > deadline:", "if True:"),
            (
                "no temperature",
                "celsius=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)",
                "celsius=None",
            ),
            ("no clock", "            sm_mhz=sm_mhz,", "            sm_mhz=None,"),
            (
                "GPUs of a model that are one",
                "uuid and hashlib.sha256(uuid.encode()).hexdigest()[:12]",
                "None",
            ),
        ),
        "recorded or others or another",
    ),
    Faults(
        "benchmarks/measure.py",
        (
            "test_benchmarks.py::TestMeasuring::test_a_busy_gpu_is_refused",
            "test_benchmarks.py::TestMeasuring::test_a_wrong_cublas_is_named",
            "test_benchmarks.py::TestMeasuring::test_a_kernel_that_stops_writing_when_timed_is_wrong",
            "test_benchmarks.py::TestMeasuring::test_cublas_has_new_samples_beside_every_version",
            "test_benchmarks.py::TestMeasuring::test_one_measurement_gives_every_metric",
            "test_benchmarks.py::TestMeasuring::test_cublas_is_sampled_in_turn_with_a_version",
        ),
        (
            ("seconds for GFLOPS", "problem.flops / sample.seconds / 1e9", "sample.seconds"),
            ("the ratio turned round", "theirs / mine.seconds for", "mine.seconds / theirs for"),
            (
                "the share turned round",
                "sample_gflops / self.peak_gflops for",
                "self.peak_gflops / sample_gflops for",
            ),
            ("a busy GPU", "monitor.require_alone(own_processes=0)", "pass"),
            ("samples of the version before", "reference.restart()\n", "pass\n"),
            ("a result not verified", "        sampler.finish()", "        pass"),
            ("a wrong cuBLAS timed", "elif wrong:", "elif wrong is None:"),
        ),
    ),
    Faults(
        "benchmarks/child.py",
        ("test_benchmarks.py::TestChildren",),
        (
            ("one key costs all", "unanswered if silent and not found else", "unanswered or"),
            ("started for every key", "unanswered if silent and not found else ", ""),
            ("a share not asked for", "for i in range(cores) if", "for i in range(1, cores) if"),
            ("one at a time", "ThreadPoolExecutor(cores)", "ThreadPoolExecutor(1)"),
        ),
    ),
    Faults(
        "benchmarks/table.py",
        (
            "test_table.py::test_a_busy_gpu_is_not_measured",
            "test_table.py::test_a_kernel_that_stops_writing_when_timed_is_wrong",
            "test_table.py::test_a_wrong_kernel_has_no_speed",
            "test_table.py::test_every_version_is_measured_in_one_run",
        ),
        (
            (
                "the fastest sample",
                "median(sample.seconds for sample in self.sampler.samples)",
                "min(sample.seconds for sample in self.sampler.samples)",
            ),
            ("the gain turned round", "return mine / others", "return others / mine"),
            (
                "the gain over the next one",
                "for earlier, later in pairwise",
                "for later, earlier in pairwise",
            ),
            ("a result not verified", "sampler.finish()", "sampler.plan"),
            ("a busy GPU", "monitor.require_alone(own_processes=0)", "pass"),
            ("green though wrong", "int(any(subject.wrong", "int(all(subject.wrong"),
        ),
    ),
    Faults(
        "benchmarks/verdict.py",
        ("test_verdict.py",),
        (
            (
                "the direction turned round",
                "SLOWER if seconds.estimate > 0",
                "SLOWER if seconds.estimate < 0",
            ),
            ("base and head swapped", "log(h / b)", "log(b / h)"),
            (
                "cycles that disagree",
                "confirmed = copysign(1, seconds.estimate) *",
                "confirmed = 1 *",
            ),
            (
                "cycles not asked",
                "if confirmed <= max(cycles.margin, limits.relevant / 2):",
                "if False:",
            ),
            ("processes taken for one", "hypot(gap.margin, between)", "gap.margin"),
            ("many benchmarks taken for one", "1 - ERROR_RATE / benchmarks", "1 - ERROR_RATE"),
            (
                "noise taken for the same",
                "size + gap.margin < limits.visible",
                "size < limits.visible",
            ),
            ("a bad sample accepted", "isfinite(value) and value > 0", "value == value"),
            ("a single round", "MIN_ROUNDS = 3", "MIN_ROUNDS = 1"),
            (
                "a mean that is a sum",
                "(self.estimate + other.estimate) / 2",
                "self.estimate + other.estimate",
            ),
            ("one process decides", "if first.verdict is second.verdict or", "if first.verdict or"),
            ("nothing is certain", "CERTAIN = 0.02", "CERTAIN = 0.0"),
            (
                "seconds alone are certain",
                "gaps = first.seconds, first.cycles",
                "gaps = [first.seconds]",
            ),
            (
                "cycles alone are certain",
                "gaps = first.seconds, first.cycles",
                "gaps = [first.cycles]",
            ),
        ),
    ),
    Faults(
        "benchmarks/distributions.py",
        ("test_verdict.py",),
        (
            ("a mean that is not trimmed", "kept = ordered[trim : count - trim]", "kept = ordered"),
            ("a tail too many", "tail = (1 - confidence) / 2", "tail = 1 - confidence"),
            ("two sides for one", "0.5) / 2", "0.5)"),
        ),
    ),
    Faults(
        "benchmarks/gate.py",
        ("test_gate.py",),
        (
            (
                "base and head swapped",
                "compare(old.samples, new.samples",
                "compare(new.samples, old.samples",
            ),
            ("seconds for GFLOPS", "flops / median(s.seconds) / 1e9", "median(s.seconds)"),
            (
                "a wrong head accepted",
                "Verdict.WRONG if after.wrong else",
                "Verdict.SAME if after.wrong else",
            ),
            ("a second pair not asked", "if again:  # head", "if not again:  # head"),
            (
                "the second pair in the same order",
                "(after, before) in _sample(report, (head, base)",
                "(after, before) in _sample(report, (base, head)",
            ),
        ),
        "rise or fall or failures or bad_luck or fresh_processes or same_speed",
    ),
    Faults(
        "benchmarks/gate.py",
        ("test_gate.py",),
        (
            ("lost GPUs unseen", 'if "skip" in new and "skip" not in old:', "if False:"),
            (
                "a report tried too late",
                '_require_writable("--markdown", Path(options.markdown))',
                "pass",
            ),
            (
                "an acceptance tried too late",
                '_require_writable("--accept", gate_report.ACCEPTED)',
                "pass",
            ),
            ("an empty file left", "if not existed:", "if False:"),
            (
                "written before it is printed",
                "    if options.json:\n",
                "    _write(options.markdown, summary)\n    if options.json:\n",
            ),
            ("a full disk for the reason", "with suppress(OSError):", "with suppress():"),
            ("no checkout is no commit", 'if (ROOT / ".git").exists():', "if True:"),
        ),
        "not_run or cannot_be or no_file or whatever_becomes or full_disk or outside_a_checkout",
    ),
    Faults(
        "benchmarks/fingerprint.py",
        ("test_gate.py::test_a_version_is_compared_on_every_architecture_that_it_runs_on",),
        (
            ("every architecture for every version", "why_not_run(version, arch):", "None:"),
            (
                "the launch's shared memory forgotten",
                "shared_bytes_of_block(needs, version)",
                "needs.shared_bytes",
            ),
        ),
    ),
    Faults(
        "benchmarks/calibrate.py",
        ("test_calibrate.py",),
        (
            ("half a gate", "if len(alarms) == session.benchmarks:", "if alarms:"),
            ("what was kept overwritten", 'path.open("a")', 'path.open("w")'),
            ("samples taken twice", " if b not in self.recorded]", "]"),
            ("another GPU's samples", "if begun.environment.get(name) != value", "if False"),
            ("half a line", "if cut_off:", "if False:"),
            ("half a line read", "*lines, _cut_off = path", "lines = path"),
            ("two runs in one file", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_UN"),
            ("any file emptied", "if cut_off[: len(known)] != known[: len(cut_off)]", "if False"),
            ("any numbers", "if not all(0 < value < inf", "if not all(True"),
        ),
        "cut_short or continued or complete or another_file or samples_of_none or two_runs",
    ),
    Faults(
        "benchmarks/turns.py",
        ("test_timing.py", "test_gate.py"),
        (
            ("always the same first", "[:: -1 if rounds % 2 else 1]", "[::1]"),
            ("the fastest of the batches", "mean(batch.seconds for", "min(batch.seconds for"),
            ("results not verified", 'ask(i, "finish", processes=len(processes))', "pass"),
            ("first results not verified", "self._sampler.verify_first()", "pass"),
            (
                "no warm-up",
                "self._sampler.warm_up()",
                "self._sampler._plan(self._sampler._estimate()[0])",
            ),
            ("a check that is compiled in the turns", "self._compile_check(cublas)", "pass"),
            (
                "an answer left in a pipe",
                "in enumerate([hear(i) for i in range(len(processes))]):",
                "in ((i, hear(i)) for i in range(len(processes))):",
            ),
            (
                "timing's own lead-in",
                "timing.LEAD_IN_BELOW_SECONDS = LEAD_IN_BELOW_SECONDS",
                "pass",
            ),
        ),
        "turns or rounds or sample_that or takes or finish or answered or process_that_dies"
        " or warmed or compiled or somebody",
    ),
    Faults(
        "benchmarks/series.py",
        ("test_direction.py::test_a_benchmark_says_so_itself",),
        (
            (
                "the direction turned round",
                "benchmark.higher_is_better = higher_is_better",
                "benchmark.higher_is_better = not higher_is_better",
            ),
        ),
    ),
    Faults(
        "asv_plugins.py",
        ("test_direction.py::test_regressions", "test_direction.py::test_feed"),
        (
            ("the direction turned round", "Reciprocals(graph) if benchmark", "graph if benchmark"),
            ("reciprocals shown", "1 / last,", "last,"),
            ("jumps turned round", "1 / old, 1 / new) for", "1 / new, 1 / old) for"),
        ),
    ),
    Faults(
        "benchmarks/ffma_peak.py",
        ("test_table.py", "test_benchmarks.py::TestMeasuring"),
        (
            ("half of the operations", "self.flops = 2 * sums", "self.flops = sums"),
            ("a stale result", "self._end.fill(nan)", "pass"),
            ("a result not verified", "(self._start != self._end).any()", "not len(self._start)"),
        ),
    ),
    Faults(
        "sgemm/trace.py",
        (
            "test_trace.py::test_figures_per_load_and_per_thread",
            "test_trace.py::test_what_holds_for_every_version",
        ),
        (
            ("half of the operations", "return 2 * self.m", "return self.m"),
            ("stores not counted", " + self.total.global_stores.units", ""),
            ("bytes of C forgotten", " + self.m * self.n)", ")"),
            (
                "blocks forgotten",
                "together.barriers / threads",
                "together.barriers / version.threads",
            ),
            ("threads for warps", "line.fmas / WARP /", "line.fmas /"),
        ),
    ),
    Faults(
        "sgemm/simulated.py",
        ("test_trace.py::test_where_memory_lies_changes_no_count",),
        (("memory that begins anywhere", "start = -memory.ctypes.data % ALIGNMENT", "start = 0"),),
    ),
    Faults(
        "sgemm/simulated.py",
        ("test_simulator_checks.py::test_the_ladder_has_no_findings_around_its_tiles",),
        (
            (
                "a count too few",
                "self._workspaces[partials].nbytes",
                "self._workspaces[partials].nbytes - FLOAT_BYTES",
            ),
        ),
        "v7",
    ),
    Faults(
        "benchmarks/counters.py",
        ("test_counters.py",),
        (
            (
                "copies among the stores",
                "others = total(line for line in lines if not line.copies)",
                "others = everything",
            ),
            (
                "copies left out",
                "copies = total(line for line in lines if line.copies)",
                "copies = total(())",
            ),
            ("all is near", "abs(gpu - mine) <= TOLERANCE * mine", "True"),
            ("nothing is exact", "if not counter.startswith(EXACT) and", "if"),
            ("however many copies", "mine < gpu <= UP_TO * mine", "mine < gpu"),
            ("zeros where there are none", "floats > copies.global", "floats >= copies.global"),
            ("buffers at a line's begin", "version.shared_bytes % LINE_BYTES:", "True:"),
            (
                "widths not compared",
                "if source and code and source != code:",
                "if source and code:",
            ),
            (
                "other metrics not asked",
                "for name in names), *ALSO)",
                "for name in names[:1]), *ALSO)",
            ),
            ("unknown metrics asked", 'or metric.partition(".")[0] in known', "or True"),
            ("all is well", 'any(row["verdict"] == UNEXPLAINED for row in rows)', "False"),
            (
                "the whole code's widths",
                "widths(loops, named) or widths(instructions, named)",
                "widths(instructions, named)",
            ),
        ),
        "not sms",
    ),
    Faults(
        "benchmarks/profile.py",
        ("test_profile.py",),
        (
            ("no figure for a text", '_number(cell) if "__" in name else cell', "_number(cell)"),
            ("NaN for a figure", "return None if isnan(number) else number", "return number"),
            ("the shortest kernel", "return max(found, key", "return min(found, key"),
            ("whatever the unit", "kernel[DURATION] *= unit", "kernel[DURATION] *= 1e-9"),
        ),
    ),
)
