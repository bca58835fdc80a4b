# SPDX-License-Identifier: Apache-2.0
"""A program on icms as a user writes it: mypy --strict has nothing to say. It is not run."""
import icms


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


def one(volume: icms.Volume, name: str) -> bytes:
    value = volume.get(name)
    if value is None:
        value = b"computed"
        stored: bool = volume.put(name, value, if_absent=True)
        print(stored, volume.exists(name.encode()), volume.remove(name))
    return value


async def awaited(volume: icms.Volume, key: icms.Key, names: list[str],
                  room: list[bytearray]) -> bytes | None:
    waiting = icms.aio.Volume(volume)
    print((await waiting.get(names, room)).ok, await waiting.match(names))
    return await waiting.get(key) if await waiting.exists(key) else None
