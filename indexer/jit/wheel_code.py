"""Machine code shipped with the package, so that a first start need not compile.

A platform wheel (`scripts/build_wheel`) carries the code of all kernels in `wheel_root`, made for
the
oldest supported processors: LLVM's `x86-64-v3`, or any ARMv8.  A manifest describes the code.  A
process without code of its own (`kernel_cache`) uses the shipped code only if everything matches
the manifest: Python's ABI, the processor's features, the versions of numba and llvmlite, every
source, every byte of every file.  Otherwise the code is ignored, and `unusable_reason` returns the
reason.

A user with write access to a file of code can make this process run it, as with the sources beside
the code.  So the code must not be writable by more users than the sources are.
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

from indexer.jit.kernel_sources import (
    baseline_settings,
    checksum_of,
    has_bounds_checks,
    kernel_modules,
    numba_version,
    package_directory,
    settings_of_environment,
    target_machine,
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
"""Architecture -> processor features of its baseline, as LLVM names them: all of `x86-64-v3`, none
for ARMv8.  Source: FeatureList of x86_64_v3 in llvm's X86.td.
"""

_WRITABLE_BY_OTHERS = 0o022
_DIGEST_BYTES = 16


class Manifest(NamedTuple):
    """Description of shipped machine code: platform and files.

    abi:     ABI of extension modules, as "cpython-311-x86_64-linux-gnu"
    digests: (directory of a module, file) -> blake2b of the file, 16 bytes as hexadecimal digits
    """

    machine: str
    abi: str
    numba: str
    llvmlite: str
    digests: dict[str, dict[str, str]]


def current_manifest(digests: dict[str, dict[str, str]]) -> Manifest:
    """Return the manifest of code that this process compiles."""
    return Manifest(
        target_machine(), _abi_tag(), numba_version(), str(llvmlite.__version__), digests
    )


def manifest_text(manifest: Manifest) -> str:
    return json.dumps({"format": FORMAT, **manifest._asdict()}, indent=1, sort_keys=True) + "\n"


def digest_of(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def directory_name(module: str) -> str:
    """Return the name of the directory with the code of a module."""
    return f"{module}-{checksum_of(module, baseline_settings())}"


def wheel_root() -> Path:
    """Return the directory of shipped code, absent in a checkout and in a wheel for all
    platforms.
    """
    return package_directory() / "kernels_of_wheel"


def remove_wheel_code() -> int:
    """Remove the machine code of the package and return the number of bytes.  Raises OSError."""
    n_bytes = sum(path.stat().st_size for path in wheel_root().rglob("*") if path.is_file())
    shutil.rmtree(wheel_root())
    unusable_reason.cache_clear()
    return n_bytes


_is_ignored = False


def ignore_wheel_code() -> None:
    """Ignore the machine code of the package from now on, in a process that compiles."""
    global _is_ignored
    _is_ignored = True


def directory_of(module: str) -> Path | None:
    """Return the directory with the shipped code of a module, or None if unusable."""
    if _is_ignored or not wheel_root().is_dir() or unusable_reason() is not None:
        return None
    return wheel_root() / directory_name(module)


@cache
def unusable_reason() -> str | None:
    """Return the reason why shipped code is not used; None if usable, or if there is none."""
    if not wheel_root().is_dir():
        return None
    if has_bounds_checks() or settings_of_environment() not in ((), baseline_settings()):
        return "NUMBA_... variables request other code"
    try:
        manifest = _read_manifest()
        return _find_mismatch(manifest) or _find_changed_source(manifest) or _find_damage(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"unreadable: {type(error).__name__}: {error}"


def _read_manifest() -> Manifest:
    """Read the manifest.  Raises OSError, and other errors for a malformed document."""
    path = wheel_root() / MANIFEST
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise ValueError(f"{MANIFEST} exceeds {MANIFEST_BYTES_MAX} bytes")
    fields = json.loads(path.read_bytes())
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']}, expected {FORMAT}")
    return Manifest(**{name: fields[name] for name in Manifest._fields})


def _find_mismatch(manifest: Manifest) -> str | None:
    here = current_manifest({})
    for name in ("machine", "abi", "numba", "llvmlite"):
        wanted, have = getattr(manifest, name), getattr(here, name)
        if wanted != have:
            return f"built for {name} {wanted}, running on {have}"
    lacking = lacking_features()
    return f"the processor lacks {', '.join(lacking)}" if lacking else None


def lacking_requested_features() -> list[str]:
    """Return the features that NUMBA_CPU_NAME requires and this processor lacks.

    Code with such an instruction would kill the process.  Only the baseline processor is checked.
    """
    wanted = os.environ.get("NUMBA_CPU_NAME")
    if wanted is None or wanted != dict(baseline_settings() or ()).get("CPU_NAME"):
        return []
    return lacking_features()


def lacking_features() -> list[str]:
    """Return the features of the baseline that this processor or system lacks."""
    features = binding.get_host_cpu_features()
    return [name for name in FEATURES.get(platform.machine(), ()) if not features.get(name)]


def _find_changed_source(manifest: Manifest) -> str | None:
    for module in kernel_modules():
        if directory_name(module) not in manifest.digests:
            return f"the sources of {module} have changed since the code was compiled"
    return None


def _find_damage(manifest: Manifest) -> str | None:
    """Return the first fault among the files of the manifest, or None; every file is read."""
    beside = os.stat(__file__)
    if _is_more_writable(wheel_root(), beside) or _is_more_writable(
        wheel_root() / MANIFEST, beside
    ):
        return "other users can write to it"
    for name, files in manifest.digests.items():
        directory = wheel_root() / name
        if _is_more_writable(directory, beside):
            return f"other users can write to {name}"
        for file, digest in files.items():
            path = directory / file
            if _is_more_writable(path, beside):
                return f"other users can write to {name}/{file}"
            if digest_of(path.read_bytes()) != digest:
                return f"{name}/{file} is damaged"
    return None


def _is_more_writable(path: Path, source: os.stat_result) -> bool:
    """Return whether more users can write to a file than to a source of this package.  Raises
    OSError.
    """
    status = path.stat()
    # Permissions are compared with those of a source, so that umask and shared groups need no rule.
    strangers = status.st_mode & ~source.st_mode & _WRITABLE_BY_OTHERS
    other_group = status.st_mode & 0o020 and status.st_gid != source.st_gid
    return bool(strangers or other_group or status.st_uid not in (0, os.getuid(), source.st_uid))


def _abi_tag() -> str:
    """Return the ABI tag in the names of extension modules that import tries first."""
    return EXTENSION_SUFFIXES[0].split(".")[1].replace(platform.machine(), target_machine())


def write_wheel_code(compiled_root: Path) -> int:
    """Replace the machine code of the package, with a manifest; return the number of bytes.

    compiled_root: root of `kernel_cache` with the code of all modules, compiled with the
    `baseline_settings` settings
    Raises OSError.
    """
    part = wheel_root().with_name(f"{wheel_root().name}.part")
    shutil.rmtree(part, ignore_errors=True)
    digests: dict[str, dict[str, str]] = {}
    size = 0
    for name in map(directory_name, kernel_modules()):
        (part / name).mkdir(parents=True)
        digests[name] = {}
        for path in sorted((compiled_root / name).iterdir()):
            content = path.read_bytes()
            (part / name / path.name).write_bytes(content)
            digests[name][path.name] = digest_of(content)
            size += len(content)
    (part / MANIFEST).write_text(manifest_text(current_manifest(digests)))
    shutil.rmtree(wheel_root(), ignore_errors=True)
    # The rename comes last, so that an interrupted run leaves no directory with half of the code.
    part.rename(wheel_root())
    unusable_reason.cache_clear()
    return size
