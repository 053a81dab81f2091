"""Finds the version that a caller names."""

from .errors import ArgumentError, ArgumentTypeError
from .ladder import LADDER, Version


def resolve(version: str | Version) -> Version:
    """The ladder's entry of that name; a Version of one's own is returned as it is."""
    if isinstance(version, Version):
        if min(*version.tile, *version.micro_tile, version.threads) < 1:
            raise ArgumentError(
                f"version: {version.name} has tiles of {version.tile} and {version.micro_tile} and "
                f"{version.threads} threads; all must be positive"
            )
        return version
    if not isinstance(version, str):
        raise ArgumentTypeError(
            f"version: {type(version).__name__} is not accepted; pass a name, such as 'v0'"
        )
    if version not in LADDER:
        raise ArgumentError(f"version: no {version!r}; the ladder has {', '.join(LADDER)}")
    return LADDER[version]


def oldest() -> Version:
    """The version that the oldest GPUs can run."""
    return min(LADDER.values(), key=lambda version: version.min_compute_capability)
