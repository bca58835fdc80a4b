# SPDX-License-Identifier: Apache-2.0
#
# What the scripts for the Linux guest have in common: cases, KV commands by stock nvme-cli, devices.
# test/interop/common.py puts it before each of them.

store=0x01 retrieve=0x02 list=0x06 delete=0x10 exist=0x14
key_missing=087 key_exists=089 key_size=086 value_size=085

failures=0

# verdict NAME STATUS [DETAIL]: the result of one case; status 0 is good.
verdict()
{
    if [ "$2" = 0 ]; then
        echo "ok $1"
    else
        echo "not ok $1 ${3:-}"
        failures=$((failures + 1))
    fi
}

# expect NAME WANTED GOT: two texts that must be equal.
expect()
{
    [ "$2" = "$3" ]
    verdict "$1" $? "(wanted '$2', got '$3')"
}

# within SECONDS COMMAND...: repeats the command until it succeeds.
within()
{
    local tries=$(($1 * 5))
    shift
    while [ $tries -gt 0 ]; do
        "$@" > /dev/null 2>&1 && return 0
        sleep 0.2
        tries=$((tries - 1))
    done
    return 1
}

# key_words HEX: the key's arguments for nvme-cli: bytes 0..7 in CDW2-3, 8..15 in CDW14-15.
key_words()
{
    local hex=${1}00000000000000000000000000000000 word arguments=
    set -- 2 3 14 15
    for word; do
        arguments="$arguments --cdw$word=0x${hex:6:2}${hex:4:2}${hex:2:2}${hex:0:2}"
        hex=${hex:8}
    done
    echo "$arguments"
}

# kv DEVICE OPCODE KEY_HEX KEY_LENGTH OPTIONS_BYTE nvme-cli arguments...
# Leaves the NVMe status (three hex digits, 000 for success) in $status and CQE DW0 in $result.
kv()
{
    local device=$1 opcode=$2 key=$3 length=$4 options=$5 code
    shift 5
    nvme io-passthru "$device" --opcode=$opcode --namespace-id="$(nsid_of "$device")" \
        $(key_words "$key") --cdw11=$((length | options << 8)) "$@" > /tmp/out 2> /tmp/err
    code=$?
    status=000
    if [ $code != 0 ]; then
        status=$(sed -n 's/.*(0x\([0-9a-fA-F]*\)).*/\1/p' /tmp/err | head -1)
        status=$(printf '%03x' $((0x${status:-7ff} & 0x7ff)))
    fi
    result=$(sed -n 's/.*result: *0x\([0-9a-fA-F]*\).*/\1/p' /tmp/err /tmp/out | head -1)
    result=$((0x${result:-0}))
}

# put DEVICE KEY FILE [OPTIONS]
put()
{
    local bytes=$(stat -c %s "$3")
    kv "$1" $store "$2" $((${#2} / 2)) ${4:-0} --write --cdw10=$bytes --data-len=$bytes \
        --input-file="$3"
}

# get DEVICE KEY ROOM: into /tmp/out
get()
{
    kv "$1" $retrieve "$2" $((${#2} / 2)) 0 --read --cdw10=$3 --data-len=$3 --raw-binary
}

exists()
{
    kv "$1" $exist "$2" $((${#2} / 2)) 0
}

remove()
{
    kv "$1" $delete "$2" $((${#2} / 2)) 0
}

# value BYTES SEED FILE: bytes that differ for each seed.
value()
{
    tail -c +$((1 + $2 * 977)) /tmp/random | head -c "$1" > "$3"
}

nsid_of()
{
    cat "/tmp/nsid.${1##*/}" 2> /dev/null ||
        nvme get-ns-id "$1" | sed 's/.*namespace-id:[0x]*//' | tee "/tmp/nsid.${1##*/}"
}

# controller_of NQN: its name, such as nvme0.
controller_of()
{
    local controller
    for controller in /sys/class/nvme/nvme*; do
        [ "$(cat $controller/subsysnqn 2> /dev/null)" = "$1" ] && echo "${controller##*/}" && return
    done
    return 1
}

# devices_of NQN: its KV devices in order of namespace number.
devices_of()
{
    local generic device
    for generic in /sys/class/nvme-generic/ng*; do
        [ "$(cat $generic/device/subsysnqn 2> /dev/null)" = "$1" ] || continue
        device=/dev/${generic##*/}
        [ -c $device ] && echo "$(nsid_of $device) $device"
    done | sort -n | cut -d' ' -f2
}

has_devices()
{
    rm -f /tmp/nsid.*
    [ "$(devices_of "$1" | wc -l)" = "$volumes" ]
}

state_is()
{
    [ "$(cat /sys/class/nvme/$1/state)" = "$2" ]
}

state_is_not()
{
    [ "$(cat /sys/class/nvme/$1/state)" != "$2" ]
}

# nvme_cli ARGUMENTS...: the nvme-cli that connects; a script may have another one.
nvme_cli()
{
    nvme "$@"
}

# join NQN PORT ARGUMENTS...: connects as $hostnqn and $hostid; what it says is in /tmp/said.
join()
{
    local nqn=$1 port=$2
    shift 2
    nvme_cli connect -t tcp -a 10.0.2.2 -s $port -n $nqn --hostnqn=$hostnqn --hostid=$hostid -i 1 \
        "$@" > /tmp/said 2>&1
}

# generic_of NQN: one of its devices.
generic_of()
{
    local generic
    for generic in /sys/class/nvme-generic/ng*; do
        [ "$(cat $generic/device/subsysnqn 2> /dev/null)" = "$1" ] && echo /dev/${generic##*/} && return
    done
    return 1
}

# works NQN BYTES: stores a value over an I/O queue, and reads it back.
works()
{
    local device
    within 10 generic_of $1 || return 1
    device=$(generic_of $1)
    head -c $2 /dev/urandom > /tmp/value
    put $device 6b6579 /tmp/value && [ $status = 000 ] || return 1
    get $device 6b6579 $2 && [ $status = 000 ] && cmp -s /tmp/value /tmp/out
}

# refused NAME NQN PORT ARGUMENTS...
refused()
{
    local name=$1 nqn=$2 port=$3
    shift 3
    join $nqn $port "$@"
    verdict "$name is refused" $((! $?)) "$(cat /tmp/said)"
    [ -z "$(generic_of $nqn)" ]
    verdict "$name gets no device" $?
    nvme_cli disconnect -n $nqn > /dev/null 2>&1
}

# connected NAME NQN PORT BYTES ARGUMENTS...: it connects, stores and loads so many bytes.
connected()
{
    local name=$1 nqn=$2 port=$3 bytes=$4
    shift 4
    rm -f /tmp/nsid.*
    join $nqn $port "$@"
    verdict "$name connects" $? "$(cat /tmp/said; dmesg | tail -5)"
    works $nqn $bytes
    verdict "$name stores and loads" $? "$(cat /tmp/err; dmesg | tail -5)"
}

# kernel_keys: connections whose records the kernel made and opened, since the start.
kernel_keys()
{
    awk '$1 == "TlsTxSw" { t = $2 } $1 == "TlsRxSw" { r = $2 } END { print t < r ? t : r }' \
        /proc/net/tls_stat
}
