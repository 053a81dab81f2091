"""Where matrices live and kernels run: a GPU, or for NumPy arrays the simulator."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from .errors import ArgumentTypeError, first_line
from .ladder import Version

ACCEPTED = (
    "pass a CuPy array, or any array on a GPU that offers __cuda_array_interface__ or DLPack; "
    "or a NumPy array, which runs in the simulator"
)
DLPACK_CUDA = (2, 13)  # kDLCUDA and kDLCUDAManaged


class Place(Protocol):
    """What ``matmul`` needs of the place where it runs."""

    name: str

    @property
    def multiprocessors(self) -> int:
        """How many SMs there are."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The names of those of the ladder that can run here."""

    def runs(self, version: Version) -> bool:
        """Whether the version's kernel can run here."""

    def check_work(self, m: int, n: int, k: int) -> None:
        """Refuse a product that would take far too long here."""

    def empty(self, shape: tuple[int, int]) -> Any:
        """A new C-contiguous float32 array, not initialised."""

    def address(self, array: Any) -> int:
        """Where the array's element (0, 0) lies."""

    def workspace(self, floats: int, zeros: int = 0) -> AbstractContextManager[int]:
        """The address of that many floats, 16-byte aligned, for the launches within the context;
        after them come so many words that are 0."""

    def launch(
        self,
        source: str,
        entry: str,
        defines: Mapping[str, int],
        blocks: int,
        threads: int,
        args: Sequence[np.generic],
        dynamic_shared_bytes: int = 0,
    ) -> None:
        """Run the kernel ``entry`` of the file ``source``, compiled with ``defines``, with so much
        more shared memory than it declares."""

    def hand_back(self) -> None:
        """Order whatever the arrays' owners do next after the launches."""


def locate(a: Any, b: Any, out: Any) -> tuple[Place, dict[str, Any]]:
    """The place that ``a``, ``b`` and ``out`` (None: absent) share, and their arrays by name."""
    given = {name: x for name, x in (("a", a), ("b", b), ("out", out)) if x is not None}
    if len(given) < 2 or "a" not in given or "b" not in given:
        missing = "a" if a is None else "b"
        raise ArgumentTypeError(f"{missing}: None is not accepted; {ACCEPTED}")
    on_gpu = {name: _is_on_gpu(name, x) for name, x in given.items()}
    for name in given:
        if on_gpu[name] != on_gpu["a"]:
            raise ArgumentTypeError(
                f"{name}: lives {_where(on_gpu[name])} and a lives {_where(on_gpu['a'])}; "
                "all matrices must live in one place"
            )
    if on_gpu["a"]:
        from .gpu import Gpu

        return Gpu.of(given)
    from .simulated import Simulated

    return Simulated.of(given)


def offers_gpu_memory(name: str, x: Any) -> bool:
    """Whether ``x`` says that its elements are in a GPU's memory."""
    try:
        if hasattr(x, "__cuda_array_interface__"):
            return True
        return hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] in DLPACK_CUDA
    except Exception as error:  # torch's, for a tensor that requires gradients or is of float8
        raise unreadable(name, x, error) from error


def unreadable(name: str, x: Any, error: Exception) -> ArgumentTypeError:
    """What to raise in place of another library's error about its array ``x``."""
    said = first_line(error)
    return ArgumentTypeError(f"{name}: {type(x).__name__} is not readable: {said}")


def _is_on_gpu(name: str, x: Any) -> bool:
    if issubclass(type(x), np.ndarray):  # isinstance() would let a proxy of one pass
        return False
    if not offers_gpu_memory(name, x):
        raise ArgumentTypeError(
            f"{name}: {type(x).__module__}.{type(x).__name__} is not accepted; {ACCEPTED}"
        )
    return True


def _where(on_gpu: bool) -> str:
    return "on a GPU" if on_gpu else "in NumPy"
