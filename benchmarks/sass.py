"""What differs between two builds of a kernel, instruction by instruction."""

from collections import Counter
from difflib import unified_diff
from pathlib import Path

from .checkout import load

MAX_LINES = 60

_reader = load("sass")  # today's, whatever commits the machine code is from
find_disassembler = _reader.find_disassembler


def difference(base: Path, head: Path) -> str:
    """Which instructions head's machine code has more or fewer of, and a diff cut to MAX_LINES; or,
    in a sentence, why there is none."""
    disassembler = find_disassembler()
    if disassembler is None:
        return "The instructions are not compared: there is no nvdisasm (nvidia-cuda-nvdisasm)."
    before, after = (
        _reader.parse(_reader.disassemble(disassembler, cubin)) for cubin in (base, head)
    )
    lines = list(
        unified_diff([*map(str, before)], [*map(str, after)], "base", "head", n=2, lineterm="")
    )
    if not lines:
        return "The instructions are the same."
    counts = Counter(instruction.word for instruction in after)
    counts.subtract(instruction.word for instruction in before)
    changed = ", ".join(f"{n:+d} {name}" for name, n in sorted(counts.items()) if n)
    left_out = len(lines) - MAX_LINES
    if left_out > 0:
        lines = [*lines[:MAX_LINES], f"... {left_out} more lines"]
    total = (
        f"{len(before)} instructions became {len(after)}: {changed or 'only their order differs'}."
    )
    return "\n".join([total, "", "```diff", *lines, "```"])
