"""Tests of the health flags and the SLO file; values without sense stop the start."""

from ipaddress import ip_network
from math import inf

import pytest

from select_service.config.health_settings import health_settings
from select_service.config.settings_loader import ConfigError, parse_config
from select_service.core.health.capacity_estimate import ServiceObjective, SpareRules
from select_service.core.health.degradation.degradation_levels import RATIOS
from select_service.core.health.health_rules import DESIGN_DOCUMENT_RULES, HealthRules
from select_service.core.health.migration.move_cost import LINKS, MigrationLimits, WorkerLink
from select_service.files.yaml_document import BYTES_MAX

ON = "--health-checks=on"


def settings_of(*flags, **environment):
    return health_settings(parse_config([ON, *flags], environment))


def test_health_is_off_by_default():
    assert health_settings(parse_config([], {})) is None
    assert health_settings(parse_config([], {"SELECT_SERVICE_HEALTH_CHECKS": "on"})) is not None


def test_the_defaults_of_the_flags_are_those_of_the_rules():
    found = settings_of()
    assert found.rules == HealthRules()
    assert found.reporters == (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    assert (found.degradation, found.promises) == ("off", {})


def test_every_rule_has_its_flag():
    flags = {
        "--health-interval-secs": ("interval_s", 3.5),
        "--health-timeout-secs": ("timeout_s", 1.5),
        "--health-retries": ("retries", 0),
        "--health-confirm-secs": ("confirm_s", 0.25),
        "--health-failures": ("failures", 2),
        "--breaker-recovery-secs": ("recovery_s", 900.0),
        "--breaker-backoff": ("backoff", 1.0),
        "--breaker-connect-secs": ("connect_s", 7),
        "--health-max-eject": ("max_eject", 0.25),
        "--health-slow-start-secs": ("slow_start_s", 0.0),
        "--drain-timeout-secs": ("drain_s", 7.0),
        "--dead-after-secs": ("dead_after_s", 70.0),
    }
    given = [f"{flag}={value}" for flag, (_, value) in flags.items()]
    wanted = HealthRules()._replace(**dict(flags.values()), recovery_s_max=900.0)
    assert settings_of(*given).rules == wanted


def test_migration_levels_and_spares_have_their_settings():
    found = settings_of()
    assert (found.migration, found.spares) == (MigrationLimits(), SpareRules())
    assert found.ratios == RATIOS
    links = "nvlink=1.8e12:0.5,unknown=2e9:20"
    found = settings_of(
        "--migration-max-ms=250",
        f"--migration-links={links}",
        "--degradation-ratios=1.1,0.8,0.6,0.4",
        "--spares-fraction=0.1",
        "--spares-from=8",
    )
    assert found.migration.transfer_ms_max == 250.0
    assert found.migration.links["nvlink"] == WorkerLink(1.8e12, 0.5)
    assert found.migration.links["unknown"] == WorkerLink(2e9, 20.0)
    assert found.migration.links["pcie"] is LINKS["pcie"]
    assert found.ratios == (1.1, 0.8, 0.6, 0.4)
    assert found.rules.capacity_floor == 0.4
    assert found.spares == SpareRules(0.1, 8)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--degradation-ratios=1,0.5", "four falling numbers"),
        ("--degradation-ratios=1,0.5,0.75,0.25", "four falling numbers"),
        ("--degradation-ratios=1,0.75,0.5,0", "four falling numbers"),
        ("--degradation-ratios=1,0.75,0.5,nan", "four falling numbers"),
        ("--migration-links=ethernet=1e9:1", "each of nvlink"),
        ("--migration-links=pcie=0:1", "NAME=BYTES_PER_S:MS"),
        ("--migration-links=pcie=1e9:1,pcie=2e9:1", "at most once"),
        ("--migration-max-ms=-1", "a number from 0"),
        ("--spares-fraction=2", "a number from 0 to 1"),
    ],
)
def test_wrong_settings_of_migration_levels_and_spares_are_refused(flag, says):
    with pytest.raises(ConfigError, match=says):
        settings_of(flag)


def test_the_profile_of_the_document_sets_the_flags_not_given():
    assert settings_of("--health-profile=document").rules == DESIGN_DOCUMENT_RULES
    rules = settings_of("--health-profile=document", "--breaker-backoff=3").rules
    assert rules == DESIGN_DOCUMENT_RULES._replace(backoff=3.0)
    assert (rules.anchor_factor, rules.max_eject) == (inf, 1.0)
    rules = settings_of("--health-profile=document", SELECT_SERVICE_HEALTH_MAX_EJECT="0.5").rules
    assert rules.max_eject == 0.5


@pytest.mark.parametrize(
    ("text", "networks"),
    [
        ("10.0.0.0/8, 192.168.1.7", ["10.0.0.0/8", "192.168.1.7/32"]),
        ("fd00::/8", ["fd00::/8"]),
        ("nobody", []),
    ],
)
def test_reporters_are_networks(text, networks):
    assert settings_of("--health-reporters", text).reporters == tuple(map(ip_network, networks))


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--health-checks=maybe", "--health-checks: expected one of off, on"),
        ("--health-interval-secs=0", "a number from 0.1 to 3600"),
        ("--health-failures=0", "a whole number from 1 to 1000"),
        ("--breaker-backoff=0.5", "a number from 1 to 100"),
        ("--health-max-eject=2", "a number from 0 to 1"),
        ("--health-profile=seed", "one of default, document"),
        ("--degradation=on", "one of off, observe, auto"),
        ("--health-reporters=10.0.0.1/8", "`10.0.0.1/8`: host bits are set"),
        ("--health-reporters=gateway", "invalid network `gateway`"),
        ("--health-reporters=,", "1 to 64 networks"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(flag, says):
    with pytest.raises(ConfigError, match=says):
        settings_of(flag)


@pytest.mark.parametrize(
    "flag", ["--slo=f", "--canary-config=f", "--health-state=f", "--degradation=observe"]
)
def test_flags_that_need_health_are_refused_without_it(flag):
    with pytest.raises(ConfigError, match=f"^{flag.partition('=')[0]} requires --health-checks on"):
        parse_config([flag], {})


def test_given_settings_without_effect_are_listed():
    given = ["--health-failures=2", "--health-checks=off"]
    off = parse_config(given, {"SELECT_SERVICE_BREAKER_BACKOFF": "2"})
    needed = dict.fromkeys(("--breaker-backoff", "--health-failures"), "--health-checks on")
    assert off.unused_settings == needed
    assert parse_config([], {}).unused_settings == {}
    assert parse_config([ON, *given[:1]], {}).unused_settings == {}
    assert parse_config([ON, "--slo=f"], {}).unused_settings == {"--slo": "--degradation observe"}
    assert parse_config([ON, "--slo=f", "--degradation=auto"], {}).unused_settings == {}


PROMISE = "{ttft_ms: 500, itl_ms: 30.5, rps: 12}"


@pytest.mark.parametrize("text", [f"m: {PROMISE}", f"models:\n  m: {PROMISE}"])
def test_promises_are_read_by_model(tmp_path, text):
    path = tmp_path / "slo.yaml"
    path.write_text(text)
    assert settings_of("--slo", str(path)).promises == {"m": ServiceObjective(500.0, 30.5, 12.0)}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\x00",
        b"- m",
        b"[" * 20_000,
        b"m: {ttft_ms: 500, itl_ms: 30}",
        b"m: {ttft_ms: 500, itl_ms: 30, rps: 0}",
        b"m: {ttft_ms: .nan, itl_ms: 30, rps: 1}",
        b"m: {ttft_ms: .inf, itl_ms: 30, rps: 1}",
        b"m: {ttft_ms: 500, itl_ms: 30, rps: 1, tpot_ms: 3}",
        b"m: 2001-13-45",
        b"&a [*a]",
        b"#" * (BYTES_MAX + 1),
    ],
    ids=range(12),
)
def test_a_file_of_promises_that_makes_no_sense_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "slo.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        settings_of("--slo", str(path))
    assert str(error.value).startswith(f"SLO file {path}: ")
    assert "\n" not in str(error.value)


def test_a_file_of_promises_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        settings_of("--slo", str(tmp_path / "none.yaml"))


def test_the_canary_file_is_read_at_the_start(tmp_path):
    path = tmp_path / "canaries.yaml"
    path.write_text("m: [{prompt: [1, 2, 3], max_tokens: 4}]")
    (prompt,) = settings_of("--canary-config", str(path)).canaries.model_canaries("m").prompts
    assert (prompt.prompt, prompt.max_tokens) == ((1, 2, 3), 4)
    assert len(settings_of().canaries.model_canaries("m").prompts) == 3
    with pytest.raises(ConfigError, match="No such file"):
        settings_of("--canary-config", str(tmp_path / "none.yaml"))
