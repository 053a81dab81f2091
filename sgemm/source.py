"""Somebody's own kernel: one ``.cu`` file with the ladder's signature and a header line.

The header gives what a ladder entry gives, and the kernel finds the numbers as macros::

    // sgemm: TILE_M=8 TILE_N=32 THREADS=256 B=row

=============  =========  =====================================================================
key            default    meaning
=============  =========  =====================================================================
TILE_M,        required   outputs that a block computes; the grid has
TILE_N                    ceil(M / TILE_M) * ceil(N / TILE_N) blocks
THREADS        required   threads of a block, 1 to 1024
TILE_K         1          depth that a block stages at a time
MICRO_M,       1          outputs that a thread computes
MICRO_N
BLOCKS_PER_SM  1          for ``__launch_bounds__``
STAGES         1          tiles of A and B that shared memory holds at once
SLICES         1          among how many lanes of a warp K is split
SHARED         0          bytes of shared memory that the launch adds, the size of the type in
                          ``LAUNCHED_SHARED``
B              row        layout of B that the kernel reads, ``row`` or ``column``
FLOAT4         0          1: the kernel accesses A, B and C by float4 where the macro VECTOR is 1,
                          which it is only where their addresses and leading dimensions allow it
CAPABILITY     7.5        the oldest compute capability that can run it
=============  =========  =====================================================================

``kernels/template.cu`` is a complete kernel to start from, with the signature.
"""

import re
from pathlib import Path

from .errors import ArgumentError
from .kernel_files import read
from .ladder import Version

_HEADER = re.compile(r"^\s*//\s*sgemm:(.*)$")
_EXAMPLE = "// sgemm: TILE_M=8 TILE_N=32 THREADS=256 B=row"
_REQUIRED = ("TILE_M", "TILE_N", "THREADS")
_FORMS = {
    "B": ("row|column", "row or column"),
    "FLOAT4": ("[01]", "0 or 1"),
    "CAPABILITY": (r"[1-9]\d?\.\d", "a compute capability such as 9.0"),
}
_POSITIVE = ("[1-9][0-9]{0,8}", "a positive integer")
_DEFAULTS = {
    "TILE_K": "1",
    "MICRO_M": "1",
    "MICRO_N": "1",
    "BLOCKS_PER_SM": "1",
    "STAGES": "1",
    "SLICES": "1",
    "SHARED": "0",
    "B": "row",
    "FLOAT4": "0",
    "CAPABILITY": "7.5",
}
_MAX_THREADS = 1024


def from_file(path: str | Path) -> Version:
    """The version that the kernel file ``path`` describes; its name is the file's.

    Raises ``ArgumentError``, naming the line and the rule, where the file cannot be read, its name
    cannot stand in an ``#include``, or its header is missing, repeated or wrong.
    """
    source = Path(path).absolute()
    if not source.name.isprintable() or set(source.name) & set('"\\'):
        raise ArgumentError(
            f"{str(path)!r}: a kernel file's name has no double quotes, backslashes or control "
            "characters"
        )
    lines = read(source).splitlines()
    headers = [(n, match[1]) for n, line in enumerate(lines, 1) if (match := _HEADER.match(line))]
    if not headers:
        raise ArgumentError(f"{path}: no header line; expected one such as: {_EXAMPLE}")
    if len(headers) > 1:
        raise ArgumentError(
            f"{path}:{headers[1][0]}: a second header line; the first is line {headers[0][0]}"
        )
    number, text = headers[0]
    values = _DEFAULTS | _parse(text, f"{path}:{number}")
    major, minor = map(int, values["CAPABILITY"].split("."))
    return Version(
        name=source.name,
        title="own kernel",
        change=f"{source}",
        source=str(source),
        b_layout="row" if values["B"] == "row" else "column",
        tile=(int(values["TILE_M"]), int(values["TILE_N"]), int(values["TILE_K"])),
        micro_tile=(int(values["MICRO_M"]), int(values["MICRO_N"])),
        threads=int(values["THREADS"]),
        blocks_per_sm=int(values["BLOCKS_PER_SM"]),
        stages=int(values["STAGES"]),
        dynamic_shared_bytes=int(values["SHARED"]),
        slices=int(values["SLICES"]),
        min_compute_capability=(major, minor),
        float4=values["FLOAT4"] == "1",
    )


def _parse(text: str, where: str) -> dict[str, str]:
    """The header's words as key to value, each checked."""
    known = [*_REQUIRED, *_DEFAULTS]
    values: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise ArgumentError(f"{where}: {word!r}: expected KEY=value, KEY of {', '.join(known)}")
        if key in values:
            raise ArgumentError(f"{where}: {key} is given twice")
        pattern, described = _FORMS.get(key, _POSITIVE)
        if not re.fullmatch(pattern, value, re.ASCII):
            raise ArgumentError(f"{where}: {word}: must be {described}")
        values[key] = value
    missing = [key for key in _REQUIRED if key not in values]
    if missing:
        raise ArgumentError(f"{where}: {', '.join(missing)} missing; example: {_EXAMPLE}")
    if int(values["THREADS"]) > _MAX_THREADS:
        raise ArgumentError(
            f"{where}: THREADS={values['THREADS']}: a block has at most {_MAX_THREADS} threads"
        )
    return values
