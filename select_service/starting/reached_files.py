"""Whether the file systems of the files that settings name answer at all.

One that hangs would hold up the start for ever, without a word.
"""

from concurrent.futures import wait
from pathlib import Path

from select_service.daemon_threads import DaemonThreads
from select_service.settings.config import Config, ConfigError
from select_service.starting.written_files import READ, WRITTEN

ANSWER_S = 10.0
"""How long a file system may take."""


def check_answers(config: Config) -> None:
    """Raise ConfigError for a file whose file system does not answer."""
    names = (name for name in (*READ, *WRITTEN) if config[name] is not None)
    named = {name: Path(config[name]) for name in names}
    if not named:
        return
    threads = DaemonThreads(len(named), "first-look")
    looks = {threads.submit(_look, path): (name, path) for name, path in named.items()}
    late = wait(looks, ANSWER_S).not_done
    threads.shutdown(wait=False)
    if late:
        name, path = min(looks[each] for each in late)
        flag = f"--{name.replace('_', '-')}"
        text = f"`{path}` does not answer within {ANSWER_S:g} s: is its file system reachable?"
        raise ConfigError(f"{flag}: {text}")


def _look(path: Path) -> bool:
    """What is wrong with the file is found by whoever reads it."""
    try:
        return path.exists()
    except OSError:
        return False
