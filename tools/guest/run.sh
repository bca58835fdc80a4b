#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/guest/run.sh [options] CMDFILE: boots the Linux guest and runs CMDFILE (busybox sh) in it.
#
#   -t SECONDS   give up after this long (default 120)
#   -m MB        memory of the guest (default 512)
#   -c FILE      keep the kernel's console in FILE
#   -a FILE      one more archive (cpio, gzip) to unpack into the guest's root
#   -i           the guest's clock counts instructions, one a nanosecond, so that processor times are
#                instructions of the emulated processor
#
# The guest's output appears on stdout as it is written. The exit status is CMDFILE's own; 98 says
# that the guest never came to its end. Seen from the guest this machine's 127.0.0.1 is 10.0.2.2.
# It has busybox, nvme-cli and modprobe. The processor is emulated, so it needs no privileges
# and runs in any container: about 5 s from start to end.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

here=$(cd "$(dirname "$0")" && pwd)
seconds=120
memory=512
console=
archive=
clock=()
while getopts t:m:c:a:i option; do
    case $option in
    t) seconds=$OPTARG ;;
    m) memory=$OPTARG ;;
    c) console=$OPTARG ;;
    a) archive=$OPTARG ;;
    i) clock=(-icount "shift=0,sleep=off") ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
command_file=${1:?command file}

image=$("$here/build.sh") || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
console=${console:-$work/console}
initrd=$image/initrd.gz
if [ -n "$archive" ]; then # the kernel unpacks one after the other
    cat "$initrd" "$archive" > "$work/initrd.gz" || exit 2
    initrd=$work/initrd.gz
fi

# What the guest writes goes to stdout, but for its closing line, which goes to $work/status.
timeout -k 5 "$seconds" qemu-system-x86_64 \
    -machine q35,accel=tcg -cpu max,-pdpe1gb -m "$memory" -smp 1 "${clock[@]}" \
    -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$image/vmlinuz" -initrd "$initrd" \
    -append "console=ttyS0 panic=-1 quiet loglevel=5 nokaslr mitigations=off tsc=reliable \
no_timer_check random.trust_cpu=on audit=0 selinux=0 apparmor=0" \
    -serial "file:$console" \
    -netdev user,id=net,ipv6=off -device virtio-net-pci,netdev=net,romfile= \
    -device virtio-rng-pci -device virtio-serial-pci \
    -chardev file,id=out,path=/dev/stdout,append=on -device virtserialport,chardev=out,name=icms.out \
    -fw_cfg name=opt/icms/cmd,file="$command_file" 2> "$work/errors" < /dev/null |
    while IFS= read -r line; do
        case $line in
        "GUEST_STATUS "*) echo "${line#GUEST_STATUS }" > "$work/status" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done

if [ -s "$work/status" ]; then
    exit "$(cat "$work/status")"
fi
echo "guest/run.sh: the guest did not finish within $seconds s" >&2
tail -5 "$work/errors" >&2
tail -30 "$console" >&2
exit 98
