# Sourced by the other scripts: finds a Python and keeps .venv in step with a lock file.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# Prints the first Python that is new enough and can make virtual environments.
find_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3.14 python3 python; do
        if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c '
import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    fail "needs Python 3.11 to 3.14 with the modules venv and ensurepip;" \
        "none of python3.11 ... python3.14, python3 has them" \
        "(on Debian and Ubuntu: apt-get install python3 python3-venv)"
}

# One line that changes whenever the lock file or the package's own metadata changes.
fingerprint() {
    "$1" - "$2" "$root/pyproject.toml" <<'PYTHON'
import hashlib, pathlib, sys
print(hashlib.sha256(b"\0".join(pathlib.Path(p).read_bytes() for p in sys.argv[1:])).hexdigest())
PYTHON
}

# Prints the file that holds the fingerprint of the lock file from which .venv was installed.
stamp_of() {
    local name="${1##*/}"
    echo "$venv/.${name%.lock}.stamp"
}

is_current() {
    local lock="$1"
    [ -x "$venv/bin/python" ] && [ -f "$(stamp_of "$lock")" ] &&
        [ "$(cat "$(stamp_of "$lock")")" = "$(fingerprint "$venv/bin/python" "$root/$lock")" ]
}

# install_lock LOCK: makes .venv hold exactly the versions of the lock file, and this checkout.
# The package is installed in place without dependencies and without build isolation: its build
# backend comes from the lock file too, so nothing unpinned is ever fetched.
install_lock() {
    local lock="$1" python
    if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        python="$(find_python)"
        echo "making ${venv##*/} with $("$python" --version) ..." >&2
        "$python" -m venv --clear "$venv"
    fi
    echo "installing $lock into ${venv##*/} ..." >&2
    rm -f "$(stamp_of "$lock")"
    local pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)
    "${pip[@]}" --require-hashes -r "$root/$lock"
    "${pip[@]}" --no-deps --no-build-isolation --no-index -e "$root"
    fingerprint "$venv/bin/python" "$root/$lock" >"$(stamp_of "$lock")"
}

# need_lock LOCK...: any one of the named locks, the first is installed when none is current.
need_lock() {
    local lock
    for lock in "$@"; do
        if is_current "$lock"; then return; fi
    done
    install_lock "$1"
}
