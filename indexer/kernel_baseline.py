"""Machine code that came with the package, so that a first start need not compile.

A platform wheel (`scripts/build_wheel`) carries the code of all kernels in `root`, made for the
oldest processors that it is for: LLVM's `x86-64-v3`, or any ARMv8.  A manifest says what it fits.
It is used by a process that finds none of its own (`kernel_cache`), and only when everything is as
the manifest says: Python's ABI, the processor's features, the versions of numba and llvmlite, every
source, every byte of every file.  Otherwise all of it is left alone, and `fault` says why.

Whoever can write a file of code can make us run it, as with the sources beside it.  So nobody may
be able to write to the code who may not write to them.
"""

import hashlib
import json
import os
import platform
import shutil
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import llvmlite
from llvmlite import binding

from indexer.kernel_sources import (
    baseline,
    checksum_of,
    kernel_modules,
    settings_of_environment,
    target_machine,
    version_of_numba,
    with_bounds_checks,
)

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 1 << 20
FEATURES: dict[str, tuple[str, ...]] = {
    "x86_64": (
        *("avx", "avx2", "bmi", "bmi2", "cmov", "crc32", "cx16", "cx8", "f16c", "fma", "fxsr"),
        *("lzcnt", "mmx", "movbe", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2"),
        *("ssse3", "xsave"),
    ),
    "aarch64": (),
}
"""Architecture -> what its baseline asks of a processor, in LLVM's words: all that `x86-64-v3`
means, and nothing of ARMv8.  Source: FeatureList of x86_64_v3 in llvm's X86.td."""

_WRITABLE_BY_OTHERS = 0o022
_DIGEST_BYTES = 16


class Manifest(NamedTuple):
    """What machine code of a package fits, and what it is.

    abi:     that of extension modules, as "cpython-311-x86_64-linux-gnu"
    digests: (directory of a module, file) -> blake2b of the file, 16 bytes as hexadecimal digits
    """

    machine: str
    abi: str
    numba: str
    llvmlite: str
    digests: dict[str, dict[str, str]]


def of_this_process(digests: dict[str, dict[str, str]]) -> Manifest:
    """What code fits that is compiled here."""
    return Manifest(
        target_machine(), _abi(), version_of_numba(), str(llvmlite.__version__), digests
    )


def as_text(manifest: Manifest) -> str:
    return json.dumps({"format": FORMAT, **manifest._asdict()}, indent=1, sort_keys=True) + "\n"


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def name_of(module: str) -> str:
    """Of the directory with the code of a module."""
    return f"{module}-{checksum_of(module, baseline())}"


def root() -> Path:
    """Beside the sources; there is none in a checkout and in a wheel for all platforms."""
    return Path(__file__).parent / "kernels_of_wheel"


def remove() -> int:
    """Remove the machine code of the package and return its bytes.  Raises OSError."""
    n_bytes = sum(path.stat().st_size for path in root().rglob("*") if path.is_file())
    shutil.rmtree(root())
    fault.cache_clear()
    return n_bytes


_ignored = False


def ignore() -> None:
    """From now on there is no machine code of the package: this process compiles, or has others do
    so."""
    global _ignored
    _ignored = True


def directory_of(module: str) -> Path | None:
    """Where the machine code of a module lies that came with the package; None: nowhere usable."""
    if _ignored or not root().is_dir() or fault() is not None:
        return None
    return root() / name_of(module)


@cache
def fault() -> str | None:
    """Why the machine code of the package is not used; None when it can be, or there is none."""
    if not root().is_dir():
        return None
    if with_bounds_checks() or settings_of_environment() not in ((), baseline()):
        return "variables NUMBA_... ask for other code"
    try:
        manifest = _manifest()
        return _misfit(manifest) or _other_sources(manifest) or _damage(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read: {type(error).__name__}: {error}"


def _manifest() -> Manifest:
    """Raises OSError, and what else comes of a document that is not ours."""
    path = root() / MANIFEST
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise ValueError(f"{MANIFEST} has more than {MANIFEST_BYTES_MAX} bytes")
    fields = json.loads(path.read_bytes())
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']} instead of {FORMAT}")
    return Manifest(**{name: fields[name] for name in Manifest._fields})


def _misfit(manifest: Manifest) -> str | None:
    here = of_this_process({})
    for name in ("machine", "abi", "numba", "llvmlite"):
        wanted, have = getattr(manifest, name), getattr(here, name)
        if wanted != have:
            return f"it is for {name} {wanted}, and this is {have}"
    lacking = lacking_features()
    return f"the processor lacks {', '.join(lacking)}" if lacking else None


def lacking_of_wanted() -> list[str]:
    """What this processor has not of the one that NUMBA_CPU_NAME asks code for, which would end
    the process at the first instruction that it does not know.  Known of the baseline alone."""
    wanted = os.environ.get("NUMBA_CPU_NAME")
    if wanted is None or wanted != dict(baseline() or ()).get("CPU_NAME"):
        return []
    return lacking_features()


def lacking_features() -> list[str]:
    """What this processor, or this system, has not of the baseline."""
    features = binding.get_host_cpu_features()
    return [name for name in FEATURES.get(platform.machine(), ()) if not features.get(name)]


def _other_sources(manifest: Manifest) -> str | None:
    for module in kernel_modules():
        if name_of(module) not in manifest.digests:
            return f"the sources of {module} are not those that it was made of"
    return None


def _damage(manifest: Manifest) -> str | None:
    """In what the manifest lists: all of it is read."""
    beside = os.stat(__file__)
    if _more_can_write(root(), beside) or _more_can_write(root() / MANIFEST, beside):
        return "others can write to it"
    for name, files in manifest.digests.items():
        directory = root() / name
        if _more_can_write(directory, beside):
            return f"others can write to {name}"
        for file, digest in files.items():
            path = directory / file
            if _more_can_write(path, beside):
                return f"others can write to {name}/{file}"
            if digest_of(path.read_bytes()) != digest:
                return f"{name}/{file} is damaged"
    return None


def _more_can_write(path: Path, source: os.stat_result) -> bool:
    """More than can write to a source of this package.  Raises OSError."""
    status = path.stat()
    strangers = status.st_mode & ~source.st_mode & _WRITABLE_BY_OTHERS
    other_group = status.st_mode & 0o020 and status.st_gid != source.st_gid
    return bool(strangers or other_group or status.st_uid not in (0, os.getuid(), source.st_uid))


def _abi() -> str:
    """As the names of extension modules have it, which import looks for first."""
    return EXTENSION_SUFFIXES[0].split(".")[1].replace(platform.machine(), target_machine())


def fill(made: Path) -> int:
    """Put machine code into the package, with a manifest; what was there goes.  Returns its bytes.

    made: a root of `kernel_cache` with the code of all modules, compiled as `baseline` says
    Raises OSError.
    """
    part = root().with_name(f"{root().name}.part")
    shutil.rmtree(part, ignore_errors=True)
    digests: dict[str, dict[str, str]] = {}
    size = 0
    for name in map(name_of, kernel_modules()):
        (part / name).mkdir(parents=True)
        digests[name] = {}
        for path in sorted((made / name).iterdir()):
            content = path.read_bytes()
            (part / name / path.name).write_bytes(content)
            digests[name][path.name] = digest_of(content)
            size += len(content)
    (part / MANIFEST).write_text(as_text(of_this_process(digests)))
    shutil.rmtree(root(), ignore_errors=True)
    part.rename(root())
    fault.cache_clear()
    return size
