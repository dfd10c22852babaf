"""`select-service keys new`: a key, shown once, and its entry in the file of keys."""

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from select_service.access.api_key import PREFIX, SECRET_BYTES, hash_text
from select_service.access.keys_document import ALL
from select_service.access.keys_file import YAML_ENDINGS, keys_in
from select_service.access.roles import CALLER, ROLES
from select_service.settings.config import ConfigError
from select_service.whole_file import write_whole

QUOTAS = ("requests_per_s", "reservations", "workers")


def keys_command(argv: Sequence[str]) -> int:
    """Exit status.  Raises ConfigError."""
    given = _parser().parse_args(argv)
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    is_yaml = given.file is not None and Path(given.file).suffix in YAML_ENDINGS
    entry = (_yaml if is_yaml else _toml)(_fields(given, hash_text(secret)))
    if given.file is None:
        _check(Path("printed.toml"), entry)
        print(f"# an entry for the file of keys (--api-keys-file)\n{entry}", file=sys.stderr)
    else:
        _append(Path(given.file), entry, is_yaml=is_yaml)
        print(f"{given.file}: `{given.name}` was added", file=sys.stderr)
    print("# the key; nothing keeps it, so this is the only time that it is shown", file=sys.stderr)
    print(secret)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="select-service keys",
        description="Makes keys for --api-keys-file, which holds their hashes alone.",
    )
    new = parser.add_subparsers(required=True, metavar="new").add_parser(
        "new", description="Print a new key on standard output, and its entry or where that is."
    )
    new.add_argument("name", help="who uses it, as the log and the metrics call it")
    roles = ", ".join(ROLES)
    new.add_argument("--role", action="append", required=True, choices=ROLES, help=f"of {roles}")
    new.add_argument("--tenant", action="append", help="bind it to this tenant; may be repeated")
    for quota in QUOTAS:
        flag = "--" + quota.replace("_", "-")
        new.add_argument(flag, metavar="N", help=f"quota; none = no bound of its own on {quota}")
    new.add_argument("--file", help="add the entry to this file, in TOML or YAML by its ending")
    return parser


Fields = dict[str, str | list[str] | dict[str, str]]


def _fields(given: argparse.Namespace, hashed: str) -> Fields:
    fields: Fields = {"name": given.name, "hash": hashed, "roles": given.role}
    if given.tenant:
        fields["tenants"] = given.tenant
    elif CALLER in given.role:
        fields["tenants"] = ALL
    quotas = {name: text for name in QUOTAS if (text := getattr(given, name)) is not None}
    return fields | ({"quotas": quotas} if quotas else {})


def _quoted(value: str | list[str]) -> str:
    """Both formats write texts and lists of them alike."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_quoted, value)) + "]"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pairs(fields: Fields, sign: str) -> list[str]:
    lines = []
    for name, value in fields.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{key}{sign}{text}" for key, text in value.items())
            lines.append(f"{name}{sign}{{ {inner} }}")
        else:
            lines.append(f"{name}{sign}{_quoted(value)}")
    return lines


def _toml(fields: Fields) -> str:
    return "\n".join(["[[keys]]", *_pairs(fields, " = "), ""])


def _yaml(fields: Fields) -> str:
    first, *others = _pairs(fields, ": ")
    return "\n".join([f"  - {first}", *(f"    {line}" for line in others), ""])


def _append(path: Path, entry: str, *, is_yaml: bool) -> None:
    """Raises ConfigError, and then the file is as it was."""
    try:
        before = path.read_text() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if is_yaml and not before.strip():
        before = "keys:\n"
    elif before and not before.endswith("\n"):
        before += "\n"
    text = before + ("" if is_yaml or not before else "\n") + entry
    _check(path, text)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _check(path: Path, text: str) -> None:
    """Raises ConfigError."""
    try:
        keys_in(path, text.encode())
    except ValueError as error:
        raise ConfigError(f"the entry does not fit: {error}; nothing was written") from None
