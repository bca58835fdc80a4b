#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/guest/build.sh: makes the Linux guest that judges our NVMe/TCP from outside.
#
# The kernel is Debian's 6.12 cloud kernel, taken from its package; the root is a RAM disk with
# busybox, this machine's nvme-cli with its libraries, and the NVMe, virtio and crypto modules.
# Everything lies in ICMS_CACHE/guest (default ~/.cache/icms/guest): the package once under
# kernel/, and vmlinuz and initrd.gz, made again when this script, init or nvme-cli changes.
#
# With the argument "tls" it makes tls.gz besides: an archive with what the kernel needs in user
# space for NVMe/TCP with TLS, under /tls: tlshd and an nvme-cli that inserts keys. They are Debian
# 13's, since Debian 12 has no tlshd; apt-get fetches them into the cache, with lists of its own.
#
# Prints the folder of vmlinuz and initrd.gz. Runs at the same time wait for each other.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

here=$(cd "$(dirname "$0")" && pwd)
deps=$here/../deps.sh
meta=linux-image-6.12-cloud-amd64
out=${ICMS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/icms}/guest

modules="virtio_pci virtio_net virtio_console virtio_rng qemu_fw_cfg
    nvme-tcp nvme-loop nvmet-tcp brd null_blk
    crc32c_generic crc32c-intel hmac sha256_generic sha256-ssse3 sha512_generic dh_generic
    ecb ctr gcm aesni-intel tls nvme-keyring"

fail()
{
    echo "guest/build.sh: $*" >&2
    exit 2
}

# The exact kernel package that the meta package stands for.
kernel_package()
{
    apt-cache depends "$meta" 2> /dev/null | awk '/Depends: linux-image-6/ { print $2; exit }'
}

# Puts the kernel package's files into $out/kernel.
fetch_kernel()
{
    local work=$1 package

    package=$(kernel_package)
    if [ -z "$package" ] || ! (cd "$work" && apt-get -qq download "$package") > /dev/null 2>&1; then
        "$deps" --update
        package=$(kernel_package)
        [ -n "$package" ] || fail "the package lists of this machine have no $meta"
        (cd "$work" && apt-get -qq download "$package") > "$work/log" 2>&1 ||
            fail "apt-get download $package: $(tail -1 "$work/log")"
    fi
    mkdir "$work/kernel"
    dpkg-deb -x "$work"/linux-image-*.deb "$work/kernel"
    rm -rf "$out/kernel"
    mv -T "$work/kernel" "$out/kernel"
}

# Copies the program $2 and the libraries it needs into the root $1.
add_program()
{
    local root=$1 program=$2 library

    cp "$program" "$root/usr/sbin/"
    ldd "$program" | awk '/=> \// { print $3 } /^\t\/lib/ { print $1 }' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -Ln "$library" "$root$library"
    done
}

# Copies the wanted modules with what they depend on, unpacked, into the root $1.
add_modules()
{
    local root=$1 name=$2 base=$3 module path

    depmod -b "$base" "$name"
    for module in $modules; do
        modprobe -d "$base" -S "$name" --show-depends "$module" 2> /dev/null || true
    done | awk '$1 == "insmod" { print $2 }' | sort -u | while read -r path; do
        case $path in
        *.xz) xz -dc "$path" > "$root/lib/modules/$name/$(basename "${path%.xz}")" ;;
        *.zst) zstd -dqc "$path" > "$root/lib/modules/$name/$(basename "${path%.zst}")" ;;
        *) cp "$path" "$root/lib/modules/$name/" ;;
        esac
    done
    cp "$base/lib/modules/$name"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$name/"
    depmod -b "$root" "$name"
}

# Makes vmlinuz and initrd.gz from $out/kernel.
build_image()
{
    local work=$1 root=$1/root base=$out/kernel name applet
    local uuid=11111111-2222-4333-8444-555555555555

    [ -d "$base/lib" ] || ln -s usr/lib "$base/lib"
    name=$(basename "$(echo "$base"/lib/modules/*)")
    mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,run,etc/nvme,usr/sbin,usr/bin,lib64} \
        "$root/lib/modules/$name"
    cp "$(command -v busybox)" "$root/bin/busybox"
    "$root/bin/busybox" --list | while read -r applet; do
        [ "$applet" = busybox ] || ln -s /bin/busybox "$root/bin/$applet"
    done
    add_program "$root" "$(command -v nvme)"
    add_modules "$root" "$name" "$base"
    echo "nqn.2014-08.org.nvmexpress:uuid:$uuid" > "$root/etc/nvme/hostnqn"
    echo "$uuid" > "$root/etc/nvme/hostid"
    install -m 755 "$here/init" "$root/init"
    (cd "$root" && find . | cpio -o -H newc --quiet) | gzip -1 > "$work/initrd.gz"
    cp "$base/boot/vmlinuz-$name" "$work/vmlinuz"
    mv "$work/vmlinuz" "$work/initrd.gz" "$out/"
}

# apt-get for Debian 13 alone, with its state under $out/tls: this machine's stays as it is.
tls_apt()
{
    local state=$out/tls

    apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$state/sources" \
        -o Dir::State="$state/state" -o Dir::State::status="$state/status" -o Dir::Cache="$state" \
        -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=true \
        -o APT::Install-Recommends=false -o Dpkg::Use-Pty=0 "$@"
}

# Puts the packages of tlshd and nvme-cli, with all that they depend on, into $out/tls/files.
fetch_tls()
{
    local work=$1 state=$out/tls package

    rm -rf "$state"
    mkdir -p "$state"/{sources,state/lists/partial,archives/partial} "$work/files"
    touch "$state/status"
    printf '%s\n' "Types: deb" "URIs: http://deb.debian.org/debian" "Suites: trixie" \
        "Components: main" "Architectures: amd64" \
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" > "$state/sources/trixie.sources"
    tls_apt update > "$work/log" 2>&1 &&
        tls_apt -y --download-only install ktls-utils nvme-cli > "$work/log" 2>&1 ||
        fail "apt-get cannot fetch ktls-utils and nvme-cli of Debian 13: $(tail -1 "$work/log")"
    for package in "$state"/archives/*.deb; do
        dpkg-deb -x "$package" "$work/files"
    done
    rm -rf "$state/archives" "$state/state"
    mv -T "$work/files" "$state/files"
}

# Makes tls.gz from $out/tls/files: two programs, and the libraries that they load.
build_tls()
{
    local work=$1 root=$1/tls-root/tls files=$out/tls/files program library
    local libraries=usr/lib/x86_64-linux-gnu

    mkdir -p "$root"/{usr/sbin,usr/lib64,$libraries,etc/nvme,proc,sys,dev,tmp,run}
    ln -s usr/lib "$root/lib"
    ln -s usr/lib64 "$root/lib64"
    cp -L "$files/usr/lib64/ld-linux-x86-64.so.2" "$root/usr/lib64/"
    for program in nvme tlshd; do
        cp "$files/usr/sbin/$program" "$root/usr/sbin/"
        "$files/usr/lib64/ld-linux-x86-64.so.2" --library-path "$files/$libraries" --list \
            "$files/usr/sbin/$program" | awk '$2 == "=>" { print $1 }' | while read -r library; do
            [ "${library#/}" != "$library" ] || cp -Ln "$files/$libraries/$library" "$root/$libraries/"
        done
    done
    printf '[authenticate]\nkeyrings=.nvme\n[authenticate.client]\n[authenticate.server]\n' \
        > "$root/etc/tlshd.conf"
    (cd "$work/tls-root" && find . | cpio -o -H newc --quiet) | gzip -1 > "$work/tls.gz"
    mv "$work/tls.gz" "$out/"
}

for tool in cpio depmod zstd xz nvme busybox apt-get; do
    command -v "$tool" > /dev/null || fail "no $tool; run tools/deps.sh check"
done
mkdir -p "$out"
exec 9> "$out/.lock"
flock 9
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

stamp=$(cat "$here/build.sh" "$here/init" "$(command -v nvme)" "$(command -v busybox)" | cksum)
if [ "$(cat "$out/stamp" 2> /dev/null)" != "$stamp" ]; then
    rm -f "$out/stamp"
    [ -d "$out/kernel/boot" ] || fetch_kernel "$work"
    build_image "$work"
    echo "$stamp" > "$out/stamp"
fi
stamp=$(cksum < "$here/build.sh")
if [ "${1:-}" = tls ] && [ "$(cat "$out/stamp-tls" 2> /dev/null)" != "$stamp" ]; then
    rm -f "$out/stamp-tls"
    [ -d "$out/tls/files" ] || fetch_tls "$work"
    build_tls "$work"
    echo "$stamp" > "$out/stamp-tls"
fi
echo "$out"
