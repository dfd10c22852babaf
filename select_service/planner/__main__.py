"""The command `select-planner`: reads the configuration, then ticks until a signal."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from select_service.command_line import (
    CommandParser,
    UsageError,
    above_zero,
    choice,
    leaving_with_reader,
    typed,
    whole,
)
from select_service.planner.config import PlannerConfig, is_text
from select_service.planner.reading import PROFILES, ConfigError, Profile, config_of, read_config
from select_service.spelling import shown
from select_service.version import package_version

USAGE_ERROR = 2
PORT_MAX = 65535
_MS = "MILLISECONDS"
LEVELS, FORMATS = ("debug", "info", "warning", "error"), ("text", "json")
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Of linear algebra: matrices of a forecast are small, and threads that wait for their part of one
turn in circles: six times the CPU on two cores, more on more."""
CHECK, REPLAY = "check", "replay"
"""First words of the other commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a signal, 1 when it cannot run, 2 for a wrong setting."""
    if argv is None:  # the process is ours; read when such a library is loaded
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with leaving_with_reader():
            if words[:1] == [CHECK]:
                return _check(words[1:])
            if words[:1] == [REPLAY]:
                from select_service.planner.replay.command import replay_command

                return replay_command(words[1:])
            given = parser().read(words)
            if given.version:
                print(f"select-planner {package_version()}")
                return 0
        from select_service.planner.edge.process import run  # no check needs an event loop

        return run(configured(given), given.profile, given.kubeconfig)
    except UsageError as error:
        print(f"select-planner: error: {error}", file=sys.stderr)
        return USAGE_ERROR


def parser() -> CommandParser:
    """The command line of a planner that runs."""
    result = CommandParser(
        "select-planner",
        "Number of replicas that a fleet needs, from what its selectors observe: as advice, or "
        "scaled on a platform.",
        {
            "select-planner --selector http://127.0.0.1:8092 --model-name llama": "advice",
            "select-planner --config planner.yaml": "as the file says, docs/planner.md",
            "select-planner check planner.yaml": "one line about what is wrong in it",
        },
        "[COMMAND] [OPTION ...]",
        commands={
            CHECK: "whether a configuration is good",
            REPLAY: "what other configurations would have done",
        },
    )
    add = result.add_argument
    add("--version", action="store_true", help="version of the package")
    add("--config", metavar="FILE", help="configuration in YAML (default: none, see below)")
    _add_profile(result)
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="account at Kubernetes (default: the service account of the pod)",
    )
    level, form = choice(*LEVELS), choice(*FORMATS)
    add(
        "--log-level",
        type=typed(level),
        metavar=level.kind,
        help="least severity that is logged (default: as the file says, else info)",
    )
    add(
        "--log-format",
        type=typed(form),
        metavar=form.kind,
        help="format of the log (default: as the file says, else text)",
    )
    add(
        "--host",
        type=typed(_text),
        metavar="ADDRESS",
        help="address of the API (default: as the file says, else 127.0.0.1)",
    )
    add(
        "--port",
        type=typed(whole(0, PORT_MAX)),
        metavar="PORT",
        help="port of the API, 0 for any free one (default: as the file says, else 8095)",
    )
    add(
        "--decision-log",
        type=typed(_text),
        metavar="FILE",
        help="file that gets a line of JSON for each tick, for replays (default: as the file "
        "says, else none)",
    )
    _add_advice(result)
    return result


def _add_advice(to: CommandParser) -> None:
    """These stand in a group, and are known as the others are."""
    mode, milliseconds = choice("disagg", "prefill", "decode", "agg"), typed(above_zero)
    group = to.add_argument_group(
        "advice without a file", "One deployment with default settings, of which nothing is scaled."
    )
    for flag, kind, metavar, default, text in (
        ("--model-name", str, "NAME", None, "model whose replicas are counted"),
        ("--tenant-id", str, "NAME", "default", "tenant of the model (default `default`)"),
        ("--mode", typed(mode), mode.kind, "agg", "work of the engines, agg: both (default agg)"),
        ("--ttft-ms", milliseconds, _MS, 500.0, "promised time to the first token (default 500)"),
        ("--itl-ms", milliseconds, _MS, 50.0, "promised time between two tokens (default 50)"),
    ):
        to.flags.append(flag)
        group.add_argument(flag, type=kind, metavar=metavar, default=default, help=text)
    to.flags.append("--selector")
    group.add_argument(
        "--selector",
        action="append",
        metavar="URL",
        help="address of a selector; may be repeated, for all replicas of it",
    )


def _text(given: str) -> str:
    """Raises ValueError."""
    if not is_text(given):
        raise ValueError("some text without control characters")
    return given


def configured(given: argparse.Namespace) -> PlannerConfig:
    """The file, or the one deployment of the command line, with what else the line says.

    Raises ConfigError.
    """
    import msgspec

    if given.config is not None and (given.selector or given.model_name):
        raise ConfigError("--selector and --model-name are for advice without --config")
    if given.config is not None:
        config = read_config(given.config, given.profile)
    else:
        config = config_of(_advice(given), given.profile)
    own = {"decision_log": given.decision_log, "log_level": given.log_level}
    own["log_format"] = given.log_format
    api = {"host": given.host, "port": given.port}
    api_given = {name: value for name, value in api.items() if value is not None}
    return msgspec.structs.replace(
        config,
        api=msgspec.structs.replace(config.api, **api_given),
        **{name: value for name, value in own.items() if value is not None},
    )


def _advice(given: argparse.Namespace) -> dict[str, object]:
    if given.selector and not given.model_name:
        raise ConfigError("--model-name is missing: name the model that the selectors serve")
    if given.model_name and not given.selector:
        raise ConfigError("--selector is missing: give the URL of each selector of the model")
    if not given.selector:
        raise ConfigError(
            "what is to be planned? Give --config FILE, or --selector URL and --model-name NAME "
            "for advice (see --help)"
        )
    deployment = {
        "name": given.model_name,
        "model_name": given.model_name,
        "tenant_id": given.tenant_id,
        "mode": given.mode,
        "ttft_ms": given.ttft_ms,
        "itl_ms": given.itl_ms,
        "throughput_adjustment_interval_seconds": 60,
        "advisory": True,
    }
    return {"selectors": given.selector, "deployments": [deployment]}


def _add_profile(to: CommandParser) -> None:
    profile = choice(*PROFILES)
    to.add_argument(
        "--profile",
        type=typed(profile),
        metavar=profile.kind,
        default="ours",
        help="values of settings that are not given; document: those of the reference planner "
        "(default ours)",
    )


def _check(words: Sequence[str]) -> int:
    checking = CommandParser(
        "select-planner check",
        "Whether a configuration is good. Exit status: 0, or 2 with one line that says why not.",
        {
            "select-planner check planner.yaml": "the file as it is",
            "select-planner check planner.yaml --profile document": "as the reference decides",
            "select-planner check planner.yaml && kubectl apply -f .": "before it is used",
        },
        "FILE [OPTION ...]",
    )
    checking.add_argument("file", metavar="FILE", help="configuration in YAML")
    _add_profile(checking)
    given = checking.read(words)
    profile: Profile = given.profile
    config = read_config(given.file, profile)
    names = ", ".join(shown(each.name) for each in config.deployments)
    print(f"{given.file}: good, {len(config.deployments)} deployment(s): {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
