"""Reader of measured profiles: NPZ, or JSON with the same arrays.

DIR/selected_prefill_interpolation/raw_data.npz (or .json), or DIR/prefill_raw_data.json:
prefill_isl, prefill_ttft (ms).
DIR/selected_decode_interpolation/raw_data.npz (or .json), or DIR/decode_raw_data.json: x_kv_usage,
y_context_length, z_itl (ms) and max_kv_tokens (one number, alone or in a list).
"""

import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import IO, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.lib import format as npy

from select_service.base.command_line import file_error_text
from select_service.base.suggestions import printable_name
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
SHOWN_NAMES_MAX = 8
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

_Built = TypeVar("_Built")
PREFILL_FIELDS = ("prefill_isl", "prefill_ttft")
DECODE_FIELDS = ("x_kv_usage", "y_context_length", "z_itl", "max_kv_tokens")

Arrays = Mapping[str, Sequence[float]]


class ProfileFileError(Exception):
    """Error of one line that names the file and the expected content."""


def read_profile(directory: str) -> MeasuredProfile:
    """Read the profile of a directory; one half may be missing. Raises ProfileFileError."""
    prefill = _read_half(Path(directory), PREFILL, "prefill_raw_data.json", PREFILL_FIELDS)
    decode = _read_half(Path(directory), DECODE, "decode_raw_data.json", DECODE_FIELDS)
    if prefill is None and decode is None:
        raise ProfileFileError(
            f"{directory}: {PREFILL}/raw_data.npz (or .json) or prefill_raw_data.json is missing: "
            "name the output directory of a sweep"
        )
    return MeasuredProfile(
        None if prefill is None else prefill.build(_build_prefill_curve),
        None if decode is None else decode.build(_build_decode_surface),
    )


class _ProfileHalf(NamedTuple):
    """Arrays of a file."""

    path: Path
    arrays: Arrays

    def build(self, make: Callable[[Arrays], _Built]) -> _Built:
        """Build a half of the profile. Raises ProfileFileError."""
        try:
            return make(self.arrays)
        except ProfileArraysError as error:
            raise ProfileFileError(f"{self.path}: {error}") from None


def _build_prefill_curve(arrays: Arrays) -> PrefillCurve:
    """Build the prefill half. Raises ProfileArraysError."""
    return PrefillCurve(arrays["prefill_isl"], arrays["prefill_ttft"])


def _build_decode_surface(arrays: Arrays) -> DecodeSurface:
    """Build the decode half. Raises ProfileArraysError."""
    kv = arrays["max_kv_tokens"]
    if len(kv) != 1:
        raise ProfileArraysError(f"max_kv_tokens: expected one number, got {len(kv)}")
    return DecodeSurface(arrays["x_kv_usage"], arrays["y_context_length"], arrays["z_itl"], kv[0])


def _read_half(
    directory: Path, folder: str, flat: str, fields: Sequence[str]
) -> _ProfileHalf | None:
    """Read the arrays of a half; None if there is no file. Raises ProfileFileError."""
    npz = directory / folder / "raw_data.npz"
    for path in (npz, directory / folder / "raw_data.json", directory / flat):
        try:
            if path.is_file():
                arrays = _read_npz(path) if path is npz else _read_json(path, fields)
                return _ProfileHalf(path, _check_arrays(path, arrays, fields))
        except OSError as error:
            raise ProfileFileError(file_error_text(path, error)) from None
        except UNREADABLE as error:
            raise ProfileFileError(f"{path}: {' '.join(str(error).split())}") from None
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
    # The header is untrusted input: its size is checked before memory is allocated.
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


def _read_json(path: Path, fields: Sequence[str]) -> Arrays:
    """Read the fields of a JSON file. Raises ValueError for another content."""
    with path.open("rb") as file:
        text = file.read(FILE_BYTES_MAX + 1)
    if len(text) > FILE_BYTES_MAX:
        raise ValueError(f"file is larger than {FILE_BYTES_MAX} bytes")
    # Other fields, such as throughputs, may have any form.
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {name: _decode_numbers(name, raw[name]) for name in fields if name in raw}


def _decode_numbers(name: str, raw: msgspec.Raw) -> list[float]:
    """Return a list of numbers, or the only one. Raises ValueError."""
    try:
        found = msgspec.json.decode(raw, type=list[float] | float)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected numbers: {error}") from None
    return found if isinstance(found, list) else [found]


def _check_arrays(path: Path, arrays: Arrays, fields: Sequence[str]) -> Arrays:
    """Check names and sizes of the arrays. Raises ProfileFileError."""
    missing = [name for name in fields if name not in arrays]
    if missing:
        text = ", ".join(sorted(map(printable_name, arrays))[:SHOWN_NAMES_MAX]) or "none"
        raise ProfileFileError(f"{path}: {', '.join(missing)} missing; arrays: {text}")
    for name, values in arrays.items():
        if len(values) > VALUES_MAX:
            raise ProfileFileError(f"{path}: {name} has more than {VALUES_MAX} values")
    return arrays
