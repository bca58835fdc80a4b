#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes mooncake.jsonl and qwen.jsonl, the made-up traces that the tests of icms replay read.

Every prompt begins with the same block; conversations come back after a while with all they had
and more behind it; most never do, so that about three of four blocks are seen once. The same seed
makes the same files.
"""
import json
import os
import random

FOLDER = os.path.dirname(os.path.abspath(__file__))


def conversations(seed, requests, block_tokens):
    """Prompts in order of time: (seconds, conversation, turn, tokens, ids)."""
    draw = random.Random(seed)
    fresh, clock, waiting, number = 1, 0.0, [], 0
    for _ in range(requests):
        clock += draw.expovariate(2)
        due = [w for w in waiting if w[0] <= clock]
        if due:
            waiting.remove(due[0])
            _, chat, turn, ids = due[0]
        else:
            chat, turn, ids = number, 0, [0]
            number += 1
        grow = max(1, int(draw.lognormvariate(2.2 if turn == 0 else 0.8, 0.8)))
        ids = ids + list(range(fresh, fresh + grow))
        fresh += grow
        tokens = (len(ids) - 1) * block_tokens + draw.randint(1, block_tokens)
        yield clock, chat, turn + 1, tokens, ids
        if draw.random() < (0.3 if turn == 0 else 0.55):
            whole = ids if tokens % block_tokens == 0 else ids[:-1]
            waiting.append((clock + draw.lognormvariate(3.5, 0.7), chat, turn + 1, whole))
            waiting.sort(key=lambda w: w[0])


def write(name, lines):
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


write("mooncake.jsonl", ({"timestamp": int(seconds * 1000), "input_length": tokens,
                          "output_length": 100, "hash_ids": ids}
                         for seconds, _, _, tokens, ids in conversations(1, 900, 512)))
write("qwen.jsonl", ({"chat_id": chat * 100 + turn, "parent_chat_id": chat * 100 + turn - 1
                      if turn > 1 else -1, "timestamp": round(seconds, 3), "input_length": tokens,
                      "output_length": 100, "type": "text", "turn": turn, "hash_ids": ids}
                     for seconds, chat, turn, tokens, ids in conversations(2, 60, 16)))
