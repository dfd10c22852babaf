"""Reads a file with the secret key of a CURVE pair."""

from pathlib import Path
from typing import TYPE_CHECKING

from select_service.whole_file import read_whole

if TYPE_CHECKING:
    from indexer.sockets.curve import CurvePair

BYTES_MAX = 4096


def read_pair(path: Path) -> "CurvePair":
    """Raises ValueError with one line that names no file and not the secret.  Blocks."""
    from indexer.sockets.curve import pair_of  # no verdict on other settings waits for libzmq

    try:
        return pair_of(read_whole(path, BYTES_MAX).decode("ascii").strip())
    except UnicodeDecodeError:
        raise ValueError("it does not hold a CURVE key, which is one word") from None
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
