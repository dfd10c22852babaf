"""`select-service keys`: makes keys, and their entries in files of keys.

`new`: of somebody who may call, shown once.  `new-replica`: the pair of a replica, or of a service
towards its engines; its secret half goes into a file of its own.
"""

import argparse
import os
import secrets
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from select_service.access.api_key import PREFIX, SECRET_BYTES, hash_text
from select_service.access.keys_document import ALL
from select_service.access.keys_file import BYTES_MAX, YAML_ENDINGS, keys_in, replica_keys_in
from select_service.access.roles import CALLER, MEANINGS, ROLES
from select_service.command_line import (
    CommandParser,
    UsageError,
    above_zero,
    choice,
    file_fault,
    typed,
    whole,
)
from select_service.settings.config import ConfigError
from select_service.spelling import shown
from select_service.whole_file import read_whole, write_whole

Fields: TypeAlias = dict[str, str | list[str] | dict[str, str]]
Table: TypeAlias = Literal["keys", "replicas"]
FLAGS = {"keys": "--api-keys-file", "replicas": "--replica-keys-file"}
NEW, NEW_REPLICA = "new", "new-replica"
QUOTAS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "requests_per_s": (above_zero, "requests a second"),
    "reservations": (whole(0, 2**40), "reservations at a time"),
    "workers": (whole(0, 2**40), "registered workers"),
}
"""What reads each, and what it bounds."""


def keys_command(argv: Sequence[str]) -> int:
    """Exit status.  Raises UsageError."""
    if argv[:1] == [NEW]:
        return _new(parser_of_new().read(argv[1:]))
    if argv[:1] == [NEW_REPLICA]:
        return _new_replica(parser_of_new_replica().read(argv[1:]))
    word = parser().read(argv[:1]).command
    raise UsageError(f"keys: expected `{NEW}` or `{NEW_REPLICA}`, got `{shown(word)}`")


def _new(given: argparse.Namespace) -> int:
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    _enter(given, "keys", _fields(given, hash_text(secret)))
    print("# the key; nothing keeps it, so this is the only time that it is shown", file=sys.stderr)
    print(secret)
    return 0


def _new_replica(given: argparse.Namespace) -> int:
    """The secret is written first: an entry without it would be of no use."""
    from indexer.sockets.curve import new_pair  # no other key needs libzmq

    pair, path = new_pair(), Path(given.secret_file)
    fields: Fields = {"name": given.name, "public_key": pair.public.decode()}
    fields |= {name: text for name in ("endpoint", "url") if (text := getattr(given, name))}
    _check("replicas", Path("printed.toml"), _toml("replicas", fields))
    try:
        _write_secret(path, pair.secret)
    except FileExistsError:
        raise ConfigError(
            f"--secret-file: `{path}` exists, and no secret is written over: name a new file"
        ) from None
    except OSError as error:
        raise ConfigError(f"--secret-file: {file_fault(path, error, 'made')}") from None
    try:
        _enter(given, "replicas", fields)
    except ConfigError:
        path.unlink()
        raise
    print(f"{path}: the secret key; for this replica alone (--replica-key-file)", file=sys.stderr)
    print(pair.public.decode())
    return 0


def _write_secret(path: Path, secret: bytes) -> None:
    """Raises OSError, also where there is such a file: a secret is never written over."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret + b"\n")


def _enter(given: argparse.Namespace, table: Table, fields: Fields) -> None:
    """Add the entry to the file, or print it where no file is given.  Raises ConfigError."""
    is_yaml = given.file is not None and Path(given.file).suffix in YAML_ENDINGS
    entry = _yaml(fields) if is_yaml else _toml(table, fields)
    if given.file is None:
        _check(table, Path("printed.toml"), entry)
        print(f"# an entry for the file of keys ({FLAGS[table]})\n{entry}", file=sys.stderr)
    else:
        _append(table, Path(given.file), entry, is_yaml=is_yaml)
        print(f"{given.file}: `{given.name}` was added", file=sys.stderr)


def parser() -> CommandParser:
    """The command line."""
    result = CommandParser(
        "select-service keys",
        "Make keys for --api-keys-file, which holds their hashes alone, and pairs of keys of CURVE "
        "for --replica-keys-file, which holds their public halves alone.",
        {
            "select-service keys new gateway --role caller --file keys.toml": "a key for a gateway",
            "select-service keys new admin --role operator --file keys.toml": "one for people",
            "select-service keys new-replica a --secret-file a.key": "a pair for a replica",
        },
        "COMMAND NAME [OPTION ...]",
        commands={
            NEW: "a key of those who may call, shown once",
            NEW_REPLICA: "the pair of a replica, or of a service towards its engines",
        },
    )
    result.add_argument("command", metavar="COMMAND", help=f"{NEW} or {NEW_REPLICA}")
    return result


def _add_name_and_file(parser: CommandParser, name: str) -> None:
    parser.add_argument("name", metavar="NAME", help=name)
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="file of keys that gets the entry, TOML or YAML by its ending (default: the entry is "
        "printed on standard error)",
    )


def parser_of_new_replica() -> CommandParser:
    command = f"select-service keys {NEW_REPLICA} a --secret-file a.key"
    result = CommandParser(
        f"select-service keys {NEW_REPLICA}",
        "Write a new secret key into a file, and print its public key on standard output.",
        {
            command: "the pair; the entry is printed",
            f"{command} --file replicas.toml": "the entry is added",
            f"{command} --endpoint tcp://a:9092": "with the place where others listen to it",
        },
        "NAME --secret-file FILE [OPTION ...]",
    )
    _add_name_and_file(result, "name of the replica, as the log and the status show it")
    result.add_argument(
        "--secret-file", required=True, metavar="FILE", help="new file for the secret key"
    )
    result.add_argument(
        "--endpoint",
        metavar="ENDPOINT",
        help="ZMQ endpoint of the replica, such as tcp://selector-a:9092",
    )
    result.add_argument(
        "--url", metavar="URL", help="HTTP address of the replica, such as http://selector-a:8092"
    )
    return result


def parser_of_new() -> CommandParser:
    command = "select-service keys new gateway --role caller"
    result = CommandParser(
        f"select-service keys {NEW}",
        "Print a new key on standard output. Only its hash is kept.",
        {
            f"{command} --file keys.toml > gateway.key": "for all tenants",
            f"{command} --tenant red --tenant blue": "bound to tenants; the entry is printed",
            "select-service keys new prometheus --role metrics": "for monitoring",
        },
        "NAME --role ROLE [OPTION ...]",
        epilog="Roles:\n" + "\n".join(f"  {role:9} {text}" for role, text in MEANINGS.items()),
    )
    _add_name_and_file(result, "name of whoever uses the key, as the log and the metrics show it")
    roles = choice(*ROLES)
    result.add_argument(
        "--role",
        action="append",
        required=True,
        type=typed(roles),
        metavar=roles.kind,
        help="role of the key, see below; may be repeated",
    )
    result.add_argument(
        "--tenant",
        action="append",
        metavar="NAME",
        help="tenant that the key is bound to; may be repeated (default: all tenants)",
    )
    for quota, (read, what) in QUOTAS.items():
        flag = "--" + quota.replace("_", "-")
        text = f"most {what} of the key (default: no bound of its own)"
        result.add_argument(flag, type=typed(read), metavar="N", help=text)
    return result


def _fields(given: argparse.Namespace, hashed: str) -> Fields:
    fields: Fields = {"name": given.name, "hash": hashed, "roles": given.role}
    if given.tenant:
        fields["tenants"] = given.tenant
    elif CALLER in given.role:
        fields["tenants"] = ALL
    quotas = {name: str(n) for name in QUOTAS if (n := getattr(given, name)) is not None}
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


def _toml(table: Table, fields: Fields) -> str:
    return "\n".join([f"[[{table}]]", *_pairs(fields, " = "), ""])


def _yaml(fields: Fields) -> str:
    first, *others = _pairs(fields, ": ")
    return "\n".join([f"  - {first}", *(f"    {line}" for line in others), ""])


def _append(table: Table, path: Path, entry: str, *, is_yaml: bool) -> None:
    """Raises ConfigError, and then the file is as it was."""
    try:
        before = read_whole(path, BYTES_MAX).decode() if path.exists() else ""
    except OSError as error:
        raise ConfigError(f"--file: {file_fault(path, error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--file: `{path}` is no text in UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"--file: `{path}` cannot be read: {error}") from None
    if is_yaml and not before.strip():
        before = f"{table}:\n"
    elif before and not before.endswith("\n"):
        before += "\n"
    text = before + ("" if is_yaml or not before else "\n") + entry
    _check(table, path, text)
    try:
        write_whole(path, text.encode(), _mode_of(path))
    except OSError as error:
        raise ConfigError(f"--file: {file_fault(path, error, 'written')}") from None


def _mode_of(path: Path) -> int | None:
    """Return the mode of the file; None means that there is none yet.  Raises OSError."""
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else None


def _check(table: Table, path: Path, text: str) -> None:
    """Raises ConfigError."""
    try:
        (keys_in if table == "keys" else replica_keys_in)(path, text.encode())
    except ValueError as error:
        raise ConfigError(f"the entry does not fit: {error}; nothing was written") from None
