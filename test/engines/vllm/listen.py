# SPDX-License-Identifier: Apache-2.0
"""Reads KV events as a router does, with vLLM's own classes, and prints them, a line of JSON each.

usage: listen.py ENDPOINT ..., or listen.py --replay ENDPOINT
With --replay it asks that endpoint for all that is kept instead, prints it, and ends. Prints "ready" first.
"""
import json
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, BlockStored, KVEventBatch


def show(source, number, payload):
    batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
    for event in batch.events:
        line = {"from": source, "seq": number, "type": type(event).__name__}
        if not isinstance(event, AllBlocksCleared):
            names = [one.hex() if isinstance(one, bytes) else str(one) for one in event.block_hashes]
            line |= {"hashes": names, "medium": event.medium,
                     "locality": event.locality, "ownership": event.ownership}
        if isinstance(event, BlockStored):
            line |= {"tokens": event.token_ids, "block_size": event.block_size}
        print(json.dumps(line), flush=True)


def replay(context, endpoint):
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    print('"ready"', flush=True)
    socket.send_multipart([b"", (0).to_bytes(8, "big")])
    while True:
        _, _, number, payload = socket.recv_multipart()  # as ZmqEventPublisher of vLLM answers
        if not payload:
            assert int.from_bytes(number, "big", signed=True) == -1, number
            return
        show(endpoint, int.from_bytes(number, "big"), payload)


def main():
    context = zmq.Context.instance()
    if sys.argv[1] == "--replay":
        replay(context, sys.argv[2])
        return
    poller = zmq.Poller()
    names = {}
    for endpoint in sys.argv[1:]:
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)
        poller.register(socket, zmq.POLLIN)
        names[socket] = endpoint
    print('"ready"', flush=True)
    while True:
        for socket, _ in poller.poll():
            _, number, payload = socket.recv_multipart()
            show(names[socket], int.from_bytes(number, "big"), payload)


if __name__ == "__main__":
    main()
