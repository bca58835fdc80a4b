#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes traces of prompts of several kinds, in Mooncake's format: mixtures.py NAME SEED.

Kinds of traffic, each with its own way of coming back:

    chat       conversations behind one of a few system prompts; a turn after a minute or an hour
    agents     long prompts that grow every few seconds, behind tools and files that they share
    prompts    many system prompts of 4 to 100 blocks, few of them popular; the rest is new
    documents  long documents, most of them asked about once
    scans      a job that goes through a corpus, again and again, in the same order

A mixture is some of them at the same time. `drawn` draws which ones, and how much of each, by its
seed. The same name and seed give the same trace, of an hour and of 45,000 to 200,000 distinct blocks.
"""
import heapq
import json
import random
import sys

BLOCK_TOKENS = 512


class Blocks:
    """Numbers of blocks, each given out once."""

    def __init__(self):
        self.count = 0

    def take(self, count):
        self.count += count
        return list(range(self.count - count, self.count))


def size(draw, median, sigma, most):
    return max(1, min(most, int(draw.lognormvariate(median, sigma) + 0.5)))


def zipf(draw, count, skew):
    """Ranks from 0 on; the first is the most popular."""
    weights = [1 / (rank + 1) ** skew for rank in range(count)]
    return lambda: draw.choices(range(count), weights)[0]


def sessions(draw, rate, until, session):
    """Sessions begin at random; each is a generator of (seconds from the last turn, blocks)."""
    begin, turns, number = draw.expovariate(rate), [], 0
    while True:
        if begin <= until and (not turns or begin <= turns[0][0]):
            turns_of = session()
            gap, ids = next(turns_of)
            heapq.heappush(turns, (begin + gap, number, ids, turns_of))
            number += 1
            begin += draw.expovariate(rate)
        elif turns and turns[0][0] <= until:
            time, mine, ids, turns_of = heapq.heappop(turns)
            yield time, ids
            following = next(turns_of, None)
            if following is not None:
                heapq.heappush(turns, (time + following[0], mine, following[1], turns_of))
        else:
            return


def chat(draw, blocks, until, rate):
    systems = [blocks.take(draw.randint(1, 6)) for _ in range(4)]
    which = zipf(draw, len(systems), 1.0)

    def session():
        ids, gap = list(systems[which()]), 0.0
        ids += blocks.take(size(draw, 1.2, 1.0, 120))
        while True:
            yield gap, ids
            if draw.random() < 0.35:
                return
            ids = ids + blocks.take(size(draw, 0.4, 0.8, 40))
            gap = draw.lognormvariate(4.2, 1.1)

    return sessions(draw, rate, until, session)


def agents(draw, blocks, until, rate):
    tools = [blocks.take(draw.randint(6, 16)) for _ in range(3)]
    files = [[blocks.take(draw.randint(8, 40)) for _ in range(12)] for _ in tools]
    which = zipf(draw, 12, 0.8)

    def session():
        kind, gap = draw.randrange(len(tools)), 0.0
        base = tools[kind] + files[kind][which()]
        ids = base + blocks.take(draw.randint(1, 4))
        for _ in range(size(draw, 3.0, 0.7, 120)):
            yield gap, ids
            if len(ids) > 240:  # the context is summed up
                ids = base + blocks.take(8)
            ids = ids + blocks.take(size(draw, 0.3, 0.9, 20))
            gap = draw.lognormvariate(2.2, 0.9)

    return sessions(draw, rate, until, session)


def prompts(draw, blocks, until, rate):
    systems = [blocks.take(int(4 * 25 ** draw.random())) for _ in range(200)]
    which = zipf(draw, len(systems), 0.9)

    def session():
        yield 0.0, systems[which()] + blocks.take(size(draw, 0.7, 0.8, 16))

    return sessions(draw, rate, until, session)


def documents(draw, blocks, until, rate):
    def session():
        document = blocks.take(size(draw, 3.8, 0.7, 240))
        for turn in range(draw.choices((1, 2, 4), (70, 20, 10))[0]):
            yield draw.lognormvariate(3.5, 0.8) if turn else 0.0, document + blocks.take(1)

    return sessions(draw, rate, until, session)


def scans(draw, blocks, until, rate):
    corpus = [blocks.take(draw.randint(4, 20)) for _ in range(int(until * rate / 3))]
    time, at = 0.0, 0
    while time <= until:
        yield time, corpus[at % len(corpus)]
        time, at = time + draw.expovariate(rate), at + 1


# What each kind has when it is alone: how often sessions begin, a second.
KINDS = {"chat": (chat, 4.0), "agents": (agents, 0.35), "prompts": (prompts, 4.0),
         "documents": (documents, 1.0), "scans": (scans, 4.0)}

# Parts of that of which mixtures are made.
MIXTURES = {name: {name: 1.0} for name in KINDS}
MIXTURES |= {
    "chat+documents": {"chat": 0.7, "documents": 0.4},
    "chat+scans": {"chat": 0.7, "scans": 0.4},
    "agents+prompts": {"agents": 0.6, "prompts": 0.5},
    "agents+documents": {"agents": 0.6, "documents": 0.4},
    "all": {"chat": 0.3, "agents": 0.2, "prompts": 0.3, "documents": 0.15, "scans": 0.2},
}


def trace(name, seed, seconds):
    """Requests in order of time: (seconds, blocks)."""
    draw = random.Random(f"{name} {seed}")
    parts = MIXTURES.get(name)
    if name == "drawn":
        chosen = draw.sample(sorted(KINDS), draw.randint(2, len(KINDS)))
        parts = {kind: draw.uniform(0.2, 1) / len(chosen) * 1.5 for kind in chosen}
    blocks = Blocks()
    return heapq.merge(*(make(draw, blocks, seconds, part * rate)
                         for kind, part in parts.items() for make, rate in [KINDS[kind]]))


def lines(name, seed, seconds=3600):
    """The lines of a trace, in whole blocks, as engines keep them. Blocks are named as they appear."""
    names = {}
    for time, ids in trace(name, seed, seconds):
        yield json.dumps({"timestamp": int(time * 1000), "input_length": len(ids) * BLOCK_TOKENS,
                          "output_length": 100,
                          "hash_ids": [names.setdefault(block, len(names)) for block in ids]})


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in [*MIXTURES, "drawn"] or not sys.argv[2].isdigit():
        sys.exit(f"usage: mixtures.py {'|'.join([*MIXTURES, 'drawn'])} SEED")
    for line in lines(sys.argv[1], int(sys.argv[2])):
        print(line)
