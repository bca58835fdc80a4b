#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/deps.sh GROUP...: installs the Debian packages of these groups that are missing.
#
#   build   what compiling and the unit tests need; g++ is for the NIXL plugins alone
#   check   what `make check` needs besides: clang and its sanitizers, the QEMU guest, linters,
#           what builds a Python wheel
#   bench   what ceilings are compared with
#   peers   what builds the Python package and virtual environments for those icms is compared with
#   demo    what compiling llama.cpp and fetching the model need
#
# Does nothing, and asks for nothing, when all is there. Needs root or sudo otherwise.
# `tools/deps.sh --update` only refreshes the package lists.
set -euo pipefail

build_packages="gcc g++ libc6-dev meson ninja-build pkg-config python3
    liburing-dev libisal-dev libxxhash-dev libyaml-dev libjansson-dev libmicrohttpd-dev libgnutls28-dev
    libssl-dev libcurl4-openssl-dev libzmq3-dev libcmocka-dev"
check_packages="clang libclang-rt-14-dev clang-format
    etcd-server qemu-system-x86 nvme-cli busybox-static cpio kmod zstd xz-utils
    nftables iproute2 mandoc procps systemd
    python3-dev python3-pip python3-setuptools python3-wheel"
bench_packages="fio iperf3"
peers_packages="python3-dev python3-pip python3-setuptools python3-wheel python3-venv"
demo_packages="cmake ninja-build python3-pip"

fail()
{
    echo "deps.sh: $*" >&2
    exit 2
}

# Runs apt-get as root; $* are its arguments.
apt()
{
    local sudo=

    if [ "$(id -u)" != 0 ]; then
        command -v sudo > /dev/null ||
            fail "no root and no sudo; as root run: apt-get update && apt-get install $missing"
        sudo="sudo"
    fi
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@" < /dev/null
}

wanted=
missing=
[ $# -gt 0 ] || fail "usage: tools/deps.sh build|check|bench|peers|demo|--update ..."
for group; do
    case $group in
    build) wanted+=" $build_packages" ;;
    check) wanted+=" $check_packages" ;;
    bench) wanted+=" $bench_packages" ;;
    peers) wanted+=" $peers_packages" ;;
    demo) wanted+=" $demo_packages" ;;
    --update) update=1 ;;
    *) fail "unknown group '$group'; groups are build, check, bench, peers, demo" ;;
    esac
done

command -v apt-get > /dev/null && command -v dpkg-query > /dev/null ||
    fail "this is not Debian; install these by hand and go on:" $wanted

for package in $wanted; do
    # A line for each architecture; a package that is only mentioned somewhere is "not-installed".
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2> /dev/null | grep -qx installed ||
        missing+=" $package"
done

[ -n "$missing" ] || [ -n "${update:-}" ] || exit 0
[ -z "$missing" ] || echo "deps.sh: installing$missing" >&2
apt update || fail "apt-get update failed; check the package sources of this machine"
[ -z "$missing" ] || apt install --no-install-recommends $missing > /dev/null ||
    fail "could not install; as root run: apt-get install$missing"
