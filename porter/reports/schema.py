"""The JSON Schema of porter.diff/1, from the dataclasses of a report; `python -m porter.reports.schema` rewrites it.

What to_json names or nests otherwise than the dataclasses do is in PLACED, and nothing else is: a new field is in the
schema by itself, and a report without it fails the tests until to_json writes it.
"""

import inspect
import json
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources import files
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from porter.comparison.explained import Explained
from porter.comparison.report import SCHEMA, Check, DiffReport, Local, NodeDiff, Prompt, Side, Worst

FILE = "porter.diff-1.schema.json"
Json = dict[str, Any]

NUMBER = {
    "description": "A number; JSON has none that is not finite, so these are strings.",
    "anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}],
}
_TEXT: Json = {"type": "string"}
PLACED: dict[type, dict[str, str]] = {  # field -> its key
    Check: {"name": "check"},
    Worst: {"difference": "v", "reference": "ref"},
    Prompt: {"ids_sha256": "ids_sha", "length": "len"},
    Explained: {"exit_code": "exit"},
    NodeDiff: {"kind": "class", "worst": "max_abs", "trimmed": "rel_l2_trim", "cosine": "cos"},
}
TOKENS = {"rho_tok": "max", "token": "token", "tokens": "tokens"}  # fields of Local that are under its key rho_tok
RUN = {  # fields of DiffReport that are under its key run
    "name": "name", "created": "created", "weights": "weights", "num_layers": "num_layers", "prompts": "prompts",
    "environment": "versions", "command": "command", "fail_on": "fail_on",
}  # fmt: skip
TOP = {"exit_code": "exit", "timings_s": "timings"}
ELSEWHERE = ("sentence", "declared", "port", "reference", "spec_hash", "overrides", "golden", *RUN)  # by hand, below


def make_schema(*, strict: bool = False) -> Json:
    """The schema of a report.

    Args:
        strict: every key is required and no other allowed, as in a report that this porter writes; the published
            schema allows more keys, and does not require those that earlier reports lack.
    """
    made = Maker(strict)
    top = made.properties(DiffReport, TOP, leave=ELSEWHERE)
    properties: Json = {
        "schema": {"const": SCHEMA},
        "verdict": top.pop("verdict"),
        "exit": {"type": "integer", "enum": [0, 1, 4, 5]},
        "summary": made.object(_summary(), required=["compared", "declared", "sentence"]),
        "run": _run(made),
        **{key: value for key, value in top.items() if key != "exit"},
        "artifacts": {"type": "object"},
    }
    late = {TOP.get(each.name, each.name) for each in fields(DiffReport) if _has_default(each)}
    required = [key for key in properties if key not in late]
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:porter:diff:1",
        "title": "A report of porter diff",
    }
    return {**about, **made.object(properties, required=required), "$defs": {"number": NUMBER, **made.parts}}


class Maker:
    """Schemas of types, and of the dataclasses met on the way."""

    def __init__(self, strict: bool) -> None:
        self.strict, self.parts = strict, {}  # type: bool, Json

    def object(self, properties: Json, *, required: list[str]) -> Json:
        made: Json = {"type": "object", "properties": properties}
        made["required"] = list(properties) if self.strict else required
        return {**made, "additionalProperties": False} if self.strict else made

    def properties(self, kind: type, keys: Mapping[str, str], *, leave: tuple[str, ...] = ()) -> Json:
        hints, said = get_type_hints(kind), _described(kind)
        found = {}
        for each in fields(kind):
            if each.name not in leave:
                about = {"description": said[each.name]} if each.name in said else {}
                found[keys.get(each.name, each.name)] = {**about, **self.of(hints[each.name])}
        return found

    def of(self, hint: Any) -> Json:
        """The schema of a type."""
        origin, inner = get_origin(hint), get_args(hint)
        if is_dataclass(hint):
            return self._part(hint)  # type: ignore[arg-type]
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(each) for each in inner]}
        if origin is tuple and inner[-1] is ...:
            return {"type": "array", "items": self.of(inner[0])}
        if origin is tuple:
            return {
                "type": "array",
                "prefixItems": [self.of(each) for each in inner],
                "items": False,
                "minItems": len(inner),
            }
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        return {
            float: {"$ref": "#/$defs/number"}, int: {"type": "integer"}, str: {"type": "string"},
            bool: {"type": "boolean"}, types.NoneType: {"type": "null"},
        }[hint].copy()  # fmt: skip

    def _part(self, kind: type) -> Json:
        name = kind.__name__
        if name not in self.parts:
            self.parts[name] = {}  # a type that holds itself would end here
            keys = PLACED.get(kind, {})
            properties = self.properties(kind, keys, leave=tuple(TOKENS) if kind is Local else ())
            if kind is Local:
                tokens = {TOKENS[key]: value for key, value in self.properties(kind, {}).items() if key in TOKENS}
                properties["rho_tok"] = self.object(tokens, required=[*tokens])
            required = [keys.get(each.name, each.name) for each in fields(kind) if not _has_default(each)]
            about = {"description": inspect.getdoc(kind).split("\n")[0]} if kind.__doc__ else {}  # type: ignore[union-attr]
            self.parts[name] = {**about, **self.object(properties, required=[k for k in required if k in properties])}
        return {"$ref": f"#/$defs/{name}"}


def _summary() -> Json:
    name = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    count = {"type": "integer", "minimum": 0}
    return {
        "first_fail": {"description": "The first failing node.", **name}, "stage": name, "compared": count,
        "declared": {"description": "Nodes that the port declares.", **count}, "inconclusive": count,
        "axes_tried": {"description": "Axes of the spec that were changed once; 0: none was.", **count},
        "axes_observable": {"description": "Those of them that this run could have shown.", **count},
        "sentence": {"type": "string"}, "explanation": name,
    }  # fmt: skip


def _run(made: Maker) -> Json:
    everything = made.properties(DiffReport, {})
    side = made.properties(Side, {})
    port = {"spec": everything["spec_hash"], "overrides": everything["overrides"], **side}
    properties = {key: everything[field] for field, key in RUN.items()}
    properties |= {
        "port": made.object(port, required=[*port]),
        "reference": made.object(side, required=[*side]),
        "golden": _golden(made.strict),
    }
    if not made.strict:
        properties["seed"] = {
            "description": "null, in reports of earlier porters: a run draws nothing, and ids and weights are named.",
            "anyOf": [_TEXT, {"type": "null"}],
        }
    return made.object(properties, required=[key for key in properties if key not in ("fail_on", "seed")])


def _golden(strict: bool) -> Json:
    """What golden is and, where a cache was used, which: all of the cache's keys, or none."""
    count = {"type": "integer", "minimum": 0}
    cache: Json = {
        "cache": {"description": "sha256 of all that the cached numbers depend on besides their input.", **_TEXT},
        "cache_folder": _TEXT,
        "cache_read": {"description": "Units that were read from the cache.", **count},
        "cache_made": {"description": "Units that were not in it, and were run.", **count},
    }
    made: Json = {"type": "object", "properties": {"dtype": _TEXT, **cache}, "required": ["dtype"]}
    made["dependentRequired"] = {"cache": [key for key in cache if key != "cache"]}
    return {**made, "additionalProperties": False} if strict else made


def _has_default(field: Any) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _described(kind: type) -> dict[str, str]:
    """What the docstring says of each field: `rho: e_port / max(e_ref, floor).`, or of several at once."""
    text = inspect.getdoc(kind) or ""
    lines = re.findall(r"^    ([a-z0-9_, ]+): (.+?)$", text.partition("Attributes:")[2], re.MULTILINE)
    return {name.strip(): said for names, said in lines for name in names.split(",")}


def schema_text() -> str:
    """The published file."""
    return (files("porter.reports") / FILE).read_text(encoding="utf-8")


def write_schema() -> str:
    """The text of the published file."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).with_name(FILE).write_text(write_schema(), encoding="utf-8")
