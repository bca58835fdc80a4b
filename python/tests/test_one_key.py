# SPDX-License-Identifier: Apache-2.0
"""Calls with one key, as caches elsewhere have them, with text as keys; and `icms.aio` alike."""
import asyncio
import os
import subprocess
import sys
import unittest

import icms
from support import BUILD, TestCase, VALUE_BYTES, keys, value


def text_keys(count):
    """Names that no other call has made, longer than a key."""
    return [f"the name of a block/{key.hex()}" for key in keys(count)]


class OneKey(TestCase):
    def icms(self, *arguments, data=None):
        """The program `icms` on the same tier."""
        result = subprocess.run([BUILD / "cmd/icms", *arguments], input=data, timeout=60,
                                capture_output=True, check=False,
                                env={**os.environ, "ICMS_OPEN": self.tier.where})
        self.assertEqual(result.returncode, 0, result)
        return result.stdout

    def test_a_value_comes_back_as_bytes(self):
        for name in (*keys(1), *text_keys(1), memoryview(keys(1)[0])):
            for nbytes in (1, 1000, VALUE_BYTES):
                self.assertIs(self.volume.put(name, value(nbytes, nbytes)), True)
                loaded = self.volume.get(name)
                self.assertIsInstance(loaded, bytes)
                self.assertEqual(loaded, value(nbytes, nbytes))
            self.assertIs(self.volume.exists(name), True)
            self.assertIs(self.volume.remove(name), True)
            self.assertIs(self.volume.remove(name), False)
            self.assertIs(self.volume.exists(name), False)
            self.assertIsNone(self.volume.get(name))

    def test_a_value_comes_from_the_enclosure(self):
        name, = text_keys(1)
        self.assertTrue(self.volume.put(name, value(7), on_flash=True))
        self.put(140)  # more than the arena has slots
        before = self.metric("icms_agent_enclosure_load_bytes_total")
        self.assertEqual(self.volume.get(name), value(7))
        self.assertGreaterEqual(self.metric("icms_agent_enclosure_load_bytes_total") - before,
                                VALUE_BYTES)

    def test_a_directory_does_the_same(self):
        with icms.Client(f"dir:{self.tier.folder}/one", value_bytes_max=VALUE_BYTES,
                         directory_bytes=64 << 20) as client:
            volume = client.volume("kv")
            self.assertTrue(volume.put("a name", value(1)))
            self.assertEqual((volume.get("a name"), volume.get("none")), (value(1), None))

    def test_nothing_stays_mapped(self):
        def mapped():
            with open("/proc/self/maps", encoding="utf-8") as maps:
                return len(maps.readlines())

        self.assertTrue(self.volume.put("a name", value(1)))
        before = mapped()
        for _ in range(100):
            self.assertIsNotNone(self.volume.get("a name"))
            self.assertIsNone(self.volume.get("another name"))
        self.assertLess(mapped() - before, 10)

    def test_text_is_the_name_that_the_program_knows(self):
        short = keys(1)[0].hex()[:12]
        self.volume.put(short, b"from Python", on_flash=True)
        self.assertEqual(self.icms("get", short), b"from Python")
        self.icms("put", short, data=b"from a shell")
        self.assertEqual(self.volume.get(short), b"from a shell")
        self.assertEqual(self.volume.get(short.encode()), b"from a shell")
        for long in (*text_keys(1), "ключ блока " + short):
            self.assertTrue(self.volume.put(long, long.encode()))
            self.assertEqual(self.icms("get", "--name", long), long.encode())
            self.assertEqual(self.volume.get(icms.key(long)), long.encode())
            self.assertEqual(self.icms("get", "--hex", icms.key(long).hex()), long.encode())

    def test_up_to_16_bytes_are_the_key_in_a_raw_volume(self):
        raw = self.volume.client.volume("raw")
        short, long = keys(1)[0].hex()[:12], text_keys(1)[0]
        self.assertFalse(raw.sealed)
        raw.put(short, b"raw", on_flash=True)
        for key in ((short,), ("0x" + short.encode().hex(),), ("--hex", short.encode().hex())):
            self.assertEqual(self.icms("get", "--volume", "raw", *key), b"raw")
        self.assertEqual(raw.get(short.encode()), b"raw")
        self.assertIsNone(raw.get(icms.key(short)))
        self.icms("put", "--volume", "raw", "--name", short, data=b"hashed")
        self.assertEqual(raw.get(icms.key(short)), b"hashed")
        self.assertEqual(raw.get(short), b"raw")
        raw.put(long, b"long")
        self.assertEqual(self.icms("get", "--volume", "raw", "--name", long), b"long")

    def test_text_may_be_keys_of_a_batch(self):
        names = text_keys(3)
        values = [value(i) for i in range(3)]
        self.assertTrue(self.volume.put(names, values).ok)
        self.assertEqual(self.volume.match([*names[:2], icms.key(names[2])]), 3)
        rooms = [bytearray(VALUE_BYTES) for _ in names]
        self.assertTrue(self.volume.get(names, rooms).ok)
        self.assertEqual(rooms, values)
        with self.volume.lease(names[1]) as view:
            self.assertEqual(bytes(view), values[1])
        self.assertEqual(self.volume.start_exists(names).result().prefix, 3)

    def test_put_says_whether_it_is_stored(self):
        name, = text_keys(1)
        self.assertIs(self.volume.put(name, b"1", if_absent=True), True)
        self.assertIs(self.volume.put(name, b"2", if_absent=True), False)
        self.assertEqual(self.volume.get(name), b"1")
        for wrong in (b"", bytes(VALUE_BYTES + 1)):
            with self.assertRaises(icms.ValueSizeError):
                self.volume.put(name, wrong)

    def test_what_is_neither_stored_nor_missed_is_raised(self):
        client = icms.Client(self.tier.where)
        volume = client.volume("kv")
        client.close()
        for call in (volume.get, volume.exists, volume.remove):
            with self.assertRaises(icms.ClosedError):
                call("a")
        with self.assertRaises(icms.ClosedError):
            volume.put("a", b"1")

    def test_wrong_arguments_say_what_is_right(self):
        with self.assertRaisesRegex(TypeError, r"get\(\[key\], \[memory\]\)"):
            self.volume.get("a", bytearray(1))
        with self.assertRaisesRegex(TypeError, r"get\(keys, memory\)"):
            self.volume.get(["a"])
        with self.assertRaisesRegex(ValueError, "1 to 16 bytes"):
            self.volume.get("")
        with self.assertRaisesRegex(ValueError, r"not 17; icms\.key"):
            self.volume.get(b"x" * 17)
        with self.assertRaises(UnicodeEncodeError):
            self.volume.get("\ud800")
        for wrong in ((5,), 5, None):
            with self.assertRaises(TypeError):
                self.volume.exists(wrong)
        for call in (self.volume.match, self.volume.prefetch):
            with self.assertRaisesRegex(TypeError, "one entry a block"):
                call("a name")


class Awaited(TestCase):
    def test_one_key_with_asyncio(self):
        async def calls():
            volume = icms.aio.Volume(self.volume)
            name, long = keys(1)[0], text_keys(1)[0]
            for key in (name, long):
                self.assertIs(await volume.put(key, b"hello"), True)
                self.assertIs(await volume.put(key, b"x", if_absent=True), False)
                self.assertEqual(await volume.get(key), b"hello")
                self.assertIs(await volume.exists(key), True)
            self.assertEqual(await volume.match([name, long]), 2)
            self.assertIs(await volume.remove(long), True)
            self.assertIsNone(await volume.get(long))
            self.assertEqual((await volume.exists([name, long])).mask, [True, False])
            with self.assertRaises(TypeError):
                await volume.get(name, bytearray(1))

        asyncio.run(calls())

    def test_it_is_there_when_it_is_used(self):
        """`import icms` suffices, and does not pay for asyncio."""
        program = ("import icms, sys; assert 'asyncio' not in sys.modules; "
                   "icms.aio.Volume; icms.keys.Scheme; assert 'asyncio' in sys.modules\n"
                   "try: icms.nothing\nexcept AttributeError as error: print(error)")
        said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True,
                              text=True).stdout
        self.assertEqual(said, "module 'icms' has no attribute 'nothing'\n")


if __name__ == "__main__":
    unittest.main()
