"""The command `select-planner`: reads the configuration, then ticks until a signal."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from select_service.planner.config import PlannerConfig, is_text
from select_service.planner.reading import ConfigError, Profile, config_of, read_config
from select_service.spelling import shown
from select_service.version import package_version

USAGE_ERROR = 2
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Of linear algebra: matrices of a forecast are small, and threads that wait for their part of one
turn in circles: six times the CPU on two cores, more on more."""
CHECK, REPLAY = "check", "replay"
"""First words of the other commands."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after a signal, 1 when it cannot run, 2 for a wrong setting."""
    if argv is None:  # the process is ours; read when such a library is loaded
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words[:1] == [CHECK]:
            return _check(words[1:])
        if words[:1] == [REPLAY]:
            from select_service.planner.replay.command import replay_command

            return replay_command(words[1:])
        given = parser().parse_args(words)
        if given.version:
            print(f"select-planner {package_version()}")
            return 0
        from select_service.planner.edge.process import run  # no check needs an event loop

        return run(configured(given), given.profile, given.kubeconfig)
    except ConfigError as error:
        print(f"select-planner: {error}", file=sys.stderr)
        return USAGE_ERROR


def parser() -> argparse.ArgumentParser:
    """The command line of a planner that runs."""
    result = _Parser(
        prog="select-planner",
        description="""\
How many replicas a fleet needs, from what its selectors observe.

  select-planner --selector http://127.0.0.1:8092 --model-name llama    advice, nothing is scaled
  select-planner --config planner.yaml                                  as the file says
  select-planner check planner.yaml                                     is the file good?
  select-planner replay --help                                          what would have been""",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="store_true", help="print the version and exit")
    result.add_argument("--config", type=str, metavar="FILE", help="YAML, see docs/planner.md")
    _add_profile(result)
    result.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="instead of the account of the pod"
    )
    result.add_argument("--log-level", choices=["debug", "info", "warning", "error"])
    result.add_argument("--log-format", choices=["text", "json"])
    result.add_argument("--host", help="of the API, 127.0.0.1 if it is not given")
    result.add_argument("--port", type=int, help="of the API, 8095 if it is not given; 0: any")
    result.add_argument(
        "--decision-log", metavar="FILE", help="a line of JSON for each tick, for replays"
    )
    advice = result.add_argument_group(
        "advice without a file", "One deployment with default settings, of which nothing is scaled."
    )
    advice.add_argument("--selector", action="append", metavar="URL", help="may be given again")
    advice.add_argument("--model-name")
    advice.add_argument("--tenant-id", default="default")
    advice.add_argument("--mode", choices=["disagg", "prefill", "decode", "agg"], default="agg")
    advice.add_argument("--ttft-ms", type=float, default=500.0)
    advice.add_argument("--itl-ms", type=float, default=50.0)
    return result


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
    if not 0 <= (given.port or 0) <= 65535:
        raise ConfigError(f"--port: expected 0 to 65535, got {given.port}")
    for flag, value in (("--host", given.host), ("--decision-log", given.decision_log)):
        if value is not None and not is_text(value):
            raise ConfigError(f"{flag}: expected some text without control characters")
    return msgspec.structs.replace(
        config,
        api=msgspec.structs.replace(config.api, **api_given),
        **{name: value for name, value in own.items() if value is not None},
    )


def _advice(given: argparse.Namespace) -> dict[str, object]:
    if not given.selector or not given.model_name:
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


def _add_profile(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--profile",
        choices=["ours", "document"],
        default="ours",
        help="`document`: as the reference planner decides, where a setting is not given",
    )


def _check(words: Sequence[str]) -> int:
    checking = _Parser(
        prog="select-planner check",
        description="Is a configuration good? Ends with 0, or with 2 and one line that says why.",
        allow_abbrev=False,
    )
    checking.add_argument("file", metavar="FILE")
    _add_profile(checking)
    given = checking.parse_args(words)
    profile: Profile = given.profile
    config = read_config(given.file, profile)
    names = ", ".join(shown(each.name) for each in config.deployments)
    print(f"{given.file}: good, {len(config.deployments)} deployment(s): {names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
