"""model_specs/schema.json, for editors. `python -m porter.specs.json_schema` rewrites it from the models of the schema.

A spec file is merged onto its parent, so nothing is required; every leaf that is evaluated takes an expression too.
"""

import json
from typing import Any

from porter.specs.document import EVALUATED, RULES, Document
from porter.specs.kinds import HF_ACTIVATIONS
from porter.specs.tree import spec_folder

FILE = "schema.json"
_EXPRESSION = {"$ref": "#/$defs/Expression"}
_GUARD = {"description": "The map is null where this is false.", "anyOf": [{"type": "boolean"}, _EXPRESSION]}
_REPLACE = {"type": "boolean", "description": "true: this map replaces the parent's, it is not merged onto it."}
_VALUES = {"Weights", "WeightRule", "Size"}  # hold no expressions
_GUARDED = {"Rope", "QKNorm", "Temperature", "RopeScaling", "Moe", "Shared", "Groups"}  # maps that may be null


def make_schema() -> dict[str, Any]:
    """The JSON schema of a family file."""
    schema = Document.model_json_schema()
    parts = schema["$defs"]
    for name, part in parts.items():
        parts[name] = _partial(part, evaluated=name not in _VALUES)
        if name in _GUARDED:
            parts[name]["properties"]["_if"] = _GUARD
    parts["WeightRule"] = _weight_rule(parts["WeightRule"])
    for name in ("Mlp", "Moe"):
        parts[name]["properties"]["act"]["anyOf"][0]["enum"] += sorted(HF_ACTIVATIONS)
    parts["Tokenizer"]["properties"]["eos_ids"]["anyOf"].append({"type": "integer"})
    parts["RopeScaling"]["additionalProperties"] = True  # HF's map, rope_theta and type in it
    parts["Pattern"]["properties"]["by"]["anyOf"] = [_EXPRESSION, {"type": "array", "items": {"type": "string"}}]
    for section, names in RULES.items():
        table = parts["Weights"]["properties"][section]
        table["properties"] = {name: {"$ref": "#/$defs/WeightRule"} for name in names} | {"_replace": _REPLACE}
        table["additionalProperties"] = False
    top = _partial({key: value for key, value in schema.items() if key != "$defs"}, evaluated=False)
    top["properties"]["final_norm"] = _leaf(top["properties"]["final_norm"])
    assert set(EVALUATED) <= set(top["properties"])
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A model family of porter"}
    expression = {"type": "string", "pattern": "^=", "description": "An expression over the config and the dims."}
    return {**about, **top, "$defs": {"Expression": expression, **parts}}


def _partial(part: dict[str, Any], *, evaluated: bool) -> dict[str, Any]:
    """A map as a file may give it: any of its keys, merged onto the parent's."""
    part = {key: value for key, value in part.items() if key not in {"required", "title"}}
    fields = {key: _untitled(value) for key, value in part["properties"].items()}
    part["properties"] = {key: _leaf(value) if evaluated else value for key, value in fields.items()}
    part["properties"]["_replace"] = _REPLACE
    return part


def _untitled(field: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in field.items() if key not in {"title", "default"}}


def _leaf(field: dict[str, Any]) -> dict[str, Any]:
    """A field that takes an expression besides its values; maps take none."""
    if "$ref" in field or field.get("type") == "object":
        return field
    about = {"description": field["description"]} if "description" in field else {}
    bare = {key: value for key, value in field.items() if key != "description"}
    kinds = bare["anyOf"] if set(bare) == {"anyOf"} else [bare]
    return {**about, "anyOf": [*kinds, _EXPRESSION]}


def _weight_rule(rule: dict[str, Any]) -> dict[str, Any]:
    path = {"type": "string"}
    paths = {"type": "array", "items": path, "minItems": 1}
    source = rule["properties"]["src"]
    rule["properties"]["src"] = {"description": source["description"], "anyOf": [path, paths]}
    groups = rule["properties"]["groups"]
    rule["properties"]["groups"] = {"description": groups["description"], "enum": [*groups["enum"], 1, 4]}
    null = {"type": "null", "description": "Takes the parent's rule away."}
    return {"description": rule["description"], "anyOf": [path, paths, rule, null]}


def write_schema() -> str:
    """The text of schema.json."""
    return json.dumps(make_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (spec_folder() / FILE).write_text(write_schema(), encoding="utf-8")
