"""Fuzzes the compiled reader of requests against the ordinary path, guided by coverage.

For scripts/fuzz.  Which inputs are tried, and which of them are new, is libFuzzer's affair, which
Atheris brings along.  What guides it is our own machine code: while numba compiles the reader, each
basic block gets a counter, and array bounds are checked.

    python -m tests.fastpath.fuzzing try SECONDS FOLDER    an input that is read in two ways ends it
    python -m tests.fastpath.fuzzing keep FOLDER           makes the corpus of few that reach as
    much

FOLDER holds one file per input.  The corpus is replayed by tests/fastpath/test_corpus.py.
"""

import ctypes
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ["NUMBA_BOUNDSCHECK"] = "1"  # before numba is imported

import atheris
import numba
import numpy as np
from atheris import core_with_libfuzzer
from llvmlite import ir
from numba.core.codegen import CPUCodeLibrary

from indexer.jit.decorators import KernelOnly
from select_service.fastpath.parsing import (
    body_kernels,
    byte_kernels,
    head_kernels,
    number_list_kernels,
)
from select_service.fastpath.parsing.body_kernels import KEYS, read_body
from select_service.fastpath.parsing.head_kernels import read_head
from select_service.fastpath.parsing.request_layout import BODY_AT, COMMON, END, INCOMPLETE
from tests.fastpath import reading
from tests.fastpath.corpus import CORPUS, load, save
from tests.fastpath.mutations import PIECES
from tests.fastpath.requests import USUAL as USUAL_REQUESTS

READER = (byte_kernels, number_list_kernels, head_kernels, body_kernels)
COUNTERS_MAX = 1 << 16
INPUT_BYTES_MAX = 2048
BYTE, WORD = ir.IntType(8), ir.IntType(64)


class Counters:
    """A byte for each basic block that numba compiles from now on."""

    def __init__(self) -> None:
        self._bytes = np.zeros(COUNTERS_MAX, np.uint8)
        self._n = 0
        self._add = CPUCodeLibrary.add_ir_module

    def __enter__(self) -> "Counters":
        def add_counted(library: Any, module: Any) -> None:
            for function in module.functions:
                for block in function.blocks:
                    self._count(block)
            self._add(library, module)  # type: ignore[no-untyped-call]

        CPUCodeLibrary.add_ir_module = add_counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        CPUCodeLibrary.add_ir_module = self._add  # type: ignore[method-assign]

    def _count(self, block: Any) -> None:
        assert self._n < COUNTERS_MAX
        builder = ir.IRBuilder(block)
        first = next(each for each in block.instructions if each.opname != "phi")
        builder.position_before(first)
        place = ir.Constant(WORD, self._bytes.ctypes.data + self._n).inttoptr(BYTE.as_pointer())
        builder.store(builder.add(builder.load(place), ir.Constant(BYTE, 1)), place)
        self._n += 1

    def reached_by(self, data: bytes) -> set[tuple[int, int]]:
        """Blocks, and how often, to the nearest power of two."""
        self._bytes[:] = 0
        reading.agrees(data)
        (places,) = self._bytes.nonzero()
        return {(int(place), int(self._bytes[place]).bit_length()) for place in places}

    def tell_libfuzzer(self) -> None:
        """It looks at them after each input.  What it wants to know of places is made up."""
        begin = self._bytes.ctypes.data
        self._places = np.zeros((self._n, 2), np.uintp)
        self._places[:, 0] = begin + np.arange(self._n)
        library = ctypes.CDLL(core_with_libfuzzer.__file__)
        for name, at, size in (
            ("__sanitizer_cov_8bit_counters_init", begin, self._n),
            ("__sanitizer_cov_pcs_init", self._places.ctypes.data, self._places.nbytes),
        ):
            library[name](ctypes.c_void_p(at), ctypes.c_void_p(at + size))


def read_request(data, at, end, fields, blocks, sequence, tokens):  # type: ignore[no-untyped-def]
    """As that of request_kernels, to be compiled with counters."""
    state = read_head(data, at, end, fields)
    if state != COMMON:
        return state
    if fields[END] > end:
        return INCOMPLETE
    lists = (blocks, sequence, tokens)
    return read_body(data, fields[BODY_AT], fields[END], fields, lists)


def counting() -> Counters:
    """Of the reader that `reading` uses from now on."""
    for module in READER:
        for helper in vars(module).values():
            if isinstance(helper, KernelOnly):
                vars(helper).pop("_made", None)  # an import may have compiled it without counters
    with Counters() as counters:
        reading.read_request = numba.njit(read_request)  # type: ignore[attr-defined]
        reading.agrees(USUAL_REQUESTS[0])
    return counters


def fuzz(*options: str) -> None:
    """Does not return."""
    counters = counting()
    common = (sys.argv[0], f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1")
    atheris.Setup([*common, *options], reading.agrees, enable_python_coverage=False)
    counters.tell_libfuzzer()
    atheris.Fuzz()


def fewest(inputs: Iterable[bytes]) -> list[bytes]:
    """Of these, short ones first, each that leads somewhere where those before do not."""
    counters, seen, kept = counting(), set[tuple[int, int]](), []
    for data in sorted(inputs, key=len):
        reached = counters.reached_by(data)
        if reached - seen:
            seen |= reached
            kept.append(data)
    return kept


def dictionary(folder: Path) -> Path:
    """What is worth putting in, as libFuzzer reads it."""
    path = folder / "dictionary"
    words = [*PIECES, *(b'"%s": ' % key for key, _, _, _ in KEYS)]
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in words)
    path.write_text("".join(f'"{word}"\n' for word in escaped))
    return path


def unpacked(folder: Path) -> Path:
    """The corpus and what the tests know, one file each."""
    folder.mkdir()
    for data in [*load(), *USUAL_REQUESTS]:
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    return folder


def try_inputs(seconds: str, found: str) -> int:
    """The exit status of libFuzzer, which ends its process."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        options = (f"-max_total_time={seconds}", f"-dict={dictionary(work)}")
        folders = (found, str(unpacked(work / "seeds")))
        process = os.fork()
        if process == 0:
            fuzz(*options, f"-artifact_prefix={found}/wrong-", *folders)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def keep(found: str) -> int:
    inputs = [path.read_bytes() for path in Path(found).iterdir()]
    save(fewest([*load(), *inputs]))
    print(f"{CORPUS}: {len(load())} inputs, {CORPUS.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    commands: dict[str, Callable[..., int]] = {"try": try_inputs, "keep": keep}
    sys.exit(commands[sys.argv[1]](*sys.argv[2:]))
