# SPDX-License-Identifier: Apache-2.0
"""What adapters of engines share: an open tier, and what it says of itself."""
import logging
import threading
import types
import unittest

import icms
from icms import _engines
from support import wait_for

LOG = logging.getLogger("test")


class Tiers(unittest.TestCase):
    def tier(self, **options):
        tier = _engines.Tier(_engines.TierOptions(volume="kv", **options), LOG)
        self.addCleanup(tier.close)
        return tier

    def test_what_is_wrong_ends_a_start(self):
        self.assertRaises(icms.InvalidError, self.tier, where="carrier pigeon:")
        self.assertRaises(icms.NotFoundError, self.tier, where="unix:/no/where", keys="/no/keys.yaml")

    def test_an_agent_that_is_not_there_is_told(self):
        with self.assertLogs("test", "WARNING") as logged:
            tier = self.tier(where="unix:/no/where")
            wait_for(lambda: logged.output)
        self.assertEqual(tier.volume.state, icms.Status.PEER_DOWN)
        self.assertEqual((tier.volume.name, tier.volume.uuid.int, tier.volume.value_bytes_max),
                         ("kv", 0, 0))
        self.assertRaises(icms.PeerDownError, tier.volume.get, "name")
        self.assertRaises(icms.PeerDownError, tier.volume.chain, icms.Layout())
        tier.close()
        self.assertEqual(tier.volume.state, icms.Status.CLOSED)
        self.assertIn("icms: unix:/no/where: no agent: ", logged.output[0])

    def test_a_watch_looks_when_it_is_due_and_ends_with_the_tier(self):
        looked = threading.Event()
        watch = types.SimpleNamespace(is_due=True, wait_seconds=600.0)

        def look():
            watch.is_due = False
            looked.set()

        watch.look = look
        tier = self.tier(where="unix:/no/where")
        tier.watch(watch)
        self.assertTrue(looked.wait(20))
        looked.clear()
        other = types.SimpleNamespace(is_due=False, wait_seconds=600.0, look=looked.set)
        tier.watch(other)
        tier.watch(None)
        watch.is_due = True
        tier.watch(watch)
        self.assertTrue(looked.wait(20))
        tier.close()
        self.assertNotIn("icms-watch", [thread.name for thread in threading.enumerate()])

    def test_a_close_between_two_looks_of_the_watch_ends_it(self):
        tier = self.tier(where="unix:/no/where")

        class Changed(threading.Event):
            def clear(self):
                tier._over = True  # as close() of another thread does
                self.set()
                super().clear()

        tier._changed = Changed()
        tier.watch(None)
        tier._thread.join(20)
        self.assertFalse(tier._thread.is_alive())


if __name__ == "__main__":
    unittest.main()
