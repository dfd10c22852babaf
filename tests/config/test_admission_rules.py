"""Tests that an unusable policy file stops the start with a single line."""

import pytest

from select_service.config.admission_rules import POLICY_BYTES_MAX, admission_rules
from select_service.config.settings_loader import ConfigError, parse_config

ONE_CLASS = """
default_policy_family: chat
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes: [{name: chat_all, policy_family: chat, cache_bucket: all, %s}]
"""


def rules_of(path, text, *flags):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return admission_rules(parse_config(["--policy-config", str(path), *flags], {}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\x00",
        "[" * 20_000,
        "policy_classes: 2001-13-45",
        "policy_classes: 2001-12-14t21:59:43.10-99:00",
        "policy_classes: " + "9" * 5000,
        "policy_classes: !!int many",
        "policy_classes: !!bool perhaps",
        "policy_classes: !!timestamp never",
        "policy_classes: !!python/object:os.system x",
        "&a [*a]",
        ONE_CLASS % "quantum: 0",
        ONE_CLASS % "queue_policy: newest",
        ONE_CLASS % "prefill_busy_threshold_frac: .nan",
        ONE_CLASS % "priority: 1",
        ONE_CLASS % "quantum: 1" + "models: {other: {default_policy_family: chat}}",
        "#" * (POLICY_BYTES_MAX + 1),
    ],
    ids=range(17),
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "policy.yaml"
    with pytest.raises(ConfigError) as error:
        rules_of(path, text)
    assert str(error.value).startswith(f"policy file {path}: ")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        admission_rules(parse_config(["--policy-config", str(tmp_path / "none.yaml")], {}))


@pytest.mark.parametrize(
    ("own", "flags", "frac"),
    [
        ("quantum: 2", [], 16.0),
        ("quantum: 2", ["--queue-threshold", "0.5"], 0.5),
        ("prefill_busy_threshold_frac: 3.0", ["--queue-threshold", "0.5"], 3.0),
        ("prefill_busy_threshold: 100", ["--queue-threshold", "0.5"], None),
        ("queue_policy: work", [], 1.0),
        ("queue_policy: work", ["--queue-threshold", "0.5"], 0.5),
    ],
)
def test_a_class_without_a_threshold_has_that_of_the_process(tmp_path, own, flags, frac):
    rules = rules_of(tmp_path / "policy.yaml", ONE_CLASS % own, *flags)
    assert rules.queue.profile_of("m").classes[0].prefill_busy_threshold_frac == frac


def test_a_queue_that_goes_by_work_left_has_the_threshold_of_the_process():
    rules = admission_rules(parse_config(["--queue-policy", "work", "--queue-threshold", "2"], {}))
    (only,) = rules.queue.profile_of("m").classes
    assert (only.queue_policy, only.prefill_busy_threshold_frac) == ("work", 2.0)
    assert only.prefill_busy_threshold is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "requires --queue-threshold"),
        (["--policy-config", "p.yaml"], "in the classes of that file"),
        (["--queue-threshold", "1", "--policy", "reference"], "use --policy work"),
    ],
)
def test_a_queue_by_work_left_names_missing_settings(flags, says):
    with pytest.raises(ConfigError, match=f"^--queue-policy work .*{says}"):
        admission_rules(parse_config(["--queue-policy", "work", *flags], {}))


def test_no_class_goes_by_work_left_where_the_policy_does_not_follow_it(tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.yaml: queue_policy work .*use --policy work"):
        rules_of(tmp_path / "policy.yaml", ONE_CLASS % "queue_policy: work", "--policy=reference")
    text = ONE_CLASS % "queue_policy: work"
    assert rules_of(tmp_path / "policy.yaml", text, "--policy=least_work").queue.waits_for_work
