# SPDX-License-Identifier: Apache-2.0
"""The binary interface: our virtual table against that of a plugin that came with this NIXL.

NIXL calls an engine's functions by their places. Its own plugins export theirs, so the places can be
read from libplugin_POSIX.so: each must have the function of that name in ours.
"""
import collections
import os
import pathlib
import subprocess
import unittest

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

    def test_the_plugins_export_nothing_but_their_entries(self):
        for backend in ("ICMS", "DOCA_MEMOS"):
            ours = BUILD / f"integrations/nixl/libplugin_{backend}.so"
            names = [line.split()[-1] for line in lines("nm", "-D", "--defined-only", str(ours))]
            self.assertEqual(sorted(names), ["nixl_plugin_fini", "nixl_plugin_init"])
