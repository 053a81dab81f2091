"""What ``sgemm`` raises. Every error is an ``SgemmError`` and also the built-in kind that a NumPy
user expects; its message names the argument, what was found and what is accepted. docs/errors.md
maps the messages to causes and repairs."""


def first_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return _lines(error)[0]


def in_one_line(error: BaseException | str) -> str:
    """What an error says, on one line: of a compiler's messages the first error, and how to repair
    it."""
    first, *more = _lines(error)
    errors = [line for line in more if "error" in line]
    telling = errors or (more if first.endswith(":") else [])
    repairs = [line for line in more if "; repair: " in line]
    return " ".join([first, *(line.strip() for line in telling[:1]), *repairs])


def _lines(error: BaseException | str) -> list[str]:
    return (str(error).strip() or type(error).__name__).splitlines()


class SgemmError(Exception):
    """Anything that ``sgemm`` reports."""


class ArgumentError(SgemmError, ValueError):
    """A value that is not accepted: a shape, a layout, an overlap, an unknown version."""


class ArgumentTypeError(SgemmError, TypeError):
    """A type, dtype or device that is not accepted."""


class SimulatorLimitError(SgemmError, ValueError):
    """A product too large to be worth simulating."""


class CompileError(SgemmError, RuntimeError):
    """A kernel that does not compile; the message holds the compiler's own."""


class MissingError(SgemmError, RuntimeError):
    """Something that this machine lacks: a GPU, a compiler, a library."""


class OutOfMemoryError(SgemmError, MemoryError):
    """A result or a workspace for which the GPU or this machine has no memory left."""


class KernelError(SgemmError, RuntimeError):
    """A kernel that could not be started, or failed while it ran."""


class GpuUnusableError(KernelError):
    """A kernel that failed so that the GPU does nothing more for this process."""
