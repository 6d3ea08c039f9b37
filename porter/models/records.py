"""The records of builds: builds/<name>/build.json, and builds/current with the name of the one just made."""

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from porter.errors import ArtifactError, UsageError
from porter.models.build import Build
from porter.weights.cache import file_beside

BUILDS = Path("builds")
SCHEMA = "porter.build/1"


def record(made: Build, folder: Path = BUILDS) -> Path:
    """Writes builds/<name>/build.json and makes it the current build."""
    target = folder / made.name
    try:
        target.mkdir(parents=True, exist_ok=True)
        path = target / "build.json"
        _write_whole(path, json.dumps({"schema": SCHEMA, **asdict(made)}, indent=2) + "\n")
        _write_whole(folder / "current", made.name + "\n")
    except OSError as error:
        raise UsageError(
            f"{target} cannot be written ({error.strerror})",
            "a working directory porter may write to",
            "Change to one.",
        ) from error
    return path


def read_build(name: str | None, folder: Path = BUILDS) -> Build | None:
    """The recorded build of that name, or the current one; None when there is no build of that name.

    Raises:
        UsageError: no name was given and nothing was built here.
        ArtifactError: the record cannot be read.
    """
    if name is None:
        current = folder / "current"
        if not current.is_file():
            fix = "For example: porter build gemma-3-270m --weights demo"
            raise UsageError("nothing was built in this folder yet", "a build", fix)
        name = current.read_text(encoding="utf-8", errors="replace").strip()
        if "/" in name or not (folder / name / "build.json").is_file():
            wrong = f"{current} names {name!r}, and there is no such build"
            raise ArtifactError(wrong, "the name of a folder beside it", "Run porter build again.")
    path = folder / name / "build.json"
    if "/" in name or not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["schema"] != SCHEMA:
            raise KeyError("schema")
        return TypeAdapter(Build).validate_python(values)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        wrong = f"{path} is no record of a build ({_reason(error)})"
        raise ArtifactError(wrong, f"a file of schema {SCHEMA}", "Run porter build again.") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _write_whole(path: Path, text: str) -> None:
    with file_beside(path) as part:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
