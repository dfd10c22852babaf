"""Tests of the help and the argument errors of every command: the same shape and style."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

from select_service.__main__ import main
from select_service.auth.roles import ROLE_DESCRIPTIONS, ROLES
from select_service.base.command_line import CommandParser, UsageError
from select_service.cli import cache, compile_kernels, doctor, explain, inspect
from select_service.cli import keys_command as keys
from select_service.config.settings_loader import COMMANDS, make_parser
from select_service.config.settings_table import SETTINGS
from select_service.sim.demo import demo_options
from select_service.sim.replay import policy_replay_command as replaying

PARSERS: dict[str, Callable[[], CommandParser]] = {
    "select-service": make_parser,
    "select-service cache": cache.make_cache_parser,
    "select-service compile": compile_kernels.make_compile_parser,
    "select-service doctor": doctor.make_doctor_parser,
    "select-service explain": explain.make_explain_parser,
    "select-service inspect": inspect.make_inspect_parser,
    "select-service keys": keys.make_keys_parser,
    "select-service keys new": keys.make_new_key_parser,
    "select-service keys new-replica": keys.make_new_replica_parser,
    "select-service replay": replaying.parser,
    "scripts/demo": demo_options.parser,
}
KIND = re.compile(
    r"^  (?:-h, )?(--[a-z-]+)(?: (\S+(?: \[FILE \.\.\.\])?))?(?:  .*)?$", re.MULTILINE
)
"""Flag and metavar at the beginning of a line of help."""
WITHOUT_VALUE = {
    *("--help", "--version", "--once", "--probe", "--json", "--portable"),
    "--no-router-assume-kv-reuse",
}
"""Flags without a value."""


def examples(text: str) -> list[str]:
    (block,) = re.findall(r"\nExamples:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL)
    return [re.split(r"  +| > ", line.strip())[0] for line in block.splitlines()]


def test_every_command_is_tested():
    named = {name.split()[1] for name in PARSERS if name.startswith("select-service ")}
    assert named == set(COMMANDS)


@pytest.mark.parametrize("name", PARSERS)
def test_purpose_and_three_examples_come_before_a_usage_of_one_line(name):
    text = PARSERS[name]().format_help()
    lead, usage, rest = text.partition("\n\nusage: ")
    assert usage
    assert lead[0].isupper()
    assert len(examples(lead)) == 3
    assert rest.startswith(name)
    assert rest.split("\n")[1] == ""


@pytest.mark.parametrize("name", PARSERS)
def test_every_example_is_understood(name):
    for line in examples(PARSERS[name]().format_help()):
        own = max((each for each in PARSERS if each in line), key=len)
        PARSERS[own]().parse_arguments(shlex.split(line.partition(own)[2]))


@pytest.mark.parametrize("name", PARSERS)
def test_every_flag_has_a_metavar_and_a_purpose(name):
    made = PARSERS[name]()
    kinds = dict(KIND.findall(made.format_help()))
    assert kinds.keys() == {"--help", *made.flags}
    for flag, kind in kinds.items():
        assert kind or flag in WITHOUT_VALUE, flag
        assert kind != "VALUE"
        assert not kind or re.fullmatch(r"\[?\{.+\}\]?|[A-Z]+(\[,[A-Z]+\]| \[FILE \.\.\.\])?", kind)


def test_the_kinds_of_the_settings():
    kinds = {setting.flag: setting.kind for setting in SETTINGS if setting.flag}
    assert kinds["--port"] == kinds["--replica-sync-port"] == "PORT"
    assert kinds["--state-path"] == kinds["--slo"] == kinds["--tls-ca"] == "FILE"
    assert kinds["--drain-secs"] == "SECONDS"
    assert kinds["--indexer-peers"] == "URL[,URL]"
    assert kinds["--log-level"] == "{debug,info,warning,error}"
    assert kinds["--insecure"] == "{true,false}"


def test_the_help_of_new_keys_explains_every_role():
    text = keys.make_new_key_parser().format_help()
    assert set(ROLE_DESCRIPTIONS) == set(ROLES)
    for role, meaning in ROLE_DESCRIPTIONS.items():
        assert re.search(rf"^  {role} +{re.escape(meaning)}$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("select-service", ["--port"], "--port: a value is missing, see --help"),
        ("select-service", ["--prot", "1"], "unknown argument `--prot`: did you mean `--port`?"),
        ("select-service", ["keys"], "`keys` must be the first word of the command line"),
        ("select-service", ["--version=1"], "--version takes no value"),
        ("select-service doctor", ["--worker", "x"], "--worker: expected a whole number from 0 to"),
        ("select-service doctor", ["--prob"], "unknown argument `--prob`: did you mean `--probe`?"),
        ("select-service doctor", ["--json=1"], "--json takes no value"),
        ("select-service doctor", ["--url", "a:1"], "--url: expected an http or https URL (it"),
        ("select-service inspect", [], "URL is missing, see select-service inspect --help"),
        ("select-service explain", ["a", "b"], "unknown argument `b`; see select-service explain"),
        (
            "select-service keys new",
            [],
            "NAME, --role are missing, see select-service keys new --help",
        ),
        ("select-service replay", ["--log"], "--log: a value is missing, see --help"),
        ("select-service keys", [], "COMMAND is missing, see select-service keys --help"),
        ("select-service keys new", ["a"], "--role is missing"),
        ("select-service cache", ["clean"], "clear: expected clear, got `clean`"),
        ("select-service keys new", [], "NAME, --role are missing"),
        ("select-service keys new", ["a", "--role", "x"], "--role: expected one of caller, oper"),
        (
            "select-service keys new",
            ["a", "--role", "caller", "--requests-per-s", "0"],
            "--requests-per-s: expected a number above 0, got `0`",
        ),
        ("select-service keys new-replica", ["a"], "--secret-file is missing"),
        ("select-service compile", ["x"], "unknown argument `x`; see select-service compile"),
        ("scripts/demo", ["--lose", "1"], "--lose: expected a number from 0 to below 1, got `1`"),
        ("scripts/demo", ["--once=1"], "--once takes no value"),
    ],
)
def test_argument_errors_have_one_style(name, words, told):
    with pytest.raises(UsageError, match=rf"\A{re.escape(told)}[^\n]*\Z"):
        PARSERS[name]().parse_arguments(words)


@pytest.mark.parametrize("command", [name for name in PARSERS if name.startswith("select-service")])
def test_the_command_ends_with_status_2_and_a_line(command, capsys):
    assert main([*command.split()[1:], "--no-such-flag"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"select-service: error: [^\n]+\n", said.err)


@pytest.mark.parametrize(
    "words",
    [
        "select_service keys new a --role caller",
        "select_service --version",
        "select_service.planner --version",
    ],
)
def test_a_closed_output_ends_a_command_without_a_traceback(words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *words.split()]
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"Broken" not in done.stderr
