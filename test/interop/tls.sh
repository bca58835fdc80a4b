# SPDX-License-Identifier: Apache-2.0
#
# What the Linux guest does with enclosures that require TLS: the kernel's own initiator, whose
# handshakes tlshd makes, and whose records are the kernel's (kTLS).
#
# test/interop/tls.py puts assignments before this text:
#   hostnqn hostid       who we are
#   right wrong          TLS keys: of this host, of nobody
#   secret answer        DHHC-1 secrets, for enclosures that require them besides: of this host, of
#                        the enclosures
#   enclosures           lines "NAME NQN PORT": the enclosures, at 10.0.2.2; with "chap" in its name
#                        one requires the secret, and with "mutual" it has to prove its own
# It prints "ok NAME" or "not ok NAME".

failures=0

verdict()
{
    if [ "$2" = 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1 ${3:-}"
        failures=$((failures + 1))
    fi
}

tls_nvme()
{
    chroot /tls /usr/sbin/nvme "$@"
}

# insert NQN KEY: into the kernel's keyring, as NVMe1R01; its serial number is in $serial.
insert()
{
    tls_nvme check-tls-key --keyring=.nvme --keytype=psk --hostnqn=$hostnqn --subsysnqn=$1 \
        --identity=1 --keydata="$2" --insert > /tmp/inserted 2>&1
    serial=$(sed -n 's/^Inserted TLS key \([0-9a-f]*\)$/\1/p' /tmp/inserted)
    [ -n "$serial" ]
}

# join NQN PORT ARGUMENTS...: connects; what it says is in /tmp/said.
join()
{
    local nqn=$1 port=$2
    shift 2
    tls_nvme connect -t tcp -a 10.0.2.2 -s $port -n $nqn --hostnqn=$hostnqn --hostid=$hostid -i 1 \
        "$@" > /tmp/said 2>&1
}

generic_of()
{
    local generic
    for generic in /sys/class/nvme-generic/ng*; do
        [ "$(cat $generic/device/subsysnqn 2> /dev/null)" = "$1" ] && echo /dev/${generic##*/} && return
    done
    return 1
}

# works NQN: stores a value over an I/O queue, and reads it back.
works()
{
    local tries=50 device
    while ! device=$(generic_of $1) && [ $tries -gt 0 ]; do
        sleep 0.2
        tries=$((tries - 1))
    done
    [ -n "$device" ] || return 1
    head -c 300000 /dev/urandom > /tmp/value
    nvme io-passthru $device --opcode=0x01 --namespace-id=1 --cdw2=0x79656b --cdw11=3 --write \
        --cdw10=300000 --data-len=300000 --input-file=/tmp/value > /tmp/said 2>&1 || return 1
    nvme io-passthru $device --opcode=0x02 --namespace-id=1 --cdw2=0x79656b --cdw11=3 --read \
        --cdw10=300000 --data-len=300000 --raw-binary > /tmp/back 2> /tmp/said || return 1
    cmp -s /tmp/value /tmp/back
}

refused()
{
    local name=$1 nqn=$2 port=$3
    shift 3
    join $nqn $port "$@"
    verdict "$name is refused" $((! $?)) "$(cat /tmp/said)"
    [ -z "$(generic_of $nqn)" ]
    verdict "$name gets no device" $?
    tls_nvme disconnect -n $nqn > /dev/null 2>&1
}

# kernel_keys: connections whose records the kernel made and opened, since the start.
kernel_keys()
{
    awk '$1 == "TlsTxSw" { t = $2 } $1 == "TlsRxSw" { r = $2 } END { print t < r ? t : r }' \
        /proc/net/tls_stat
}

accepted()
{
    local name=$1 nqn=$2 port=$3 before=$(kernel_keys)
    shift 3
    join $nqn $port "$@"
    verdict "$name connects" $? "$(cat /tmp/said; dmesg | tail -5)"
    works $nqn
    verdict "$name stores and loads" $? "$(cat /tmp/said; dmesg | tail -5)"
    [ $(($(kernel_keys) - before)) = 2 ] # an admin queue and an I/O queue
    verdict "$name has TLS on both queues" $? "$before $(kernel_keys)"
    tls_nvme disconnect -n $nqn > /dev/null 2>&1
}

for module in nvme-tcp nvme-keyring tls aesni-intel gcm ctr; do
    modprobe $module
done
for folder in proc sys dev; do
    mount -o bind /$folder /tls/$folder
done
chroot /tls /usr/sbin/tlshd -s > /tmp/tlshd.log 2>&1 < /dev/null &
echo "$enclosures" > /tmp/enclosures
while read -r name nqn port; do
    chap=
    case $name in
    *mutual*) chap="--dhchap-secret=$secret --dhchap-ctrl-secret=$answer" ;;
    *chap*) chap=--dhchap-secret=$secret ;;
    esac
    refused "$name: no key" $nqn $port $chap
    insert $nqn "$wrong"
    verdict "$name: a wrong key is inserted" $? "$(cat /tmp/inserted)"
    refused "$name: a wrong key" $nqn $port --tls --tls_key=0x$serial $chap
    insert $nqn "$right"
    verdict "$name: the right key is inserted" $? "$(cat /tmp/inserted)"
    [ -z "$chap" ] || refused "$name: the right key without the secret" $nqn $port --tls \
        --tls_key=0x$serial
    accepted "$name: the right key" $nqn $port --tls --tls_key=0x$serial $chap
done < /tmp/enclosures
[ $failures = 0 ] || tail -20 /tmp/tlshd.log
exit $((failures > 0))
