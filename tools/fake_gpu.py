# SPDX-License-Identifier: Apache-2.0
"""The fake GPU of the tests (src/device/fake_device.h) for tests in Python.

The loader has to find it before a real driver: LD_LIBRARY_PATH is the build's src/device.
"""
import ctypes
import pathlib
import re

HEADER = (pathlib.Path(__file__).resolve().parents[1] / "src/device/fake_device.h").read_text()
PTR, U64, INT, SIZE, BOOL = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t,
                             ctypes.c_bool)
TABLE = (("reset", None, ()), ("set", None, (INT, INT)), ("count", INT, (INT,)),
         ("context", PTR, (INT,)), ("context_new", PTR, (INT,)), ("context_destroy", None, (PTR,)),
         ("alloc", U64, (PTR, SIZE)), ("alloc_pool", U64, (PTR, SIZE)), ("alloc_free", None, (U64,)),
         ("alloc_at", U64, (PTR, SIZE, U64)), ("pinned", U64, (PTR, SIZE)),
         ("write", None, (U64, PTR, SIZE)), ("read", None, (U64, PTR, SIZE)),
         ("stream_new", PTR, (PTR,)), ("stream_free", None, (PTR,)),
         ("stream_capture", None, (PTR, BOOL)), ("stream_hold", None, (PTR, BOOL)),
         ("stream_write", None, (PTR, U64, INT, SIZE)),
         ("stream_idle", BOOL, (PTR,)))


def _names(enum):
    """The names of an enum of the header, in order: its numbers."""
    body = re.search(rf"enum {enum} {{(.*?)}};", HEADER, re.DOTALL)[1]
    return re.findall(r"^    FAKE_DEVICE_(\w+),", body, re.MULTILINE)


SETS, COUNTS = _names("fake_device_set"), _names("fake_device_count")


class Gpu:
    """gpu.alloc(context, bytes) and so on: the functions of struct fake_device."""

    def __init__(self, library="libcuda.so.1"):
        self.library = ctypes.CDLL(library)
        self.library.fake_device_table.restype = ctypes.POINTER(PTR)
        table = self.library.fake_device_table()
        for number, (name, result, arguments) in enumerate(TABLE):
            setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(table[number]))

    def put(self, name, value):
        """Sets FAKE_DEVICE_name."""
        self.set(SETS.index(name), value)

    def counted(self, name):
        """FAKE_DEVICE_name of what can be counted."""
        return self.count(COUNTS.index(name))

    def store(self, address, data):
        """Bytes to device memory, as a kernel would."""
        self.write(address, ctypes.cast(ctypes.c_char_p(bytes(data)), PTR), len(data))

    def load(self, address, count):
        """Bytes of device memory."""
        room = ctypes.create_string_buffer(count)
        self.read(address, ctypes.cast(room, PTR), count)
        return room.raw
