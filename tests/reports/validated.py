"""Every report that a test writes is held against the schema, strictly: no key missing, none that it does not know."""

from functools import cache, wraps
from typing import Any

from jsonschema import Draft202012Validator

from porter.reports import json_report
from porter.reports.schema import make_schema

CLOSED = ("status", "class", "stage", "seen", "verdict")


@cache
def validator(*, strict: bool) -> Draft202012Validator:
    return Draft202012Validator(make_schema(strict=strict))


def shortened(value: Any) -> Any:
    """Of a list's entries, one of each form: a thousand nodes take two seconds, and their forms are a dozen."""
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    forms = {form(each): each for each in value} if len(value) > 8 else dict(enumerate(value))
    return [shortened(each) for each in forms.values()]


def form(value: Any, key: str = "") -> Any:
    """What the schema can tell of a value: its type, and the words of those strings that are of a closed set."""
    if isinstance(value, dict):
        return tuple((name, form(each, name)) for name, each in value.items())
    if isinstance(value, list):
        return frozenset(form(each) for each in value), min(len(value), 3)
    if isinstance(value, str) and (key in CLOSED or value in ("inf", "-inf", "nan")):
        return value
    return type(value)


def check(document: Any, *, strict: bool = True) -> None:
    """Fails with the place in the document and what was expected there."""
    for error in validator(strict=strict).iter_errors(shortened(document)):
        raise AssertionError(f"{error.json_path}: {error.message[:300]}")


def validate_every_report() -> None:
    """Wraps to_json, before any test module imports it."""
    real = json_report.to_json

    @wraps(real)
    def checked(report):
        document = real(report)
        check(document)
        return document

    json_report.to_json = checked
