# SPDX-License-Identifier: Apache-2.0
#
# What the Linux guest does with enclosures that want it to authenticate: the kernel's own
# DH-HMAC-CHAP over stock nvme-cli.
#
# test/interop/auth.py puts assignments before this text:
#   hostnqn             who we are
#   right wrong answer  DHHC-1 secrets: of this host, of nobody, of the enclosures
#   enclosures          lines "NAME NQN PORT": the enclosures, at 10.0.2.2
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

# join NQN PORT ARGUMENTS...: connects; what it says is in /tmp/said.
join()
{
    local nqn=$1 port=$2
    shift 2
    nvme connect -t tcp -a 10.0.2.2 -s $port -n $nqn --hostnqn=$hostnqn --hostid=$hostid -i 1 "$@" \
        > /tmp/said 2>&1
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
    echo "a value over the kernel's own initiator" > /tmp/value
    nvme io-passthru $device --opcode=0x01 --namespace-id=1 --cdw2=0x79656b --cdw11=3 --write \
        --cdw10=$(stat -c %s /tmp/value) --data-len=$(stat -c %s /tmp/value) --input-file=/tmp/value \
        > /tmp/said 2>&1 || return 1
    nvme io-passthru $device --opcode=0x02 --namespace-id=1 --cdw2=0x79656b --cdw11=3 --read \
        --cdw10=4096 --data-len=4096 --raw-binary > /tmp/back 2> /tmp/said || return 1
    head -c $(stat -c %s /tmp/value) /tmp/back | cmp -s - /tmp/value
}

refused()
{
    local name=$1 nqn=$2 port=$3
    shift 3
    join $nqn $port "$@"
    verdict "$name is refused" $((! $?)) "$(cat /tmp/said)"
    [ -z "$(generic_of $nqn)" ]
    verdict "$name gets no device" $?
    nvme disconnect -n $nqn > /dev/null 2>&1
}

accepted()
{
    local name=$1 nqn=$2 port=$3
    shift 3
    join $nqn $port "$@"
    verdict "$name connects" $? "$(cat /tmp/said; dmesg | tail -5)"
    works $nqn
    verdict "$name stores and loads" $? "$(cat /tmp/said; dmesg | tail -5)"
    nvme disconnect -n $nqn > /dev/null 2>&1
}

modprobe nvme-tcp
mkdir -p /etc/nvme
echo "$enclosures" > /tmp/enclosures
first=1
while read -r name nqn port; do
    if [ $first = 1 ]; then
        refused "$name: no secret" $nqn $port
        refused "$name: wrong secret" $nqn $port --dhchap-secret=$wrong
        refused "$name: wrong secret of the enclosure" $nqn $port --dhchap-secret=$right \
            --dhchap-ctrl-secret=$wrong
        first=0
    fi
    accepted "$name: one way" $nqn $port --dhchap-secret=$right
    accepted "$name: mutual" $nqn $port --dhchap-secret=$right --dhchap-ctrl-secret=$answer
done < /tmp/enclosures
exit $((failures > 0))
