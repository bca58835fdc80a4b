# SPDX-License-Identifier: Apache-2.0
"""Just enough of pyzmq and msgspec where they are not installed: sockets of libzmq, which the agent needs
as well, and msgpack. Used as zmq and msgspec, from `install`.
"""
import ctypes
import struct
import sys
import types

XPUB, SUB, DEALER, ROUTER = 9, 2, 5, 6
SUBSCRIBE, LINGER = 6, 17
POLLIN = 1


class ZMQError(Exception):
    """What libzmq refuses."""


class Item(ctypes.Structure):
    """zmq_pollitem_t"""

    _fields_ = [("socket", ctypes.c_void_p), ("fd", ctypes.c_int), ("events", ctypes.c_short),
                ("revents", ctypes.c_short)]


class Library:
    """libzmq, with the types of what is called."""

    def __init__(self):
        self.zmq = ctypes.CDLL("libzmq.so.5")
        for name in ("zmq_ctx_new", "zmq_socket", "zmq_msg_data"):
            getattr(self.zmq, name).restype = ctypes.c_void_p
        self.zmq.zmq_msg_size.restype = ctypes.c_size_t
        self.zmq.zmq_strerror.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p(self.zmq.zmq_ctx_new())

    def __getattr__(self, name):
        """A call that may fail, as an exception."""
        call = getattr(self.zmq, name)

        def checked(*arguments):
            result = call(*arguments)
            if result == -1:
                raise ZMQError(self.zmq.zmq_strerror(self.zmq.zmq_errno()).decode())
            return result

        return checked


class Socket:
    def __init__(self, library, kind):
        self._library = library
        self._socket = ctypes.c_void_p(library.zmq.zmq_socket(library.context, kind))
        assert self._socket
        self.closed = False

    def setsockopt(self, option, value):
        data = value if isinstance(value, bytes) else struct.pack("i", value)
        self._library.zmq_setsockopt(self._socket, option, data, ctypes.c_size_t(len(data)))

    def connect(self, endpoint):
        self._library.zmq_connect(self._socket, endpoint.encode())

    def bind(self, endpoint):
        self._library.zmq_bind(self._socket, endpoint.encode())

    def poll(self, milliseconds):
        item = Item(self._socket, 0, POLLIN, 0)
        return self._library.zmq_poll(ctypes.byref(item), 1, ctypes.c_long(milliseconds))

    def send_multipart(self, frames):
        for i, frame in enumerate(frames):
            more = 2 if i + 1 < len(frames) else 0
            self._library.zmq_send(self._socket, frame, ctypes.c_size_t(len(frame)), more)

    def recv_multipart(self):
        frames, more = [], 1
        while more:
            message = ctypes.byref((ctypes.c_uint64 * 8)())  # zmq_msg_t
            self._library.zmq_msg_init(message)
            self._library.zmq_msg_recv(message, self._socket, 0)
            frames.append(ctypes.string_at(self._library.zmq.zmq_msg_data(message),
                                           self._library.zmq.zmq_msg_size(message)))
            more = self._library.zmq.zmq_msg_more(message)
            self._library.zmq_msg_close(message)
        return frames

    def close(self):
        if not self.closed:
            self.closed = True
            self._library.zmq_close(self._socket)


class Context:
    """The one of this process, which ends with it."""

    _library = None

    @classmethod
    def instance(cls):
        if cls._library is None:
            cls._library = Library()
        return cls()

    def socket(self, kind):
        return Socket(self._library, kind)


def encode(value):
    """msgpack of floats, numbers from 0 on, texts, sequences and dicts with texts as keys."""
    if isinstance(value, float):
        return struct.pack(">Bd", 0xcb, value)
    if isinstance(value, int):
        return struct.pack(">BQ", 0xcf, value)
    if isinstance(value, str):
        return struct.pack(">BI", 0xdb, len(value.encode())) + value.encode()
    if isinstance(value, dict):
        return struct.pack(">BI", 0xdf, len(value)) + b"".join(
            encode(one) for item in value.items() for one in item)
    return struct.pack(">BI", 0xdd, len(value)) + b"".join(map(encode, value))


def decode(data):
    """The value that msgpack's bytes are."""
    value, end = _value(data, 0)
    if end != len(data):
        raise ValueError("more than one value")
    return value


#: By the first byte: how the number, or the length, after it is packed.
_NUMBERS = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h",
            0xd2: ">i", 0xd3: ">q"}
_LENGTHS = {0xd9: (str, ">B"), 0xda: (str, ">H"), 0xdb: (str, ">I"), 0xdc: (list, ">H"), 0xdd: (list, ">I"),
            0xde: (dict, ">H"), 0xdf: (dict, ">I")}
_CONSTANTS = {0xc0: None, 0xc2: False, 0xc3: True}


def _value(data, at):
    first, at = data[at], at + 1
    if first < 0x80 or first >= 0xe0:
        return first if first < 0x80 else first - 256, at
    if first in _CONSTANTS:
        return _CONSTANTS[first], at
    if first in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[first], data, at)
        return number, at + struct.calcsize(_NUMBERS[first])
    if first < 0xc0:
        kind, length = (str, first & 31) if first >= 0xa0 else (
            (list, first & 15) if first >= 0x90 else (dict, first & 15))
    else:
        kind, packed = _LENGTHS[first]
        (length,) = struct.unpack_from(packed, data, at)
        at += struct.calcsize(packed)
    if kind is str:
        return data[at:at + length].decode(), at + length
    values = []
    for _ in range(length * (2 if kind is dict else 1)):
        value, at = _value(data, at)
        values.append(value)
    return (values if kind is list else dict(zip(values[::2], values[1::2]))), at


def install():
    """Puts them where Python finds modules, unless both are there."""
    try:
        import msgspec, zmq  # noqa: F401
        return
    except ImportError:
        pass
    sys.modules["zmq"] = sys.modules[__name__]
    sys.modules["msgspec"] = types.SimpleNamespace(
        msgpack=types.SimpleNamespace(encode=encode, decode=decode))
