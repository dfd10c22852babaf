"""Tests of flags, environment, and settings that stop the start."""

import re
import subprocess
import sys
from math import inf

import pytest

from select_service.base.command_line import UsageError
from select_service.config import value_parsers as read
from select_service.config.settings_loader import (
    ConfigError,
    _default_suffix,
    make_parser,
    parse_config,
)
from select_service.config.settings_table import GROUPS, SETTINGS
from select_service.core.placement.policies.policy_registry import parse_policy_choice
from tests.builders.polling import PATIENCE_S


def test_defaults_are_those_of_the_document():
    config = parse_config([], {})
    assert (config["port"], config["threads"], config["host"]) == (8092, 4, "127.0.0.1")
    assert config["reservation_ttl_s"] == 3600.0
    assert config.values["port"].origin == "default"


def test_command_line_wins_over_the_environment():
    environment = {"SELECT_SERVICE_PORT": "1000", "SELECT_SERVICE_THREADS": "2"}
    config = parse_config(["--port", "2000"], environment)
    assert config.values["port"] == (2000, "command line")
    assert config.values["threads"] == (2, "environment SELECT_SERVICE_THREADS")


def test_every_flag_has_an_environment_twin():
    for setting in SETTINGS:
        if setting.flag:
            twin = "SELECT_SERVICE_" + setting.flag[2:].replace("-", "_").upper()
            assert setting.variables[0] == twin


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "0.5", "overlap_score_credit", 0.5),
        ("DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", "0", "host_cache_hit_weight", 0.0),
        ("DYN_USE_KV_EVENTS", "OFF", "use_kv_events", False),
        ("DYN_ROUTER_USE_KV_EVENTS", "false", "use_kv_events", False),
        ("DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", "1.5", "overlap_score_credit", 1.5),
        ("DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", "3", "decode_active_request_weight", 3.0),
        ("DYN_ROUTER_QUEUE_POLICY", "lcfs", "queue_policy", "lcfs"),
        ("DYN_ROUTER_TTL_SECS", "0", "assumed_ttl_s", 0.0),
        ("DYN_ROUTER_APPROXIMATE_CACHE_POLICY", "ttl", "assumed_policy", "ttl"),
        ("DYN_ROUTER_PREDICTED_TTL_SECS", "1.5", "predicted_ttl_s", 1.5),
        ("DYN_ROUTER_TRACKING_HASH", "public-xxh3-v1", "tracking_hash", "public-xxh3-v1"),
        ("DYN_ROUTER_TRACK_ACTIVE_BLOCKS", "no", "track_active_blocks", False),
        ("DYN_ROUTER_ASSUME_KV_REUSE", "Yes", "assume_kv_reuse", True),
        ("DYN_OVERLAP_SCORE_WEIGHT", "2", "overlap_score_weight", 2.0),
    ],
)
def test_router_variables_are_read(variable, text, name, value):
    assert parse_config([], {variable: text})[name] == value


def test_first_of_two_variables_of_one_setting_counts():
    both = {"DYN_OVERLAP_SCORE_WEIGHT": "2", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT": "3"}
    assert parse_config([], both)["overlap_score_weight"] == 3.0


def test_the_old_weight_sets_the_prefill_load_scale():
    variable = "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT"
    config = parse_config([], {variable: "2", "DYN_ROUTER_PREFILL_LOAD_SCALE": "7"})
    assert config.values["prefill_load_scale"] == (2.0, f"environment {variable}")
    assert config["overlap_score_credit"] == 1.0
    config = parse_config([], {variable: "0"})
    assert config.values["overlap_score_credit"] == (0.0, f"environment {variable}")


@pytest.mark.parametrize(
    ("argv", "environment", "complaint"),
    [
        (["--port", "65536"], {}, "--port: expected a whole number from 0 to 65535, got `65536`"),
        (["--port", "8o92"], {}, "--port: expected a whole number"),
        (["--port", "٣"], {}, "--port: expected a whole number"),
        (["--port", "8_092"], {}, "--port: expected a whole number"),
        (["--port", " 8092"], {}, "--port: expected a whole number"),
        (["--port", "1" * 5000], {}, "--port: expected a whole number"),
        (["--port", "1\n2"], {}, "got `1\\n2`"),
        (["--reservation-ttl-secs", "1_0"], {}, "--reservation-ttl-secs: expected a number"),
        (["--reservation-ttl-secs", "1e999"], {}, "--reservation-ttl-secs: expected a number"),
        (["--threads", "0"], {}, "--threads: expected a whole number from 1 to 64"),
        (["--reservation-ttl-secs", "nan"], {}, "--reservation-ttl-secs: expected a number from 0"),
        (["--reservation-ttl-secs", "-1"], {}, "--reservation-ttl-secs: expected a number"),
        (["--log-format", "xml"], {}, "--log-format: expected one of text, json, got `xml`"),
        (["--policy", "best"], {}, "--policy: expected one of work, least_work, reference"),
        (["--indexer-peers", "ftp://a"], {}, "invalid peer `ftp://a`: it does not begin"),
        (["--indexer-peers", "http://a,b:1"], {}, "--indexer-peers: invalid peer"),
        (["--indexer-peers", "http://a:x"], {}, "--indexer-peers: invalid peer"),
        (["--indexer-peers", "http://u@a:1"], {}, "--indexer-peers: invalid peer"),
        (["--indexer-peers", "http://a?x"], {}, "--indexer-peers: invalid peer"),
        (
            ["--indexer-peers", "http://c,http://a..b:80"],
            {},
            "`http://a..b:80`: `a..b` is not a host",
        ),
        (["--snapshot-path", ""], {}, "--snapshot-path: expected a non-empty text"),
        (["--snapshot-interval-secs", "0"], {}, "--snapshot-interval-secs: expected a number"),
        (["--replica-sync-port", "0"], {}, "--replica-sync-port: expected a whole number from 1"),
        (["--replica-sync-peers", "tcp://a:1"], {}, "requires --replica-sync-port"),
        (["--advertise-url", "a:1"], {}, "--advertise-url: expected an http or https URL"),
        (["--advertise-url", "http://a?x"], {}, "URL (only host, port and path are expected)"),
        (["--advertise-url", "http://[::1"], {}, "an http or https URL (Invalid IPv6 URL)"),
        (["--advertise-url", "https://a/" + "x" * 512], {}, "(more than 512 characters)"),
        (["--tls-cert", "a"], {}, "--tls-cert requires --tls-key"),
        (["--tls-key", "a"], {}, "--tls-key requires --tls-cert"),
        (["--tls-client-key", "a"], {}, "--tls-client-key requires --tls-client-cert"),
        (["--tls-client-ca", "a"], {}, "--tls-client-ca requires --tls-cert"),
        (["--nonsense"], {}, "unknown argument `--nonsense`; see select-service --help"),
        (["--prot", "1"], {}, "unknown argument `--prot`: did you mean `--port`?"),
        (["--prot=1"], {}, "unknown argument `--prot`: did you mean `--port`?"),
        (["-port", "1"], {}, "unknown argument `-port`: did you mean `--port`?"),
        (["--replica_sync_port", "1"], {}, "did you mean `--replica-sync-port`?"),
        (["compil"], {}, "unknown argument `compil`: did you mean `compile`?"),
        (["--port", "1", "compile"], {}, "`compile` must be the first word of the command line"),
        (["port=1"], {}, "unknown argument `port`: did you mean `--port`?"),
        (["--strict-fields", "maybe"], {}, "--strict-fields: expected one of 1, true"),
        ([], {"DYN_ROUTER_TEMPERATURE": "-1"}, "DYN_ROUTER_TEMPERATURE: expected a number from 0"),
        ([], {"DYN_ROUTER_TEMPERATURE": "inf"}, "DYN_ROUTER_TEMPERATURE: expected a number from 0"),
        ([], {"DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": "-0.5"}, "expected a number from 0 upwards"),
        ([], {"DYN_ROUTER_HOST_CACHE_HIT_WEIGHT": "1.5"}, "expected a number from 0 to 1"),
        ([], {"DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT": "-1"}, "expected a number from 0 upwards"),
        ([], {"DYN_ROUTER_TTL_SECS": "-1"}, "DYN_ROUTER_TTL_SECS: expected a number from 0"),
        ([], {"DYN_ROUTER_TTL_SECS": "inf"}, "DYN_ROUTER_TTL_SECS: expected a number from 0"),
        ([], {"DYN_ROUTER_PREDICTED_TTL_SECS": "nan"}, "expected a number from 0 upwards"),
        (
            [],
            {"DYN_ROUTER_PREDICTED_TTL_SECS": "5", "DYN_USE_KV_EVENTS": "false"},
            "DYN_ROUTER_PREDICTED_TTL_SECS requires DYN_ROUTER_USE_KV_EVENTS=true",
        ),
        ([], {"DYN_ROUTER_APPROXIMATE_CACHE_POLICY": "lfu"}, "expected one of ttl, lru, got `lfu`"),
        (
            [],
            {"DYN_ROUTER_APPROXIMATE_CACHE_POLICY": "lru"},
            "=lru requires DYN_ROUTER_USE_KV_EVENTS=false",
        ),
        ([], {"DYN_ROUTER_EVENT_THREADS": "0"}, "DYN_ROUTER_EVENT_THREADS: expected a whole"),
        ([], {"DYN_SHARED_CACHE_MULTIPLIER": "2"}, "expected a number from 0 to 1, got `2`"),
        ([], {"DYN_SHARED_CACHE_TYPE": "x"}, "expected one of none, hicache, got `x`"),
        ([], {"DYN_ROUTER_PREFILL_LOAD_MODEL": "x"}, "expected one of none, ais, aic"),
        (
            [],
            {"DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD": "-1"},
            "expected a number from 0 to 1",
        ),
        ([], {"DYN_ROUTER_WORKER_SELECTION_POLICY": "x"}, "unknown worker selection `x`: remove"),
        (["--session-affinity-ttl-secs", "0.5"], {}, "a number from 1 to 31536000, got `0.5`"),
        (["--session-affinity-ttl-secs", "31536001"], {}, "a number from 1 to 31536000, got"),
        (["--session-affinity-mode", "sticky"], {}, "expected one of soft, hard, got `sticky`"),
        (["--selection-cache-ttl-secs", "-1"], {}, "--selection-cache-ttl-secs: expected a number"),
        (["--selection-cache-max-entries", "x"], {}, "expected a whole number from 0 to"),
        (["--selection-cache-max-bytes", "-1"], {}, "--selection-cache-max-bytes: expected a"),
        (
            ["--router-assume-kv-reuse", "--no-router-assume-kv-reuse"],
            {},
            "--no-router-assume-kv-reuse: not allowed with argument --router-assume-kv-reuse",
        ),
        (["--router-tracking-hash", "keyed-xxh3-v1"], {}, "`keyed-xxh3-v1` is not supported: use"),
        (["--router-tracking-hash", "x"], {}, "--router-tracking-hash: expected public-xxh3-v1"),
        (["--router-tracking-key-file", "/k"], {}, "keys of tracking hashes are not supported"),
        ([], {"DYN_ROUTER_TRACKING_KEY_ID": "k"}, "DYN_ROUTER_TRACKING_KEY_ID: keys of tracking"),
        ([], {"DYN_USE_KV_EVENTS": "disabled"}, "DYN_USE_KV_EVENTS: expected one of 1, true"),
        ([], {"DYN_ROUTER_QUEUE_THRESHOLD": "-1"}, "DYN_ROUTER_QUEUE_THRESHOLD: expected a number"),
        ([], {"DYN_ROUTER_QUEUE_THRESHOLD": "nan"}, "expected a number from 0 upwards"),
        ([], {"DYN_ROUTER_QUEUE_POLICY": "sjf"}, "expected one of fcfs, lcfs, wspt"),
        (["--active-decode-blocks-threshold", "1.1"], {}, "expected a number from 0 to 1"),
        (["--priority-tiers", "a,,b"], {}, "expected 1 to 16 different names"),
        (["--priority-tiers", "a,a"], {}, "expected 1 to 16 different names"),
        (["--priority-tiers", "x" * 65], {}, "names of at most 64 characters"),
        ([], {"SELECT_SERVICE_REPLICA_SYNC_PORT": "x"}, "expected a whole number"),
    ],
)
def test_values_that_make_no_sense_are_named(argv, environment, complaint):
    with pytest.raises(UsageError) as error:
        parse_config(argv, environment)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


NEEDED = {"--audit-required": ["--audit-log", "audit.jsonl"]}
"""Flags that another flag requires."""


@pytest.mark.parametrize(
    "flag", [s.flag for s in SETTINGS if s.flag and s.parse is read.true_or_false]
)
def test_a_flag_of_yes_or_no_needs_no_value(flag):
    variable = "SELECT_SERVICE_" + flag.removeprefix("--").replace("-", "_").upper()
    (name,) = (s.name for s in SETTINGS if s.flag == flag)
    needed = NEEDED.get(flag, [])
    assert parse_config([*needed, flag], {variable: "no"})[name] is True
    config = parse_config([*needed, flag, "--port", "1"], {})
    assert (config[name], config["port"]) == (True, 1)
    assert (
        parse_config([flag, "false"], {})[name] is parse_config([f"{flag}=off"], {})[name] is False
    )


def test_peers_to_recover_from_keep_their_order_and_are_distinct():
    flags = ["--indexer-peers", "http://b:1, http://a/x,http://b:1,"]
    assert parse_config(flags, {})["indexer_peers"] == ("http://b:1", "http://a/x")
    assert parse_config(["--indexer-peers", ""], {})["indexer_peers"] == ()


def test_replica_peers_are_distinct_and_sorted():
    flags = ["--replica-sync-port", "1", "--replica-sync-peers", "tcp://b:1,tcp://a:1, tcp://b:1,"]
    assert parse_config(flags, {})["replica_sync_peers"] == ("tcp://a:1", "tcp://b:1")


def test_a_replica_peer_that_is_no_endpoint_is_named_once_with_its_flag():
    with pytest.raises(ConfigError) as error:
        parse_config(["--replica-sync-port", "1", "--replica-sync-peers", "tcp://a:1,bad"], {})
    named = "--replica-sync-peers: invalid replica peer endpoint `bad`: missing scheme"
    assert str(error.value) == named


def test_an_empty_variable_counts_as_not_set():
    config = parse_config([], {"SELECT_SERVICE_PORT": "", "DYN_USE_KV_EVENTS": ""})
    assert config.values["port"] == (8092, "default")
    assert config.values["use_kv_events"] == (True, "default")


def test_an_unknown_variable_is_reported_with_the_most_similar_one():
    environment = {
        "SELECT_SERVICE_PROT": "1",
        "DYN_ROUTER_TEMPRATURE": "1",
        "SELECT_SERVICE_ZZZZZZZZZZ": "1",
        "SELECT_SERVICE_EMPTY": "",
        "DYN_OTHER": "1",
        "DYN_USE_KV_EVENT": "0",
        "DYN_OVERLAP_SCORE_WIGHT": "2",
        "SELECT_SERVCE_PORT": "1",
        "DYN_LOG": "debug",
        "DYN_SYSTEM_PORT": "1",
        "DYN_NAMESPACE": "a",
        "DYN_KV_BLOCK_SIZE": "16",
        "DYN_HTTP_PORT": "8000",
    }
    assert parse_config([], environment).unknown == {
        "DYN_OVERLAP_SCORE_WIGHT": "DYN_OVERLAP_SCORE_WEIGHT",
        "DYN_ROUTER_TEMPRATURE": "DYN_ROUTER_TEMPERATURE",
        "DYN_USE_KV_EVENT": "DYN_USE_KV_EVENTS",
        "SELECT_SERVCE_PORT": "SELECT_SERVICE_PORT",
        "SELECT_SERVICE_PROT": "SELECT_SERVICE_PORT",
        "SELECT_SERVICE_ZZZZZZZZZZ": None,
    }


def test_variables_of_a_kubernetes_service_are_not_reported():
    environment = {
        "SELECT_SERVICE_SERVICE_HOST": "10.0.0.1",
        "SELECT_SERVICE_SERVICE_PORT_HTTP": "8092",
        "SELECT_SERVICE_PORT_8092_TCP_ADDR": "10.0.0.1",
    }
    assert parse_config([], environment).unknown == {}


def test_a_wrong_peer_is_named_once_with_the_fault():
    with pytest.raises(ConfigError) as error:
        parse_config(["--indexer-peers", "http://a,ftp://b"], {})
    assert str(error.value) == (
        "--indexer-peers: invalid peer `ftp://b`: it does not begin with http:// or https://"
    )


def test_the_help_shows_every_flag_and_every_variable_in_its_group():
    text = make_parser().format_help()
    for title, settings in GROUPS.items():
        assert f"{title}:" in text
        for setting in settings:
            assert (setting.flag or setting.variables[0]) in text
            if len(setting.variables) > 1:
                assert all(variable in text for variable in setting.variables[1:])


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_help_shows_a_default_that_can_be_given(setting):
    (given,) = re.findall(r"\(default (.*)\)", _default_suffix(setting)) or [""]
    assert parse_config([], {setting.variables[0]: given})[setting.name] == setting.default


def test_variables_without_effect_are_reported():
    for name, value in {
        "DYN_ROUTER_EVENT_THREADS": "4",
        "DYN_SHARED_CACHE_TYPE": "hicache",
        "DYN_ROUTER_PREFILL_LOAD_MODEL": "aic",
        "DYN_USE_REMOTE_INDEXER": "anything",
        "DYN_ROUTER_MIN_INITIAL_WORKERS": "2",
    }.items():
        config = parse_config([], {name: value})
        assert (config.without_effect, config.unknown) == ((name,), {})


def test_the_newer_name_of_the_switch_of_kv_events_wins():
    both = {"DYN_ROUTER_USE_KV_EVENTS": "true", "DYN_USE_KV_EVENTS": "false"}
    assert parse_config([], both)["use_kv_events"] is True


def test_the_flag_for_no_reuse_means_the_opposite_and_wins_over_the_environment():
    environment = {"DYN_ROUTER_ASSUME_KV_REUSE": "true"}
    config = parse_config(["--no-router-assume-kv-reuse"], environment)
    assert config.values["assume_kv_reuse"] == (False, "command line")
    assert parse_config([], {"DYN_ROUTER_ASSUME_KV_REUSE": "no"})["assume_kv_reuse"] is False


def test_the_command_line_of_dynamo_1_6_starts():
    flags = """--session-affinity-ttl-secs 1.5 --selection-cache-ttl-secs 0
    --selection-cache-max-entries 0 --selection-cache-max-bytes 600 --router-assume-kv-reuse
    --router-tracking-hash public-xxh3-v1"""
    config = parse_config(flags.split(), {})
    assert config["session_affinity_ttl_s"] == 1.5
    assert config["selection_cache_ttl_s"] == 0.0
    assert (config["selection_cache_max_entries"], config["selection_cache_max_bytes"]) == (0, 600)
    assert config["session_affinity_mode"] is None


@pytest.mark.parametrize(("text", "lease_s"), [("60", 60.0), ("0", 300.0)])
def test_the_expiry_of_requests_sets_the_lease_unless_one_is_given(text, lease_s):
    environment = {"DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS": text}
    lease = parse_config([], environment).values["reservation_ttl_s"]
    assert lease == (lease_s, "environment DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS")
    given = parse_config(["--reservation-ttl-secs", "7"], environment)
    assert given["reservation_ttl_s"] == 7.0


def test_settings_that_the_policy_does_not_heed_are_reported():
    environment = {"DYN_ROUTER_PREFILL_LOAD_SCALE": "4", "DYN_ROUTER_TEMPERATURE": "0.5"}
    assert parse_config([], environment).ignored_origins == [
        "environment DYN_ROUTER_PREFILL_LOAD_SCALE"
    ]
    assert parse_config([], {"DYN_OVERLAP_SCORE_WEIGHT": "0"}).ignored_origins == [
        "environment DYN_OVERLAP_SCORE_WEIGHT"
    ]
    assert parse_config(["--policy", "reference"], environment).ignored_origins == []
    assert parse_config([], {}).ignored_origins == []


@pytest.mark.parametrize("policy", ["reference", "least_work"])
def test_options_of_a_policy_that_has_none_are_refused(policy):
    options = {"SELECT_SERVICE_POLICY_OPTIONS": "strict-tail"}
    assert parse_config([], options)["policy_options"] == ("strict-tail",)
    with pytest.raises(ConfigError, match=f"requires --policy work, got --policy {policy}"):
        parse_config(["--policy", policy], options)


def test_every_setting_is_shown_with_its_value_and_origin():
    shown = parse_config([], {"DYN_ROUTER_QUEUE_THRESHOLD": "inf"}).effective_settings()
    assert shown.keys() == {setting.name for setting in SETTINGS}
    assert shown["port"] == {
        "value": 8092,
        "origin": "default",
        "flag": "--port",
        "variable": "SELECT_SERVICE_PORT",
    }
    assert shown["queue_threshold"] == {
        "value": inf,
        "origin": "environment DYN_ROUTER_QUEUE_THRESHOLD",
        "flag": "--queue-threshold",
        "variable": "SELECT_SERVICE_QUEUE_THRESHOLD",
    }
    assert shown["use_kv_events"] == {
        "value": True,
        "origin": "default",
        "variable": "DYN_ROUTER_USE_KV_EVENTS",
    }


def run(*argv):
    return subprocess.run(
        [sys.executable, "-m", "select_service", *argv],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_wrong_setting_ends_with_status_2_and_one_line():
    result = run("--port", "x")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("select-service: error: --port: expected")


def test_version_and_help_are_printed():
    assert run("--version").stdout.startswith("select-service ")
    assert "--index-max-blocks" in run("--help").stdout


def test_a_shadow_policy_has_the_name_of_a_policy_and_perhaps_options():
    for text in ("reference", "work", "work+strict-tail+no-memory"):
        assert parse_config(["--shadow-policy", text.upper()], {})["shadow_policy"] == text
        assert str(parse_policy_choice(text)) == text
    for text in ("wrok", "reference+strict-tail", "work+strict", "work+no-memory+no-memory", "+"):
        with pytest.raises(
            ConfigError,
            match="expected work, least_work, reference, or with options, such as work\\+",
        ):
            parse_config(["--shadow-policy", text], {})
    with pytest.raises(ConfigError, match="cannot be used with --decisions 0"):
        parse_config(["--shadow-policy", "work", "--decisions", "0"], {})
