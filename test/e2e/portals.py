#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An enclosure with several addresses.

Goal: it starts with all of its portals or not at all, shows them, and serves the others when the machine
loses an address, which it serves again when that is back.
Method: real enclosures in a network of their own, whose addresses come and go; hosts that say ICReq, and one that
reads the discovery log.

usage: portals.py BUILD_ROOT
"""
import json
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
from judge import expect, own_network  # noqa: E402

BUILD = pathlib.Path(sys.argv[1])
ADDRESSES = ["10.77.0.1", "10.77.0.2"]
FOREIGN = "10.77.9.9"
VOLUMES = [{"name": "kv", "value_max": "64KiB"}]
IC_REQ = bytes([0, 0, 128, 0, 128, 0, 0, 0]) + bytes(120)


def ip(*words):
    subprocess.run(["ip", *words], check=True, timeout=60)


def host(address, port):
    """A connection that ICResp answered; None: there is none."""
    try:
        sock = socket.create_connection((address, port), timeout=5)
    except OSError:
        return None
    sock.sendall(IC_REQ)
    answer = sock.recv(128, socket.MSG_WAITALL)
    if len(answer) != 128 or answer[0] != 1:
        sys.exit(f"not ok ICResp of {address}: {answer}")
    return sock


def command(sock, opcode, sgl_type, data=b"", room=0, **fields):
    """An NVMe command and its answer, room bytes of data or a completion. fields: atOFFSET=(format, value)."""
    sqe = bytearray(64)
    struct.pack_into("<BBH", sqe, 0, opcode, 0x40, 1)
    struct.pack_into("<QI3xB", sqe, 24, 0, len(data) or room, sgl_type)
    for at, (form, value) in fields.items():
        struct.pack_into(form, sqe, int(at[2:]), value)
    sock.sendall(struct.pack("<BBBBI", 4, 0, 72, 72 if data else 0, 72 + len(data)) + sqe + data)
    got = b""
    while room > len(got):
        header = sock.recv(24, socket.MSG_WAITALL)
        if header[0] != 7:
            sys.exit(f"not ok command {opcode}: {header}")
        got += sock.recv(struct.unpack_from("<I", header, 4)[0] - 24, socket.MSG_WAITALL)
    if room == 0:
        got = sock.recv(24, socket.MSG_WAITALL)
        if got[0] != 5 or struct.unpack_from("<H", got, 22)[0] >> 1 != 0:
            sys.exit(f"not ok command {opcode}: {got}")
    return got


def discovered(address, port):
    """(port id, address:port) of each entry of the discovery log, as it is read there."""
    sock = host(address, port)
    names = bytes(16) + b"\xff\xff" + bytes(238) + b"nqn.2014-08.org.nvmexpress.discovery".ljust(256, b"\0") + \
        b"nqn.2026-01.io.icms:host".ljust(512, b"\0")
    names = b"host id, 16 byte" + names[16:]
    command(sock, 0x7f, 1, names, at4=("<B", 1), at44=("<H", 31))
    command(sock, 0x7f, 0x5a, at4=("<B", 0), at44=("<I", 0x14), at48=("<Q", 0x460001))
    log = command(sock, 2, 0x5a, room=16384, at40=("<I", 0x70 | 4095 << 16))
    sock.close()
    entries = [log[1024 * (i + 1):1024 * (i + 2)] for i in range(struct.unpack_from("<Q", log, 8)[0])]
    return {(struct.unpack_from("<H", entry, 4)[0],
             f"{entry[512:768].strip(bytes(1) + b' ').decode()}:{entry[32:64].strip(bytes(1) + b' ').decode()}")
            for entry in entries}


def portals(target):
    return [tuple(portal.values()) for portal in json.loads(target.get("/status")[1])["portals"]]


def within(what, truth, seconds=20):
    end = time.monotonic() + seconds
    while not truth():
        expect(what, time.monotonic() < end)
        time.sleep(0.05)
    expect(what, True)


def refused(p, name, what, listen, *words):
    """It ends with status 1 and says why, and does not listen."""
    target = p.add_target(name, 1, "64MiB", VOLUMES, segment="1MiB", memory="16MiB", require="none",
                          listen=listen, advertise=listen)
    status = target.process.wait(timeout=60)
    said = target.log_tail()
    expect(f"{what} is refused", status == 1 and all(word in said for word in words), said)


def main():
    own_network(*ADDRESSES)
    port, other = pod.free_port(), pod.free_port()
    both = [f"{address}:{port}" for address in ADDRESSES]
    with tempfile.TemporaryDirectory(prefix="icms-") as folder, pod.Pod(BUILD, folder) as p:
        target = p.add_target("enclosure0", 1, "64MiB", VOLUMES, segment="1MiB", memory="16MiB",
                              require="none", listen=f"[{', '.join(both)}]",
                              advertise=f"[{', '.join(both)}]")
        target.wait_ready()
        said = target.log_path.read_text()
        expect("the ready line has every portal", f"ready nvme={','.join(both)} " in said, said)
        seen = [discovered(address, port) for address in ADDRESSES]
        expect("discovery lists every portal", seen == [{(1, both[0]), (2, both[1])}] * 2, seen)
        within("discovery ends", lambda: [count for _, count in portals(target)] == [0, 0])
        hosts = [host(ADDRESSES[0], port), host(ADDRESSES[1], port), host(ADDRESSES[1], port)]
        expect("every portal answers", None not in hosts)
        expect("/status counts their connections", portals(target) == [(both[0], 1), (both[1], 2)],
               portals(target))
        metrics = target.metrics()
        expect("/metrics counts them", [metrics[f'icms_target_portal_connections{total}{{portal="{text}"}}']
                                       for total in ("", "_total") for text in both] == [1, 2, 2, 3])
        hosts[2].close()
        within("a connection that ends is not counted", lambda: portals(target)[1][1] == 1)

        ip("address", "del", f"{ADDRESSES[1]}/32", "dev", "lo")
        expect("an address that is gone does not answer", host(ADDRESSES[1], port) is None)
        expect("the other one does", host(ADDRESSES[0], port) is not None)
        expect("the enclosure is ready", target.get("/readyz")[0] == 200)
        within("connections through it end", lambda: portals(target)[1][1] == 0)
        ip("address", "add", f"{ADDRESSES[1]}/32", "dev", "lo")
        expect("an address that is back answers", host(ADDRESSES[1], port) is not None)

        refused(p, "enclosure1", "an address that is taken", f"[{ADDRESSES[0]}:{other}, {both[1]}]",
                f"cannot listen on {both[1]}", "Address already in use")
        expect("the portal that was free is free again", host(ADDRESSES[0], other) is None)
        refused(p, "enclosure2", "an address that is not here", f"[{ADDRESSES[0]}:{other}, {FOREIGN}:{other}]",
                f"cannot listen on {FOREIGN}:{other}", "choose an address of this machine")
        status = target.stop()
        expect("it ends when asked", status == 0, target.log_tail())
        everywhere = p.add_target("enclosure3", 1, "64MiB", VOLUMES, segment="1MiB", memory="16MiB",
                                  require="none", listen=f"0.0.0.0:{other}", advertise=f"0.0.0.0:{other}")
        everywhere.wait_ready()
        for address in ADDRESSES:
            seen = discovered(address, other)
            expect("a wildcard is the address that the host connected to", seen == {(1, f"{address}:{other}")}, seen)


if __name__ == "__main__":
    main()
