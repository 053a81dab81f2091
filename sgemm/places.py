"""Where matrices live and kernels run: a GPU, or for NumPy arrays the simulator."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .errors import ArgumentTypeError, first_line
from .ladder import Version

ACCEPTED = (
    "pass a CuPy array, or any array on a GPU that offers __cuda_array_interface__ or DLPack; "
    "or a NumPy array, such as numpy.asarray(x, 'float32'), which runs in the simulator"
)
DLPACK_CUDA = (2, 13)  # kDLCUDA and kDLCUDAManaged


Launch = Callable[[], None]


@dataclass(frozen=True, eq=False)  # a GPU looks up by identity what it has loaded
class Kernel:
    """The kernel ``entry`` of the file ``source``, compiled with ``defines``, for blocks of so many
    threads with so much more shared memory than it declares."""

    source: str
    entry: str
    defines: Mapping[str, int]
    threads: int
    dynamic_shared_bytes: int = 0


class Hardware(Protocol):
    """What decides how products are computed on a GPU, or in the simulator. There is one object of
    each, so what depends on it alone is found by identity."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def gpu_name(self) -> str:
        """What the driver calls the GPU; empty for the simulator."""

    @property
    def multiprocessors(self) -> int:
        """How many SMs there are."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The names of those of the ladder that can run on it."""

    def runs(self, version: Version) -> bool:
        """Whether the version's kernel can run on it."""


class Place(Protocol):
    """What one product needs of the place where it runs. It keeps the product's workspaces."""

    context: AbstractContextManager[Any]
    """Within it the methods below that allocate or launch are called."""

    @property
    def hardware(self) -> Hardware:
        """Where it runs."""

    def check_work(self, m: int, n: int, k: int) -> None:
        """Refuse a product that would take far too long here."""

    def empty(self, shape: tuple[int, int]) -> Any:
        """A new C-contiguous float32 array, not initialised."""

    def address(self, array: Any) -> int:
        """Where the array's element (0, 0) lies."""

    def workspace(self, words: int, reusable: bool) -> int:
        """The address of so many words of 4 bytes, 16-byte aligned. Unless it is ``reusable`` it is
        for the launches until ``hand_back``."""

    def clearing(self, address: int, words: int) -> Launch:
        """What sets so many words to 0 whenever it is called."""

    def launch_of(self, kernel: Kernel, blocks: int, args: Sequence[np.generic]) -> Launch:
        """What launches the kernel whenever it is called; compiled and loaded by now."""

    def hand_back(self) -> None:
        """Order whatever the arrays' owners do next after the launches."""


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


def cupy_array() -> Any:
    """The type of CuPy's arrays, or what no object is an instance of: CuPy is not imported here."""
    return getattr(sys.modules.get("cupy"), "ndarray", ())


def is_on_gpu(name: str, x: Any) -> bool:
    """Where an object lives that is no CuPy array."""
    if issubclass(type(x), np.ndarray):  # isinstance() would let a proxy of one pass
        return False
    if not offers_gpu_memory(name, x):
        raise ArgumentTypeError(
            f"{name}: {type(x).__module__}.{type(x).__name__} is not accepted; {ACCEPTED}"
        )
    return True
