"""Tests of the canary file; an unusable file stops the start with a single line."""

from math import inf

import pytest

from select_service.config.canary_file import CanaryFile, ModelCanaries, read_canary_config
from select_service.config.settings_loader import ConfigError
from select_service.core.health.answers.answer_check import ExpectedAnswer
from select_service.core.health.checks.canary_prompts import CanaryPrompt, default_prompts
from select_service.core.health.migration.move_cost import CacheLayout
from select_service.files.yaml_document import BYTES_MAX


def read(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_canary_config(str(path))


def canaries_of(tmp_path, text, model="m"):
    return read(tmp_path / "canaries.yaml", text).model_canaries(model)


LIST = """
m:
  - prompt: [5, 6, 7]
    max_tokens: 2
    expected_tokens: [8, 9]
    expected_top_logprob_range: [-2.5, 0]
  - prompt: "The capital of France is"
"""


def test_a_model_has_a_list_of_prompts(tmp_path):
    assert canaries_of(tmp_path, LIST).prompts == (
        CanaryPrompt((5, 6, 7), 2, ExpectedAnswer((8, 9), (-2.5, 0.0), True)),
        CanaryPrompt("The capital of France is"),
    )


def test_models_may_be_nested_below_a_key(tmp_path):
    below = "models:" + LIST.replace("\n", "\n  ")
    assert canaries_of(tmp_path, below) == canaries_of(tmp_path, LIST)


def test_without_a_file_and_for_models_that_it_does_not_name_prompts_are_made_up(tmp_path):
    made_up = ModelCanaries(default_prompts())
    assert CanaryFile().model_canaries("m") == made_up
    assert canaries_of(tmp_path, LIST, "other") == made_up
    assert [len(each.prompt) for each in made_up.prompts] == [5, 40, 200]


def test_made_up_prompts_stay_within_the_vocabulary(tmp_path):
    prompts = canaries_of(tmp_path, "m: {vocab_size: 12}").prompts
    assert {token for each in prompts for token in each.prompt} == {10, 11}


def test_a_model_without_prompts_is_not_checked(tmp_path):
    assert canaries_of(tmp_path, "m: []").prompts == ()
    assert canaries_of(tmp_path, "m: {prompts: []}").prompts == ()


def test_a_model_may_name_api_and_layout_of_its_engines(tmp_path):
    layout = "{block_size: 16, layers: 80, kv_heads: 8, head_dim: 128, dtype_bytes: 2, tp: 8}"
    found = canaries_of(tmp_path, f"m: {{api: sglang, kv_layout: {layout}}}")
    assert found.api == "sglang"
    assert found.kv_layout == CacheLayout(16, 80, 8, 128, 2, 8)
    assert found.kv_layout.block_bytes_per_shard == 655_360


@pytest.mark.parametrize(
    ("said", "checks"),
    [("", False), ("check_logprobs: true", True), ("check_logprobs: false", False)],
)
def test_log_probabilities_are_checked_if_configured(tmp_path, said, checks):
    (prompt,) = canaries_of(tmp_path, f"m: [{{prompt: [5], expected_tokens: [1], {said}}}]").prompts
    assert prompt.expected == ExpectedAnswer((1,), (-inf, inf), checks)


WRONG = [
    ("the document is empty", b""),
    ("the document: expected an object, got a list", "- m"),
    ("model `m`: the document: expected an object or a list, got 7", "m: 7"),
    ("unknown field `promt`", "m: [{promt: [5]}]"),
    ("unknown field `prompt`", "m: {prompt: [5]}"),
    ("model `m`: unknown field `temperature`: remove it", "m: [{prompt: [5], temperature: 0}]"),
    ("`check_logits`: use check_logprobs", "m: [{prompt: [5], check_logits: true}]"),
    (
        "`expected_top_logit_range`: use expected_top_logprob_range",
        "m: [{prompt: [5], expected_tokens: [1], expected_top_logit_range: [0, 1]}]",
    ),
    ("expected", "m: [{prompt: []}]"),
    ("expected", 'm: [{prompt: ""}]'),
    ("expected", "m: [{prompt: [-1]}]"),
    ("expected", "m: [{prompt: [5000000000]}]"),
    ("expected", "m: [{prompt: [true]}]"),
    ("max_tokens", "m: [{prompt: [5], max_tokens: 0}]"),
    ("max_tokens", "m: [{prompt: [5], max_tokens: 257}]"),
    ("expected_tokens", "m: [{prompt: [5], expected_tokens: []}]"),
    (
        "prompt 2: 3 expected_tokens, but max_tokens is 2",
        "m: [{prompt: [1]}, {prompt: [5], max_tokens: 2, expected_tokens: [1, 2, 3]}]",
    ),
    ("needs expected_tokens", "m: [{prompt: [5], expected_top_logprob_range: [-1, 0]}]"),
    (
        "is not below",
        "m: [{prompt: [5], expected_tokens: [1], expected_top_logprob_range: [0, -1]}]",
    ),
    (
        ".nan is not a number",
        "m: [{prompt: [5], expected_tokens: [1], expected_top_logprob_range: [.nan, 0]}]",
    ),
    (
        "has no effect",
        "m: [{prompt: [5], expected_tokens: [1], check_logprobs: false, "
        "expected_top_logprob_range: [-1, 0]}]",
    ),
    ("vocab_size", "m: {vocab_size: 10}"),
    ("api", "m: {api: triton}"),
    ("kv_layout", "m: {kv_layout: {layers: 3}}"),
    ("expected a list of at most 32 items, got 33 items", "m: [" + "{prompt: [5]}, " * 33 + "]"),
    ("larger than", b"#" * (BYTES_MAX + 1)),
    ("", b"\xff\xfe\x00"),
    ("", "[" * 20_000),
    ("", "m: 2001-13-45"),
    ("", "m: !!python/object:os.system x"),
    ("", "&a [*a]"),
]


@pytest.mark.parametrize(("fault", "text"), WRONG, ids=range(len(WRONG)))
def test_a_file_that_makes_no_sense_is_refused_in_one_line(tmp_path, fault, text):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "canaries.yaml", text)
    line = str(caught.value)
    assert fault in line
    assert line.startswith(f"canary file {tmp_path / 'canaries.yaml'}: ")
    assert "\n" not in line


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_canary_config(str(tmp_path / "none.yaml"))
