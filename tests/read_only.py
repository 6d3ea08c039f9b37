"""A folder that cannot be written to, for tests that may run as root, whom no permission stops."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_VERSION_3 = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Within it, this thread can write nothing in the folder or below, root or not."""
    places = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for place in places:
        place.chmod(0o555)
    header, before = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    root = os.geteuid() == 0
    try:
        if root:
            _checked(_LIBC.capget(header, before))
            lowered = (ctypes.c_uint32 * 6)(*before)
            lowered[0] &= ~sum(1 << each for each in _OVERRIDES)  # effective alone, so that it can be raised again
            _checked(_LIBC.capset(header, lowered))
        yield
    finally:
        if root:
            _checked(_LIBC.capset(header, before))
        for place in places:
            if place.exists():
                place.chmod(0o755)


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "capset")
