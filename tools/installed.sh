#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tools/installed.sh LIBDIR: run by `meson install` when everything is in place.
#
# Programs that link libicms find it through the loader's cache, and compilers find it through
# pkg-config. As root this refreshes the cache. Where one of them does not search LIBDIR, it says
# what to set. Does nothing for an installation below DESTDIR, which is a package being made.
set -eu
PATH=$PATH:/usr/sbin:/sbin
libdir=$1

[ -z "${DESTDIR:-}" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v ldconfig > /dev/null; then
    ldconfig || true
fi

if ! ldconfig -p 2> /dev/null | grep -qF " $libdir/libicms.so"; then
    echo "The loader does not find libicms.so in $libdir. Run ldconfig as root if that is a"
    echo "directory of /etc/ld.so.conf, else:  export LD_LIBRARY_PATH=$libdir"
fi
if ! pkg-config --exists libicms > /dev/null 2>&1; then
    echo "pkg-config does not search this directory:  export PKG_CONFIG_PATH=$libdir/pkgconfig"
elif [ "$(pkg-config --variable=libdir libicms)" != "$libdir" ]; then
    echo "pkg-config finds another libicms first, in $(pkg-config --variable=libdir libicms):"
    echo "    export PKG_CONFIG_PATH=$libdir/pkgconfig"
fi
