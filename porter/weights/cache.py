"""Folders that are made once and kept: converted checkpoints, named by what they were made from."""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from porter.errors import ArtifactError

_ABANDONED_S = 3600.0  # a converter writes a block in seconds


def cache_folder() -> Path:
    """The folder porter caches under, by the XDG base directory specification; it need not exist."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(configured) if os.path.isabs(configured) else Path.home() / ".cache") / "porter"


def cached(key: str, make: Callable[[Path], None]) -> Path:
    """The cached folder of that key, made by `make(temporary_folder)` the first time.

    Args:     key: names the content wholly, sources and version of the maker included.
              make: fills an empty folder; when it raises, nothing is kept.
    Raises:   ArtifactError: the cache cannot be written.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", key):
        raise ValueError(f"cached: key is {key!r}, expected letters, digits and ._- alone. It becomes a folder's name.")
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder.parent.glob(f".{folder.name}.*.part*"), _ABANDONED_S)
        _fill(folder, make)
    except OSError as error:
        raise ArtifactError(
            f"the cache folder {folder.parent} cannot be written ({error.strerror or error})",
            "a folder porter may write to, with room for converted checkpoints",
            "set XDG_CACHE_HOME to such a folder, or free some room",
        ) from error
    return folder


def _fill(folder: Path, make: Callable[[Path], None]) -> None:
    with temporary_beside(folder) as part:
        make(part)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process made the same content first
                raise


def remove_abandoned(parts: Iterable[Path], after_s: float) -> None:
    """Removes what runs that were killed left half written: files and folders that nobody wrote to for so long."""
    for part in parts:
        with suppress(OSError):
            newest = max(each.stat().st_mtime for each in (part, *part.rglob("*")))
            if time.time() - newest <= after_s:
                continue
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink()


@contextmanager
def file_beside(path: Path) -> Iterator[Path]:
    """The name of a file to write, to be renamed to `path`; what is left of it goes, Ctrl-C included."""
    part = path.with_name(f".{path.name}.{uuid4().hex[:12]}.part")
    try:
        yield part
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def temporary_beside(folder: Path) -> Iterator[Path]:
    """A new empty folder on the same disk, to be renamed to `folder`; what is left of it goes, Ctrl-C included."""
    part = folder.with_name(f".{folder.name}.{uuid4().hex[:12]}.part")
    part.mkdir()  # not tempfile.mkdtemp: the rename would carry its mode 0700 over
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
