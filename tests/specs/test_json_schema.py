"""schema.json is what the models make, and every family file is valid under it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from porter.specs.json_schema import FILE, make_schema, write_schema
from porter.specs.located import read_map
from porter.specs.tree import spec_folder

FILES = sorted(spec_folder().glob("*.yaml"))
FIRST_LINE = "# yaml-language-server: $schema=schema.json"
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> list[str]:
    """What is wrong with a value, by the part of JSON schema that schema.json uses; an unknown keyword is an error."""
    known = {
        "$ref",
        "anyOf",
        "type",
        "enum",
        "const",
        "pattern",
        "properties",
        "additionalProperties",
        "items",
        "minItems",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minimum",
        "maximum",
        "description",
        "$schema",
        "title",
        "$defs",
    }
    assert set(schema) <= known, set(schema) - known
    if "$ref" in schema:
        return faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, path)
    if "anyOf" in schema and all(faults(value, kind, root, path) for kind in schema["anyOf"]):
        return [f"{path}: {value!r} is none of anyOf"]
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{path}: {value!r} is no {kind}"]
    found = (
        [] if value in schema.get("enum", [value]) and value == schema.get("const", value) else [f"{path}: {value!r}"]
    )
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        found.append(f"{path}: {value!r} does not match")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("exclusiveMinimum", -1e999), schema.get("exclusiveMaximum", 1e999)
        inside = low < value < high and schema.get("minimum", value) <= value <= schema.get("maximum", value)
        found += [] if inside else [f"{path}: {value} is out of bounds"]
    if isinstance(value, list):
        found += [
            fault
            for i, item in enumerate(value)
            for fault in faults(item, schema.get("items", {}), root, f"{path}[{i}]")
        ]
    if isinstance(value, dict):
        for key, inner in value.items():
            below = schema.get("properties", {}).get(key, schema.get("additionalProperties", True))
            if isinstance(below, bool):
                found += [] if below else [f"{path}: unknown key {key}"]
            else:
                found += faults(inner, below, root, f"{path}.{key}")
    return found


def test_the_checked_in_file_is_current() -> None:
    text = (spec_folder() / FILE).read_text(encoding="utf-8")
    assert text == write_schema(), "run python -m porter.specs.json_schema"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_family_file_is_valid_and_names_the_schema(path: Path) -> None:
    assert path.read_text(encoding="utf-8").splitlines()[0] == FIRST_LINE
    schema = make_schema()
    assert faults(read_map(path), schema, schema) == []


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("block: {mlp: {act: gelu}}", True),
        ("block: {mlp: {act: gelu_pytorch_tanh}}", True),
        ("block: {mlp: {act: =cfg.a}}", True),
        ("block: {mlp: {act: gelux}}", False),
        ("block: {mlp: {acts: gelu}}", False),
        ("block: {mlp: {gated: 'yes'}}", False),
        ("block: {attn: {qk_norm: {over: head, _if: =cfg.a}}}", True),
        ("block: {attn: {qk_norm: null}}", True),
        ("block: {mlp: {_if: =cfg.a}}", False),
        ("block: {rope: null}", True),
        ("block: {rope: {theta: 0}}", False),
        ("block: {attn: null}", False),
        ("block: {rope: {scaling: {type: linear, rope_theta: 2, factor: 2}}}", True),
        ("patterns: {w: {by: '=const(1, 2)', cases: {a: {attn: {window: 3}}, b: {}, c: null}}}", True),
        ("patterns: {w: null}", True),
        ("patterns: {w: {by: full, cases: {}}}", False),
        ("patterns: {w: {cases: {a: {attn: {windw: 3}}}}}", False),
        ("weights: {block: {attn.q: null, attn.k: a, attn.v: [a, b], attn.o: {src: a, groups: 1}}}", True),
        ("weights: {block: {_replace: true}}", True),
        ("weights: {block: {attn.qnorm: a}}", False),
        ("weights: {layer: 3}", False),
        ("sizes: {a: {hf: b/c, config: {d: 1}}}", True),
        ("sizes: {a: {confg: {}}}", False),
        ("dims: {hidden: 0}", False),
        ("dims: {hidden: =cfg.a}", True),
        ("norm: {offset: 2}", False),
        ("tokenizer: {eos_ids: 1}", True),
        ("foo: 1", False),
        ("final_norm: =cfg.a", True),
        ("ignore_config: {a: null, b: why}", True),
        ("requires: [a]", True),
        ("requires: a", False),
    ],
)
def test_what_an_editor_underlines(text: str, valid: bool, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text, encoding="utf-8")
    schema = make_schema()
    assert (faults(read_map(path), schema, schema) == []) is valid


def test_every_field_says_what_it_is() -> None:
    texts = json.loads(write_schema())["$defs"]
    bare = [
        f"{name}.{key}"
        for name, part in texts.items()
        for key, field in part.get("properties", {}).items()
        if "description" not in field and "$ref" not in field
    ]
    allowed = {"Dims", "Tokenizer", "RopeScaling"}  # said by the model's own description
    assert [name for name in bare if name.split(".")[0] not in allowed] == []
