"""How a version computes a product of matrices of some forms: what it copies and launches.

It is found once for these forms and kept; each call fills in addresses and scales.
"""

import os
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .ladder import Layout, Plan, Version
from .matrix import Form
from .places import Kernel

# An operand whose rows do not all start on a 16-byte boundary rules float4 out. From this K on a
# copy that has them aligned costs less than the scalar path. The versions that copy A float by
# float anyway lose less by it: there a copy of B pays from this M on, as each row of tiles reads
# all of B (docs/alignment.md has the figures).
ALIGNED_COPY_MIN_K = 256
ALIGNED_COPY_MIN_M = 1536

# With SGEMM_DEBUG=1 in the environment the kernels' device-side assertions are compiled.
ASSERTIONS = {"SGEMM_DEBUG": 1} if os.environ.get("SGEMM_DEBUG") == "1" else {}


@dataclass(frozen=True)
class Recipe:
    """``transposed`` says that C.T = B.T @ A.T is computed; A, B and C are those of that product.

    ``forms`` are those of A, B and C as the kernel takes them, ``copies`` says why each is copied
    ("": it is taken as it is). ``sizes``, ``leading`` and ``shared_tiles`` are arguments of the
    kernel: M, N and K; the leading dimensions of A, B and C; and for a stream-K kernel, whose
    blocks leave each other ``partials`` floats and ``arrivals`` counts, which start at 0, how many
    tiles they share.
    """

    transposed: bool
    forms: tuple[Form, Form, Form]
    copies: tuple[str, str, str]
    kernel: Kernel
    plan: Plan
    sizes: tuple[np.int32, np.int32, np.int32]
    leading: tuple[np.int64, np.int64, np.int64]
    shared_tiles: np.int32 | None
    partials: int
    arrivals: int


@lru_cache(4096)
def recipe_for(version: Version, a: Form, b: Form, c: Form, multiprocessors: int) -> Recipe:
    """The one with the fewest copies."""
    forms, copies, transposed = (a, b, c), _copies(version, a, b, c), False
    if any(copies):  # C.T = B.T @ A.T may need fewer, as for Fortran's layouts
        others = b.transposed(), a.transposed(), c.transposed()
        copies_of_others = _copies(version, *others)
        if copies_of_others.count("") > copies.count(""):
            forms, copies, transposed = others, copies_of_others, True
    layouts: tuple[Layout, Layout, Layout] = "row", version.b_layout, "row"
    a, b, c = (
        form.packed(layout) if why else form
        for form, layout, why in zip(forms, layouts, copies, strict=True)
    )
    float4 = a.allows_float4("row") or version.a_by_floats
    float4 &= b.allows_float4(version.b_layout)
    plan = version.plan(c.rows, c.cols, a.cols, multiprocessors)
    shared = plan.shared_tiles
    return Recipe(
        transposed,
        (a, b, c),
        copies,
        _kernel(version, float4),
        plan,
        (np.int32(c.rows), np.int32(c.cols), np.int32(a.cols)),
        (
            np.int64(a.leading_dimension("row")),
            np.int64(b.leading_dimension(version.b_layout)),
            np.int64(c.leading_dimension("row")),
        ),
        np.int32(shared) if version.stream_k else None,
        # For each block two slots of a tile, and a count for each micro-tile. The kernels of older
        # commits, which the benchmarks trace, count for each shared tile.
        2 * plan.blocks * version.tile[0] * version.tile[1] if shared else 0,
        max(plan.blocks, shared) * version.multipliers if shared else 0,
    )


@lru_cache(None)  # a GPU keeps what it has loaded
def _kernel(version: Version, float4: bool) -> Kernel:
    defines = {**version.defines(float4), **ASSERTIONS}
    return Kernel(version.source, "sgemm", defines, version.threads, version.dynamic_shared_bytes)


def _copies(version: Version, a: Form, b: Form, c: Form) -> tuple[str, str, str]:
    """Why the version's kernel cannot read or write each where it is; "" where it can."""
    pays = a.rows >= ALIGNED_COPY_MIN_M if version.a_by_floats else a.cols >= ALIGNED_COPY_MIN_K

    def why(form: Form, layout: Layout, by_float4s: bool) -> str:
        if not form.is_contiguous(layout):
            return f"{version.name} takes it by {layout}s, which are not contiguous"
        if version.float4 and pays and by_float4s and not form.allows_float4(layout):
            return f"its {layout}s do not all start on 16-byte boundaries"
        return ""

    return (
        why(a, "row", by_float4s=not version.a_by_floats),
        why(b, version.b_layout, by_float4s=True),
        why(c, "row", by_float4s=False),
    )
