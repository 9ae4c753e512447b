#!/bin/sh
# Makes .venv what requirements.lock and pyproject.toml say, from nothing but Python >= 3.11.
# Uses uv if it is on PATH, else venv and pip. Does nothing if .venv is up to date already.
# PYTHON=python3.12 chooses the interpreter. Run by every target of the Makefile.
# `setup.sh peers` makes .venv-peers from requirements-peers.lock in the same way, without Rejoinder.
set -eu

cd "$(dirname "$0")/.."
root=$(pwd -P)
other=${1:+-$1}
venv="$root/.venv$other"
lock="requirements$other.lock"
stamp="$venv/.up-to-date"
home="$venv/.made-for"

fail() {
    printf '\nset-up failed: %s\n' "$1" >&2
    exit 1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# The interpreter: the one asked for, else the first that is new enough.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python >= 3.11."
        echo "$PYTHON"
        return
    fi
    for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if is_new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    fail "no Python >= 3.11 on PATH. Install one, or name it: PYTHON=/path/to/python3.12 make ..."
}

# What the environment was made from.
fingerprint() {
    echo "${PYTHON:-any python}"
    cksum "$lock" pyproject.toml scripts/setup.sh
}

# A .venv that was copied or moved with its checkout has programs that point to the old place.
works() {
    [ "$(cat "$home" 2>/dev/null)" = "$root" ] && is_new_enough "$venv/bin/python"
}

wanted=$(fingerprint)
if works && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

python=$(find_python)
rm -f "$stamp"
# A .venv that works is updated in place; one that does not, or of another interpreter, is replaced.
if ! works || [ -n "${PYTHON:-}" ]; then
    rm -rf "$venv"
fi

offline="the packages could not be installed (see above). If this is a connection error: no package
registry is reachable from here; check the network, or the index and proxy settings of pip and uv."

if command -v uv >/dev/null 2>&1; then
    echo "set-up: uv, $("$python" --version)"
    [ -e "$venv" ] || uv venv --quiet --python "$python" "$venv" ||
        fail "uv could not make a virtual environment."
    echo "$root" >"$home"
    export VIRTUAL_ENV="$venv"
    uv pip sync --quiet --compile-bytecode --require-hashes "$lock" || fail "$offline"
    [ -n "$other" ] ||
        uv pip install --quiet --no-deps --no-build-isolation --editable . || fail "$offline"
else
    echo "set-up: venv and pip, $("$python" --version)"
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        fail "$python has no venv module. On Debian and Ubuntu: apt install python3-venv"
    [ -x "$venv/bin/pip" ] || "$python" -m venv --clear "$venv" ||
        fail "$python could not make a virtual environment."
    echo "$root" >"$home"
    pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
    pip install --no-deps --require-hashes -r "$lock" || fail "$offline" # the lock has them all
    [ -n "$other" ] || pip install --no-deps --no-build-isolation --editable . || fail "$offline"
fi

echo "$wanted" >"$stamp"
