#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seed corpus of the fuzzers from the byte layouts.  seeds.py [DIRECTORY]

Files that a fuzzer found later may lie beside them; this writes its own files only.
"""
import os
import struct
import sys

TOP = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), 'corpus')


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def put(fuzzer, name, data):
    os.makedirs(os.path.join(TOP, fuzzer), exist_ok=True)
    with open(os.path.join(TOP, fuzzer, name), 'wb') as file:
        file.write(data)


def sqe(opcode, nsid=1, key=b'', cdw=(0,) * 6, sgl=(0, 0, 0x5a), flags=0x40):
    key = key.ljust(16, b'\0')
    cdw = list(cdw)
    if key.strip(b'\0'):
        cdw[4], cdw[5] = struct.unpack('<II', key[8:])
    return (struct.pack('<BBHI', opcode, flags, 7, nsid) + key[:8] + bytes(8) +
            struct.pack('<QI3xB', *sgl) + struct.pack('<6I', *cdw))


def pdu(kind, header, data=b'', digests=0, flags=0, pdo=None):
    head = 8 + len(header)
    if digests & 1:
        head += 4
    flags |= digests & 1 | (2 if data and digests & 2 else 0)
    plen = head + len(data) + (4 if flags & 2 else 0)
    out = struct.pack('<BBBBI', kind, flags, 8 + len(header), head if data else 0, plen) + header
    if digests & 1:
        out += struct.pack('<I', crc32c(out))
    out += data
    if flags & 2:
        out += struct.pack('<I', crc32c(data))
    return out


def page(parts, size=4096):
    out = bytearray(size)
    for at, data in parts:
        out[at:at + len(data)] = data
    return bytes(out)


def kv():
    key = b'abcdefghijklmnop'
    for name, opcode, cdw in (('store', 1, (4097, 0x0210, 0, 0, 0, 0)), ('retrieve', 2, (8192, 0x10, 0, 0, 0, 0)),
                              ('list', 6, (4096, 0, 0, 0, 0, 0)), ('delete', 0x10, (0, 0x10, 0, 0, 0, 0)),
                              ('exist', 0x14, (0, 0x10, 0, 0, 0, 0)), ('timed', 0x85, (64, 0x10, 5000, 2, 0, 0))):
        put('nvme_kv', name, b'\0' + sqe(opcode, key=key, cdw=cdw))
    put('nvme_kv', 'keys', b'\1' + bytes.fromhex('03000000 01006100 02006263 03006465 66000000'))
    put('nvme_kv', 'exist-many', b'\2\2' + (key + b'\x10\0\0\0') * 2)
    put('nvme_kv', 'namespace', b'\3' + page([
        (0, struct.pack('<Q', 1 << 40)), (32, struct.pack('<I', 4096)), (48, b'\xab' * 16),
        (72, struct.pack('<HBBII', 16, 0, 0, 8 << 20, 0)), (3840, b'ICMS\1\1\0\0' + b'\xcd' * 16)]))


def identify():
    put('nvme_identify', 'controller', b'\0' + page([
        (4, b'ICMS0001'.ljust(20)), (24, b'icms enclosure'.ljust(40)), (64, b'0.1.0'.ljust(8)),
        (78, struct.pack('<HI', 1, 0x20000)), (111, b'\1'), (320, b'\x0a\0'), (512, b'\x66\x44\x80\0'),
        (516, struct.pack('<I', 64)), (536, struct.pack('<I', 0x100001)), (768, b'nqn.2026-01.io.icms:encl0'),
        (1792, struct.pack('<IIHBB', 516, 1, 0, 0, 1)), (3072, b'ICMS\1\0\0\0\3\0\0\0')]))
    put('nvme_identify', 'list', b'\1' + struct.pack('<4I', 1, 2, 9, 64))
    put('nvme_identify', 'ids', b'\2' + b'\2\x10\0\0' + b'\x11' * 16 + b'\3\x10\0\0' + b'\x22' * 16 + b'\4\1\0\0\1')
    put('nvme_identify', 'common', b'\3' + bytes(14) + b'\1')


def log():
    put('nvme_log', 'effects', b'\0' + sqe(2, cdw=(5 | 1023 << 16, 0, 0, 0, 1 << 24, 0)))
    put('nvme_log', 'ana', b'\0' + sqe(2, cdw=(0x0c | 1 << 8 | 1035 << 16, 0, 0, 0, 0, 0)))
    put('nvme_log', 'discovery', b'\0' + sqe(2, cdw=(0x70 | 255 << 16, 0, 1024, 0, 0, 0)))
    put('nvme_log', 'header', b'\1' + struct.pack('<QQH', 7, 2, 0))
    put('nvme_log', 'entry', b'\2' + page([
        (0, struct.pack('<BBBBHHHH', 3, 1, 2, 0, 1, 0xffff, 32, 0)), (32, b'4420'.ljust(32)),
        (256, b'nqn.2026-01.io.icms:encl0'), (512, b'10.0.2.2'.ljust(256))], 1024))


CONNECT_DATA = page([(0, b'\x5a' * 16), (16, b'\xff\xff'), (256, b'nqn.2026-01.io.icms:encl0'),
                     (512, b'nqn.2014-08.org.nvmexpress:uuid:0')], 1024)


def fabrics():
    connect = sqe(0x7f, nsid=1, cdw=(0, 31, 5000, 0, 0, 0), sgl=(0, 1024, 1))
    put('nvme_fabrics', 'connect', connect + CONNECT_DATA)
    put('nvme_fabrics', 'connect-io', sqe(0x7f, nsid=1, cdw=(2 << 16, 127, 0, 0, 0, 0)) + CONNECT_DATA)
    put('nvme_fabrics', 'property-get', sqe(0x7f, nsid=4, cdw=(1, 0, 0, 0, 0, 0)))
    put('nvme_fabrics', 'property-set', sqe(0x7f, nsid=0, cdw=(0, 0x14, 0x460061, 0, 0, 0)))
    put('nvme_fabrics', 'set-features', sqe(9, cdw=(7, 0x30003, 0, 0, 0, 0)))


def tcp():
    ic = struct.pack('<HBBI', 0, 0, 3, 0) + bytes(112)
    resp = struct.pack('<HBBI', 0, 0, 3, 131072) + bytes(112)
    data = struct.pack('<HHIII', 1, 2, 0, 64, 0)
    for digests in (0, 3):
        host, ctrl = bytes([1 | 2 | digests << 2, 0]), bytes([2 | digests << 2, 0])
        end = str(digests)
        put('nvme_tcp', 'cmd' + end, ctrl + pdu(4, sqe(1, key=b'k', cdw=(64, 1, 0, 0, 0, 0)), b'v' * 64, digests))
        put('nvme_tcp', 'h2c' + end, ctrl + pdu(6, data, b'v' * 64, digests, 4))
        put('nvme_tcp', 'c2h' + end, host + pdu(7, data, b'v' * 64, digests, 0xc))
        put('nvme_tcp', 'r2t' + end, host + pdu(9, data, b'', digests))
        put('nvme_tcp', 'resp' + end, host + pdu(5, bytes(16), b'', digests))
    put('nvme_tcp', 'icreq', b'\0\0' + pdu(0, ic))
    put('nvme_tcp', 'icresp', b'\1\0' + pdu(1, resp))
    put('nvme_tcp', 'term', b'\2\0' + pdu(2, struct.pack('<HI10x', 1, 4), b'h' * 72)[:-72] + b'h' * 72)


def stream():
    def data(kind, digests, size, flags=4):
        return pdu(kind, struct.pack('<HHIII', 1, 0, 0, size, 0), bytes(i * 7 & 255 for i in range(size)), digests, flags)
    for how in (0x00, 0x10, 0x20, 0x40, 0x70, 0x80):
        for digests in (0, 3):
            ctrl, host = bytes([how | digests << 1, how]), bytes([how | digests << 1 | 1, how])
            cmd = pdu(4, sqe(1, key=b'k', cdw=(64, 1, 0, 0, 0, 0)), b'v' * 67, digests)
            none = pdu(4, sqe(0x14, key=b'k', cdw=(0, 1, 0, 0, 0, 0)), b'', digests)
            end = '%02x-%d' % (how, digests)
            put('pdu', 'controller-' + end, ctrl + none + cmd + data(6, digests, 9000) + none)
            put('pdu', 'host-' + end, host + pdu(5, bytes(16), b'', digests) + data(7, digests, 20000) +
                pdu(9, struct.pack('<HHIII', 1, 2, 0, 64, 0), b'', digests) + data(7, digests, 5, 0xc))
    put('pdu', 'term', b'\0\0' + struct.pack('<BBBBI', 2, 0, 24, 0, 32) + struct.pack('<HI10x', 1, 4) + b'badbadba')


def sealed():
    volume, key, value = b'\7' + bytes(15), b'0123456789abcde\0', b'a value'
    for length, kind, name in ((16, 0, 'key16'), (3, 0, 'key3'), (16, 1, 'encrypted')):
        head = struct.pack('<4sBB2xI4x', b'SEAL', 4, kind, len(value)) + bytes(range(32)) + bytes(8)
        # The fuzzer's key has all 16 bytes at any length.
        crc = crc32c(value + head + volume + key + bytes([length]))
        head += struct.pack('<I', crc)
        put('sealed', name, bytes([length - 1]) + head + struct.pack('<I', crc32c(head)) + value)


def nvmf_target():
    """First byte: what to connect with (nvmf/target/target_fuzz.c), then the stream."""
    def store(opcode, value, in_capsule, digests=0, options=0):
        sgl = (0, len(value), 1 if in_capsule else 0x5a)
        return pdu(4, sqe(opcode, 1, b'key', (len(value), 3 | options << 8, 0, 0, 0, 0), sgl),
                   value if in_capsule else b'', digests)

    def plain(opcode, key=b'key', size=0):
        return pdu(4, sqe(opcode, 1, key, (size, len(key), 0, 0, 0, 0), (0, size, 0x5a)))

    def h2c(offset, data, digests=0):
        return pdu(6, struct.pack('<HHII4x', 7, 0, offset, len(data)), data, digests, 4)

    def seed(name, how, *pdus):
        put('nvmf_target', name, bytes([how]) + b''.join(pdus))

    value = bytes(range(256)) * 16
    seed('store-in-capsule', 0, store(1, value, True), plain(2, size=4096))
    seed('store-r2t', 0, store(1, value * 4, False), h2c(0, value * 4))
    seed('store-r2t-pieces', 0x60, store(1, value * 2, False), h2c(0, value), h2c(4096, value))
    seed('digests', 3, store(1, value[:100], True, 3), store(1, value, False, 3), h2c(0, value, 3))
    seed('all-kinds', 0x10, *[plain(2, size=100), plain(0x14), plain(0x10), plain(6, b'', 4096),
                              plain(0, b'')] * 3)
    keys = b''.join(bytes([i] * 16) + b'\x10\0\0\0' for i in range(64))
    seed('exist-many', 0, pdu(4, sqe(0x81, 1, b'', (64, 0, 0, 0, 0, 0), (0, len(keys), 1)), keys))
    seed('vendor', 0, store(0x85, value, True),
         pdu(4, sqe(0x82, 1, b'key', (4096, 3, 1000, 0, 0, 0), (0, 4096, 0x5a))))
    admin = [(6, (1, 0, 0, 0, 0, 0)), (6, (2, 0, 0, 0, 0, 0)), (6, (5, 1 << 24, 0, 0, 0, 0)),
             (2, (5 | 1023 << 16, 0, 0, 0, 1 << 24, 0)), (9, (7, 3 | 3 << 16, 0, 0, 0, 0)),
             (10, (0x20, 0, 0, 0, 0, 0)), (0x0c, (0,) * 6), (8, (0,) * 6), (0x18, (0,) * 6)]
    seed('admin', 4, *[pdu(4, sqe(opcode, 1, b'', cdw, (0, 4096, 0x5a))) for opcode, cdw in admin])
    fabrics = [pdu(4, sqe(0x7f, kind, b'', (0, 0x14, 0x460001, 0, 0, 0)))
               for kind in (0, 4, 8, 5, 6)]
    seed('fabrics', 4, *fabrics)
    seed('disconnect', 0, *fabrics)
    connect = struct.pack('<16sH238x256s256s256x', b'host', 0xffff, b'nqn.2026-01.io.icms:test',
                          b'nqn.2026-01.io.icms:h')
    seed('connect', 8, pdu(0, struct.pack('<HBBI112x', 0, 0, 0, 0)),
         pdu(4, sqe(0x7f, 1, b'', (0, 31 << 16, 0, 0, 0, 0), (0, 1024, 1)), connect))
    seed('term', 0, pdu(2, struct.pack('<HI10x', 1, 0)), bytes(72))


def nvmf_target_script():
    """Steps of three bytes: what, which peer, argument (nvmf/target/target_script_fuzz.c)."""
    steps = ('open', 'close', 'half', 'rest', 'cc', 'admin', 'kv', 'h2c', 'feature', 'hold', 'wait',
             'sleep', 'read')

    def seed(name, text):
        data = b''
        for step in text.split(','):
            what, peer, arg = step.split()
            data += bytes([steps.index(what.strip('+')) | ('+' in what) << 7, int(peer), int(arg, 0)])
        put('nvmf_target_script', name, data)

    begin = 'open 0 0,cc 0 0,wait 0 5,open 1 0,open 2 0,'
    for opcode in range(8):
        seed('toggle-%d' % opcode, begin + 'cc+ 0 1,half 1 %d,wait 0 3,cc+ 0 0,rest 1 0,kv 2 1' % opcode)
    seed('two-halves', begin + 'half 1 0,half 2 1,half+ 0 3,rest 2 0,rest 1 0,rest 0 0')
    seed('enable-again', begin + 'cc 0 1,wait 0 5,cc 0 0,wait 0 5,close 1 0,open 1 0,kv 1 2')
    seed('shutdown', begin + 'kv+ 1 0x18,cc 0 2,wait 0 5,cc 0 1,cc 0 0,open 3 0,kv 3 1')
    seed('held', begin + 'hold 0 1,kv 1 1,kv 2 2,half 1 0,rest 1 0,cc+ 0 1,close 1 0,open 1 0,hold 0 0')
    seed('large-stores', begin + 'kv+ 1 0x18,kv+ 1 0x18,kv+ 2 0x18,kv+ 2 0x18,half 1 0,cc 0 1,rest 1 0')
    seed('asked-data', begin + 'kv 1 8,wait 0 5,h2c 1 8,h2c+ 1 0x18,rest 1 0,h2c 1 0xe4')
    seed('keep-alive', 'open 0 1,cc 0 0,open 1 1,half 1 0,sleep 0 7,rest 1 0,open 0 0,feature 0 8')
    seed('two-controllers', begin + 'open 4 0,cc 4 0,open 5 0,open 6 0,half 5 1,half 1 1,close 0 0,'
         'rest 5 0,rest 1 0,cc 4 1')
    seed('loads', begin + 'kv+ 1 1,kv+ 1 0x19,kv+ 1 0x19,kv+ 1 0x1e,kv 2 0x59,read 1 0,sleep 0 3,read 1 0,'
         'read 2 0,cc 0 1,read 1 0')
    seed('slow', begin + 'kv+ 1 0x19,kv+ 1 0x19,kv+ 1 0x19,kv+ 2 0x18,sleep 0 0x80,read 1 0,sleep 0 0x80')
    seed('asked', begin + 'kv+ 1 0x48,kv 1 0x10,read 1 0,read 1 0,hold 0 1,kv 1 0x50,read 1 0,cc 0 1,'
         'wait 0 7,cc 0 0,open 1 0,hold 0 0')
    seed('admin', begin + ','.join('admin 0 %d' % i for i in range(16)) + ',admin 1 5,admin+ 2 5,kv 2 1')
    seed('warning', begin + 'admin 0 2,feature 0 2,feature 0 0x12,hold 0 3,admin 0 4,admin 0 2,hold 0 0,admin 0 4,'
         'hold 0 2,admin 0 4,admin 0 2,admin 0 2,admin 0 2,admin 0 2')
    seed('discovery', 'open 0 0x20,cc 0 0,admin 0 0xf9,admin 0 1,admin 0 0,feature 0 2,open 1 0')
    seed('silent', 'open 0 0xc0,open 1 0x80,open 2 0,sleep 0 3,open 0 0,cc 0 0,open 1 4,kv+ 1 1,kv+ 1 1,'
         'kv+ 1 1,kv 1 1')


def segments():
    def patch(segment, page, offset, data, mend=1):
        return struct.pack('<BBHBB', segment, page, offset // 4, mend, len(data)) + data
    u32, u64, last = lambda x: struct.pack('<I', x), lambda x: struct.pack('<Q', x), 15
    big, most = u32(0xffffffff), u64(0xffffffffffffffff)
    put('segment', 'nothing', b'')
    put('segment', 'header-sequence', patch(0, 0, 40, most) + patch(1, 0, 40, u64(0)))
    put('segment', 'header-nonce', patch(2, 0, 32, u64(7)))
    put('segment', 'header-evictions', patch(0, 0, 48, most + b'\1' * 60))
    put('segment', 'header-count', patch(1, 0, 4, b'\1\0\xff\xff'))
    put('segment', 'header-gone', patch(0, 0, 0, bytes(64), 0) + patch(1, 0, 0, bytes(64), 0))
    put('segment', 'same-age', b''.join(patch(i, 0, 40, u64(5)) for i in range(8)))
    put('segment', 'footer-records', patch(0, last, 1592, u32(16) + u32(1)) + patch(1, last, 1592, big + big))
    put('segment', 'footer-none', patch(0, last, 1592, u32(0) + u32(0)))
    put('segment', 'footer-volumes', patch(0, last, 1600, bytes(64)) + patch(1, last, 1600, b'\7' * 128))
    put('segment', 'footer-gone', b''.join(patch(i, last, 0, bytes(64), 0) for i in range(8)))
    put('segment', 'summary-count', patch(0, 14, 4, u32(102)) + patch(1, 14, 4, u32(103)))
    put('segment', 'summary-entry', patch(0, 14, 32, u32(45000) + u32(13) + b'\3\x10\1'))
    put('segment', 'summary-twice', patch(0, 14, 4, u32(4)) + patch(0, 14, 8, b'k' * 160))
    put('segment', 'summary-gone', b''.join(patch(i, 14, 0, bytes(8), 0) for i in range(8)))
    put('segment', 'record-length', patch(0, 1, 8, u32(45056)) + patch(0, last, 0, bytes(64), 0))
    put('segment', 'record-huge', patch(1, 1, 8, big) + patch(1, last, 0, bytes(64), 0))
    put('segment', 'record-key', patch(2, 1, 4, b'\1\1\x11\0') + patch(2, last, 0, bytes(64), 0))
    put('segment', 'record-type', patch(2, 1, 4, b'\1\2\x08\0' + u32(0)) + patch(2, last, 0, bytes(64), 0))
    put('segment', 'record-volumes', b''.join(patch(i, 1, 40, bytes([i]) * 16) + patch(i, last, 0, bytes(64), 0) for i in range(8)))


def prestage():
    put('prestage', 'keys', b'{"volume": "kv", "keys": ["00ff", "0123456789abcdef0123456789ABCDEF"], '
        b'"deadline_ms": 250, "priority": 3, "tier": "dram"}')
    put('prestage', 'names', b'{"volume": "kv", "names": ["a", "\\u00e4\\u0000b"], "priority": 0}')
    put('prestage', 'tokens', b'{"volume": "kv", "model": "m", "tokens": [1, 2]}')
    put('prestage', 'twice', b'{"volume": "kv", "volume": "kv", "keys": []}')
    put('prestage', 'long-key', b'{"volume": "kv", "keys": ["' + b'00' * 17 + b'"]}')
    put('prestage', 'numbers', b'{"volume": "kv", "keys": ["00"], "deadline_ms": 1e99, "priority": -1}')
    put('prestage', 'deep', b'[' * 3000)

    def chain(rest, state=b'0f' * 32, run=4, block=2):
        return (b'{"volume": "kv", "chain": {"state": "%s", "run_blocks": %d, "block_tokens": %d}%s}'
                % (state, run, block, rest))

    tokens = b', "tokens": [1, 2, 3, 2147483647, 5]'
    put('prestage', 'chain-tokens', chain(tokens))
    put('prestage', 'chain-hashes', chain(b', "hashes": ["00ff", "' + b'aB' * 64 + b'"]', run=1))
    put('prestage', 'chain-order', chain(tokens + b', "tier": "local", "pin_seconds": 86400'))
    put('prestage', 'chain-short', chain(tokens, block=4096))
    put('prestage', 'chain-state', chain(tokens, state=b'0f' * 31))
    put('prestage', 'chain-run', chain(tokens, run=65537))
    put('prestage', 'chain-both', chain(tokens + b', "hashes": ["00"]'))
    put('prestage', 'chain-keys', chain(tokens + b', "keys": ["00"]'))
    put('prestage', 'tokens-base64', chain(b', "tokens": "AQAAAAIAAAADAAAA////fwUAAAA="'))
    put('prestage', 'tokens-negative', chain(b', "tokens": "AQAAAP////8="'))
    put('prestage', 'tokens-cut', chain(b', "tokens" : "AQAAAAI"'))
    put('prestage', 'tokens-twice', chain(b', "tokens": "AQAAAAIAAAA=", "tokens": "AQAAAAIAAAA="'))
    put('prestage', 'tokens-digits', chain(b', "tokens": "AQ\\u0041AAA*AAAA"'))
    put('prestage', 'chain-none', b'{"volume": "kv", "tokens": [1]}')
    put('prestage', 'chain-numbers', chain(b', "tokens": [0, -1, 4294967296, 1.5, 1e3]', block=1))


def events_request():
    # A message: how many frames, then of each its length and bytes; or 0xff: a place becomes free.
    def message(*frames):
        return bytes([len(frames)]) + b''.join(bytes([len(frame)]) + frame for frame in frames)

    def request(peer, seq):
        return message(peer, b'', struct.pack('>Q', seq))

    put('events_request', 'one', request(b'\0abcd', 1))
    put('events_request', 'again', request(b'a', 0) + request(b'a', 2**64 - 1) + b'\xff\x0f' + request(b'a', 2))
    put('events_request', 'many', b''.join(request(bytes([1 + i]), i) for i in range(18)))
    put('events_request', 'long', request(b'p' * 254, 3) + request(b'p' * 255, 3) + message(b'a', b'', b'1' * 9))
    put('events_request', 'frames', message() + message(b'a') + message(b'a', b'') + message(b'a', b'x', bytes(8)) +
        message(b'', b'', bytes(8)) + message(b'a', b'', bytes(8), b'') + message(b'a', b'', bytes(7)))


def agent_rings():
    # A step: what, then for an entry op, flags, key, volume, lease, bytes, offset, time, aside (ring_fuzz.c).
    def entry(op, key=1, flags=0, volume=0, lease=0, nbytes=5000, offset=0, time=100, aside=0):
        return struct.pack('<6BHHBB', 0, op, flags, key, volume, lease, nbytes, offset, time, aside)

    def step(what, *data):
        return bytes([what, *data]).ljust(12, b'\0')

    get, putop, exists, remove, flush, cancel, touch, suspect, many, hint = range(1, 11)
    run, take, lease = step(5, 20), step(4, 0), step(3, 0, 3)
    put('agent_rings', 'get', entry(get) + entry(get, 2, volume=1, lease=2) + run + take + lease)
    put('agent_rings', 'put', step(2, 0, 0, 0, 9, 0) + entry(putop, 9, volume=1) + run +
        entry(putop, 9, 3, volume=1) + run + entry(get, 9, volume=1) + run + take)
    put('agent_rings', 'direct', entry(get, 1, 8, aside=5) + entry(putop, 1, 8) + run + take)
    put('agent_rings', 'match', step(2, 1, 0, 0, 40, 0, 3, 0) + entry(many, nbytes=40) + run +
        entry(many, nbytes=2048) + entry(many, nbytes=0xffff) + run + take)
    put('agent_rings', 'hints', step(2, 1, 0, 0, 40, 0, 255) + entry(hint, nbytes=40, lease=1, aside=50) + run +
        entry(hint, flags=16, nbytes=40) + entry(hint, nbytes=600, aside=5) + entry(get, 3, 4) + run + take)
    put('agent_rings', 'others', entry(exists) + entry(remove) + entry(flush) + entry(touch) + entry(suspect) +
        entry(cancel) + entry(0) + entry(11) + run + take)
    put('agent_rings', 'held', step(6, 3) + entry(get) + entry(putop, 5, 1, volume=1) + run + entry(cancel) +
        step(6, 4) + step(5, 255) + take)
    put('agent_rings', 'lies', step(4, 205, 0, 1, 2, 3, 4) + step(4, 235, 0, 255) + step(7, 3, 2, 255, 255) +
        step(4, 255, 0, 0, 0, 0, 128) + run)
    put('agent_rings', 'raw', bytes([1]) + bytes(range(64)) + run * 4)


for make in (prestage, events_request, agent_rings, kv, identify, log, fabrics, tcp, stream, sealed, nvmf_target,
             nvmf_target_script, segments):
    make()
