"""A small file that is there whole at any moment, whatever ends in the middle of writing it."""

import os
from pathlib import Path

from select_service.edge.keeping.snapshot_file import sync_directory


def write_whole(path: Path, content: bytes) -> str | None:
    """What went wrong, or None: it is on the disk.  Blocks."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        return str(error)
    return None


def read_whole(path: Path, bytes_max: int) -> bytes:
    """Raises OSError, ValueError for one that is larger.  Blocks."""
    with path.open("rb") as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise ValueError(f"it is larger than {bytes_max} bytes")
    return content
