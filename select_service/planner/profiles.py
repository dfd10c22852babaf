"""Reads the profiles that a sweep has left: NPZ, or JSON of the same arrays.

DIR/selected_prefill_interpolation/raw_data.npz: prefill_isl, prefill_ttft (ms).
DIR/selected_decode_interpolation/raw_data.npz: x_kv_usage, y_context_length, z_itl (ms) and
max_kv_tokens (one number).
"""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import IO

import msgspec
import numpy as np
from numpy.lib import format as npy

from select_service.command_line import file_fault
from select_service.planner.core.perf.profile import (
    DecodeSurface,
    PrefillCurve,
    Profile,
    ProfileFault,
)

FILE_BYTES_MAX = 16 << 20
"""Of a file, and of all arrays in it."""
VALUES_MAX = 100_000
"""Of one array."""
NUMBERS = "iuf"
"""Kinds of numpy."""
UNREADABLE = (
    *(OSError, ValueError, EOFError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError, SyntaxError, TokenError),
    msgspec.MsgspecError,
)
"""What the readers of files raise; RuntimeError: of a file with a password, or packed
otherwise; SyntaxError, TokenError: of the header of an array."""
PREFILL, DECODE = "selected_prefill_interpolation", "selected_decode_interpolation"

Arrays = Mapping[str, Sequence[float]]


class ProfileError(Exception):
    """One line that names the file and says what was expected."""


def read_profile(directory: str) -> Profile:
    """Raises ProfileError; one of the two halves may be missing."""
    prefill, decode = (_arrays(Path(directory) / name) for name in (PREFILL, DECODE))
    if prefill is None and decode is None:
        raise ProfileError(f"{directory}: there is no {PREFILL}/raw_data.npz (or .json) in it")
    try:
        return Profile(
            None if prefill is None else _prefill(prefill),
            None if decode is None else _decode(decode),
        )
    except ProfileFault as error:
        raise ProfileError(f"{directory}: {error}") from None
    except KeyError as error:
        raise ProfileError(f"{directory}: the array {error} is missing") from None


def _prefill(arrays: Arrays) -> PrefillCurve:
    return PrefillCurve(arrays["prefill_isl"], arrays["prefill_ttft"])


def _decode(arrays: Arrays) -> DecodeSurface:
    kv = arrays["max_kv_tokens"]
    if len(kv) != 1:
        raise ProfileFault(f"max_kv_tokens: expected one number, got {len(kv)}")
    return DecodeSurface(arrays["x_kv_usage"], arrays["y_context_length"], arrays["z_itl"], kv[0])


def _arrays(directory: Path) -> Arrays | None:
    """None: it is not there."""
    npz, document = directory / "raw_data.npz", directory / "raw_data.json"
    try:
        if npz.is_file():
            return _bounded(npz, _of_npz(npz))
        if document.is_file():
            return _bounded(document, _of_json(document))
    except OSError as error:
        raise ProfileError(file_fault(npz if npz.is_file() else document, error)) from None
    except UNREADABLE as error:
        fault = " ".join(str(error).split())
        raise ProfileError(f"{npz if npz.is_file() else document}: {fault}") from None
    return None


def _of_npz(path: Path) -> Arrays:
    """Without pickles, and never more than is bounded, whatever it says of itself."""
    with zipfile.ZipFile(path) as packed:
        members = packed.infolist()
        if sum(each.file_size for each in members) > FILE_BYTES_MAX:
            raise ValueError(f"its arrays have more than {FILE_BYTES_MAX} bytes")
        found = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            with packed.open(member) as file:
                found[name] = _array(name, file)
        return found


def _array(name: str, file: IO[bytes]) -> list[float]:
    """Raises ValueError, before there is memory for what the header says."""
    if npy.read_magic(file) == (1, 0):
        shape, _, kind = npy.read_array_header_1_0(file)
    else:
        shape, _, kind = npy.read_array_header_2_0(file)
    count = math.prod(shape)
    if kind.kind not in NUMBERS or not kind.itemsize:
        raise ValueError(f"{name}: expected numbers, got {kind}")
    if not 0 <= count <= VALUES_MAX:
        raise ValueError(f"{name}: expected at most {VALUES_MAX} values, its header says {count}")
    content = file.read(count * kind.itemsize)
    if len(content) < count * kind.itemsize:
        raise ValueError(f"{name}: its header says {count} values, and there are fewer")
    values: list[float] = np.frombuffer(content, kind, count).astype(np.float64).tolist()
    return values


def _of_json(path: Path) -> Arrays:
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    return msgspec.json.decode(text, type=dict[str, list[float]])


def _bounded(path: Path, arrays: Arrays) -> Arrays:
    for name, values in arrays.items():
        if len(values) > VALUES_MAX:
            raise ProfileError(f"{path}: {name} has more than {VALUES_MAX} values")
    return arrays
