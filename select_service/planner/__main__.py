"""Command `select-planner`: reads the configuration, then ticks until a signal."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from select_service.base.command_line import (
    CommandParser,
    UsageError,
    argument_type,
    exit_quietly_on_closed_output,
    one_of_words,
    positive_number,
    whole_number,
)
from select_service.base.suggestions import printable_name
from select_service.base.version import package_version
from select_service.planner.config import PlannerConfig, is_printable_name
from select_service.planner.config_loader import (
    PROFILES,
    ConfigProfile,
    PlannerConfigError,
    convert_config,
    read_config,
)
from select_service.planner.plugins.plugin_loader import PluginLoadError, describe_plugins

USAGE_ERROR = 2
PORT_MAX = 65535
_MS = "MILLISECONDS"
LEVELS, FORMATS = ("debug", "info", "warning", "error"), ("text", "json")
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Thread settings of linear algebra: matrices of a forecast are small, and idle threads spin, which
costs six times the CPU on two cores and more on more.
"""
CHECK, REPLAY, PROFILE = "check", "replay", "profile"
"""First words of the other commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 after a signal, 1 if the planner cannot run, 2 for a wrong setting.
    """
    # The variables are read when the library is loaded, and must be set before any import of the
    # library. A caller that passes argv owns the process; its environment is left alone.
    if argv is None:
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with exit_quietly_on_closed_output():
            if words[:1] == [CHECK]:
                return _check_command(words[1:])
            if words[:1] == [REPLAY]:
                from select_service.planner.replay.replay_command import replay_command

                return replay_command(words[1:])
            if words[:1] == [PROFILE]:
                from select_service.planner.profiling.profile_command import profile_command

                return profile_command(words[1:])
            given = build_parser().parse_arguments(words)
            if given.version:
                print(f"select-planner {package_version()}")
                return 0
        from select_service.planner.runtime.planner_process import (
            run_planner,  # no check needs an event loop
        )

        return run_planner(load_config(given), given.profile, given.kubeconfig)
    except UsageError as error:
        print(f"select-planner: error: {error}", file=sys.stderr)
        return USAGE_ERROR


def build_parser() -> CommandParser:
    """Build the command line of a running planner."""
    result = CommandParser(
        "select-planner",
        "Autoscaler of LLM fleets: replica counts from the traffic that selectors "
        "observe, as advice or applied to a platform.",
        {
            "select-planner --selector http://127.0.0.1:8092 --model-name llama": "advice",
            "select-planner --config planner.yaml": "deployments of a file, see "
            "docs/guides/planner.md",
            "select-planner check planner.yaml": "validation of a file",
        },
        "[COMMAND] [OPTION ...]",
        commands={
            CHECK: "validation of a configuration",
            REPLAY: "comparison of configurations on recorded traffic",
            PROFILE: "measurement of an engine",
        },
    )
    add = result.add_argument
    add("--version", action="store_true", help="version of the package")
    add("--config", metavar="FILE", help="configuration file, YAML (default: none, see below)")
    _add_profile_flag(result)
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig file (default: the service account of the pod)",
    )
    _add_service_flags(result)
    _add_advice_flags(result)
    return result


def _add_service_flags(to: CommandParser) -> None:
    """Add the flags of the log and the API, which override the file."""
    add = to.add_argument
    level, form = one_of_words(*LEVELS), one_of_words(*FORMATS)
    add(
        "--log-level",
        type=argument_type(level),
        metavar=level.metavar,
        help="minimum severity of log lines (default: from the file, else info)",
    )
    add(
        "--log-format",
        type=argument_type(form),
        metavar=form.metavar,
        help="format of the log (default: from the file, else text)",
    )
    add(
        "--host",
        type=argument_type(_parse_text),
        metavar="ADDRESS",
        help="address of the API (default: from the file, else 127.0.0.1)",
    )
    add(
        "--port",
        type=argument_type(whole_number(0, PORT_MAX)),
        metavar="PORT",
        help="port of the API, 0: any free port (default: from the file, else 8095)",
    )
    add(
        "--decision-log",
        type=argument_type(_parse_text),
        metavar="FILE",
        help="log file with a JSON line for each tick, for replays (default: from the file, else "
        "none)",
    )


def _add_advice_flags(to: CommandParser) -> None:
    """Add the flags of advice without a file, as a group."""
    mode, milliseconds = (
        one_of_words("disagg", "prefill", "decode", "agg"),
        argument_type(positive_number),
    )
    group = to.add_argument_group(
        "advice without a file", "One deployment with default settings; nothing is scaled."
    )
    for flag, kind, metavar, default, text in (
        ("--model-name", str, "NAME", None, "model of the deployment"),
        ("--tenant-id", str, "NAME", "default", "tenant of the model (default `default`)"),
        (
            "--mode",
            argument_type(mode),
            mode.metavar,
            "agg",
            "work of the engines, agg: prefill and decode (default agg)",
        ),
        ("--ttft-ms", milliseconds, _MS, 500.0, "target time to first token (default 500)"),
        ("--itl-ms", milliseconds, _MS, 50.0, "target time between two tokens (default 50)"),
    ):
        to.flags.append(flag)
        group.add_argument(flag, type=kind, metavar=metavar, default=default, help=text)
    to.flags.append("--selector")
    group.add_argument(
        "--selector",
        action="append",
        metavar="URL",
        help="URL of a selector; repeat for each of its replicas",
    )


def _parse_text(given: str) -> str:
    """Validate a text argument. Raises ValueError."""
    if not is_printable_name(given):
        raise ValueError("some text without control characters")
    return given


def load_config(args: argparse.Namespace) -> PlannerConfig:
    """Return the configuration of a file or of the flags, with the overrides of the flags.

    Raises PlannerConfigError.
    """
    import msgspec

    if args.config is not None and (args.selector or args.model_name):
        raise PlannerConfigError(
            "--selector and --model-name cannot be combined with --config: remove them, or --config"
        )
    if args.config is not None:
        config = read_config(args.config, args.profile)
    else:
        config = convert_config(_advice_document(args), args.profile)
    own = {"decision_log": args.decision_log, "log_level": args.log_level}
    own["log_format"] = args.log_format
    api = {"host": args.host, "port": args.port}
    api_given = {name: value for name, value in api.items() if value is not None}
    return msgspec.structs.replace(
        config,
        api=msgspec.structs.replace(config.api, **api_given),
        **{name: value for name, value in own.items() if value is not None},
    )


def _advice_document(args: argparse.Namespace) -> dict[str, object]:
    """Build the configuration of advice without a file. Raises PlannerConfigError."""
    if args.selector and not args.model_name:
        raise PlannerConfigError("--model-name is missing: name the model that the selectors serve")
    if args.model_name and not args.selector:
        raise PlannerConfigError(
            "--selector is missing: give the URL of each selector of the model"
        )
    if not args.selector:
        raise PlannerConfigError(
            "no deployment given: use --config FILE, or --selector URL and --model-name NAME "
            "for advice (see --help)"
        )
    deployment = {
        "name": args.model_name,
        "model_name": args.model_name,
        "tenant_id": args.tenant_id,
        "mode": args.mode,
        "ttft_ms": args.ttft_ms,
        "itl_ms": args.itl_ms,
        "throughput_adjustment_interval_seconds": 60,
        "advisory": True,
    }
    return {"selectors": args.selector, "deployments": [deployment]}


def _add_profile_flag(to: CommandParser) -> None:
    """Add the flag `--profile`."""
    profile = one_of_words(*PROFILES)
    to.add_argument(
        "--profile",
        type=argument_type(profile),
        metavar=profile.metavar,
        default="ours",
        help="defaults of omitted settings; document: those of Dynamo's planner (default ours)",
    )


def _check_command(words: Sequence[str]) -> int:
    """Run the command `check`."""
    checking = CommandParser(
        "select-planner check",
        "Validation of a configuration and of everything that it names: keys, certificates, "
        "profiles, traces, logs and stored decisions. Exit status: 0, or 2 with a line for each "
        "fault.",
        {
            "select-planner check planner.yaml": "default profile",
            "select-planner check planner.yaml --profile document": "defaults of Dynamo's planner",
            "select-planner check planner.yaml --file-only && kubectl apply -f .": "check first, "
            "where the named files are not",
        },
        "FILE [OPTION ...]",
    )
    checking.add_argument("file", metavar="FILE", help="configuration file, YAML")
    checking.add_argument(
        "--file-only", action="store_true", help="read no other file (default: all named files)"
    )
    _add_profile_flag(checking)
    given = checking.parse_arguments(words)
    profile: ConfigProfile = given.profile
    config = read_config(given.file, profile)
    if not given.file_only:
        from select_service.planner.runtime.named_files import find_named_faults

        faults = list(find_named_faults(config, profile))
        for fault in faults:
            print(f"{given.file}: {fault}", file=sys.stderr)
        if faults:
            return USAGE_ERROR
    names = ", ".join(printable_name(each.name) for each in config.deployments)
    try:
        plugins = list(describe_plugins(config, loads=not given.file_only))
    except PluginLoadError as error:
        raise PlannerConfigError(f"{given.file}: {error}") from None
    print(f"{given.file}: good, {len(config.deployments)} deployment(s): {names}")
    if plugins:
        print(f"plugins: {', '.join(map(printable_name, plugins))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
