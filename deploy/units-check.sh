#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# units-check.sh FILE...: service files pass systemd's own check, with an exposure that stays low; no
# unit has drives that are not its own, and rules pass udev's check. Skipped (77) where systemd is
# not installed.
set -euo pipefail
for file; do
    # The group of all drives, or a class of devices.
    if grep -HnE '^SupplementaryGroups=.*\bdisk\b|^DeviceAllow=(block|char)-|GROUP="disk"' "$file"; then
        exit 1
    fi
    if [[ $file == *.service ]] && ! grep -qE '^(DevicePolicy=closed|PrivateDevices=yes)$' "$file"; then
        echo "$file: all devices"
        exit 1
    fi
done
command -v systemd-analyze > /dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for unit; do
    if [[ $unit == *.rules ]]; then
        # systemd 254 has the check.
        if udevadm verify --help > /dev/null 2>&1; then
            udevadm verify --resolve-names=never --no-style "$unit" ||
                udevadm verify --resolve-names=never "$unit"
        fi
        continue
    fi
    # Programs and pages need not be installed here.
    sed -e 's,^ExecStart=[^ ]*,ExecStart=/bin/true,' -e '/^Documentation=/d' "$unit" \
        > "$folder/${unit##*/}"
    systemd-analyze verify --man=no "$folder/${unit##*/}" 2> "$folder/said" || true
    if grep -F "${unit##*/}" "$folder/said"; then
        exit 1
    fi
    systemd-analyze security --offline=true --threshold=30 --no-pager "$folder/${unit##*/}" \
        > "$folder/security" || { cat "$folder/security"; exit 1; }
done
