"""Reader of measured profiles: NPZ, or JSON with the same arrays.

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

from select_service.base.command_line import file_error_text
from select_service.planner.core.performance.measured_profile import (
    DecodeSurface,
    MeasuredProfile,
    PrefillCurve,
    ProfileArraysError,
)

FILE_BYTES_MAX = 16 << 20
"""Maximum bytes of a file, and of all its arrays together."""
VALUES_MAX = 100_000
"""Maximum values of an array."""
NUMBERS = "iuf"
"""Accepted kinds of numpy arrays."""
UNREADABLE = (
    *(OSError, ValueError, EOFError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, RuntimeError, SyntaxError, TokenError),
    msgspec.MsgspecError,
)
"""Errors of the file readers. RuntimeError: encrypted or unsupported compression; SyntaxError,
TokenError: header of an array.
"""
PREFILL, DECODE = "selected_prefill_interpolation", "selected_decode_interpolation"

Arrays = Mapping[str, Sequence[float]]


class ProfileFileError(Exception):
    """Error of one line that names the file and the expected content."""


def read_profile(directory: str) -> MeasuredProfile:
    """Read the profile of a directory; one half may be missing. Raises ProfileFileError."""
    prefill, decode = (_read_arrays(Path(directory) / name) for name in (PREFILL, DECODE))
    if prefill is None and decode is None:
        raise ProfileFileError(
            f"{directory}: {PREFILL}/raw_data.npz (or .json) is missing: name the output "
            "directory of a sweep"
        )
    try:
        return MeasuredProfile(
            None
            if prefill is None
            else PrefillCurve(prefill["prefill_isl"], prefill["prefill_ttft"]),
            None if decode is None else _build_decode_surface(decode),
        )
    except ProfileArraysError as error:
        raise ProfileFileError(f"{directory}: {error}") from None
    except KeyError as error:
        raise ProfileFileError(f"{directory}: array {error} is missing") from None


def _build_decode_surface(arrays: Arrays) -> DecodeSurface:
    """Build the decode half. Raises ProfileArraysError."""
    kv = arrays["max_kv_tokens"]
    if len(kv) != 1:
        raise ProfileArraysError(f"max_kv_tokens: expected one number, got {len(kv)}")
    return DecodeSurface(arrays["x_kv_usage"], arrays["y_context_length"], arrays["z_itl"], kv[0])


def _read_arrays(directory: Path) -> Arrays | None:
    """Read the arrays of a half; None if there is no file."""
    npz, document = directory / "raw_data.npz", directory / "raw_data.json"
    try:
        if npz.is_file():
            return _check_array_sizes(npz, _read_npz(npz))
        if document.is_file():
            return _check_array_sizes(document, _read_json(document))
    except OSError as error:
        raise ProfileFileError(file_error_text(npz if npz.is_file() else document, error)) from None
    except UNREADABLE as error:
        fault = " ".join(str(error).split())
        raise ProfileFileError(f"{npz if npz.is_file() else document}: {fault}") from None
    return None


def _read_npz(path: Path) -> Arrays:
    """Read an NPZ file, without pickles and within the limits, whatever its headers declare."""
    with zipfile.ZipFile(path) as packed:
        members = packed.infolist()
        # Sizes of the directory are checked before any decompression, against archives that expand
        # to gigabytes.
        if sum(each.file_size for each in members) > FILE_BYTES_MAX:
            raise ValueError(f"arrays are larger than {FILE_BYTES_MAX} bytes")
        found = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            with packed.open(member) as file:
                found[name] = _read_array(name, file)
        return found


def _read_array(name: str, file: IO[bytes]) -> list[float]:
    """Read an array; raises ValueError before memory for the declared size is allocated."""
    if npy.read_magic(file) == (1, 0):
        shape, _, kind = npy.read_array_header_1_0(file)
    else:
        shape, _, kind = npy.read_array_header_2_0(file)
    # The header is untrusted input: its size is checked before memory for it is allocated.
    count = math.prod(shape)
    if kind.kind not in NUMBERS or not kind.itemsize:
        raise ValueError(f"{name}: expected numbers, got {kind}")
    if not 0 <= count <= VALUES_MAX:
        raise ValueError(f"{name}: expected at most {VALUES_MAX} values, got {count} in the header")
    content = file.read(count * kind.itemsize)
    if len(content) < count * kind.itemsize:
        raise ValueError(f"{name}: expected {count} values as in the header, the file is shorter")
    values: list[float] = np.frombuffer(content, kind, count).astype(np.float64).tolist()
    return values


def _read_json(path: Path) -> Arrays:
    """Read a JSON file. Raises ValueError for a file that is too large."""
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"file is larger than {FILE_BYTES_MAX} bytes")
    return msgspec.json.decode(text, type=dict[str, list[float]])


def _check_array_sizes(path: Path, arrays: Arrays) -> Arrays:
    """Check the sizes of the arrays. Raises ProfileFileError."""
    for name, values in arrays.items():
        if len(values) > VALUES_MAX:
            raise ProfileFileError(f"{path}: {name} has more than {VALUES_MAX} values")
    return arrays
