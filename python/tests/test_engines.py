# SPDX-License-Identifier: Apache-2.0
"""What adapters of engines share: tiers that come later, and what they say of themselves."""
import logging
import threading
import types
import unittest
import unittest.mock

import icms
from icms import _engines
from support import wait_for

LOG = logging.getLogger("test")


class Openers(unittest.TestCase):
    def setUp(self):
        self.answers = []  # of Client(): what is raised, or returned
        self.opened = []
        self.client = types.SimpleNamespace(volume=lambda name: name, close=lambda: None)
        for name, value in (("Client", self.make), ("_RETRY_SECONDS", 0.005)):
            patch = unittest.mock.patch.object(_engines, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def make(self, *_, **__):
        answer = self.answers.pop(0) if self.answers else self.client
        if isinstance(answer, Exception):
            raise answer
        return answer

    def opener(self, watch=None):
        def opened(client, volume):
            self.opened.append(volume)
            return watch

        opener = _engines.Opener("unix:", "kv", keys="", load_ms=0, store_ms=0, opened=opened, log=LOG)
        self.addCleanup(opener.close)
        return opener

    def test_what_is_wrong_ends_a_start(self):
        self.answers = [icms.NoVolumeError("no volume kv")]
        self.assertRaises(icms.NoVolumeError, self.opener)

    def test_what_is_wrong_later_is_told_and_tried_again(self):
        self.answers = [icms.PeerDownError(), *(icms.NoVolumeError("no volume kv")
                                                for _ in range(5)), ValueError("odd")]
        with self.assertLogs("test", "WARNING") as logged:
            self.opener()
            wait_for(lambda: self.opened)
        self.assertEqual(self.opened, ["kv"])
        self.assertEqual(len(logged.output), 2, logged.output)
        self.assertIn("the volume kv of unix: is not used: ", logged.output[1])

    def test_a_watch_looks_when_it_is_due_and_ends_with_the_opener(self):
        looked = threading.Event()
        watch = types.SimpleNamespace(is_due=True, wait_seconds=600.0)

        def look():
            watch.is_due = False
            looked.set()

        watch.look = look
        opener = self.opener(watch)
        self.assertTrue(looked.wait(20))
        looked.clear()
        other = types.SimpleNamespace(is_due=False, wait_seconds=600.0, look=looked.set)
        opener.watch(other)
        opener.watch(None)
        watch.is_due = True
        opener.watch(watch)
        self.assertTrue(looked.wait(20))
        before = threading.active_count()
        opener.close()
        self.assertEqual(threading.active_count(), before - 1)


if __name__ == "__main__":
    unittest.main()
