# SPDX-License-Identifier: Apache-2.0
#
# What the Linux guest does with enclosures that want it to authenticate: the kernel's own
# DH-HMAC-CHAP over stock nvme-cli.
#
# test/interop/auth.py puts assignments and common.sh before this text:
#   hostnqn             who we are
#   right wrong answer  DHHC-1 secrets: of this host, of nobody, of the enclosures
#   enclosures          lines "NAME NQN PORT": the enclosures, at 10.0.2.2
# It prints "ok NAME" or "not ok NAME".

accepted()
{
    local name=$1 nqn=$2 port=$3
    shift 3
    connected "$name" $nqn $port 100 "$@"
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
