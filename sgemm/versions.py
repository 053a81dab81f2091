"""Finds the version that a caller names."""

from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from .errors import ArgumentError, ArgumentTypeError
from .ladder import LADDER, Version


def resolve(version: str | Version) -> Version:
    """The ladder's entry of that name; a Version of one's own is returned as it is."""
    if isinstance(version, Version):
        if _checked.get(id(version)) is not version:
            _check(version)
            _checked[id(version)] = version
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


def _is_integer(least: int, value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _are_integers(count: int, least: int, values: Any) -> bool:
    if not isinstance(values, tuple) or len(values) != count:
        return False
    return all(_is_integer(least, value) for value in values)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_POSITIVE = "a positive integer", partial(_is_integer, 1)
_BYTES = "an integer from 0 up", partial(_is_integer, 0)
_FLAG = "True or False", _is_bool
_TEXT = "a string", _is_text

# What matmul takes for granted of a version's fields; the kernel's assertions check the rest.
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": _TEXT,
    "title": _TEXT,
    "change": _TEXT,
    "source": ("a file's name", lambda value: isinstance(value, str | Path)),
    "tile": ("a tuple of three positive integers", partial(_are_integers, 3, 1)),
    "micro_tile": ("a tuple of two positive integers", partial(_are_integers, 2, 1)),
    "threads": _POSITIVE,
    "blocks_per_sm": _POSITIVE,
    "stages": _POSITIVE,
    "slices": _POSITIVE,
    "shared_bytes": _BYTES,
    "dynamic_shared_bytes": _BYTES,
    "b_layout": ("'row' or 'column'", lambda value: value in ("row", "column")),
    "stream_k": _FLAG,
    "float4": _FLAG,
    "a_by_floats": _FLAG,
    "min_compute_capability": ("a tuple of two integers from 0 up", partial(_are_integers, 2, 0)),
    "peak_share": ("a number", lambda value: isinstance(value, Real)),
    "article_gflops": ("a number or None", lambda value: isinstance(value, Real | None)),
}

_checked: WeakValueDictionary[int, Version] = WeakValueDictionary()  # by id: to hash takes longer


def _check(version: Version) -> None:
    for field, (accepted, holds) in _RULES.items():
        value = getattr(version, field)
        if not holds(value):
            raise ArgumentError(
                f"version: {version.name} has {field}={value!r}; it must be {accepted}"
            )
