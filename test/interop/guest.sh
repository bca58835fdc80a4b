# SPDX-License-Identifier: Apache-2.0
#
# What the Linux guest does with two enclosures: stock nvme-cli over the kernel's own initiator.
#
# test/interop/run.py puts assignments and common.sh before this text and boots the guest with it:
#   nqn_0 port_0 nqn_1 port_1   the two enclosures, at $address
#   volumes                     how many namespaces this host has to see in each
#   value_max                   the largest value that the volumes allow
# It prints "ok NAME" or "not ok NAME", and "driver VERB N" when run.py has to kill, stop or
# continue the target of enclosure N.

discover_one()
{
    local n=$1 nqn=$2 port=$3
    nvme discover -t tcp -a $address -s $port > /tmp/discovery 2>&1
    verdict "discover enclosure $n" $? "$(cat /tmp/discovery)"
    awk -v nqn="$nqn" -v address="$address" -v port="$port" '
        /^=====/ { s = ""; a = ""; p = "" }
        /^subnqn:/ { s = $2 } /^traddr:/ { a = $2 } /^trsvcid:/ { p = $2 }
        s == nqn && a == address && p == port { found = 1 }
        END { exit !found }' /tmp/discovery
    verdict "discovery of enclosure $n names its subsystem and advertised address" $? \
        "$(cat /tmp/discovery)"
}

# The discovery service lists itself, and connect-all connects to the subsystem alone.
discovery_of_itself()
{
    local n=$1 nqn=$2 port=$3
    grep -q '^subtype: *current discovery subsystem' /tmp/discovery
    verdict "discovery of enclosure $n lists itself" $? "$(cat /tmp/discovery)"
    nvme connect-all -t tcp -a $address -s $port -i 1 > /tmp/connect 2>&1
    within 5 has_devices $nqn
    verdict "connect-all finds enclosure $n" $? "$(cat /tmp/connect; dmesg | tail -5)"
    expect "connect-all makes one controller" 1 "$(ls -d /sys/class/nvme/nvme* | wc -l)"
    nvme disconnect-all
}

# admin NAME WANTED nvme-cli arguments...: an admin command and its status, three hex digits.
admin()
{
    local name=$1 wanted=$2 got=000
    shift; shift
    nvme "$@" > /tmp/out 2> /tmp/err || {
        got=$(sed -n 's/.*(0x\([0-9a-fA-F]*\)).*/\1/p' /tmp/err | head -1)
        got=$(printf '%03x' $((0x${got:-7ff} & 0x7ff)))
    }
    [ $got = $wanted ]
    verdict "$name" $? "(wanted $wanted, got $got: $(cat /tmp/err /tmp/out))"
}

smart()
{
    nvme smart-log -o json "$1" 2> /dev/null | sed -n "s/.*\"$2\" *: *\"*\([0-9]*\).*/\1/p"
}

# What an administrator asks a controller for, and what it has to refuse.
administration()
{
    local n=$1 device=/dev/$(controller_of $2) reads=$(smart /dev/$(controller_of $2) host_read_commands)
    value 4096 6 /tmp/value
    put $3 736d617274 /tmp/value
    get $3 736d617274 4096
    expect "enclosure $n: smart-log counts a retrieve" $((reads + 1)) \
        "$(smart $device host_read_commands)"
    expect "enclosure $n: smart-log warns of nothing" "0 100 0" "$(smart $device critical_warning) \
$(smart $device avail_spare) $(smart $device media_errors)"
    [ "$(smart $device data_units_written)" -gt 0 ]
    verdict "enclosure $n: smart-log has what was written" $?
    admin "enclosure $n: a log past its end" 002 get-log $device --log-id=2 --log-len=64 --lpo=4096
    admin "enclosure $n: a log up to its end" 000 get-log $device --log-id=2 --log-len=512
    admin "enclosure $n: an event that does not exist" 002 set-feature $device -f 0x0b -v 0x200
    admin "enclosure $n: an event that does" 000 set-feature $device -f 0x0b -v 0x100
    nvme reset $device > /dev/null 2>&1
    verdict "enclosure $n: reset" $? "$(dmesg | tail -5)"
    within 10 state_is ${device##*/} live && within 5 has_devices $2
    verdict "enclosure $n: is back after the reset" $? "$(dmesg | tail -5)"
    get $3 736d617274 4096
    expect "enclosure $n: serves after the reset" 000 $status
    remove $3 736d617274
}

# connect_one N NQN PORT arguments...
connect_one()
{
    local n=$1 nqn=$2 port=$3
    shift; shift; shift
    nvme connect -t tcp -a $address -s $port -n $nqn -i 1 "$@" > /tmp/connect 2>&1
    verdict "connect enclosure $n ($*)" $? "$(cat /tmp/connect; dmesg | tail -5)"
    within 5 has_devices $nqn
    verdict "enclosure $n shows $volumes KV namespaces as generic devices ($*)" $? \
        "$(ls /dev/ng* 2>&1; dmesg | tail -5)"
}

# Values of every size, stored, asked for and read back; $1 names the pass in the cases.
sizes_pass()
{
    local pass=$1 device=$2 size wrong= seed=${3:-1}
    for size in $sizes; do
        value $size $seed /tmp/value
        key=$(printf '5a%08x%02x' $size $seed)
        put $device $key /tmp/value
        [ $status = 000 ] || wrong="$wrong store:$size:$status"
        exists $device $key
        [ $status = 000 ] || wrong="$wrong exist:$size:$status"
        get $device $key $size
        [ $status = 000 ] && cmp -s /tmp/value /tmp/out || wrong="$wrong retrieve:$size:$status"
    done
    [ -z "$wrong" ]
    verdict "$pass: values of 1 byte to 8 MiB come back byte-equal" $? "($wrong)"
}

# The values of an earlier pass are still there.
sizes_again()
{
    local name=$1 device=$2 seed=$3 size wrong=
    for size in $sizes; do
        value $size $seed /tmp/value
        get $device $(printf '5a%08x%02x' $size $seed) $size
        [ $status = 000 ] && cmp -s /tmp/value /tmp/out || wrong="$wrong $size:$status"
    done
    [ -z "$wrong" ]
    verdict "$name" $? "($wrong)"
}

statuses()
{
    local n=$1 device=$2 other=$3
    get $device 6d697373696e67 4096
    expect "enclosure $n: retrieve of a missing key" $key_missing $status
    exists $device 6d697373696e67
    expect "enclosure $n: exist of a missing key" $key_missing $status
    remove $device 6d697373696e67
    expect "enclosure $n: delete of a missing key succeeds by default" 000 $status

    value 4097 2 /tmp/value
    put $device 6b31 /tmp/value
    expect "enclosure $n: store of 4097 bytes" 000 $status
    get $device 6b31 8192
    head -c 4097 /tmp/out | cmp -s - /tmp/value
    verdict "enclosure $n: a larger host buffer receives the whole value" $? "($status)"
    kv $device $retrieve 6b31 2 0 --read --cdw10=512 --data-len=512
    expect "enclosure $n: a smaller host buffer is told the value's size" "000 4097" "$status $result"
    get $device 6b31 512
    head -c 512 /tmp/value | cmp -s - /tmp/out
    verdict "enclosure $n: a smaller host buffer receives the beginning" $? "($status)"

    value 512 3 /tmp/value2
    put $device 6b31 /tmp/value2 2
    expect "enclosure $n: store only if absent of an existing key" $key_exists $status
    put $device 6b32 /tmp/value2 1
    expect "enclosure $n: store only if present of a missing key" $key_missing $status
    exists $device 6b32
    expect "enclosure $n: and nothing was stored" $key_missing $status
    put $device 6b31 /tmp/value2 1
    expect "enclosure $n: store only if present of an existing key" 000 $status
    get $device 6b31 512
    cmp -s /tmp/value2 /tmp/out
    verdict "enclosure $n: and the new value is there" $? "($status)"
    put $device 6b3200 /tmp/value2 2
    expect "enclosure $n: store only if absent of a missing key" 000 $status
    exists $device 6b32
    expect "enclosure $n: keys of different length are different keys" $key_missing $status
    exists $other 6b31
    expect "enclosure $n: another volume does not have the key" $key_missing $status

    remove $device 6b31
    expect "enclosure $n: delete" 000 $status
    exists $device 6b31
    expect "enclosure $n: a deleted key is missing" $key_missing $status
    get $device 6b31 512
    expect "enclosure $n: a deleted key cannot be retrieved" $key_missing $status

    kv $device $exist 6b31 0 0
    expect "enclosure $n: a key of length 0" $key_size $status
    kv $device $exist 6b31 17 0
    expect "enclosure $n: a key of length 17" $key_size $status
    head -c $((value_max + 4)) /tmp/random > /tmp/value
    put $device 6b33 /tmp/value
    expect "enclosure $n: a value over the volume's largest" $value_size $status
    exists $device 6b33
    expect "enclosure $n: and it was not stored" $key_missing $status
}

# list_keys DEVICE START_HEX ROOM: the keys, in hex, one a line, as the device lists them.
list_keys()
{
    local hex count length
    kv $1 $list "$2" $((${#2} / 2)) 0 --read --cdw10=$3 --data-len=$3 --raw-binary
    [ $status = 000 ] || { echo "status $status"; return; }
    hex=$(od -An -v -tx1 /tmp/out | tr -d ' \n')
    count=$((0x${hex:6:2}${hex:4:2}${hex:2:2}${hex:0:2}))
    hex=${hex:8}
    while [ $count -gt 0 ]; do
        length=$((0x${hex:2:2}${hex:0:2}))
        echo "${hex:4:$((length * 2))}"
        hex=${hex:$(((2 + length + 3) / 4 * 8))}
        count=$((count - 1))
    done
}

# The second volume holds nothing else, so its list is known.
listing()
{
    local n=$1 device=$2 key first second middle
    value 100 4 /tmp/value
    for key in $listed; do
        put $device $key /tmp/value
    done
    list_keys $device "" 4096 > /tmp/list
    expect "enclosure $n: list gives every key" "$(echo $listed | tr ' ' '\n' | sort)" \
        "$(sort /tmp/list)"
    list_keys $device "" 4096 > /tmp/list2
    cmp -s /tmp/list /tmp/list2
    verdict "enclosure $n: list has a stable order" $?
    middle=$(sed -n 3p /tmp/list)
    expect "enclosure $n: list from a key on" "$(tail -n +3 /tmp/list)" \
        "$(list_keys $device $middle 4096)"
    first=$(list_keys $device "" 32)
    second=$(head -n $(echo "$first" | wc -l) /tmp/list)
    expect "enclosure $n: list into a small buffer gives whole keys only" "$second" "$first"
}

# The target dies and comes back; the kernel reconnects by itself.
reconnect()
{
    local n=$1 nqn=$2 controller=$(controller_of $2)
    echo "driver kill $n"
    within 20 state_is_not $controller live
    verdict "enclosure $n: the kernel notices that the target was killed" $?
    within 30 state_is $controller live
    verdict "enclosure $n: the kernel reconnects to the restarted target" $? "$(dmesg | tail -5)"
    within 5 has_devices $nqn
    verdict "enclosure $n: its namespaces are there after the restart" $?
}

stalled()
{
    local n=$1 controller=$(controller_of $2)
    echo "driver stop $n"
    within 20 state_is_not $controller live
    verdict "enclosure $n: keep-alive notices a stopped target" $?
    echo "driver continue $n"
    within 30 state_is $controller live
    verdict "enclosure $n: the kernel reconnects when it goes on" $? "$(dmesg | tail -5)"
}

modprobe nvme-tcp || exit 3
sizes="1 2 3 4 5 511 512 4095 4096 4097 8192 8193 65536 262143 262144 262145 1048576 5902056
    8388607 8388608"
listed="61 6162 616263 0001 ffffffffffffffffffffffffffffffff 00112233445566778899aabbccddeeff
    7a7a7a7a7a"
head -c $((9 << 20)) /dev/urandom > /tmp/random

discover_one 0 $nqn_0 $port_0
discovery_of_itself 0 $nqn_0 $port_0
discover_one 1 $nqn_1 $port_1

# Without digests first.
connect_one 0 $nqn_0 $port_0
connect_one 1 $nqn_1 $port_1
set -- $(devices_of $nqn_0) none none; device_0=$1 other_0=$2
set -- $(devices_of $nqn_1) none none; device_1=$1 other_1=$2
sizes_pass "enclosure 0 without digests" $device_0 1
sizes_pass "enclosure 1 without digests" $device_1 1
statuses 0 $device_0 $other_0
statuses 1 $device_1 $other_1
listing 0 $other_0
listing 1 $other_1
cp /tmp/list /tmp/list.1
administration 0 $nqn_0 $device_0
nvme disconnect -n $nqn_0 > /dev/null && nvme disconnect -n $nqn_1 > /dev/null
verdict "disconnect" $?
echo "driver unlost 0"
echo "driver unlost 1"

# Then with both, and with a keep-alive that has something to notice.
connect_one 0 $nqn_0 $port_0 -g -G -k 2 -c 1 -l 30
connect_one 1 $nqn_1 $port_1 -g -G -k 2 -c 1 -l 30
set -- $(devices_of $nqn_0) none none; device_0=$1 other_0=$2
set -- $(devices_of $nqn_1) none none; device_1=$1 other_1=$2
sizes_pass "enclosure 0 with digests" $device_0 2
sizes_pass "enclosure 1 with digests" $device_1 2
sizes_again "enclosure 0: what was stored without digests reads back with them" $device_0 1

dmesg -c > /dev/null
sleep 7
expect "an idle connection stays up by keep-alive" "live live 0" "$(cat \
    /sys/class/nvme/$(controller_of $nqn_0)/state /sys/class/nvme/$(controller_of $nqn_1)/state |
    tr '\n' ' ')$(dmesg | grep -c -i 'nvme.*\(timeout\|error\|reconnect\|reset\)')"

reconnect 0 $nqn_0
sizes_again "enclosure 0: blocks stored before the kill are still there" $device_0 1
sizes_again "enclosure 0: and so are those stored with digests" $device_0 2
sizes_pass "enclosure 0 after the restart" $device_0 3
expect "enclosure 1 did not notice" live "$(cat /sys/class/nvme/$(controller_of $nqn_1)/state)"
stalled 1 $nqn_1
sizes_again "enclosure 1: blocks are there after the stop" $device_1 2
expect "enclosure 1: list is as before" "$(cat /tmp/list.1)" "$(list_keys $other_1 "" 4096)"
nvme disconnect -n $nqn_1 > /dev/null
verdict "disconnect enclosure 1" $?

# The last thing: this host disappears without a word.
ip link set $(ls /sys/class/net | grep ^e | head -1) down
sleep 5
echo "driver lost 0"
exit $((failures > 0))
