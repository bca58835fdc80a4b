# SPDX-License-Identifier: Apache-2.0
#
# What runs in the guest for test/interop/ktls.py, behind common.sh: programs of this build lie in /t.

# unit NAME: a program of unit tests; the kernel has to have had a part in it.
unit()
{
    local before=$(kernel_keys)
    /t/$1 > /tmp/$1.log 2>&1
    verdict "$1" $? "$(grep -E 'FAILED|ERROR|LINE' /tmp/$1.log | head -5)"
    [ "$(kernel_keys)" -gt "$before" ]
    verdict "$1 uses kTLS" $? "($(kernel_keys) connections)"
}

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

for module in tls aesni-intel gcm ctr; do # the kernel of this guest cannot load them by itself
    modprobe $module
done
ip link set lo up
mkdir -p /var/tmp /tmp/pod
cd /tmp/pod

unit net_test
unit net_tls_test

nqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555
/t/icms key gen --type tls --hash sha384 host.psk
cat > target.yaml << END
name: e0
require: tls
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
psk: /tmp/pod/host.psk
require: tls
memory: 64MiB
load_deadline: 20s
store_deadline: 20s
silence: 10s
connect_timeout: 20s
enclosures: [{name: e0, address: '127.0.0.1:4420'}]
volumes: [{name: kv, value_max: 2MiB}]
END
/t/icms-target --config target.yaml --format all > target.log 2>&1 &
target=$!
ready target.log
/t/icms-agent --config agent.yaml > agent.log 2>&1 &
agent=$!
ready agent.log
export ICMS_OPEN=unix:/tmp/pod/agent.sock ICMS_VOLUME=kv

wrong=
for bytes in 1 4096 65537 2000000; do
    head -c $bytes /dev/urandom > value.$bytes
    /t/icms put --on-flash -d 60s key$bytes value.$bytes > put.log 2>&1 || wrong="$wrong put:$bytes"
done
[ -z "$wrong" ]
verdict "a pod with kTLS stores" $? "($wrong $(cat put.log) $(tail -2 agent.log))"
kill $agent && wait $agent
rm agent.log # else ready() may read what the first one said
/t/icms-agent --config agent.yaml > agent.log 2>&1 & # what it had in memory is gone
agent=$!
ready agent.log
wrong=
for bytes in 1 4096 65537 2000000; do
    /t/icms get -d 60s key$bytes > back 2> get.log && cmp -s back value.$bytes ||
        wrong="$wrong get:$bytes"
done
[ -z "$wrong" ]
verdict "a pod with kTLS loads what it stored" $? "($wrong $(cat get.log) $(tail -2 agent.log))"
wget -q -O - http://127.0.0.1:9421/status | grep -q '"tls": *"kernel"'
verdict "the agent says that the kernel makes the records" $? "$(wget -q -O - http://127.0.0.1:9421/status)"
wget -q -O - http://127.0.0.1:9420/metrics > metrics
grep -q 'icms_target_tls_connections{records="kernel"} [1-9]' metrics
verdict "so does the target" $? "$(grep tls metrics)"
kill $agent && wait $agent
verdict "the agent ends" $? "$(tail -3 agent.log)"
kill $target && wait $target
verdict "the target ends" $? "$(tail -3 target.log)"
exit $((failures > 0))
