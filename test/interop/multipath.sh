# SPDX-License-Identifier: Apache-2.0
#
# What the Linux guest does with an enclosure of two portals: the kernel's own multipathing over stock
# nvme-cli.
#
# test/interop/multipath.py puts assignments and common.sh before this text:
#   hostnqn hostid         who we are
#   nqn port_0 port_1      the subsystem, and its portals at $address
#   deep                   1: more faults
# It prints "ok NAME" or "not ok NAME", and "driver VERB WORDS" when multipath.py has to do something.

# controller_at PORT: the name of the controller that is connected through this port.
controller_at()
{
    local controller
    for controller in /sys/class/nvme/nvme*; do
        case "$(cat $controller/address 2> /dev/null)" in
        *trsvcid=$1*) echo ${controller##*/} && return ;;
        esac
    done
    return 1
}

at_is()
{
    state_is "$(controller_at $1)" $2
}

at_is_not()
{
    state_is_not "$(controller_at $1)" $2
}

# store_and_load N: value number N, over whichever portal the kernel takes.
store_and_load()
{
    local key=$(printf '6d%04x' $1)
    value 5000 $1 /tmp/value
    put $device $key /tmp/value
    [ $status = 000 ] || return 1
    get $device $key 5000
    [ $status = 000 ] && cmp -s /tmp/value /tmp/out
}

# still_there N: the value that store_and_load stored.
still_there()
{
    value 5000 $1 /tmp/value
    get $device $(printf '6d%04x' $1) 5000
    [ $status = 000 ] && cmp -s /tmp/value /tmp/out
}

# goes_on NAME FIRST: after a portal failed. The kernel does not repeat a command that was in flight
# on it, so the first may fail; then 10 in a row must not.
goes_on()
{
    local n=$2 failed=0 wrong=
    while [ $n -lt $(($2 + 10)) ]; do
        store_and_load $n || { failed=$((failed + 1)); wrong="$wrong $n:$status"; store_and_load $n; }
        n=$((n + 1))
    done
    [ $failed -le 1 ]
    verdict "$1: commands go on" $? "($wrong; $(dmesg | tail -5))"
    wrong=
    n=0
    while [ $n -lt $(($2 + 10)) ]; do
        still_there $n || wrong="$wrong $n:$status"
        n=$((n + 1))
    done
    [ -z "$wrong" ]
    verdict "$1: every value is there" $? "($wrong)"
}

# fails_over NAME PORTAL VERB BACK FIRST: the portal fails, the host goes on, and it comes back.
fails_over()
{
    local name=$1 port
    eval port=\$port_$2
    echo "driver $3 $2"
    goes_on "$name" $5
    within 30 at_is_not $port live
    verdict "$name: the kernel notices" $? "$(dmesg | tail -5)"
    store_and_load 0
    verdict "$name: commands do not wait for it" $? "($status)"
    echo "driver $4 $2"
    within 40 at_is $port live
    verdict "$name: the kernel reconnects" $? "$(dmesg | tail -5)"
}

modprobe nvme-tcp || exit 3
mkdir -p /etc/nvme
echo $hostnqn > /etc/nvme/hostnqn
echo $hostid > /etc/nvme/hostid
head -c $((1 << 20)) /dev/urandom > /tmp/random
volumes=2

expect "the kernel has NVMe multipathing" Y "$(cat /sys/module/nvme_core/parameters/multipath)"
for port in $port_0 $port_1; do
    nvme discover -t tcp -a $address -s $port > /tmp/discovery 2>&1
    got=$(awk -v nqn="$nqn" -v address=$address '
        /^=====/ { s = ""; a = ""; i = "" }
        /^subnqn:/ { s = $2 } /^traddr:/ { a = $2 } /^portid:/ { i = $2 } /^trsvcid:/ { t = $2 }
        s == nqn && a == address && i != "" { print i, t; s = "" }' /tmp/discovery | tr '\n' ' ')
    expect "discovery at $port lists both portals" "1 $port_0 2 $port_1 " "$got"
    [ "$got" = "1 $port_0 2 $port_1 " ] || cat /tmp/discovery
done

digests=
[ $deep = 1 ] && digests="-g -G"
nvme connect-all -t tcp -a $address -s $port_0 -i 1 -k 2 -c 1 -l 60 $digests > /tmp/said 2>&1
within 10 has_devices $nqn
verdict "connect-all: one device a volume" $? "$(cat /tmp/said; ls /dev/ng*; dmesg | tail -5)"
expect "connect-all: a controller through each portal" "live live" \
    "$(cat /sys/class/nvme/$(controller_at $port_0)/state) $(cat /sys/class/nvme/$(controller_at $port_1)/state)"
expect "connect-all: one subsystem" 1 "$(ls -d /sys/class/nvme-subsystem/nvme-subsys* | wc -l)"
[ "$(cat /sys/class/nvme/$(controller_at $port_0)/cntlid)" != "$(cat /sys/class/nvme/$(controller_at $port_1)/cntlid)" ]
verdict "controllers have ids of their own" $?
echo "driver counted 2 2" # an admin queue and an I/O queue
for port in $port_0 $port_1; do
    controller=$(controller_at $port)
    nvme ana-log /dev/$controller -o json > /tmp/ana 2>&1
    verdict "$controller: nvme ana-log" $? "$(cat /tmp/ana)"
    states=$(sed -n 's/.*"state" *: *"\([a-z-]*\)".*/\1/p' /tmp/ana | tr '\n' ' ')
    expect "$controller: every group is optimized" "optimized " "$states"
    expect "$controller: the kernel knows the state of each namespace" "optimized optimized" \
        "$(cat $(find /sys/devices -path "*/$controller/*" -name ana_state) | tr '\n' ' ' | sed 's/ $//')"
done
set -- $(devices_of $nqn); device=$1 second=$2
store_and_load 0
verdict "a value is stored and loaded" $? "($status; $(cat /tmp/err))"

fails_over "portal 0 is gone" 0 down up 1
fails_over "portal 1 is gone" 1 down up 11
if [ $deep = 1 ]; then
    fails_over "portal 0 is silent" 0 silent heard 21
    fails_over "portal 1 is silent" 1 silent heard 31
    for round in 4 5 6 7; do
        fails_over "portal 0 is gone again" 0 down up ${round}1
        fails_over "portal 1 is gone again" 1 down up ${round}6
    done
fi
echo "driver counted 2 2"

# Volumes come and go while the host is connected: the namespaces follow, by the event alone.
value 3000 99 /tmp/value99
put $second 6e6577 /tmp/value99
expect "the second volume takes a value" 000 $status
nsid=$(nsid_of $second)
volumes=1
echo "driver delete"
within 20 has_devices $nqn
verdict "a volume that is deleted: its device goes" $? "$(ls /dev/ng*; dmesg | tail -5)"
expect "a volume that is deleted: the other one stays" "$device" "$(devices_of $nqn)"
store_and_load 1
verdict "a volume that is deleted: the other one serves" $? "($status)"
volumes=2
echo "driver create"
within 20 has_devices $nqn
verdict "a volume that is created: its device comes" $? "$(ls /dev/ng*; dmesg | tail -5)"
set -- $(devices_of $nqn); second=$2
expect "a volume that returns has its namespace" $nsid "$(nsid_of $second)"
get $second 6e6577 3000
[ $status = 000 ] && cmp -s /tmp/value99 /tmp/out
verdict "a volume that returns has its values" $? "($status)"
echo "driver reset"
is_reset()
{
    has_devices $nqn && set -- $(devices_of $nqn) && [ "$(nsid_of $2)" != $nsid ]
}
within 20 is_reset
verdict "a volume that is reset: another namespace" $? "$(ls /dev/ng*; dmesg | tail -5)"
set -- $(devices_of $nqn); second=$2
get $second 6e6577 3000
expect "a volume that is reset: nothing of before" $key_missing $status
put $second 6e6577 /tmp/value99
expect "a volume that is reset takes values" 000 $status
expect "the first volume keeps its device" "$device" "$1"
store_and_load 2
verdict "the first volume serves" $? "($status)"
expect "no controller was reset for it" "live live" \
    "$(cat /sys/class/nvme/$(controller_at $port_0)/state) $(cat /sys/class/nvme/$(controller_at $port_1)/state)"
nvme disconnect -n $nqn > /dev/null
verdict "disconnect" $?
exit $((failures > 0))
