# SPDX-License-Identifier: Apache-2.0
"""Mistakes that mypy has to see in a program on icms: it is not run."""
import icms


def load(volume: icms.Volume, names: list[bytes], room: list[bytearray]) -> int:
    volume.get(names, room, deadline_ms="100")  # wrong
    volume.get(names, room, deadline=100)  # wrong
    results: list[bytes] = volume.get(names, room)  # wrong
    icms.Client(5)  # wrong
    icms.Layout(model="tiny", ranks=(1, 2))  # wrong
    volume.fetch(names)  # wrong
    volume.get(names)  # wrong
    value: bytes = volume.get("name")  # wrong
    print(results, value)
    return volume.match(names)
