"""What each CUDA release compiles for, and which NVIDIA driver runs what it compiles.

Three numbers must fit: the GPU's compute capability, the release of the compiler (NVRTC), and the
newest CUDA that the driver supports. Imports only the standard library.

Architectures: NVIDIA's CUDA release notes, and LLVM's table of NVPTX targets. Drivers, for Linux:
the release notes' table of minimum versions for minor-version compatibility.
"""

Release = tuple[int, int]
Capability = tuple[int, int]

FIRST_RELEASE: dict[Capability, Release] = {
    (5, 0): (6, 0),
    (5, 2): (6, 5),
    (5, 3): (7, 0),
    (6, 0): (8, 0),
    (6, 1): (8, 0),
    (6, 2): (8, 0),
    (7, 0): (9, 0),
    (7, 2): (9, 1),
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 7): (11, 4),
    (8, 8): (13, 0),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 1): (12, 8),
    (10, 3): (12, 9),
    (10, 7): (13, 4),
    (11, 0): (13, 0),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}
"""Compute capability to the CUDA release that first compiles for it."""

LAST_RELEASE: dict[Capability, Release] = {
    capability: (12, 9)
    for capability in FIRST_RELEASE
    if capability < (7, 5) or capability == (10, 1)  # Thor, which is 11.0 from CUDA 13.0 on
}
"""Compute capability to the last CUDA release that compiles for it, where there is one."""

FAMILIES = {
    (5, 3): "Maxwell",
    (6, 2): "Pascal",
    (7, 2): "Volta",
    (7, 5): "Turing",
    (8, 8): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell, in data centres",
    (10, 1): "Blackwell, Thor",
    (10, 3): "Blackwell, in data centres",
    (10, 7): "",
    (11, 0): "Blackwell, Thor",
    (12, 1): "Blackwell, GeForce and RTX PRO",
}
"""The last compute capability of a family to its name, where that is public."""

MINIMUM_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""CUDA major to the oldest driver that runs all releases of that major."""

SHIPPED_DRIVER: dict[Release, str] = {
    (11, 8): "520.61.05",
    (12, 0): "525.60.13",
    (12, 1): "530.30.02",
    (12, 2): "535.54.03",
    (12, 3): "545.23.06",
    (12, 4): "550.54.14",
    (12, 5): "555.42.02",
    (12, 6): "560.28.03",
    (12, 8): "570.26",
    (12, 9): "575.51.03",
    (13, 0): "580.65.06",
    (13, 1): "590.44.01",
    (13, 2): "595.45.04",
    (13, 3): "610.43.02",
}
"""CUDA release to the driver that came with it: from that one on ``nvidia-smi`` shows it."""


def dotted(numbers: tuple[int, ...]) -> str:
    """Such as ``"12.8"``."""
    return ".".join(map(str, numbers))


def parse(release: str) -> Release:
    """Such as ``(12, 8)``, of ``"12.8"`` or ``"12.8.93"``."""
    major, minor, *_ = [*map(int, release.split(".")), 0]
    return major, minor


def family(capability: Capability) -> str:
    """The name of the GPUs of a compute capability."""
    return next(name for last, name in FAMILIES.items() if capability <= last)


def capability_of(arch: str) -> Capability | None:
    """The compute capability of an architecture such as ``"sm_90"``; None for another word."""
    digits = arch.removeprefix("sm_")
    if arch == digits or not digits.isdecimal() or len(digits) < 2:
        return None
    return int(digits[:-1]), int(digits[-1])
