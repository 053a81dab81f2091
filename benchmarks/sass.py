"""What differs between two builds of a kernel, instruction by instruction."""

import re
import shutil
import subprocess
from collections import Counter
from difflib import unified_diff
from importlib import metadata
from pathlib import Path

MAX_LINES = 60


def difference(base: Path, head: Path) -> str:
    """Which instructions head's machine code has more or fewer of, and a diff cut to MAX_LINES; or,
    in a sentence, why there is none."""
    disassembler = find_disassembler()
    if disassembler is None:
        return "The instructions are not compared: there is no nvdisasm (nvidia-cuda-nvdisasm)."
    before, after = (_instructions(disassembler, cubin) for cubin in (base, head))
    lines = list(unified_diff(before, after, "base", "head", n=2, lineterm=""))
    if not lines:
        return "The instructions are the same."
    counts = Counter(map(_opcode, after))
    counts.subtract(Counter(map(_opcode, before)))
    changed = ", ".join(f"{n:+d} {name}" for name, n in sorted(counts.items()) if n)
    left_out = len(lines) - MAX_LINES
    if left_out > 0:
        lines = [*lines[:MAX_LINES], f"... {left_out} more lines"]
    total = (
        f"{len(before)} instructions became {len(after)}: {changed or 'only their order differs'}."
    )
    return "\n".join([total, "", "```diff", *lines, "```"])


def find_disassembler() -> str | None:
    """The nvdisasm of the installed wheel, else that of a CUDA toolkit on the PATH."""
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nvdisasm":
            return str(file.locate())
    return shutil.which("nvdisasm")


def _instructions(disassembler: str, cubin: Path) -> list[str]:
    """The instructions in order, without their addresses and encodings."""
    listing = subprocess.run(
        [disassembler, "-c", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", listing, re.MULTILINE)
    return [re.sub(r"\s+", " ", text) for text in found]


def _opcode(instruction: str) -> str:
    without_predicate = re.sub(r"^@!?U?P\w+ ", "", instruction)
    return without_predicate.split()[0].split(".")[0]
