# SPDX-License-Identifier: Apache-2.0
"""The binary interface: our virtual table against that of a plugin that came with this NIXL.

NIXL calls an engine's functions by their places. Its own plugins export theirs, so the places can be
read from libplugin_POSIX.so: each must have the function of that name in ours.
"""
import collections
import os
import pathlib
import re
import subprocess
import unittest

import nixl_cu12._bindings  # noqa: F401  loads the core

BUILD = pathlib.Path(os.environ["ICMS_BUILD"])
SITE = pathlib.Path(os.environ["NIXL_SITE"])


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def symbols(library):
    """({name: (address, bytes)}, {address: names}) of what a library has inside."""
    places, names = {}, collections.defaultdict(set)
    for line in lines("readelf", "-Ws", str(library)):
        words = line.split()
        if len(words) >= 8 and words[3] in ("FUNC", "OBJECT") and words[6] != "UND":
            name = words[7].partition("@")[0]
            places[name] = (int(words[1], 16), int(words[2], 0))
            names[int(words[1], 16)].add(name)
    return places, names


def plain(mangled):
    """The name of a function without class and arguments."""
    text = lines("c++filt", mangled)[0].replace("(anonymous namespace)::", "")
    if text.startswith("typeinfo"):
        return "typeinfo"
    return "destructor" if "~" in text else text.partition("(")[0].rpartition("::")[2]


def table(library, engine):
    """What can be called at each place of an engine's virtual table: functions with the same
    instructions may be one."""
    places, names = symbols(library)
    begin, size = places[engine]
    found = {}
    for line in lines("readelf", "-Wr", str(library)):
        words = line.split()
        if len(words) < 4 or not words[2].startswith("R_"):
            continue
        place = int(words[0], 16) - begin
        if 0 <= place < size:  # a symbol or an address
            mangled = {words[4].partition("@")[0]} if len(words) > 4 else names[int(words[3], 16)]
            found[place // 8] = {plain(name) for name in mangled}
    return [found[place] for place in sorted(found)]


class Abi(unittest.TestCase):
    def test_the_virtual_table_has_nixls_order(self):
        theirs = table(next(SITE.glob("**/plugins/libplugin_POSIX.so")), "_ZTV15nixlPosixEngine")
        self.assertGreater(len(theirs), 20)
        for backend in ("ICMS", "DOCA_MEMOS"):
            ours = table(BUILD / f"integrations/nixl/libplugin_{backend}.so",
                         "_ZTVN12_GLOBAL__N_110IcmsEngineE")
            self.assertEqual(len(ours), len(theirs))
            for place, (own, wanted) in enumerate(zip(ours, theirs)):
                self.assertTrue(own & wanted, f"place {place} has {own}, NIXL calls {wanted}")

    def test_the_reference_of_the_check_is_beside_the_core(self):
        """core.c looks for libplugin_POSIX.so beside the core, and knows its table."""
        with open("/proc/self/maps", encoding="utf-8") as maps:
            core = {pathlib.Path(line.split()[-1]) for line in maps if "/libnixl.so" in line}
        self.assertEqual(len(core), 1, core)
        reference = core.pop().parent / "plugins/libplugin_POSIX.so"
        self.assertTrue(reference.exists(), reference)
        known = (pathlib.Path(__file__).parents[1] / "core.c").read_text(encoding="utf-8")
        theirs = table(reference, "_ZTV15nixlPosixEngine")
        places = int(re.search(r"TABLE_PLACES +(\d+)", known).group(1))
        self.assertEqual(len(theirs), 1 + places)  # type information comes first
        minor = os.environ["NIXL_VERSION"].rpartition(".")[0]
        first, last = re.search(r'"use NIXL ([0-9.]+) to ([0-9.]+),', known).groups()
        self.assertLessEqual([int(word) for word in first.split(".")],
                             [int(word) for word in minor.split(".")])
        self.assertLessEqual([int(word) for word in minor.split(".")],
                             [int(word) for word in last.split(".")])

    def test_the_plugins_export_nothing_but_their_entries(self):
        for backend in ("ICMS", "DOCA_MEMOS"):
            ours = BUILD / f"integrations/nixl/libplugin_{backend}.so"
            names = [line.split()[-1] for line in lines("nm", "-D", "--defined-only", str(ours))]
            self.assertEqual(sorted(names), ["nixl_plugin_fini", "nixl_plugin_init"])
