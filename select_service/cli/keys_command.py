"""Command `select-service keys`: creates keys, and their entries in files of keys.

`new` creates an API key, shown once.  `new-replica` creates the key pair of a replica, or of a
service towards its engines, with the secret key in a file of its own.
"""

import argparse
import json
import os
import secrets
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from select_service.auth.api_key import PREFIX, SECRET_BYTES, format_hash
from select_service.auth.api_keys_schema import ALL_TENANTS
from select_service.auth.keys_file import (
    BYTES_MAX,
    YAML_ENDINGS,
    parse_keys_file,
    parse_replica_keys_file,
)
from select_service.auth.roles import CALLER, ROLE_DESCRIPTIONS, ROLES
from select_service.base.command_line import (
    CommandParser,
    UsageError,
    argument_type,
    file_error_text,
    one_of_words,
    positive_number,
    whole_number,
)
from select_service.base.suggestions import printable_name
from select_service.config.settings_loader import ConfigError
from select_service.files.atomic_file import read_whole, write_whole

Fields: TypeAlias = dict[str, str | list[str] | dict[str, str]]
Table: TypeAlias = Literal["keys", "replicas"]
TABLE_FLAGS = {"keys": "--api-keys-file", "replicas": "--replica-keys-file"}
NEW, NEW_REPLICA = "new", "new-replica"
QUOTA_FLAGS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "requests_per_s": (positive_number, "requests per second"),
    "reservations": (whole_number(0, 2**40), "concurrent reservations"),
    "workers": (whole_number(0, 2**40), "registered workers"),
}
"""Parser and unit of each quota."""


def keys_command(argv: Sequence[str]) -> int:
    """Run the command and return its exit status.  Raises UsageError."""
    if argv[:1] == [NEW]:
        return _create_key(make_new_key_parser().parse_arguments(argv[1:]))
    if argv[:1] == [NEW_REPLICA]:
        return _create_replica_pair(make_new_replica_parser().parse_arguments(argv[1:]))
    word = make_keys_parser().parse_arguments(argv[:1]).command
    raise UsageError(f"keys: expected `{NEW}` or `{NEW_REPLICA}`, got `{printable_name(word)}`")


def _create_key(given: argparse.Namespace) -> int:
    """Create an API key, print its secret and return the exit status."""
    secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
    _add_entry(given, "keys", _entry_fields(given, format_hash(secret)))
    print("# the key, shown only now: the service stores just its hash", file=sys.stderr)
    print(secret)
    return 0


def _create_replica_pair(given: argparse.Namespace) -> int:
    """Create a key pair.

    The secret is written first: an entry without its secret would be useless.
    """
    from indexer.sockets.curve_keypairs import new_key_pair  # only this command needs libzmq

    pair, path = new_key_pair(), Path(given.secret_file)
    fields: Fields = {"name": given.name, "public_key": pair.public.decode()}
    fields |= {name: text for name in ("endpoint", "url") if (text := getattr(given, name))}
    _check_entry("replicas", Path("printed.toml"), _toml_entry("replicas", fields))
    try:
        _write_secret(path, pair.secret)
    except FileExistsError:
        raise ConfigError(
            f"--secret-file: `{path}` exists and is not overwritten: give a new file"
        ) from None
    except OSError as error:
        raise ConfigError(f"--secret-file: {file_error_text(path, error, 'made')}") from None
    try:
        _add_entry(given, "replicas", fields)
    except ConfigError:
        # Without its entry the secret is useless, and a second try needs the name free.
        path.unlink()
        raise
    print(f"{path}: secret key, for this replica only (--replica-key-file)", file=sys.stderr)
    print(pair.public.decode())
    return 0


def _write_secret(path: Path, secret: bytes) -> None:
    """Write the secret to a new file.

    Raises OSError, also if the file exists: never overwrite a secret.
    """
    # O_EXCL: neither overwrite a secret nor follow a link placed there by another user.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret + b"\n")


def _add_entry(given: argparse.Namespace, table: Table, fields: Fields) -> None:
    """Add the entry to the file, or print the entry if no file is given.  Raises ConfigError."""
    is_yaml = given.file is not None and Path(given.file).suffix in YAML_ENDINGS
    entry = _yaml_entry(fields) if is_yaml else _toml_entry(table, fields)
    if given.file is None:
        _check_entry(table, Path("printed.toml"), entry)
        print(f"# entry for the file of keys ({TABLE_FLAGS[table]})\n{entry}", file=sys.stderr)
    else:
        _append_entry(table, Path(given.file), entry, is_yaml=is_yaml)
        print(f"{given.file}: `{given.name}` added", file=sys.stderr)


def make_keys_parser() -> CommandParser:
    """Return the parser of the command line."""
    result = CommandParser(
        "select-service keys",
        "Create API keys for --api-keys-file, which contains only their hashes, and CURVE key "
        "pairs for --replica-keys-file, which contains only their public keys.",
        {
            "select-service keys new gateway --role caller --file keys.toml": "key of a gateway",
            "select-service keys new admin --role operator --file keys.toml": "key of operators",
            "select-service keys new-replica a --secret-file a.key": "key pair of a replica",
        },
        "COMMAND NAME [OPTION ...]",
        commands={
            NEW: "create an API key, shown once",
            NEW_REPLICA: "create the key pair of a replica, or of a service towards its engines",
        },
    )
    result.add_argument("command", metavar="COMMAND", help=f"{NEW} or {NEW_REPLICA}")
    return result


def _add_name_and_file(parser: CommandParser, name: str) -> None:
    parser.add_argument("name", metavar="NAME", help=name)
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="file of keys to append the entry to, TOML or YAML by suffix (default: print the "
        "entry on standard error)",
    )


def make_new_replica_parser() -> CommandParser:
    """Return the parser of `keys new-replica`."""
    command = f"select-service keys {NEW_REPLICA} a --secret-file a.key"
    result = CommandParser(
        f"select-service keys {NEW_REPLICA}",
        "Write a new secret key to a file, and print its public key on standard output.",
        {
            command: "create the pair and print the entry",
            f"{command} --file replicas.toml": "append the entry to the file",
            f"{command} --endpoint tcp://a:9092": "with the endpoint for other replicas",
        },
        "NAME --secret-file FILE [OPTION ...]",
    )
    _add_name_and_file(result, "name of the replica in the log and the status")
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


def make_new_key_parser() -> CommandParser:
    """Return the parser of `keys new`."""
    command = "select-service keys new gateway --role caller"
    result = CommandParser(
        f"select-service keys {NEW}",
        "Print a new API key on standard output. Only its hash is stored.",
        {
            f"{command} --file keys.toml > gateway.key": "for all tenants",
            f"{command} --tenant red --tenant blue": "bound to tenants; print the entry",
            "select-service keys new prometheus --role metrics": "for monitoring",
        },
        "NAME --role ROLE [OPTION ...]",
        epilog="Roles:\n"
        + "\n".join(f"  {role:9} {text}" for role, text in ROLE_DESCRIPTIONS.items()),
    )
    _add_name_and_file(result, "name of the key's user in the log and the metrics")
    roles = one_of_words(*ROLES)
    result.add_argument(
        "--role",
        action="append",
        required=True,
        type=argument_type(roles),
        metavar=roles.metavar,
        help="role of the key, see below; repeatable",
    )
    result.add_argument(
        "--tenant",
        action="append",
        metavar="NAME",
        help="tenant to bind the key to; repeatable (default: all tenants)",
    )
    for quota, (read, what) in QUOTA_FLAGS.items():
        flag = "--" + quota.replace("_", "-")
        text = f"maximum {what} of the key (default: no limit of its own)"
        result.add_argument(flag, type=argument_type(read), metavar="N", help=text)
    return result


def _entry_fields(given: argparse.Namespace, hashed: str) -> Fields:
    """Return the fields of the entry for a key."""
    fields: Fields = {"name": given.name, "hash": hashed, "roles": given.role}
    if given.tenant:
        fields["tenants"] = given.tenant
    elif CALLER in given.role:
        fields["tenants"] = ALL_TENANTS
    quotas = {name: str(n) for name in QUOTA_FLAGS if (n := getattr(given, name)) is not None}
    return fields | ({"quotas": quotas} if quotas else {})


def _field_lines(fields: Fields, sign: str) -> list[str]:
    """Return the lines of the fields.  sign: separator of name and value"""
    lines = []
    for name, value in fields.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{key}{sign}{text}" for key, text in value.items())
            lines.append(f"{name}{sign}{{ {inner} }}")
        else:
            # JSON is common to TOML and YAML.
            lines.append(f"{name}{sign}{json.dumps(value, ensure_ascii=False)}")
    return lines


def _toml_entry(table: Table, fields: Fields) -> str:
    return "\n".join([f"[[{table}]]", *_field_lines(fields, " = "), ""])


def _yaml_entry(fields: Fields) -> str:
    first, *others = _field_lines(fields, ": ")
    return "\n".join([f"  - {first}", *(f"    {line}" for line in others), ""])


def _append_entry(table: Table, path: Path, entry: str, *, is_yaml: bool) -> None:
    """Append the entry to the file.  Raises ConfigError and leaves the file unchanged."""
    try:
        before = read_whole(path, BYTES_MAX).decode() if path.exists() else ""
    except OSError as error:
        raise ConfigError(f"--file: {file_error_text(path, error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--file: `{path}` is not UTF-8 text") from None
    except ValueError as error:
        raise ConfigError(f"--file: `{path}` cannot be read: {error}") from None
    if is_yaml and not before.strip():
        before = f"{table}:\n"
    elif before and not before.endswith("\n"):
        before += "\n"
    text = before + ("" if is_yaml or not before else "\n") + entry
    # Check the whole file, not only the entry: a name may exist already.
    _check_entry(table, path, text)
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        write_whole(path, text.encode(), mode)
    except OSError as error:
        raise ConfigError(f"--file: {file_error_text(path, error, 'written')}") from None


def _check_entry(table: Table, path: Path, text: str) -> None:
    """Validate the text as a file of keys.  Raises ConfigError."""
    try:
        (parse_keys_file if table == "keys" else parse_replica_keys_file)(path, text.encode())
    except ValueError as error:
        raise ConfigError(f"invalid entry: {error}; nothing was written") from None
