# SPDX-License-Identifier: Apache-2.0
"""A peer that is there for the test of this folder alone: memory of its own process, and faults on
purpose, which the workload has to find.

FAULTS of the environment: "lose" forgets every 5th object it acknowledged, "flip" changes one byte
of every 7th, "silent" answers every 3rd get without writing the memory, "refuse" takes no 4th put,
"die" ends the process in the middle of the gets.
"""
import os

from peers import side


class Peer(side.Side):
    INSTALL = None
    TITLE = "memory of the client"
    CLASS = "RAM local"
    AGAINST = ("local",)
    ACKNOWLEDGED = "in memory"

    def start(self, pool):
        self.faults = os.environ.get("FAULTS", "").split(",")
        self.objects = {}
        self.puts = self.gets = 0

    def put(self, keys, memory):
        return [self._put(key, view) for key, view in zip(keys, memory)]

    def _put(self, key, view):
        self.puts += 1
        if "refuse" in self.faults and self.puts % 4 == 0:
            return "refused"
        if not ("lose" in self.faults and self.puts % 5 == 0):
            self.objects[key] = bytearray(view)
        if "flip" in self.faults and self.puts % 7 == 0 and key in self.objects:
            self.objects[key][self.size // 2 + 77] ^= 1
        return side.OK

    def get(self, keys, memory):
        return [self._get(key, view) for key, view in zip(keys, memory)]

    def _get(self, key, view):
        self.gets += 1
        if "die" in self.faults and self.gets > 20:
            os._exit(3)
        if key not in self.objects:
            return side.MISS
        if not ("silent" in self.faults and self.gets % 3 == 0):
            view[:] = self.objects[key]
        return side.OK

    def stop(self):
        self.objects = {}

    @staticmethod
    def versions(installed):
        return {"fake": "1"}
