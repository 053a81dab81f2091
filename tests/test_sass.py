"""The reader of machine code, against counts made by hand and small listings of its own."""

from pathlib import Path

import pytest

from sgemm import sass

SAMPLES = Path(__file__).parent / "machine_code"
"""What nvcc 13.0 makes of v1 and v2, printed by cuobjdump (v1) and nvdisasm (v2)."""

# Counted with grep over each sample's lines; the passes through the loops by their addresses: v1
# from 0x480 to 0xbc0, v2 from 0x3d0 to 0x4f0, 0x5d0 to 0x6e0 and 0x7c0 to 0x1280, the float4 path.
BY_HAND = {
    "v1_sm_80": {
        "kernel": sass.Counts(
            instructions=333,
            ffma=30,
            fmul=2,
            fadd=0,
            unfused=0,
            global_loads={32: 59},
            shared_loads={},
            shared_stores=0,
            asynchronous_copies={},
            bulk_copies=0,
            local_accesses=0,
            barriers=0,
            addresses=213,
            branches=15,
        ),
        "loop": sass.Counts(
            instructions=117,
            ffma=16,
            fmul=0,
            fadd=0,
            unfused=0,
            global_loads={32: 32},
            shared_loads={},
            shared_stores=0,
            asynchronous_copies={},
            bulk_copies=0,
            local_accesses=0,
            barriers=0,
            addresses=68,
            branches=1,
        ),
    },
    "v2_sm_90": {
        "kernel": sass.Counts(
            instructions=337,
            ffma=65,
            fmul=2,
            fadd=0,
            unfused=0,
            global_loads={32: 9, 128: 2},
            shared_loads={32: 64, 128: 16},
            shared_stores=2,
            asynchronous_copies={},
            bulk_copies=0,
            local_accesses=0,
            barriers=2,
            addresses=106,
            branches=21,
        ),
        "loop": sass.Counts(
            instructions=210,
            ffma=64,
            fmul=0,
            fadd=0,
            unfused=0,
            global_loads={128: 2},
            shared_loads={32: 64, 128: 16},
            shared_stores=2,
            asynchronous_copies={},
            bulk_copies=0,
            local_accesses=0,
            barriers=2,
            addresses=43,
            branches=11,
        ),
    },
}


@pytest.mark.parametrize("sample", BY_HAND)
def test_counts_made_by_hand(sample):
    instructions = sass.parse((SAMPLES / f"{sample}.sass").read_text())
    assert sass.count(instructions) == BY_HAND[sample]["kernel"]
    assert sass.count(sass.main_loop(instructions)) == BY_HAND[sample]["loop"]


def listing(*lines):
    """A listing such as nvdisasm's of these instructions and, with a colon, labels."""
    text, address = [".text.sgemm:"], 0
    for line in lines:
        if line.endswith(":"):
            text.append(f".L_{line}")
        else:
            text.append(f"        /*{address:04x}*/  {line} ;")
            address += 16
    return "\n".join(text)


def loop_of(*lines):
    return [str(instruction) for instruction in sass.main_loop(sass.parse(listing(*lines)))]


FFMA = "FFMA R0, R1, R2, R0"
BACK = "@P0 BRA `(.L_top)"


def test_without_a_loop_there_is_no_main_loop():
    assert loop_of(FFMA, "EXIT") == []


def test_the_loop_with_the_most_ffma():
    remainder = ("@P1 BRA `(.L_end)", "rest:", FFMA, "@P0 BRA `(.L_rest)", "end:", "EXIT")
    assert loop_of("top:", FFMA, FFMA, BACK, *remainder) == [FFMA, FFMA, BACK]


def test_the_innermost_one():
    inner = ("top:", FFMA, BACK)
    outer = ("tile:", "IADD3 R4, R4, 0x1, RZ", *inner, FFMA, FFMA, "@P1 BRA `(.L_tile)", "EXIT")
    assert loop_of(*outer) == [FFMA, BACK]


def test_a_wait_inside_the_loop_is_passed_once():
    """The loop that polls a barrier is a loop inside the main loop, but none with FFMA."""
    poll = ("poll:", "SYNCS.PHASECHK P1, [R9], R8", "@!P1 BRA `(.L_poll)")
    assert loop_of("top:", *poll, FFMA, BACK, "EXIT") == [*poll[1:], FFMA, BACK]


def test_a_wait_that_was_moved_behind_the_kernel_is_no_loop():
    """Its jump back into the loop is one backwards, over everything between."""
    lines = (
        *("top:", "@!P1 BRA `(.L_wait)", "on:", FFMA, BACK, FFMA, FFMA, "EXIT"),
        *("wait:", "SYNCS.PHASECHK P1, [R9], R8", "@!P1 BRA `(.L_wait)", "BRA `(.L_on)"),
    )
    assert loop_of(*lines) == ["@!P1 BRA `(.L_wait)", FFMA, BACK]


def test_of_two_ways_the_one_that_copies_a_whole_tile():
    scalar = [f"@P{i} LDG.E R{4 + i}, [R2+{4 * i:#x}]" for i in range(3)]
    lines = (
        *("top:", "@P4 BRA `(.L_done)", "@P5 BRA `(.L_wide)", *scalar, "BRA `(.L_done)"),
        *("wide:", "LDG.E.128 R4, [R2]", "done:", FFMA, BACK, "EXIT"),
    )
    assert "LDG.E.128 R4, [R2]" in loop_of(*lines)
    assert not set(scalar) & set(loop_of(*lines))


def test_a_condition_among_the_operands():
    """Otherwise the loop would seem to end in a jump that is always taken."""
    lines = ("top:", "BRA.U !UP0, `(.L_skip)", FFMA, "skip:", FFMA, "BRA.U UP1, `(.L_top)", "EXIT")
    assert loop_of(*lines).count(FFMA) == 2


def test_what_does_nothing_is_left_out():
    found = sass.parse(listing("@!PT LDS RZ, [RZ]", FFMA, "NOP", "EXIT", "NOP", "NOP"))
    assert [instruction.word for instruction in found] == ["FFMA", "NOP", "EXIT"]


def test_only_the_kernel_is_read():
    other = listing(FFMA, FFMA).replace(".text.sgemm", ".text.other")
    assert len(sass.parse(other + "\n\t.section\t.text\n" + listing(FFMA, "EXIT"))) == 2
    with pytest.raises(ValueError, match="no instructions of 'sgemm'"):
        sass.parse(other)


@pytest.mark.parametrize(
    ("text", "kind", "bits"),
    [
        ("LDG.E R0, desc[UR4][R2.64]", "global load", 32),
        ("LDG.E.128.CONSTANT R0, desc[UR4][R2.64]", "global load", 128),
        ("LDG.E.U8 R0, [R2.64]", "global load", 8),
        ("LDS.U.128 R0, [R2]", "shared load", 128),
        ("LDS.64 R0, [R2]", "shared load", 64),
        ("STS.128 [R0], R4", "shared store", 128),
        ("LDGSTS.E.BYPASS.128.ZFILL [R1], desc[UR18][R12.64], P0", "asynchronous copy", 128),
        ("LDGSTS.E [R1], desc[UR18][R12.64], P0", "asynchronous copy", 32),
        ("UBLKCP.S.G [UR18], [UR4], UR6", "bulk copy", 32),
        ("UTMALDG.2D [UR8], [UR4]", "bulk copy", 32),
        ("STL.64 [R1], R4", "local memory", 64),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", "barrier", 32),
        ("IMAD.WIDE.U32 R4, R7, R2, R4", "address", 32),
        ("BSYNC B0", "branch", 32),
        ("FMUL R0, R1, R2", "", 32),
    ],
)
def test_kinds(text, kind, bits):
    (instruction,) = sass.parse(listing(text))
    assert (instruction.kind, instruction.bits) == (kind, bits)


def test_multiply_adds_that_are_not_fused():
    fused = sass.parse(listing("FMUL R4, R1, R2", FFMA, "FADD R6, R5, R7"))
    assert sass.count(fused).unfused == 0
    pair = sass.parse(listing("FMUL R4, R1, R2", FFMA, "FADD R6, R5, R4"))
    assert sass.count(pair).unfused == 1
    overwritten = sass.parse(listing("FMUL R4, R1, R2", "MOV R4, R9", "FADD R6, R5, R4"))
    assert sass.count(overwritten).unfused == 0


def test_distance_from_a_load_to_its_first_use():
    loop = sass.parse(
        listing(
            "LDS.128 R8, [R20]",  # R8 to R11: its last float is used first
            "FFMA R0, R1, R2, R0",
            "FFMA R3, R11, R2, R3",
            "FFMA R4, R12, R2, R4",  # what the pass before loaded
            "LDS R12, [R20+0x10]",
        )
    )
    assert sass.load_distances(loop) == {0: 2, 4: 4}


def encoded(*lines):
    """A listing of instructions, each with the upper half of its encoding: stall, the counters of
    its result and its sources, those that it waits for."""
    text = [".text.sgemm:"]
    for position, (line, stall, result, sources, waits) in enumerate(lines):
        mask = sum(1 << counter for counter in waits)
        upper = stall << 41 | result << 46 | sources << 49 | mask << 52
        text.append(f"        /*{16 * position:04x}*/  {line} ;  /* 0x{0x7221:016x} */")
        text.append(f"                                   /* 0x{upper:016x} */")
    return sass.parse("\n".join(text))


NONE = 7


def test_what_the_compiler_tells_the_scheduler():
    load, use = encoded(("LDS.128 R4, [R9]", 2, 1, 3, ()), (FFMA, 5, NONE, NONE, (1, 5)))
    assert load.control == sass.Control(stall=2, result=1, sources=3)
    assert use.control == sass.Control(stall=5, waits=(1, 5))
    (plain,) = sass.parse(listing(FFMA))
    assert plain.control == sass.Control(stall=1)


def test_a_warp_waits_as_long_as_it_is_stalled():
    loop = encoded((FFMA, 4, NONE, NONE, ()), (FFMA, 1, NONE, NONE, ()))
    assert sass.issue_gaps(loop) == [4, 1]


def test_a_warp_waits_for_what_it_has_loaded():
    load = ("LDS R1, [R9]", 2, 0, NONE, ())
    assert sum(sass.issue_gaps(encoded(load, (FFMA, 1, NONE, NONE, (0,))))) == 24 + 1
    copy = ("LDGSTS.E [R9], desc[UR4][R4.64]", 2, NONE, 0, ())
    assert sum(sass.issue_gaps(encoded(copy, ("MOV R9, R8", 1, NONE, NONE, (0,))))) == 9 + 1


def test_what_is_loaded_for_the_next_pass_is_waited_for_there():
    loop = encoded((FFMA, 1, NONE, NONE, (0,)), ("LDS R1, [R9]", 3, 0, NONE, ()))
    assert sass.issue_gaps(loop) == [1, 24]


def test_a_barrier_pauses_the_multiplying():
    loop = encoded(
        ("LDS R1, [R9]", 1, 0, NONE, ()),
        (FFMA, 1, NONE, NONE, (0,)),
        ("MOV R8, R9", 1, NONE, NONE, ()),
        (FFMA, 2, NONE, NONE, ()),
        ("BAR.SYNC 0x0", 6, NONE, NONE, ()),
    )
    assert sass.pauses(loop) == [(2, 2 + 6 + 24)]
    assert sass.pauses(loop[:-1]) == []


def test_the_loop_of_the_warps_that_only_copy():
    copy = "LDGSTS.E [R9], desc[UR4][R4.64]"
    lines = (
        *("tile:", "copy:", copy, "@P0 BRA `(.L_copy)", "@P1 BRA `(.L_tile)"),
        *("top:", FFMA, copy, BACK, "EXIT"),
    )
    found = sass.producer_loop(sass.parse(listing(*lines)))
    assert [str(instruction) for instruction in found] == [copy, "@P0 BRA `(.L_copy)"]
    assert sass.producer_loop(sass.parse(listing("top:", FFMA, copy, BACK, "EXIT"))) == []


def test_a_vector_that_is_stored_is_used():
    loop = sass.parse(listing("LDS R7, [R20]", "STS.128 [R21], R4", FFMA))
    assert sass.load_distances(loop) == {0: 1}


@pytest.mark.parametrize(
    ("ffma", "cycles"),
    [
        ("FFMA R0, R1, R2, R4", 2.0),  # one odd, two even: two cycles of the even bank
        ("FFMA R0, R2, R4, R6", 3.0),
        ("FFMA R0, R1, R2, RZ", 1.0),
        ("FFMA R0, R2.reuse, R4, R1", 1.0),  # R2 is there already
    ],
)
def test_operands_of_one_bank_are_delivered_one_by_one(ffma, cycles):
    loop = sass.parse(listing(*[ffma] * 100))
    assert sum(sass.dispatch_cycles(loop)) == pytest.approx(100 * cycles, abs=3)


def test_the_banks_share_the_work_of_neighbouring_instructions():
    """Three operands, two banks: one and a half cycles each, not two."""
    loop = sass.parse(listing(*["FFMA R0, R1, R2, R4", "FFMA R6, R3, R5, R8"] * 50))
    assert sum(sass.dispatch_cycles(loop)) == pytest.approx(150, abs=3)
