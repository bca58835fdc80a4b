# SPDX-License-Identifier: Apache-2.0
#
# What runs in the guest for test/interop/ktls.py, behind common.sh and ktls_pod.sh.

# unit NAME: a program of unit tests; the kernel has to have had a part in it.
unit()
{
    local before=$(kernel_keys)
    /t/$1 > /tmp/$1.log 2>&1
    verdict "$1" $? "$(grep -E 'FAILED|ERROR|LINE' /tmp/$1.log | head -5)"
    [ "$(kernel_keys)" -gt "$before" ]
    verdict "$1 uses kTLS" $? "($(kernel_keys) connections)"
}

modprobe tls
unit net_test
unit net_tls_test

pod_begin tls 64MiB

wrong=
for bytes in 1 4096 65537 2000000; do
    head -c $bytes /dev/urandom > value.$bytes
    /t/icms put --on-flash -d 60s key$bytes value.$bytes > put.log 2>&1 || wrong="$wrong put:$bytes"
done
[ -z "$wrong" ]
verdict "a pod with kTLS stores" $? "($wrong $(cat put.log) $(tail -2 agent.log))"
kill $agent && wait $agent
agent_begin # what it had in memory is gone
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
