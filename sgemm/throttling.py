"""What holds a GPU's clocks down, as NVML tells it. Imports nothing: the instrument loads it apart
from the package that it measures."""

IDLE = 0x1

REASONS = {
    0x2: "clock setting",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clock setting",
}


def reasons(bits: int) -> tuple[str, ...]:
    """The names of NVML's bits, without that of an idle GPU."""
    return tuple(name for bit, name in REASONS.items() if bits & bit)
