# SPDX-License-Identifier: Apache-2.0
#
# What the guest does for test/interop/ktls.py first, behind common.sh: a target and an agent of this build,
# whose programs lie in /t, with TLS between them or without.

nqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555

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

# pod_begin REQUIRE MEMORY: starts both; the agent has so much memory.
pod_begin()
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
memory: $2
load_deadline: 20s
store_deadline: 20s
silence: 10s
connect_timeout: 20s
enclosures: [{name: e0, address: '127.0.0.1:4420'}]
volumes: [{name: kv, value_max: 2MiB}]
END
    rm -f target.log # else ready() may read what the last one said
    /t/icms-target --config target.yaml --format all > target.log 2>&1 &
    target=$!
    ready target.log
    agent_begin
}

agent_begin()
{
    rm -f agent.log
    /t/icms-agent --config agent.yaml > agent.log 2>&1 &
    agent=$!
    ready agent.log
}

for module in aesni-intel gcm ctr; do # the kernel of this guest cannot load them by itself
    modprobe $module
done
ip link set lo up
mkdir -p /var/tmp /tmp/pod
cd /tmp/pod
/t/icms key gen --type tls --hash sha384 host.psk
export ICMS_OPEN=unix:/tmp/pod/agent.sock ICMS_VOLUME=kv
