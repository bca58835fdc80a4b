# SPDX-License-Identifier: Apache-2.0
"""A small NVMe/TCP host for attacks: it sends what it is told, right or wrong, and returns statuses.

    admin = Queue(port, host, subsystem)            # Connect; raises Refused with its status
    admin.enable()
    io = Queue(port, host, subsystem, qid=1, cntlid=admin.cntlid)
    status, data = io.command(EXIST, nsid=1, key=b"key")
"""
import socket
import struct

STORE, RETRIEVE, LIST, DELETE, EXIST = 0x01, 0x02, 0x06, 0x10, 0x14
ICMS_RETRIEVE, ICMS_EXIST_MANY, ICMS_STORE, ICMS_DELETE, FLUSH = 0x82, 0x81, 0x85, 0x84, 0x00
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
NAMESPACE, CONNECT_PARAM, AUTH_REQUIRED, NO_KEY = 0x00b, 0x182, 0x191, 0x087
HOST_ID = b"\x11" * 16


class Refused(Exception):
    """Connect failed; .answer is (status, dw0)."""

    def __init__(self, status, dw0):
        super().__init__(f"status {status:#x}, dw0 {dw0:#x}")
        self.answer = (status, dw0)


def sqe(opcode, cid, nsid=0, length=0, in_capsule=False, key=b"", **dwords):
    """A submission queue entry; dwords: cdw10 and so on; key: of the KV command set."""
    entry = bytearray(64)
    struct.pack_into("<BBHI", entry, 0, opcode, 0x40, cid, nsid)
    if length:
        struct.pack_into("<QI", entry, 24, 0, length)
        entry[39] = 0x01 if in_capsule else 0x5a
    if key:
        padded = key.ljust(16, b"\0")
        entry[8:16], entry[56:64] = padded[:8], padded[8:]
        entry[44] = len(key)
    for name, value in dwords.items():
        struct.pack_into("<I", entry, 40 + 4 * (int(name[3:]) - 10), value)
    return bytes(entry)


class Queue:
    """One queue pair on a connection of its own. stream: a connected socket to use instead."""

    def __init__(self, port, host, subsystem, qid=0, cntlid=0xffff, host_id=HOST_ID, stream=None):
        self.stream = stream or socket.create_connection(("127.0.0.1", port), timeout=20)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.cid = 0
        self.stream.sendall(struct.pack("<BBBBI", 0, 0, 128, 0, 128).ljust(128, b"\0"))
        answer = self.receive(128)
        if answer[:1] != b"\1":
            raise EOFError(answer)
        data = host_id + struct.pack("<H", cntlid)
        data = data.ljust(256, b"\0") + subsystem.encode().ljust(256, b"\0")
        data = (data + host.encode()).ljust(1024, b"\0")
        status, dw0, _ = self.send(sqe(0x7f, 1, 1, 1024, True, cdw10=qid << 16, cdw11=31), data)
        if status != 0:
            self.stream.close()
            raise Refused(status, dw0)
        self.dw0, self.cntlid = dw0, dw0 & 0xffff

    def receive(self, count):
        data = b""
        while len(data) < count:
            piece = self.stream.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def send(self, entry, data=b""):
        """Sends a capsule; returns (status, dw0, data) of its end."""
        head = struct.pack("<BBBBI", 4, 0, 72, 72 if data else 0, 72 + len(data))
        self.stream.sendall(head + entry + data)
        came = b""
        while True:
            kind, flags, header, offset, whole = struct.unpack("<BBBBI", self.receive(8))
            rest = self.receive(whole - 8)
            if kind == 5:
                return struct.unpack_from("<H", rest, 14)[0] >> 1 & 0x7ff, \
                    struct.unpack_from("<I", rest)[0], came
            if kind != 7:
                raise EOFError(f"PDU {kind}")
            came += rest[offset - 8:]
            if flags & 0x08:  # the data's end is the command's end
                return 0, 0, came

    def command(self, opcode, nsid=0, key=b"", length=0, data=b"", **dwords):
        """(status, data) of a command; data travels in its capsule."""
        self.cid = self.cid % 60000 + 2
        entry = sqe(opcode, self.cid, nsid, len(data) or length, bool(data), key, **dwords)
        status, _, came = self.send(entry, data)
        return status, came

    def property(self, offset, value):
        entry = sqe(0x7f, 2, 0, cdw11=offset, cdw12=value)
        return self.send(entry)[0]

    def enable(self):
        status = self.property(0x14, 0x460061)
        assert status == 0, hex(status)
        return self

    def identify(self, cns, nsid=0, csi=0):
        return self.command(0x06, nsid, length=4096, cdw10=cns, cdw11=csi << 24)

    def log(self, page, length):
        return self.command(0x02, 0xffffffff, length=length,
                            cdw10=page | (length // 4 - 1) << 16)

    def close(self):
        self.stream.close()


def every_command(queue, nsid):
    """[(name, status, data)] of each command that names a namespace, on an I/O queue."""
    key, value = b"0123456789abcdef", b"v" * 256
    many = key + struct.pack("<I", len(key))
    return [
        ("exist", *queue.command(EXIST, nsid, key)),
        ("retrieve", *queue.command(RETRIEVE, nsid, key, 4096, cdw10=4096)),
        ("store", *queue.command(STORE, nsid, key, data=value, cdw10=len(value))),
        ("list", *queue.command(LIST, nsid, b"", 4096, cdw10=4096)),
        ("delete", *queue.command(DELETE, nsid, key)),
        ("flush", *queue.command(FLUSH, nsid)),
        ("timed retrieve", *queue.command(ICMS_RETRIEVE, nsid, key, 4096, cdw10=4096)),
        ("timed store", *queue.command(ICMS_STORE, nsid, key, data=value, cdw10=len(value))),
        ("exist many", *queue.command(ICMS_EXIST_MANY, nsid, data=many, cdw10=1)),
        ("delete a record", *queue.command(ICMS_DELETE, nsid, key, cdw12=1)),
    ]


def every_page(admin, nsid):
    """[(name, status, data)] of each admin command that names a namespace."""
    pages = [(f"identify {cns:#x}", *admin.identify(cns, nsid, csi))
             for cns in (0x00, 0x03, 0x05, 0x08) for csi in (0, 1)]
    feature = admin.command(0x0a, nsid, cdw10=0x20)
    return pages + [("get feature", *feature), ("set feature", *admin.command(0x09, nsid, cdw10=0x20,
                                                                              cdw11=1))]
