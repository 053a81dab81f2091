"""What is timed on a GPU: the product of a problem, by a version of the ladder or by cuBLAS."""

from collections.abc import Callable
from math import ceil, nan
from typing import Any, Literal

from .checkout import load
from .problems import Problem
from .timing import WrongResultError

SEED = 20
PLACES = 8  # of the matrices that are compared from process to process
Layout = Literal["row", "column"]
Multiply = Callable[[Any, Any, Any], None]
"""``multiply(a, b, out)`` queues ``out = a @ b`` on the current stream."""


def random_values(count: int) -> Any:
    """``count`` floats on the GPU, uniform in [-1, 1), the same in every process. Constants would
    draw less power, and so run faster, than any real matrix."""
    import cupy
    import numpy as np

    return cupy.asarray(np.random.default_rng(SEED).random(count, np.float32) * 2 - 1)


def l2_bytes() -> int:
    """The size of the current device's L2 cache."""
    import cupy

    return int(cupy.cuda.Device().attributes["L2CacheSize"])


class Operands:
    """A and B of a problem, copied to ``places`` places at least, and to as many as it takes for
    the other places' A, B and C to fill the L2 cache between two uses of one. All copies are equal,
    taken from ``random_values``; ``native_b`` is the layout of B that the version reads. With
    ``warm`` there are ``places`` only, which the cache may hold."""

    def __init__(
        self,
        problem: Problem,
        native_b: Layout,
        values: Any,
        places: int = 1,
        warm: bool = False,
    ) -> None:
        import cupy

        m, n, k = problem.m, problem.n, problem.k
        b_layout = native_b if problem.b_layout == "native" else problem.b_layout
        order: Literal["C", "F"] = "C" if b_layout == "row" else "F"
        others = 0 if warm else ceil(l2_bytes() / problem.operand_bytes)
        self.sets = max(places, 1 + others)
        self.a, self.b = [], []
        for _ in range(self.sets):
            buffer = cupy.empty(problem.a_offset + m * k, cupy.float32)
            a = buffer[problem.a_offset :].reshape(m, k)
            a[...] = values[: m * k].reshape(m, k)
            self.a.append(a)
            self.b.append(values[m * k : m * k + k * n].reshape(k, n).copy(order))

    @staticmethod
    def floats(problem: Problem) -> int:
        """How many random values the problem takes."""
        return problem.m * problem.k + problem.k * problem.n


class Product:
    """The workload ``C = A @ B``. ``residual`` is the checkout's numerical check of the result;
    ``label`` goes before what is wrong with it."""

    def __init__(self, multiply: Multiply, operands: Operands, label: str = "") -> None:
        import cupy

        self.sets = operands.sets
        self._label = label
        self._multiply = multiply
        self.operands = operands
        shape = operands.a[0].shape[0], operands.b[0].shape[1]
        self._outs = [cupy.empty(shape, cupy.float32) for _ in range(self.sets)]
        self._right: Any = None  # a result that has passed the check
        self._check = load("residual").check
        self.residual: Any = None

    def launch(self, i: int) -> None:
        self._multiply(self.operands.a[i], self.operands.b[i], self._outs[i])

    def poison(self) -> None:
        for out in self._outs:
            out.fill(nan)

    def verify(self, launched: int) -> None:
        for out in self._outs[:launched]:
            if self._right is not None and not (out != self._right).any():
                continue
            self.residual = self._check(out, self.operands.a[0], self.operands.b[0])
            if not self.residual.ok:
                raise WrongResultError(self._label + self.residual.summary)
            self._right = out.copy()
