# SPDX-License-Identifier: Apache-2.0
"""What is stored: objects that no layer can compress, cache by content, or mix up.

An object is noise, the same in all of one size, with a stamp of 16 bytes at the begin of each page
of 4 KiB that no other object has: made and compared whole at memory speed, without NumPy. Pure.
"""
import hashlib
import random

PAGE = 4096
STAMP = 16


def key(number):
    """The name of an object, 16 bytes that look random."""
    return hashlib.sha256(b"icms bench-peers key %d" % number).digest()[:16]


class Values:
    """Objects of one size."""

    def __init__(self, size):
        self.size = size
        self._work = bytearray(random.Random(size).randbytes(size))

    def _object(self, number):
        stamp = hashlib.sha256(b"icms bench-peers value %d" % number).digest()[:STAMP]
        for page in range(0, self.size, PAGE):
            self._work[page:page + STAMP] = stamp[:self.size - page]
        return self._work

    def make(self, number, memory):
        """Writes the object into memory, a memoryview of its size."""
        memory[:] = self._object(number)

    def same(self, number, memory):
        """Whether memory is the object, every byte of it."""
        return self._object(number) == memory

    def spoil(self, memory):
        """Makes sure that what memory holds is no object, so that a get that writes nothing, or
        only its begin, is found."""
        memory[:STAMP] = bytes(STAMP)
        last = (self.size - 1) // PAGE * PAGE
        memory[last:last + STAMP] = bytes(len(memory[last:last + STAMP]))
