"""`select-service keys`: makes keys, and their entries in files of keys.

`new`: of somebody who may call, shown once.  `new-replica`: the pair of a replica, or of a service
towards its engines; its secret half goes into a file of its own.
"""

import argparse
import os
import secrets
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from select_service.access.api_key import PREFIX, SECRET_BYTES, hash_text
from select_service.access.keys_document import ALL
from select_service.access.keys_file import BYTES_MAX, YAML_ENDINGS, keys_in, replica_keys_in
from select_service.access.roles import CALLER, ROLES
from select_service.settings.config import ConfigError
from select_service.whole_file import read_whole, write_whole

Fields: TypeAlias = dict[str, str | list[str] | dict[str, str]]
Kinds: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Table: TypeAlias = Literal["keys", "replicas"]
FLAGS = {"keys": "--api-keys-file", "replicas": "--replica-keys-file"}
QUOTAS = ("requests_per_s", "reservations", "workers")


def keys_command(argv: Sequence[str]) -> int:
    """Exit status.  Raises ConfigError."""
    given = _parser().parse_args(argv)
    return _new_replica(given) if given.makes == "new-replica" else _new(given)


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
    except OSError as error:
        raise ConfigError(f"{path}: cannot be made: {error.strerror}") from None
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="select-service keys",
        description="Makes keys for --api-keys-file, which holds their hashes alone, and pairs of "
        "keys of CURVE for --replica-keys-file, which holds their public halves alone.",
    )
    kinds = parser.add_subparsers(required=True, dest="makes", metavar="new | new-replica")
    _add_new(kinds)
    _add_new_replica(kinds)
    return parser


def _add_new_replica(kinds: Kinds) -> None:
    new = kinds.add_parser(
        "new-replica",
        description="Write a new secret key into a file, print its public key on standard output, "
        "and its entry or where that is.",
    )
    new.add_argument("name", help="of the replica, as the log and the status call it")
    new.add_argument("--secret-file", required=True, help="where the secret key goes; a new file")
    new.add_argument("--endpoint", help="where others listen to it, as tcp://selector-a:9092")
    new.add_argument("--url", help="where others fetch its lists, as http://selector-a:8092")
    new.add_argument("--file", help="add the entry to this file, in TOML or YAML by its ending")


def _add_new(kinds: Kinds) -> None:
    new = kinds.add_parser(
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


def _toml(table: Table, fields: Fields) -> str:
    return "\n".join([f"[[{table}]]", *_pairs(fields, " = "), ""])


def _yaml(fields: Fields) -> str:
    first, *others = _pairs(fields, ": ")
    return "\n".join([f"  - {first}", *(f"    {line}" for line in others), ""])


def _append(table: Table, path: Path, entry: str, *, is_yaml: bool) -> None:
    """Raises ConfigError, and then the file is as it was."""
    try:
        before = read_whole(path, BYTES_MAX).decode() if path.exists() else ""
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if is_yaml and not before.strip():
        before = f"{table}:\n"
    elif before and not before.endswith("\n"):
        before += "\n"
    text = before + ("" if is_yaml or not before else "\n") + entry
    _check(table, path, text)
    try:
        write_whole(path, text.encode(), _mode_of(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def _mode_of(path: Path) -> int | None:
    """Return the mode of the file; None means that there is none yet.  Raises OSError."""
    return stat.S_IMODE(path.stat().st_mode) if path.exists() else None


def _check(table: Table, path: Path, text: str) -> None:
    """Raises ConfigError."""
    try:
        (keys_in if table == "keys" else replica_keys_in)(path, text.encode())
    except ValueError as error:
        raise ConfigError(f"the entry does not fit: {error}; nothing was written") from None
