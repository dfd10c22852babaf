"""Reader of the file with the secret key of a CURVE pair."""

from pathlib import Path
from typing import TYPE_CHECKING

from select_service.files.atomic_file import read_whole

if TYPE_CHECKING:
    from indexer.sockets.curve_keypairs import CurveKeyPair

BYTES_MAX = 4096


def read_curve_pair(path: Path) -> "CurveKeyPair":
    """Return the pair.

    Raises ValueError with a one-line message without file name and secret.  Blocks.
    """
    # errors in other settings must not wait for the import of libzmq
    from indexer.sockets.curve_keypairs import key_pair_of

    try:
        return key_pair_of(read_whole(path, BYTES_MAX).decode("ascii").strip())
    except UnicodeDecodeError:
        raise ValueError("not a CURVE key: expected a single word of 40 characters") from None
    except OSError as error:
        raise ValueError(error.strerror or type(error).__name__) from None
