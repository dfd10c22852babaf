"""A file system that never answers, like a network mount without a server.

The FUSE server completes the handshake and then reads no further request.
"""

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

REQUEST_BYTES = 1 << 20
HEAD = struct.Struct("<IIQ")
"""Head of a request: length, opcode, number."""
MNT_DETACH = 2


@contextmanager
def hung_mount(folder: Path) -> Iterator[None]:
    """Block every access below the folder inside the context; skip if mounting is not allowed."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"/dev/fuse: {error.strerror}")
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    try:
        if libc.mount(b"hung", bytes(folder), b"fuse", 0, options.encode()):
            pytest.skip(f"mount: {os.strerror(ctypes.get_errno())}")
        greeting = threading.Thread(target=_greet, args=(device,))
        greeting.start()
        greeting.join()
        try:
            yield
        finally:
            libc.umount2(bytes(folder), MNT_DETACH)
    finally:
        os.close(device)  # blocked accesses fail now


def _greet(device: int) -> None:
    """Answer the first request, which the kernel sends itself."""
    _, _, number = HEAD.unpack_from(os.read(device, REQUEST_BYTES))
    answer = struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 10, 4096, 1, 1, 0, 0, *[0] * 7)
    os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, number) + answer)
