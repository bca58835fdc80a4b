# SPDX-License-Identifier: Apache-2.0
#
# What the Linux guest does with enclosures that require TLS: the kernel's own initiator, whose
# handshakes tlshd makes, and whose records are the kernel's (kTLS).
#
# test/interop/tls.py puts assignments and common.sh before this text:
#   hostnqn hostid       who we are
#   right wrong          TLS keys: of this host, of nobody
#   secret answer        DHHC-1 secrets, for enclosures that require them besides: of this host, of
#                        the enclosures
#   enclosures           lines "NAME NQN PORT": the enclosures, at 10.0.2.2; with "chap" in its name
#                        one requires the secret, and with "mutual" it has to prove its own
# It prints "ok NAME" or "not ok NAME".

nvme_cli()
{
    chroot /tls /usr/sbin/nvme "$@"
}

# insert NQN KEY: into the kernel's keyring, as NVMe1R01; its serial number is in $serial.
insert()
{
    nvme_cli check-tls-key --keyring=.nvme --keytype=psk --hostnqn=$hostnqn --subsysnqn=$1 \
        --identity=1 --keydata="$2" --insert > /tmp/inserted 2>&1
    serial=$(sed -n 's/^Inserted TLS key \([0-9a-f]*\)$/\1/p' /tmp/inserted)
    [ -n "$serial" ]
}

accepted()
{
    local name=$1 nqn=$2 port=$3 before=$(kernel_keys)
    shift 3
    connected "$name" $nqn $port 300000 "$@"
    [ $(($(kernel_keys) - before)) = 2 ] # an admin queue and an I/O queue
    verdict "$name has TLS on both queues" $? "$before $(kernel_keys)"
    nvme_cli disconnect -n $nqn > /dev/null 2>&1
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
