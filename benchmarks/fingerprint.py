"""What of a commit decides how fast a version is, as one hash: the same hash, the same binary.

It covers the kernel's machine code for the GPU, its launch geometry, and all that happens on the
host between ``matmul`` and the launch: the Python that ``matmul`` imports and the kernels that
convert operands, without comments and docstrings. It is computed in a process in which the commit's
package is the installed one.
"""

import ast
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from . import child
from .checkout import load
from .resources import shared_bytes_of_block, why_not_run

_DESCRIPTIVE = ("title", "change", "article_gflops")  # the fields of a version that run nothing
_NOT_LAUNCHED = ("template.cu",)


def answer(
    args: Sequence[str], versions: Sequence[str], emit: Callable[[str, child.Record], None]
) -> None:
    """What the child does: per version ``fingerprint``, ``resources`` (architecture to figures, or
    to ``{"skip": why}`` where the commit says that it does not run) and ``cubins`` (name to path),
    all for the architectures ``args[1:]``; the machine code is kept in the folder ``args[0]``."""
    import sgemm

    parse = load("ptxas").parse
    folder, *architectures = args
    package = Path(sgemm.__path__[0])
    kernels = package / "kernels"
    if not kernels.is_dir():
        kernels = package.parent / "kernels"
    on_host = [
        *_python(package, sgemm.matmul.__module__.removeprefix("sgemm.")),
        *_conversions(kernels, [version.source for version in sgemm.LADDER.values()]),
    ]
    for name in versions:
        if name not in sgemm.LADDER:
            emit(name, {"skip": f"this commit has no {name}"})
            continue
        version = sgemm.LADDER[name]
        geometry = [
            f"{field.name}={getattr(version, field.name)!r}"
            for field in dataclasses.fields(version)
            if field.name not in _DESCRIPTIVE
        ]
        parts = [*on_host, *geometry]
        resources: dict[str, child.Record] = {}
        cubins = {}
        try:
            for arch in architectures:
                if reason := why_not_run(version, arch):
                    resources[arch] = {"skip": reason}
                    continue
                for vector in (True, False):
                    compiled = sgemm.compile(name, arch=arch, vector=vector)
                    parts.append(sha256(compiled.cubin).hexdigest())
                    if vector:
                        needs = parse(compiled.log)
                        resources[arch] = needs._asdict()
                        resources[arch]["shared_bytes"] = shared_bytes_of_block(needs, version)
                    key = f"{arch} {'float4' if vector else 'scalar'}"
                    path = Path(folder, f"{name} {key}.cubin")
                    path.write_bytes(compiled.cubin)
                    cubins[key] = str(path)
        except (sgemm.SgemmError, ValueError) as error:
            emit(name, {"error": load("errors").in_one_line(error)})
            continue
        digest = sha256("\n".join(parts).encode()).hexdigest()
        emit(name, {"fingerprint": digest, "resources": resources, "cubins": cubins})


def _python(package: Path, start: str) -> Iterator[str]:
    """The module ``start`` and all of the package's that it imports, in whatever function; of the
    ladder only its code, as each version's entry counts for that version alone."""
    found: dict[Path, ast.Module] = {}
    waiting = [package / "__init__.py", package / f"{start}.py"]
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists():
            continue
        found[path] = ast.parse(path.read_text())
        waiting += _imported(path, found[path])
    for path, tree in sorted(found.items()):
        if path == package / "ladder.py":
            tree.body = [node for node in tree.body if not _assigns(node, "LADDER")]
        yield f"{path.relative_to(package)}: {ast.dump(_without_docstrings(tree))}"


def _imported(path: Path, tree: ast.Module) -> Iterator[Path]:
    """Where the modules would be that a module imports from its own package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            yield folder.with_suffix(".py")
            yield folder / "__init__.py"
            yield from (folder / f"{alias.name}.py" for alias in node.names)


def _assigns(node: ast.stmt, name: str) -> bool:
    targets: list[Any] = getattr(node, "targets", [getattr(node, "target", None)])
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    return tree


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _conversions(kernels: Path, ladder: Sequence[str]) -> Iterator[str]:
    """The kernels that are no versions, with the headers that they include."""
    for path in sorted(kernels.glob("*.cu")):
        if path.name not in (*ladder, *_NOT_LAUNCHED):
            yield from _with_headers(path)


def _with_headers(path: Path) -> Iterator[str]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
    yield f"{path.name}: {' '.join(text.split())}"
    for name in re.findall(r'#\s*include\s*"([^"]+)"', text):
        if (header := path.parent / name).exists():
            yield from _with_headers(header)
