"""The launcher of services (scripts/processes) for all tests: the only module that imports it."""

from scripts.processes.launched_process import (
    ANSWER_S_MAX,
    ROOT,
    START_S_MAX,
    STOP_S_MAX,
    LaunchedProcess,
    forget_ended,
    free_port,
    known_logs,
    own_command,
    own_environment,
    plain_environment,
)

__all__ = [
    "ANSWER_S_MAX",
    "ROOT",
    "START_S_MAX",
    "STOP_S_MAX",
    "LaunchedProcess",
    "forget_ended",
    "free_port",
    "known_logs",
    "own_command",
    "own_environment",
    "plain_environment",
]
