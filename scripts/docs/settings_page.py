# ruff: noqa: E501 -- long lines are lines of the page
"""Page of all flags and environment variables, from the table of settings."""

from collections.abc import Callable, Iterator
from typing import Any

from scripts.docs.markdown import code, marked, table
from select_service.config.dynamo_settings import (
    OPPOSITE_FLAGS,
    REFERENCE_POLICY_SETTINGS,
    VARIABLES_WITHOUT_EFFECT,
)
from select_service.config.setting import ServiceSetting
from select_service.config.settings_table import GROUPS
from select_service.config.value_parsers import unsupported_worker_selection

INTRODUCTION = """\
# Settings

Every flag has an environment variable of the same name; the command line wins. `GET /config` shows each value in force
and its source. An empty variable counts as not set.

* An invalid value stops the start with one line on standard error and exit status 2. So does a YAML file with a
  repeated key, `.nan`, or aliases that expand to more than a million values.
* A boolean flag may stand alone: `--strict-fields` means `--strict-fields true`.
* An unknown `SELECT_SERVICE_*` or `DYN_ROUTER_*` variable is logged with the most similar name and listed under
  `unknown_variables` of `GET /config`.
* Files of keys, certificates and workers are followed while the service runs; a wrong file stops a start and changes
  nothing later ([security](../guides/security.md)). All other settings take effect at the next start.
"""
CLOSING = """\
Variables marked with \\* apply to `--policy reference` alone; with another policy the log warns at the start
([policies](policies.md)). Accepted booleans: `1`, `true`, `on`, `yes` and `0`, `false`, `off`, `no`, in any case.
"""
KERNELS = """\
## Compiled kernels

The index, the load ledger and the event decoder are machine code. A wheel for Linux on x86-64 or aarch64
(`scripts/build_wheel`) contains it. Without it the first start compiles for about a minute of CPU in up to four
processes and logs its progress. Code fits one build of the sources, one version of Python and numba, and one processor
model (`NUMBA_CPU_NAME=generic`: any processor of the architecture).

`select-service compile [--cache DIR]` compiles in advance; its exit status is 0 when all code exists, else 1. The code
is searched in this order:

1. `NUMBA_CACHE_DIR`; a complete directory may be read-only.
2. `kernels_of_package` in the installed package `indexer`, read-only. Fill it with
   `select-service compile --cache "$(python -c 'import indexer; print(indexer.__path__[0])')/kernels_of_package"`.
3. `$XDG_CACHE_HOME/select-service/kernels`, else `~/.cache/select-service/kernels`.
4. For a user without a home directory: `select-service-kernels-<uid>` in the temporary directory, writable for that
   user alone. The log warns, because the code disappears with the pod.
5. `kernels_of_wheel` in the installed package `indexer`: the code of the wheel, for AVX2 (x86-64-v3) or ARMv8. The log
   gives the reason if it is not used. `select-service compile` makes code for the exact processor, which then has
   precedence; `select-service compile --portable` fills the directory where no wheel did.

New code goes to the first writable directory of 1, 3 and 4; the 16 newest versions of each module stay.
`select-service cache clear` removes the compiled code. Run it before `pip uninstall`, which leaves these files; exit
status 1 lists paths that could not be removed. Reasons:
[decision 0015](../decisions/0015-machine-code-in-the-wheel.md).

## Exit status

| status | meaning |
|---|---|
| 0 | ended by SIGTERM or SIGINT |
| 1 | the process cannot run: the port is in use, another process locks its file, or a background task failed |
| 2 | a setting is invalid, or names a file that cannot be read or written; one line names it |
"""


def settings_page() -> str:
    """Return the page with one table for each group of settings."""
    return marked(__name__, "\n\n".join(_sections()))


def _sections() -> Iterator[str]:
    yield INTRODUCTION.strip()
    for title, settings in GROUPS.items():
        yield f"## {title}"
        rows = [_row(setting) for setting in settings]
        if all(setting.flag is None for setting in settings):
            rows += [
                ("", code(name), "", _effect_of(parse))
                for name, parse in VARIABLES_WITHOUT_EFFECT.items()
            ]
            yield table(("environment", "default", "meaning"), [row[1:] for row in rows])
            yield CLOSING.strip()
        else:
            yield table(("flag", "environment", "default", "meaning"), rows)
    yield KERNELS.strip()


def _effect_of(parse: Callable[[str], Any]) -> str:
    is_refused = parse is unsupported_worker_selection
    return "not supported: refused" if is_refused else "accepted without effect"


def _row(setting: ServiceSetting) -> tuple[str, str, str, str]:
    variables = ", else ".join(map(code, setting.variables))
    mark = " \\*" if setting.name in REFERENCE_POLICY_SETTINGS else ""
    opposite = OPPOSITE_FLAGS.get(setting.flag or "")
    return (
        code(setting.flag or "") + (f", opposite {code(opposite)}" if opposite else ""),
        variables + mark,
        code(render_default(setting.default)),
        setting.help,
    )


def render_default(default: Any) -> str:
    """Return a default value as a user would write it; empty for None."""
    if default is None:
        return ""
    text = ",".join(default) if isinstance(default, tuple) else str(default)
    return text.removesuffix(".0").lower() if not isinstance(default, str) else text
