# SPDX-License-Identifier: Apache-2.0
#
# What runs in the guest for test/interop/ktls.py --cost, behind common.sh and ktls_pod.sh: a
# nanosecond of processor time is an instruction.

bytes=2000000
values=4 loads=24

# begin REQUIRE: a target with values of which the agent can keep one or two.
begin()
{
    local i
    pod_begin $1 4MiB
    for i in $(seq 0 $((values - 1))); do
        /t/icms put --on-flash -d 60s key$i value > put.log 2>&1 || verdict "put" 1 "$(cat put.log)"
    done
}

# Processor time of both daemons so far, in ticks of 10 ms.
spent()
{
    cat /proc/$target/stat /proc/$agent/stat | sed 's/.*) //' | awk '{ sum += $12 + $13 } END { print sum }'
}

# cost NAME REQUIRE RECORDS: instructions a byte of loads, by records as the agent calls them.
cost()
{
    local before after i wrong=
    begin $2
    before=$(spent)
    for i in $(seq $loads); do
        /t/icms get -d 60s key$((i % values)) > back && cmp -s back value || wrong="$wrong load $i"
    done
    after=$(spent)
    wget -q -O - http://127.0.0.1:9421/status > status
    grep -q "\"tls\": *\"$3\"" status || wrong="$wrong other records: $(cat status)"
    grep -q '"hits": *{"dram": *[0-2],' status || wrong="$wrong in memory: $(cat status)"
    [ -z "$wrong" ]
    verdict "$1" $? "$wrong"
    awk "BEGIN { printf \"   %.2f instructions a byte\n\", ($after - $before) * 1e7 / ($bytes * $loads) }"
    kill $agent && wait $agent
    kill $target && wait $target
}

head -c $bytes /dev/urandom > value

cost "without TLS" none none
cost "OpenSSL's records" tls openssl
modprobe tls
cost "the kernel's records" tls kernel
exit $((failures > 0))
