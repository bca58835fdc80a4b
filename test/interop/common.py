# SPDX-License-Identifier: Apache-2.0
"""What the judges with a Linux guest have in common: keys, scripts, the guest and its cases."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

ADDRESS = "10.0.2.2"  # this machine's 127.0.0.1, seen from the guest
HOST_ID = "11111111-2222-4333-8444-555555555555"
HOST = f"nqn.2014-08.org.nvmexpress:uuid:{HOST_ID}"


def make_key(build, folder, name, *options):
    """A file with a new key, by icms key gen."""
    path = folder / name
    subprocess.run([build / "cmd/icms", "key", "gen", *options, path], check=True,
                   stdout=subprocess.DEVNULL)
    return path


def guest_script(*names, **assignments):
    """The text for the guest: assignments, common.sh, and the scripts of these names."""
    lines = [f"{key}='{value}'" for key, value in assignments.items()]
    texts = [(ROOT / "test/interop" / part).read_text() for part in ("common.sh", *names)]
    return "\n".join(lines + texts)


def run_guest(folder, script, seconds, obey=None, options=()):
    """Boots the guest and returns (its exit status, how many cases were ok, and not ok).

    obey gets the words behind "driver" that the guest says; false: a case of its own failed.
    """
    path = folder / "guest.sh"
    path.write_text(script)
    command = [ROOT / "tools/guest/run.sh", "-t", str(seconds), "-c", folder / "console", *options, path]
    counts = {"ok": 0, "not": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as guest:
        for line in guest.stdout:
            print(line, end="", flush=True)
            words = line.split()
            if words[:1] == ["driver"]:
                counts["not"] += not obey(*words[1:])
            elif words and words[0] in counts:
                counts[words[0]] += 1
    return guest.returncode, counts["ok"], counts["not"]


def end_well(targets):
    """After all this the targets have to be alive, and to end with status 0 when asked to: under
    sanitizers that also says that nothing leaked."""
    good = True
    for target in targets:
        status = target.process.poll()
        alive = status is None
        if alive:
            status = target.stop(seconds=60)
        print(f"{'ok' if alive else 'not ok'} {target.name} is still running")
        print(f"{'ok' if status == 0 else 'not ok'} {target.name} ends when asked ({status})")
        if status != 0:
            print(target.log_tail())
        good = good and alive and status == 0
    return good


def verdict(guest, good):
    """Says how the guest ended; the exit status of the program. good: what was judged outside of it."""
    status, passed, failed = guest
    print(f"guest: exit status {status}, {passed} ok, {failed} not ok")
    return 0 if status == 0 and passed > 0 and failed == 0 and good else 1
