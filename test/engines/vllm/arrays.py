# SPDX-License-Identifier: Apache-2.0
"""Blocks move between the tier and arrays of NumPy and PyTorch in place; and between a KV cache and the
memory of the host, by both ways that IcmsConnector has. Run by run.py.

usage: arrays.py WHERE   a tier with the volume kv
"""
import os
import sys

import icms
import numpy
import torch
from icms.vllm import connector


def names(count):
    base = os.urandom(8)
    return [base + number.to_bytes(8, "big") for number in range(count)]


def sources():
    """Arrays of all kinds that engines keep KV in."""
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(64, 32, generator=generator).to(kind) for kind in
             (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8)]
    found += [torch.randn(4, 64, 32, generator=generator)[2],      # a part of a larger one
              torch.randn(1, 64, 1, 32, generator=generator)]
    found += [numpy.random.default_rng(1).random((64, 32)).astype(kind)
              for kind in (numpy.float64, numpy.float16, numpy.int32)]
    return found


def raw(array):
    if isinstance(array, torch.Tensor):
        return array.contiguous().view(torch.uint8).numpy().tobytes()
    return array.tobytes()


def copies():
    """Row by row, for a KV cache in this memory, and gathered, for one on a device, do the same."""
    generator = torch.Generator().manual_seed(2)
    pairs = [(5, 0), (0, 3), (2, 1)]  # block, slot

    def bytes_of(rows):
        return torch.randint(256, (rows, 1000), generator=generator).to(torch.uint8)

    cache, host = bytes_of(6), bytes_of(4)
    for copy in (connector._copy_rows, connector._copy_gathered):
        for load in (True, False):
            blocks, slots = cache.clone(), host.clone()
            copy(blocks, slots, pairs, load)
            for block, slot in pairs:
                assert torch.equal(blocks[block], slots[slot])
                assert torch.equal(blocks[block], host[slot] if load else cache[block])
            assert torch.equal(blocks[1], cache[1]) and torch.equal(slots[2], host[2])


def main():
    copies()
    with icms.Client(sys.argv[1]) as client:
        volume = client.volume("kv")
        values = sources()
        keys = names(len(values))
        assert volume.put(keys, values, on_flash=True).ok
        rooms = [torch.zeros_like(value) if isinstance(value, torch.Tensor)
                 else numpy.zeros_like(value) for value in values]
        places = [room.data_ptr() if isinstance(room, torch.Tensor) else room.ctypes.data
                  for room in rooms]
        results = volume.get(keys, rooms)
        assert results.ok, list(results)
        for value, room, place in zip(values, rooms, places):
            assert raw(room) == raw(value), (value, room)
            assert place == (room.data_ptr() if isinstance(room, torch.Tensor)
                             else room.ctypes.data)

        # One array for a batch: its first dimension is the block.
        cache = torch.randn(8, 16, 64)
        keys = names(8)
        assert volume.put(keys, cache, on_flash=True).ok
        for room in (torch.zeros_like(cache), numpy.zeros((8, 16, 64), numpy.float32)):
            assert volume.get(keys, room).ok
            assert numpy.array_equal(numpy.asarray(room), cache.numpy())

        # What cannot be used in place is refused; nothing is copied in secret.
        for wrong in (cache.transpose(0, 1)[:8], numpy.zeros((8, 16, 128), numpy.float32)[:, :, ::2],
                      torch.zeros(8, 16, 64, device="meta")):
            try:
                volume.get(keys, [wrong[i] for i in range(8)])
            except (BufferError, TypeError) as error:
                print("#", error)
            else:
                raise AssertionError(f"{wrong.shape} was taken")
    print("arrays are whole")


main()
