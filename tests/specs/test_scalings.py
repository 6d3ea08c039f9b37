"""Mistakes in a scaling of RoPE, one at a time."""

from porter.specs.scalings import other_scalings

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [3.0, 4.0]}


def test_a_switch_two_numbers_what_belongs_together_and_a_key_left_out() -> None:
    found = list(other_scalings(YARN))
    assert {**YARN, "truncate": True} in found and {**YARN, "beta_fast": 1.0, "beta_slow": 32.0} in found
    assert {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0} in found and {**YARN, "attention_factor": 1.0} in found
    assert {key: value for key, value in YARN.items() if key != "beta_fast"} in found
    assert YARN not in found and all(each["rope_type"] == "yarn" for each in found)
    assert next(other_scalings({"rope_type": "yarn", "factor": 4.0})) == {
        "rope_type": "yarn", "factor": 4.0, "truncate": False,
    }  # fmt: skip


def test_one_list_for_both_lengths() -> None:
    found = list(other_scalings(LONG))
    assert {**LONG, "short_factor": [3.0, 4.0]} in found and {**LONG, "long_factor": [1.0, 2.0]} in found
    assert {**LONG, "short_factor": [3.0, 4.0], "long_factor": [1.0, 2.0]} in found


def test_a_plain_scaling_has_a_factor_alone_which_is_fitted_or_nothing() -> None:
    assert list(other_scalings({"rope_type": "linear", "factor": 8.0})) == []
