#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""icms beside other programs that can be installed here: `make bench-peers`.

Installs each peer into BUILD/peers, plays its matches (bench/peers/match.py), leaves the rows in
bench/results/peers-NAME.jsonl, and makes doc/peers.md of all these files, so that one peer can be
measured again alone. A peer that cannot be installed or fails is a line with the reason.

usage: bench_peers.py [--slices N] [--slice TIME] [--space SIZE] [--sizes SIZE,...] [PEER ...]
       bench_peers.py --report     only write the document
       bench_peers.py --list       the peers, and what each is
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT / "tools"))
import bench  # noqa: E402
import icms_wheel  # noqa: E402
import peers  # noqa: E402
from peers import match, report  # noqa: E402

UNITS = {"ms": 1e-3, "s": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def quantity(text):
    """A size in bytes or a time in seconds, of "256KiB" or "500ms"."""
    found = re.fullmatch(r"(\d+)(ms|s|KiB|MiB|GiB)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is no size or time, as 256KiB or 500ms")
    return int(found.group(1)) * UNITS[found.group(2)]


def sizes(text):
    return [quantity(one) for one in text.split(",")]


# ---- installing ---------------------------------------------------------------------------------

def why_not(error):
    """One line of an exception, with what a program said before it failed."""
    said = getattr(error, "stderr", None) or ""
    return " ".join(f"{error} {said}".split())[-400:]


def install(peer, folder):
    """Installs a peer unless a run before did. Returns why that is not possible, or None."""
    done = folder / ".installed"
    if peer.INSTALL is None or done.exists():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        peer.INSTALL(folder)
    except Exception as error:  # whatever an installer raises is why there is no such peer here
        return why_not(error)
    done.touch()
    return None


def python_of(peer, folder):
    """The interpreter of a peer's worker: that of its virtual environment, if it has one."""
    own = folder / "venv/bin/python"
    return own if own.exists() else sys.executable


# ---- running ------------------------------------------------------------------------------------

def plans(name, arguments, icms):
    """What to play against a peer: one match for each size."""
    peer, folder = peers.peer(name), arguments.build / "peers" / peers.folder(name)
    for size in arguments.sizes:
        yield types.SimpleNamespace(
            peer=name, size=size, count=max(int(arguments.space) // size, 32),
            slices=arguments.slices, seconds=arguments.slice, run=arguments.dir / "peers-run",
            build=arguments.build, installed=folder, python=python_of(peer, folder),
            icms_path=icms.path, python_icms=icms.python)


def run_peer(name, arguments, icms):
    """Plays all matches of a peer and writes its file. Returns whether all went well."""
    peer = peers.peer(name)
    head = {
        "peer": name, "title": peer.TITLE, "class": peer.CLASS, "checks": peer.CHECKS,
        "acknowledged": peer.ACKNOWLEDGED, "page_cache": peer.PAGE_CACHE,
        **bench.conditions(arguments.dir),
        "slices": arguments.slices, "slice_s": arguments.slice, "space": int(arguments.space),
        "versions": {},
    }
    begin, rows = time.monotonic(), []
    print(f"{name}: installing", flush=True)
    reason = install(peer, arguments.build / "peers" / peers.folder(name))
    if reason is not None:
        head["not_measured"] = f"could not be installed: {reason}"
    for plan in [] if reason is not None else plans(name, arguments, icms):
        print(f"{name}: objects of {bench.size_text(plan.size)}", flush=True)
        try:
            versions, some = match.play(plan)
            head["versions"].update(versions)
            rows += some
        except match.Failed as error:
            rows.append({"op": "failed", "size_bytes": plan.size, "why": str(error)[:600]})
    head |= {"load_after": os.getloadavg()[0], "took_s": round(time.monotonic() - begin)}
    lines = [json.dumps(line) for line in [head, *rows]]
    (arguments.results / f"peers-{name}.jsonl").write_text("\n".join(lines) + "\n")
    for line in [head.get("not_measured")] + [row.get("why") for row in rows]:
        if line:
            print(f"{name}: {line}", file=sys.stderr)
    return "not_measured" not in head and all(row["op"] != "failed" for row in rows)


def icms_package(build):
    """The package icms for the workers: where it is, and the interpreter it was made with. It is
    made again when the library or a source is newer."""
    python, folder = icms_wheel.interpreter(), build / "peers/icms"
    inputs = [build / "src/client/libicms.a", *(ROOT / "python/src").iterdir(),
              *(ROOT / "python/icms").glob("*.py")]
    built = folder / "site/icms"
    if not built.exists() or \
            built.stat().st_mtime < max(path.stat().st_mtime for path in inputs):
        icms_wheel.make(python, build, folder)
    return types.SimpleNamespace(python=python, path=folder / "site")


def main():
    parser = argparse.ArgumentParser(usage=__doc__[__doc__.index("usage:") + 7:])
    parser.add_argument("--build", default=ROOT / "build", type=pathlib.Path)
    parser.add_argument("--slices", default=6, type=int)
    parser.add_argument("--slice", default="500ms", type=quantity)
    parser.add_argument("--space", default="2GiB", type=quantity)
    parser.add_argument("--sizes", default="256KiB,1MiB,4MiB", type=sizes)
    parser.add_argument("--dir", default=None, type=pathlib.Path)
    parser.add_argument("--results", default=ROOT / "bench/results", type=pathlib.Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()

    if arguments.list:
        for name in peers.NAMES:
            print(f"{name:<14} {peers.peer(name).TITLE}")
        return
    arguments.build = arguments.build.resolve()
    arguments.dir = (arguments.dir or arguments.build).resolve()
    names = arguments.names or peers.NAMES
    for name in names:
        if name not in (*peers.NAMES, "fake"):
            sys.exit(f"bench_peers.py: there is no peer '{name}'; there are {' '.join(peers.NAMES)}")
    failed = []
    if not arguments.report:
        icms = icms_package(arguments.build)
        failed = [name for name in names if not run_peer(name, arguments, icms)]
    document = arguments.results.parent / "peers.md"
    causes = arguments.results / "peers-causes.md"
    shown = names if "fake" in names else peers.NAMES  # a test's document has no others
    document.write_text(report.document(
        [arguments.results / f"peers-{name}.jsonl" for name in shown],
        causes.read_text() if causes.exists() else ""))
    print(f"{document}: written")
    if failed:
        sys.exit(f"bench_peers.py: not whole, the document says why: {' '.join(failed)}")


if __name__ == "__main__":
    main()
