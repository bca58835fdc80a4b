# SPDX-License-Identifier: Apache-2.0
#
# What runs in the guest for test/interop/ktls.py --cost, behind common.sh: programs of this build lie in
# /t, and a nanosecond of processor time is an instruction.

nqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
bytes=2000000
values=4 loads=24

# ready LOG: until a daemon says so.
ready()
{
    local tries=300
    until grep -qs ' ready ' $1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { verdict "start" 1 "$(tail -3 $1)"; exit 1; }
        sleep 0.1
    done
}

# begin REQUIRE: a target with values of which the agent can keep one or two.
begin()
{
    cat > target.yaml << END
name: e0
require: $1
hosts: [{nqn: '$nqn', psks: [/tmp/pod/host.psk]}]
drives: [{path: /tmp/pod/drive, size: 128MiB}]
segment: 16MiB
memory: 64MiB
connections_max: 32
volumes: [{name: kv, value_max: 2MiB}]
END
    cat > agent.yaml << END
name: a0
host_nqn: $nqn
socket: /tmp/pod/agent.sock
$([ $1 = tls ] && echo 'psk: /tmp/pod/host.psk')
require: $1
memory: 4MiB
load_deadline: 20s
store_deadline: 20s
silence: 10s
connect_timeout: 20s
enclosures: [{name: e0, address: '127.0.0.1:4420'}]
volumes: [{name: kv, value_max: 2MiB}]
END
    rm -f target.log agent.log
    /t/icms-target --config target.yaml --format all > target.log 2>&1 &
    target=$!
    ready target.log
    /t/icms-agent --config agent.yaml > agent.log 2>&1 &
    agent=$!
    ready agent.log
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

for module in aesni-intel gcm ctr; do # the kernel of this guest cannot load them by itself
    modprobe $module
done
ip link set lo up
mkdir -p /var/tmp /tmp/pod
cd /tmp/pod
/t/icms key gen --type tls --hash sha384 host.psk
head -c $bytes /dev/urandom > value
export ICMS_OPEN=unix:/tmp/pod/agent.sock ICMS_VOLUME=kv

cost "without TLS" none none
cost "OpenSSL's records" tls openssl
modprobe tls
cost "the kernel's records" tls kernel
exit $((failures > 0))
