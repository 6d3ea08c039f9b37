"""What explain found, as JSON: what the dataclasses say, strict, and read back without loss."""

import json
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator, ValidationError

from porter.reports.explain_json import (
    explain_to_text,
    explained_from_json,
    explained_to_json,
    make_schema,
    schema_text,
    write_schema,
)
from porter.reports.html import to_html
from tests.models.commands import porter
from tests.reports import synthetic


def test_the_file_is_what_the_dataclasses_say() -> None:
    assert schema_text() == write_schema(), "run python -m porter.reports.explain_json"
    Draft202012Validator.check_schema(json.loads(schema_text()))
    assert porter("schema", "explain").stdout == schema_text()


def test_round_trip_and_validity() -> None:
    document = json.loads(explain_to_text(synthetic.EXPLAINED, "report.json"))
    Draft202012Validator(make_schema(strict=True)).validate(document)
    assert [*document][0 :: len(document) - 1] == ["schema", "report"] and document["exit"] == 1
    assert explained_from_json(document) == synthetic.EXPLAINED
    assert explained_from_json({**explained_to_json(synthetic.EXPLAINED), "later": 1}) == synthetic.EXPLAINED


@pytest.mark.parametrize("key", ["schema", "faults", "exit"])
def test_what_is_missing_is_refused(key: str) -> None:
    document = json.loads(explain_to_text(synthetic.EXPLAINED))
    del document[key]
    with pytest.raises(ValidationError, match=f"'{key}' is a required property"):
        Draft202012Validator(make_schema()).validate(document)


def test_the_card_says_what_is_wrong_where_and_how_to_mend_it() -> None:
    page = to_html(synthetic.failing())
    for said in (
        "model_specs/gemma3.yaml:12", '<code class="wrong">gelu</code>', '<code class="right">gelu_tanh</code>',
        "ρ 912 → 1", "4 of 4 nodes of layers.0", "block:\n  mlp:\n    act: gelu_tanh", "cannot tell them apart",
        "No change of the spec brings it to the floor", "excluded: 31 changes of 2 places", "leaves not finite",
        "Partly explained: 1 fault, and one more.", "--set block.mlp.act=gelu_tanh",
    ):  # fmt: skip
        assert said in page, said
    assert "Next: " not in page.partition("</header>")[0]


def test_a_page_that_was_not_explained_says_which_command_does_it() -> None:
    report = replace(synthetic.failing(), explanations=(), attribution=())
    page = to_html(report)
    assert "<code>porter explain gemma-3-270m</code> names the axis" in page
    assert "porter diff --attribution says which layers" in page and "Next: " in page
    assert "Nothing differs that needs an explanation." in to_html(synthetic.passing())


def test_a_port_of_another_make_is_told_what_its_code_does() -> None:
    tensor = replace(
        synthetic.CHANGED, kind="tensor", axis="layers.0.mlp.gate.weight", port="transposed", reference="as stored"
    )
    fault = replace(synthetic.EXPLAINED.faults[0], changes=((synthetic.CHANGED,),))
    found = replace(synthetic.EXPLAINED, foreign=True, faults=(fault, replace(fault, changes=((tensor,),))))
    page = to_html(replace(synthetic.failing(), explanations=(found,)))
    assert "Its code computes as with block.mlp.act gelu; the reference’s is gelu_tanh." in page
    assert "It computes with layers.0.mlp.gate.weight transposed, where the reference has it as stored." in page
    assert "<h3>Patch</h3>" not in page and "The mended port" not in page
