# SPDX-License-Identifier: Apache-2.0
"""A program on icms as a user writes it: mypy --strict has nothing to say. It is not run."""
import icms
import icms.aio


def load(volume: icms.Volume, names: list[bytes], room: list[bytearray]) -> int:
    results = volume.get(names, room, deadline_ms=100)
    if not results.ok:
        for reason, count in results.reasons().items():
            print(reason.name, count)
    return results.prefix


def store(where: str, values: list[memoryview]) -> bool:
    try:
        with icms.Client(where) as client:
            volume = client.volume("kv")
            chain = volume.chain(icms.Layout(model="tiny", dtype="f16", block_tokens=256))
            return volume.put(chain.keys([bytes(value) for value in values]), values).ok
    except icms.NoVolumeError as error:
        print(error.status.value, error.retry)
        return False
