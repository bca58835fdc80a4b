#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh BUILD: the wheel as its users install it, and its types as mypy sees them there.
#
# Goal: `pip wheel` makes one file that an environment with nothing else in it can use, and whoever
# checks a program against it is told what is wrong (py.typed).
# Method: python/tests/run.py has left the wheel in BUILD; it goes with mypy into an environment in
# BUILD/engines/types. mypy --strict reads the package there, and two programs.
#
# Prints "ok NAME" or "not ok NAME" for each case.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../install.sh"
build=$(cd "${1:?usage: run.sh BUILD}" && pwd)
venv=$build/engines/types
status=0

# case_of NAME COMMAND...
case_of()
{
    local name=$1
    shift

    if "$@"; then
        echo "ok $name"
    else
        echo "not ok $name"
        status=1
    fi
}

install()
{
    need_uv "$build" && rm -rf "$venv" && "$uv" venv -q --python 3.11 "$venv" &&
        "$uv" pip install -q --python "$venv/bin/python" mypy==2.4.1 "$build"/python-wheel/icms-*.whl
}

# Runs away from the tree, so that nothing of it is found.
away()
{
    (cd "$venv" && env -u PYTHONPATH "$@")
}

# Engines are not installed here, so their classes are unknown.
check_types()
{
    away bin/mypy --strict --allow-subclassing-any --ignore-missing-imports "$@"
}

# A program with mistakes: each is told, and nothing else.
told()
{
    local said

    said=$(check_types "$here/wrong.py")
    echo "$said"
    diff <(grep -n '# wrong' "$here/wrong.py" | cut -d: -f1) \
        <(grep -o 'wrong.py:[0-9]*: error' <<< "$said" | cut -d: -f2 | sort -nu)
}

case_of "install" install
case_of "import" away bin/python -c 'import icms; print(icms.version())'
case_of "types of the package" check_types -p icms
case_of "types of a program" check_types "$here/right.py"
case_of "mistakes of a program" told
exit $status
