# SPDX-License-Identifier: Apache-2.0
"""Processor time of a process and of all that it started, now or before.

A process' own clock has nanoseconds; what it waited for and is gone comes from /proc, in ticks.
What the kernel does in threads of its own (writing back the page cache) is nobody's here.
"""
import os
import pathlib
import time

TICK = os.sysconf("SC_CLK_TCK")


def _stat(pid):
    """The fields of /proc/PID/stat behind the name; None when it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def tree(root):
    """The pids of root and of all its descendants."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(entry.name)):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def seconds(pids):
    """User and system time of these processes and of their children that are gone."""
    total = 0.0
    for pid in pids:
        fields = _stat(pid)
        if fields is None:
            continue  # the caller notices by what no longer works
        total += (int(fields[13]) + int(fields[14])) / TICK
        try:
            total += time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, SCHED)
        except OSError:
            pass
    return total
