"""Check that the file systems of configured files respond.

A hanging file system would block the start for ever, without a message.
"""

from concurrent.futures import wait
from pathlib import Path

from select_service.base.daemon_threads import DaemonThreads
from select_service.config.settings_loader import Config, ConfigError
from select_service.server.output_files import OUTPUT_FILES, READ_ONLY_SETTINGS

ANSWER_S = 10.0
"""Time limit of a file system, in seconds."""


def check_file_systems(config: Config) -> None:
    """Raise ConfigError for a file on a file system that does not respond."""
    names = (name for name in (*READ_ONLY_SETTINGS, *OUTPUT_FILES) if config[name] is not None)
    named = {name: Path(config[name]) for name in names}
    if not named:
        return
    # A thread per file: one hanging file system must not hide another.
    threads = DaemonThreads(len(named), "first-look")
    looks = {threads.submit(_path_exists, path): (name, path) for name, path in named.items()}
    late = wait(looks, ANSWER_S).not_done
    threads.shutdown(wait=False)
    if late:
        name, path = min(looks[each] for each in late)
        flag = f"--{name.replace('_', '-')}"
        text = f"`{path}`: no response within {ANSWER_S:g} s: check its file system"
        raise ConfigError(f"{flag}: {text}")


def _path_exists(path: Path) -> bool:
    """Access a path; errors of the file itself are reported by its reader."""
    try:
        return path.exists()
    except OSError:
        return False
