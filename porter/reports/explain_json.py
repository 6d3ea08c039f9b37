"""What porter explain found as strict JSON in schema porter.explain/1: in a file of its own, and inside a report.

`python -m porter.reports.explain_json` rewrites the schema.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib.resources import files
from typing import Any

from porter.comparison.explained import Explained
from porter.reports.schema import NUMBER, Maker

SCHEMA = "porter.explain/1"
FILE = "porter.explain-1.schema.json"
Json = dict[str, Any]
_KEYS = {"exit_code": "exit"}  # field of Explained -> its key


def explained_to_json(found: Explained) -> Json:
    """Plain JSON values, keys in the order of the schema."""
    plain: Json = {_KEYS.get(each.name, each.name): _plain(getattr(found, each.name)) for each in fields(found)}
    return plain


def explained_from_json(document: Mapping[str, Any]) -> Explained:
    """What explained_to_json wrote; keys that a later porter added are left alone.

    Raises: ValueError: a key is missing or malformed.
    """
    from pydantic import TypeAdapter  # of a report without an explanation nothing needs it

    named = {key: field for field, key in _KEYS.items()}
    found: Explained = TypeAdapter(Explained).validate_python(
        {named.get(key, key): value for key, value in document.items()}
    )
    return found


def explain_to_text(found: Explained, report: str | None = None) -> str:
    """A file of its own.

    Args:
        report: the report.json beside it, which it explains.
    """
    document = {"schema": SCHEMA, **explained_to_json(found), "report": report}
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def make_schema(*, strict: bool = False) -> Json:
    """The schema of explain.json; strict as in porter.reports.schema."""
    made = Maker(strict)
    properties = {
        "schema": {"const": SCHEMA}, **made.properties(Explained, _KEYS),
        "report": {
            "description": "The report that was explained, beside this file.",
            "anyOf": [{"type": "string"}, {"type": "null"}],
        },
    }  # fmt: skip
    late = ("report", "sentence", "conclusion", "notes")
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:porter:explain:1",
        "title": "What porter explain found",
    }  # fmt: skip
    whole = made.object(properties, required=[key for key in properties if key not in late])
    return {**about, **whole, "$defs": {"number": NUMBER, **made.parts}}


def schema_text() -> str:
    """The published file."""
    return (files("porter.reports") / FILE).read_text(encoding="utf-8")


def write_schema() -> str:
    """The text of the published file."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).with_name(FILE).write_text(write_schema(), encoding="utf-8")
