"""``python -m sgemm explain``: which version ``matmul`` takes for a shape, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from . import report
from .choices import choose
from .ladder import LADDER
from .matrix import Form, form_of
from .recipe import recipe_for

FIGURES = {
    "blocks": "that are launched; as many as SMs hold at once where they stay (stream-K)",
    "shared": "tiles whose steps of k several blocks share",
    "steps": "of k that an SM's blocks are busy for, one after the other, sharing included",
    "float4": "whether that path of the kernel runs, for arrays in C's order on 16-byte boundaries",
    "copied": "which of those arrays are copied first",
    "time": "estimated, as a multiple of the least: steps, times the tile's size, over the share "
    "of the FFMA peak that the version reaches; what tune has measured on the GPU goes before it",
}


@dataclass(frozen=True)
class Estimate:
    """What a version would do for an m×n×k product on a GPU with so many SMs; ``chosen`` is the
    one that ``matmul`` takes. ``time`` is a multiple of the least, None where the version's pace is
    not known."""

    version: str
    m: int
    n: int
    k: int
    multiprocessors: int
    chosen: bool
    tile: tuple[int, int, int]
    tiles: int
    blocks: int
    shared_tiles: int
    steps: float
    float4: bool
    copied: str
    time: float | None


def explain(
    names: tuple[str, ...], m: int, n: int, k: int, gpu_name: str, multiprocessors: int
) -> list[Estimate]:
    """The versions that come into question, of those that the GPU can run; and where tiles that
    were measured on the GPU of that name are taken, the version with these."""
    chosen = choose(names, m, n, k, gpu_name, multiprocessors)
    versions = [LADDER[name] for name in names if LADDER[name].peak_share]
    if chosen not in versions:
        versions.append(chosen)
    forms = _in_c_s_order(m, k), _in_c_s_order(k, n), _in_c_s_order(m, n)
    recipes = {version: recipe_for(version, *forms, multiprocessors) for version in versions}
    costs = {
        version: version.cost(recipe.plan)
        for version, recipe in recipes.items()
        if version.peak_share
    }
    return [
        Estimate(
            version.name,
            m,
            n,
            k,
            multiprocessors,
            version == chosen,
            version.tile,
            version.tiles(m, n),
            recipe.plan.blocks,
            recipe.plan.shared_tiles,
            recipe.plan.steps,
            bool(recipe.kernel.defines["VECTOR"]),
            "".join(name for name, why in zip("ABC", recipe.copies, strict=True) if why),
            costs[version] / min(costs.values()) if version in costs else None,
        )
        for version, recipe in recipes.items()
    ]


def _in_c_s_order(rows: int, cols: int) -> Form:
    return form_of(rows, cols, cols, 1)


def print_table(estimates: Sequence[Estimate]) -> None:
    """Print the estimates and what is taken."""
    chosen = next(estimate for estimate in estimates if estimate.chosen)
    print(
        f"{chosen.m}×{chosen.n}×{chosen.k} on {chosen.multiprocessors} SMs: {chosen.version}, "
        f"{LADDER[chosen.version].title}"
    )
    report.print_table(
        ("", "tile", "tiles", "blocks", "shared", "steps", "float4", "copied", "time", ""),
        [
            (
                one.version,
                "×".join(map(str, one.tile)),
                one.tiles,
                one.blocks,
                one.shared_tiles,
                round(one.steps),
                "yes" if one.float4 else "no",
                one.copied or None,
                one.time and f"{one.time:.2f}×",
                "taken" if one.chosen else "",
            )
            for one in estimates
        ],
    )
    report.print_notes(FIGURES)
