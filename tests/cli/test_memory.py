import json

import pytest
from click.testing import CliRunner

from porter.cli.main import cli


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["memory", *arguments], terminal_width=120)
    return result.exit_code, result.output


def test_the_tables() -> None:
    code, text = run("llama-3-8b", "--layers", "8", "--batch", "2", "--card", "h200")
    assert code == 0
    assert "llama-3-8b, 8 of 32 layers  2,795,573,248 parameters in bfloat16, 2 × 4,096 tokens" in text
    for line in (
        "What a step holds",
        "What layers keep",
        "what fits 140 GiB",
        "The head and its loss",
        "It pays: 8,192",
    ):
        assert line in text


def test_json_alone() -> None:
    code, text = run("qwen3-0.6b", "--json", "-")
    assert code == 0
    assert json.loads(text)["model"] == "qwen3-0.6b"


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    (
        (("mixtral", "--size", "tiny"), "mixtral has moe"),
        (("lama",), "no size or family is called 'lama'"),
        (("llama-3-8b", "--batch", "0"), "--batch 0"),
        (("llama-3-8b", "--card", "banana"), "--card 'banana'"),
        (("llama-3-8b", "--layers", "0"), "--layers 0"),
    ),
)
def test_refusals(arguments: tuple[str, ...], wrong: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert wrong in text
    assert "Traceback" not in text
