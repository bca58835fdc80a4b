#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a trace for `icms replay --format qwen` from transcripts of agents.

transcripts.py FILE.tar.gz|FOLDER > TRACE

Transcripts are files *.jsonl, one a session: an object a line with timestamp (microseconds) and input (the text of the
prompt), as github.com/LMCache/lmcache-agent-trace has them. Four bytes of UTF-8 stand for a token, so that no tokenizer is
needed; a block has 16 tokens, and its number is that of all the prompt up to its end. Requests of all sessions are in order
of their time.
"""
import json
import pathlib
import sys
import tarfile

TOKEN_BYTES, BLOCK_TOKENS = 4, 16
BLOCK_BYTES = TOKEN_BYTES * BLOCK_TOKENS


def sessions(path):
    """The lines of each session, in order of their names."""
    if path.is_dir():
        for file in sorted(path.rglob("*.jsonl")):
            yield file.read_text(encoding="utf-8").splitlines()
        return
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            if member.isfile() and member.name.endswith(".jsonl"):
                yield archive.extractfile(member).read().decode().splitlines()


def blocks_of(text, numbers):
    """The number of each block of a prompt; numbers: of those before, by what lies in front of them and in them."""
    before = None
    for at in range(0, len(text), BLOCK_BYTES):
        before = numbers.setdefault((before, text[at:at + BLOCK_BYTES]), len(numbers))
        yield before


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    requests = []
    for chat, lines in enumerate(sessions(pathlib.Path(sys.argv[1]))):
        for turn, line in enumerate(filter(None, lines)):
            said = json.loads(line)
            requests.append((said["timestamp"], chat, turn, said["input"].encode()))
    if not requests:
        sys.exit(f"transcripts.py: {sys.argv[1]}: no session in it: give a folder or an archive with *.jsonl")
    requests.sort()
    numbers, begin = {}, requests[0][0]
    for time, chat, turn, text in requests:
        number = chat * 1000000 + turn
        print(json.dumps({"chat_id": number, "parent_chat_id": number - 1 if turn else -1,
                          "timestamp": (time - begin) / 1e6, "input_length": -(-len(text) // TOKEN_BYTES), "output_length": 1,
                          "type": "text", "turn": turn + 1, "hash_ids": list(blocks_of(text, numbers))}))


if __name__ == "__main__":
    main()
