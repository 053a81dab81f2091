"""What the instrument takes from the checkout, whatever ``sgemm`` is installed: the ladder, the
numerical check, the reader of compiler logs and the pinned versions."""

import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def load(name: str) -> ModuleType:
    """The checkout's own ``sgemm/<name>.py``, apart from an installed package of that name."""
    loader = SourceFileLoader(f"checkout_{name}", str(ROOT / "sgemm" / f"{name}.py"))
    module = ModuleType(loader.name)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def pinned_version(package: str) -> str:
    """The version that ``constraints.txt`` pins ``package`` to."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, pinned, version = line.partition("#")[0].strip().partition("==")
        if pinned and name == package:
            return version
    raise LookupError(f"constraints.txt: {package} is not pinned")


LADDER = load("ladder").LADDER
