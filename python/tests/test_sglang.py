# SPDX-License-Identifier: Apache-2.0
"""icms.sglang keeps the promises of its interface, on stand-ins for SGLang's own classes."""
import os
import pathlib
import random
import sys
import threading
import time
import types
import unittest
import unittest.mock

import icms
import sglang_stand_ins as stand_ins
from sglang_stand_ins import (Config, ExtraInfo, Page, Pool, PoolHitPolicy, PoolName, PoolTransfer,
                             PoolTransferResult)
from support import EncryptedTier, Tier, gets_of_twins, puts_that_replace, tier, value, wait_for

stand_ins.install()

from icms import _sglang  # noqa: E402
from icms.sglang import HiCacheIcms  # noqa: E402

PIECES = (3000, 3000)


def hashes(count):
    return [random.randbytes(32).hex() for _ in range(count)]


class Case(unittest.TestCase):
    def backend(self, pool=None, *, config=None, where=None, **options):
        """One server: its storage, with a host pool."""
        config = config or {}
        extra = {"interface_v1": config.pop("interface_v1", 1),
                 "icms": {"where": where or tier().where, "volume": "kv", "tenant": self.id(),
                          **options}}
        backend = HiCacheIcms(Config(extra, **config), {})
        self.addCleanup(backend.close)
        backend.pool = pool or Pool(PIECES)
        backend.register_mem_pool_host(backend.pool)
        return backend

    def filled(self, backend, pages, pool=None):
        """Writes pages of the host pool; their bytes."""
        pool = pool or backend.pool
        datas = [value(random.random(), sum(pool.piece_bytes)) for _ in range(pages)]
        for number, data in enumerate(datas):
            pool.fill(number, data)
        return datas


class Encrypted(Case):
    def test_drives_have_ciphertext_and_who_has_no_key_computes(self):
        shared = EncryptedTier(self)
        one = self.backend(where=shared.where, keys=shared.lists["keys"])
        names, datas = hashes(5), self.filled(one, 5)
        self.assertEqual(one.batch_set_v1(names, one.pool.at(*range(5))), [True] * 5)
        one.close()
        shared.check_ciphertext(self, datas)
        other = self.backend(where=shared.where, keys=shared.lists["keys"])
        self.assertEqual(other.batch_get_v1(names, other.pool.at(*range(5))), [True] * 5)
        self.assertEqual([other.pool.page(i) for i in range(5)], datas)
        for keys, reason in (("other_id", "NO_KEY"), ("other_key", "CHECKSUM")):
            with self.subTest(keys):
                other = self.backend(where=shared.where, keys=shared.lists[keys])
                self.assertEqual(other.batch_get_v1(names, other.pool.at(*range(5))), [False] * 5)
                self.assertEqual(set(other.counters.misses), {reason})
        with self.assertRaisesRegex(icms.NoKeyError, "it is encrypted, and no list of keys was given"):
            self.backend(where=shared.where)


class InPlace(Case):
    def test_another_server_finds_the_pages(self):
        one, other = self.backend(), self.backend()
        names, datas = hashes(5), self.filled(one, 5)
        self.assertEqual(one.batch_exists(names), 0)
        self.assertEqual(one.batch_set_v1(names, one.pool.at(*range(5))), [True] * 5)
        self.assertEqual(other.batch_exists(names), 5)
        self.assertEqual(other.batch_get_v1(names, other.pool.at(7, 1, 2, 3, 0)), [True] * 5)
        self.assertEqual([other.pool.page(page) for page in (7, 1, 2, 3, 0)], datas)
        self.assertEqual(other.pool.page(4), bytes(6000))
        said = other.counters
        self.assertEqual((said.pages_wanted, said.pages_loaded, said.bytes_loaded), (5, 5, 30000))
        self.assertEqual(one.counters.bytes_stored, 30000)

    def test_the_agent_learns_which_pages_will_be_loaded(self):
        def taken():
            with icms.Client(tier().where) as client:
                return sum(volume["prestage"]["taken"] for volume in client.status()["volumes"])

        one, silent = self.backend(), self.backend(prestage_ms=0)
        names, _ = hashes(5), self.filled(one, 5)
        one.batch_set_v1(names, one.pool.at(*range(5)))
        before = taken()
        self.assertEqual(silent.batch_exists(names), 5)
        self.assertEqual(taken(), before)
        self.assertEqual(one.batch_exists(names + hashes(2)), 5)
        self.assertEqual(taken() - before, 10)  # two pieces a page, of those that are there

    def test_a_hint_comes_after_the_question_and_its_failure_leaves_the_pages(self):
        backend = self.backend()
        names, _ = hashes(5), self.filled(backend, 5)
        backend.batch_set_v1(names, backend.pool.at(*range(5)))
        said, exists = [], icms.Volume.exists

        def asked(volume, keys, **words):
            said.append(("exists", len(keys)))
            return exists(volume, keys, **words)

        def hinted(volume, keys, **_):
            said.append(("prestage", len(keys)))
            raise icms.BusyError("too many hints")

        with unittest.mock.patch("icms.sglang.BATCH_MAX", 4), \
                unittest.mock.patch.object(icms.Volume, "exists", asked), \
                unittest.mock.patch.object(icms.Volume, "prestage", hinted), \
                self.assertLogs("icms.sglang", "WARNING") as logged:
            for _ in range(2):
                self.assertEqual(backend.batch_exists(names + hashes(1)), 5)
        self.assertEqual(said, 2 * [("exists", 4), ("exists", 4), ("exists", 4), ("prestage", 10)])
        self.assertEqual(len(logged.output), 1)
        self.assertIn("cannot prestage pages in the volume kv: ", logged.output[0])
        self.assertEqual(backend.counters.failures, {"BusyError": 2})

    def test_pages_that_are_there_are_not_stored_again(self):
        backend = self.backend()
        names, datas = hashes(3), self.filled(backend, 3)
        backend.batch_set_v1(names[:2], backend.pool.at(0, 1))
        backend.pool.fill(0, bytes(6000))  # a page's name says what is in it: this is never so
        self.assertEqual(backend.batch_set_v1(names, backend.pool.at(0, 1, 2)), [True] * 3)
        self.assertEqual(backend.batch_get_v1(names, backend.pool.at(0, 1, 2)), [True] * 3)
        self.assertEqual([backend.pool.page(page) for page in range(3)], datas)
        self.assertEqual(backend.counters.refusals, {})

    def test_a_page_without_one_of_its_pieces_is_not_there(self):
        backend = self.backend()
        names = hashes(4)
        datas = self.filled(backend, 4)
        backend.batch_set_v1(names, backend.pool.at(*range(4)))
        pieces = backend._pools["kv"].keys(backend._scheme.keys(names))
        self.assertEqual(len(pieces), 8)
        self.assertTrue(backend.volume.remove([pieces[5]]).ok)  # V of the third page
        self.assertEqual(backend.batch_exists(names), 2)
        self.assertEqual(backend.batch_get_v1(names, backend.pool.at(4, 5, 6, 7)),
                         [True, True, False, True])
        self.assertEqual([backend.pool.page(page) for page in (4, 5, 7)],
                         [datas[0], datas[1], datas[3]])
        self.assertEqual(backend.counters.misses, {"ABSENT": 1})
        self.assertEqual(backend.counters.pages_loaded, 3)

    def test_a_piece_of_another_size_is_a_miss(self):
        backend = self.backend()
        names = hashes(4)
        datas = self.filled(backend, 4)
        backend.batch_set_v1(names, backend.pool.at(*range(4)))
        pieces = backend._pools["kv"].keys(backend._scheme.keys(names))
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            for piece, nbytes in ((1, 2999), (2, 3001), (5, 1)):
                self.assertTrue(backend.volume.put([pieces[piece]], [bytes(nbytes)]).ok)
            self.assertEqual(backend.batch_get_v1(names, backend.pool.at(4, 5, 6, 7)),
                             [False, False, False, True])
        self.assertEqual(backend.pool.page(7), datas[3])
        self.assertEqual(backend.counters.misses, {"VALUE_SIZE": 3})
        self.assertIn("3 pieces of pages with a wrong size", logged.output[0])

    def test_another_block_of_the_same_16_bytes_is_a_miss(self):
        backend = self.backend()
        names, datas = hashes(2), self.filled(backend, 2)
        backend.batch_set_v1(names, backend.pool.at(0, 1))
        with gets_of_twins():
            self.assertEqual(backend.batch_get_v1(names, backend.pool.at(4, 5)), [False] * 2)
        self.assertEqual(backend.counters.misses, {"COLLISION": 4})
        self.assertEqual(backend.batch_get_v1(names, backend.pool.at(4, 5)), [True] * 2)
        self.assertEqual([backend.pool.page(page) for page in (4, 5)], datas)

    def test_pieces_of_a_page_lie_together(self):
        backend = self.backend(Pool((100,) * 6))
        names = hashes(9)
        keys = backend._pools["kv"].keys(backend._scheme.keys(names))
        self.assertEqual(len(set(keys)), 54)
        self.assertEqual([len({key[:4] for key in keys[6 * i:6 * i + 6]}) for i in range(9)],
                         [1] * 9)
        self.assertEqual(len({key[:4] for key in keys}), 9)

    def test_more_pieces_than_a_batch_takes(self):
        pool = Pool((160,) * 10)
        backend = self.backend(pool, load_ms=20000, store_ms=20000)
        names = hashes(8)
        datas = self.filled(backend, 8)
        with unittest.mock.patch("icms.sglang.BATCH_MAX", 7):
            self.assertEqual(backend.batch_set_v1(names, pool.at(*range(8))), [True] * 8)
            for page in range(8):
                pool.fill(page, bytes(1600))
            self.assertEqual(backend.batch_exists(names), 8)
            self.assertEqual(backend.batch_get_v1(names, pool.at(*range(8))), [True] * 8)
        self.assertEqual([pool.page(page) for page in range(8)], datas)

    def test_buffers_larger_than_a_block(self):
        one, other = (self.backend(Pool((150000, 5000, 65536), pages=3)) for _ in range(2))
        names, datas = hashes(3), self.filled(one, 3)
        self.assertEqual(one._pools["kv"].pieces, 5)
        self.assertEqual(one.batch_set_v1(names, one.pool.at(0, 1, 2)), [True] * 3)
        self.assertEqual(other.batch_get_v1(names, other.pool.at(2, 1, 0)), [True] * 3)
        self.assertEqual([other.pool.page(page) for page in (2, 1, 0)], datas)

    def test_many_threads(self):
        backend = self.backend(Pool(PIECES, pages=48))
        datas, names = self.filled(backend, 48), hashes(48)
        wrong = []

        def work(first):
            mine = range(first, first + 8)
            for _ in range(10):
                if backend.batch_set_v1([names[i] for i in mine],
                                        backend.pool.at(*mine)) != [True] * 8:
                    wrong.append(first)
                if backend.batch_get_v1([names[i] for i in mine],
                                        backend.pool.at(*mine)) != [True] * 8:
                    wrong.append(first)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 48, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual([backend.pool.page(page) for page in range(48)], datas)
        self.assertEqual(backend.counters.pages_loaded, 480)

    def test_indices_of_other_pages_are_refused(self):
        backend = self.backend()
        with self.assertRaisesRegex(ValueError, "2 keys for the pool 'kv' and 4 tokens"):
            backend.batch_get_v1(hashes(2), backend.pool.at(0))
        with self.assertRaisesRegex(ValueError, "and 0 tokens"):
            backend.batch_set_v1(hashes(2), None)

    def test_metrics(self):
        backend = self.backend()
        names = hashes(3)
        self.filled(backend, 3)
        backend.batch_set_v1(names, backend.pool.at(0, 1, 2))
        backend.batch_get_v1(names[:2], backend.pool.at(0, 1))
        metrics = backend.get_stats()
        self.assertEqual((metrics.backup_pgs, metrics.prefetch_pgs), ([3], [2]))
        self.assertGreater(metrics.prefetch_bandwidth[0], 0)
        self.assertEqual(backend.get_stats().backup_pgs, [])
        silent = self.backend(config={"enable_storage_metrics": False})
        self.assertIsNone(silent.get_stats())


class Names(Case):
    def test_what_differs_is_never_shared(self):
        names = hashes(2)
        base = {"tp_size": 2}
        one = self.backend(config=dict(base))
        self.filled(one, 2)
        one.batch_set_v1(names, one.pool.at(0, 1))
        for pool, config, options in (
                (None, {"tp_rank": 1}, {}), (None, {"pp_rank": 1, "pp_size": 2}, {}),
                (None, {"attn_cp_rank": 1, "attn_cp_size": 2}, {}),
                (None, {}, {"weights": "text"}), (None, {}, {"tenant": "other"}),
                (Pool((6000,)), {}, {}), (Pool((3000, 2999)), {}, {}),
                (Pool(PIECES, start_layer=4), {}, {}), (Pool(PIECES, head_num=2), {}, {}),
                (Pool(PIECES, dtype="torch.float8_e4m3fn"), {}, {})):
            other = self.backend(pool, config={**base, **config}, **options)
            self.assertEqual(other.batch_exists(names), 0, (config, options))
        self.assertEqual(self.backend(config=dict(base)).batch_exists(names), 2)

    def test_servers_that_differ_are_told_and_live_beside_each_other(self):
        names = hashes(1)
        for pool, options in ((None, {}), (Pool(PIECES, page_size=16), {}), (None, {"weights": "v2"})):
            one = self.backend(pool, **options)
            self.filled(one, 1)
            self.assertEqual(one.batch_exists(names), 0)
            self.assertEqual(one.batch_set_v1(names, one.pool.at(0)), [True])
            self.assertEqual(one.batch_exists(names), 1)
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            self.backend(weights="v3")
            wait_for(lambda: any("weights: " in text for text in logged.output))
        self.assertEqual(self.backend().batch_exists(names), 1)

    def test_pages_of_mla_are_those_of_all_tensor_ranks(self):
        names = hashes(3)
        one = self.backend(Pool((5000,)), config={"is_mla_model": True, "tp_size": 2})
        datas = self.filled(one, 3)
        one.batch_set_v1(names, one.pool.at(0, 1, 2))
        other = self.backend(Pool((5000,)),
                             config={"is_mla_model": True, "tp_rank": 1, "tp_size": 2})
        self.assertEqual(other.batch_get_v1(names, other.pool.at(0, 1, 2)), [True] * 3)
        self.assertEqual([other.pool.page(page) for page in range(3)], datas)

    def test_chained_pages_of_a_prompt_lie_together(self):
        backend = self.backend(chained=True)
        run = backend.volume.run_blocks
        names = hashes(2 * run + 1)
        self.assertEqual(len({key[:4] for key in backend._scheme.keys(names)}),
                         run.bit_length() + 2)  # runs double up to that size
        datas = self.filled(backend, 6)
        first, then = names[:3], names[3:6]
        self.assertEqual(backend.batch_set_v1(first, backend.pool.at(0, 1, 2), ExtraInfo([])),
                         [True] * 3)
        self.assertEqual(backend.batch_set_v1(then, backend.pool.at(3, 4, 5), ExtraInfo(first)),
                         [True] * 3)
        other = self.backend(chained=True)
        self.assertEqual(other.batch_exists(names), 6)  # of a hybrid model: no prefix is None
        self.assertEqual(other.batch_exists(then, ExtraInfo(first)), 3)
        self.assertEqual(other.batch_get_v1(names[:6], other.pool.at(*range(6)), ExtraInfo([])),
                         [True] * 6)
        self.assertEqual([other.pool.page(page) for page in range(6)], datas)

    def test_pages_that_are_there_are_left_as_they_are(self):
        backend = self.backend(chained=True)
        self.filled(backend, 5)
        with puts_that_replace() as seen:
            for _ in range(2):
                self.assertEqual(backend.batch_set_v1(hashes(5), backend.pool.at(*range(5)),
                                                      ExtraInfo([])), [True] * 5)
        self.assertEqual(seen, [])

    def test_chained_without_prefixes_stores_nothing_and_says_so(self):
        backend = self.backend(chained=True)
        self.filled(backend, 2)
        for extra_info in (None, ExtraInfo(None)):
            with self.assertLogs("icms.sglang", "WARNING") as logged:
                backend._sayer._said.clear()
                self.assertEqual(backend.batch_set_v1(hashes(2), backend.pool.at(0, 1),
                                                      extra_info), [False] * 2)
            self.assertIn("hicache_storage_pass_prefix_keys", logged.output[0])
        self.assertEqual(backend.counters.pages_stored, 0)


class SeveralPools(Case):
    def hybrid(self, **config):
        backend = self.backend(config=config)
        backend.mamba = Pool((700, 300, 200), page_size=1, pages=8)
        backend.swa = Pool((900,))
        backend.register_mem_host_pool_v2(backend.pool, PoolName.KV)
        backend.register_mem_host_pool_v2(backend.mamba, PoolName.MAMBA)
        backend.register_mem_host_pool_v2(backend.swa, PoolName.SWA)
        return backend

    def stored(self, kv, mamba, swa):
        """Six pages of a prompt of which some are stored; their names and a fresh server."""
        one, names = self.hybrid(), hashes(6)
        for pool in (one.pool, one.mamba, one.swa):
            self.filled(one, 6, pool)
        one.batch_set_v1([names[i] for i in kv], one.pool.at(*kv))
        transfers = [PoolTransfer(PoolName.MAMBA, one.mamba.at(*mamba), [names[i] for i in mamba]),
                     PoolTransfer(PoolName.SWA, one.swa.at(*swa), [names[i] for i in swa])]
        self.assertEqual(one.batch_set_v2(transfers),
                         {PoolName.MAMBA: [True] * len(mamba), PoolName.SWA: [True] * len(swa)})
        return names, one, self.hybrid()

    def test_pages_of_all_pools_come_together(self):
        names, one, other = self.stored(range(6), (3, 5), range(5))
        transfers = [PoolTransfer(PoolName.MAMBA, other.mamba.at(0, 1, 2),
                                  [names[3], names[4], names[5]]),
                     PoolTransfer(PoolName.SWA, other.swa.at(1, 2), [names[4], names[5]])]
        self.assertEqual(other.batch_get_v2(transfers),
                         {PoolName.MAMBA: [True, False, True], PoolName.SWA: [True, False]})
        self.assertEqual((other.mamba.page(0), other.mamba.page(2), other.swa.page(1)),
                         (one.mamba.page(3), one.mamba.page(5), one.swa.page(4)))

    def test_what_can_be_restored(self):
        names, _, other = self.stored(range(5), (1, 4), range(4))
        every = PoolTransfer(PoolName.SWA)
        last = PoolTransfer(PoolName.MAMBA, keys=["x"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
        self.assertEqual(other.batch_exists_v2(names, [every]),
                         PoolTransferResult(4, {"kv": 5, "swa": 4}, [1, 2, 3, 4]))
        self.assertEqual(other.batch_exists_v2(names, [last]),
                         PoolTransferResult(5, {"kv": 5, "mamba": 5}, [2, 5]))
        self.assertEqual(other.batch_exists_v2(names, [every, last]),
                         PoolTransferResult(2, {"kv": 5, "swa": 4, "mamba": 5}, [2]))
        two = PoolTransfer(PoolName.SWA, keys=["x", "y"],
                           hit_policy=PoolHitPolicy.TRAILING_PAGES)
        self.assertEqual(other.batch_exists_v2(names, [two]).restorable_prefix_pages, [1, 2, 3, 4])
        self.assertEqual(other.batch_exists_v2(hashes(3), [every, last]),
                         PoolTransferResult(0, {}, []))
        with self.assertRaisesRegex(ValueError, "hit policy"):
            other.batch_exists_v2(names, [PoolTransfer(PoolName.SWA,
                                                       hit_policy=PoolHitPolicy.BLOCK_GROUPS)])

    def test_mamba_state_is_that_of_one_rank(self):
        config = {"is_mla_model": True, "tp_size": 2}
        one, other = self.hybrid(**config), self.hybrid(**config, tp_rank=1)
        names = hashes(1)
        self.filled(one, 1)
        one.batch_set_v1(names, one.pool.at(0))
        one.batch_set_v2([PoolTransfer(PoolName.MAMBA, one.mamba.at(0), names)])
        for backend, found in ((one, 1), (other, 0)):
            self.assertEqual(backend.batch_exists(names), 1)
            self.assertEqual(backend.batch_exists_v2(names, [PoolTransfer(PoolName.MAMBA)])
                             .kv_hit_pages, found)

    def test_a_pool_without_memory_of_its_own_has_every_page(self):
        backend = self.backend(Pool(()))
        names = hashes(3)
        self.assertEqual(backend.batch_set_v1(names, backend.pool.at(0, 1, 2)), [True] * 3)
        self.assertEqual(backend.batch_get_v1(names, backend.pool.at(0, 1, 2)), [True] * 3)
        self.assertEqual(backend.batch_exists(names), 3)

    def test_a_pool_that_nobody_registered(self):
        backend = self.backend()
        with self.assertRaisesRegex(ValueError, r"host pool 'swa' .* has \['kv'\]"):
            backend.batch_get_v2([PoolTransfer(PoolName.SWA, stand_ins.Tensor([0]), hashes(1))])


class Copies(Case):
    """Without interface_v1."""

    def test_another_server_finds_the_pages(self):
        one = self.backend(config={"interface_v1": 0})
        other = self.backend(config={"interface_v1": 0})
        names, datas = hashes(3), [value(random.random(), 4000) for _ in range(3)]
        self.assertTrue(one.batch_set(names, [Page(data) for data in datas]))
        self.assertTrue(one.set(names[0], Page(datas[0])))
        self.assertEqual(other.batch_exists([*names, *hashes(1)]), 3)
        self.assertTrue(other.exists(names[2]))
        rooms = [Page(bytes(4000)) for _ in range(4)]
        loaded = other.batch_get([*names, *hashes(1)], rooms)
        self.assertEqual([room is page for room, page in zip(rooms, loaded)], [True] * 3 + [False])
        self.assertIsNone(loaded[3])
        self.assertEqual([bytes(room.data) for room in rooms[:3]], datas)
        self.assertIs(other.get(names[1], rooms[3]), rooms[3])
        self.assertEqual(bytes(rooms[3].data), datas[1])

    def test_pages_of_another_size_are_no_pages(self):
        backend = self.backend(config={"interface_v1": 0})
        names = hashes(1)
        self.assertTrue(backend.set(names[0], Page(bytes(4000))))
        for nbytes in (3998, 4002):
            with self.assertRaisesRegex(ValueError, f"page of {nbytes} bytes: .* have 4000"):
                backend.get(names[0], Page(bytes(nbytes)))
            with self.assertRaisesRegex(ValueError, f"page of {nbytes} bytes: .* have 4000"):
                backend.set(names[0], Page(bytes(nbytes)))
        pool = Pool(PIECES)
        pool.flat_bytes = 5000  # of another host pool: other pages
        self.assertFalse(self.backend(pool, config={"interface_v1": 0}).exists(names[0]))


class Mistakes(Case):
    def test_options(self):
        for given, text in ((None, "is an object with options of icms: volume, where"),
                            ([], "is an object"), ({}, "needs the option 'volume'; there are vol"),
                            ({"volume": "kv", "wher": "unix:"}, "no option 'wher'; there are vol"),
                            ({"volume": 5}, "volume is of type str, not 5"),
                            ({"volume": "kv", "chained": 1}, "chained is of type bool"),
                            ({"volume": "kv", "load_ms": True}, "is of type int")):
            with self.assertRaisesRegex(ValueError, text):
                HiCacheIcms(Config({"icms": given}))
        for config in ({"should_split_heads": True}, {"dcp_size": 2}):
            with self.assertRaisesRegex(ValueError, "not supported"):
                HiCacheIcms(Config({"icms": {"volume": "kv"}}, **config))
        with self.assertRaisesRegex(ValueError, 'needs "interface_v1"'):
            HiCacheIcms(Config({"icms": {"volume": "kv", "chained": True}}))
        with self.assertRaises(icms.NoVolumeError):
            HiCacheIcms(Config({"icms": {"volume": "nobody's", "where": tier().where}}))

    def test_pools(self):
        with self.assertRaisesRegex(ValueError, "--hicache-mem-layout page_first"):
            self.backend(Pool(PIECES, error=ValueError("Unsupported layout: layer_first")))
        backend = HiCacheIcms(Config({"interface_v1": 1, "icms": {"volume": "kv",
                                                                  "where": tier().where}}))
        self.addCleanup(backend.close)
        with self.assertRaisesRegex(ValueError, "has not registered"):
            backend.batch_exists(hashes(1))


class Identities(Case):
    """What of a server counts."""

    def server(self, *, weights="", files=None, environment=None, **args):
        """A server with other arguments; whether it finds the pages of `one`."""
        with unittest.mock.patch.dict(stand_ins.ServerArgs.fields, args), \
                unittest.mock.patch.dict(os.environ, environment or {}):
            return self.backend(weights=weights)

    def setUp(self):
        self.one = self.server()
        self.names = hashes(2)
        self.filled(self.one, 2)
        self.assertEqual(self.one.batch_set_v1(self.names, self.one.pool.at(0, 1)), [True] * 2)

    def finds(self, **words):
        return self.server(**words).batch_exists(self.names) == 2

    def test_servers_that_differ_in_what_is_harmless_share(self):
        self.assertTrue(self.finds())
        for args in ({"port": 1}, {"host": "0.0.0.0"}, {"log_level": "debug"}, {"api_key": "secret"},
                     {"mem_fraction_static": 0.5}, {"max_running_requests": 3},
                     {"chunked_prefill_size": 77}, {"schedule_policy": "fcfs"}, {"node_rank": 1},
                     {"hicache_ratio": 3.0}, {"served_model_name": "x"}, {"random_seed": 5},
                     {"cuda_graph_bs_decode": [1, 2]}, {"watermark_key": "secret"}):
            self.assertTrue(self.finds(**args), args)
        self.assertTrue(self.finds(environment={"SGLANG_PORT": "1", "OTHER": "2"}))
        for name in ("SGLANG_SERVICE_HOST", "SGLANG_SERVICE_PORT", "SGLANG_SERVICE_PORT_HTTP",
                     "SGLANG_PORT_80_TCP", "SGLANG_PORT_80_TCP_ADDR", "SGLANG_ROUTER_SERVICE_HOST"):
            self.assertTrue(self.finds(environment={name: "10.0.0.7"}), name)  # of Kubernetes

    def test_options_of_later_versions_count_until_they_are_known(self):
        known = (*_sglang._HARMLESS, *_sglang._HARMLESS_ENVIRONMENT)
        self.assertEqual([name for name in known if not name.isidentifier()], [])  # no patterns
        for name in ("hicache_precision", "log_x", "disaggregation_kv_dtype"):
            self.assertFalse(self.finds(**{name: 1}), name)

    def test_servers_that_differ_in_anything_else_do_not(self):
        scales = stand_ins.FOLDER / "scales.json"
        scales.write_text("1")
        for args in ({"json_model_override_args": '{"rope_theta": 5e5}'}, {"quantization": "fp8"},
                     {"attention_backend": "triton"}, {"kv_cache_dtype": "fp8_e4m3"},
                     {"an_option_of_a_later_sglang": 1}, {"quantization_param_path": str(scales)},
                     {"mm_process_config": {"image": {"max_pixels": 1}}}):
            self.assertFalse(self.finds(**args), args)
        self.assertFalse(self.finds(environment={"SGLANG_USE_SOMETHING": "1"}))
        with unittest.mock.patch.object(sys.modules["sglang"], "__version__", "0.5.24"):
            self.assertFalse(self.finds())
        self.assertNotIn("secret", str(self.server(api_key="secret")._scheme.fields()))

    def test_contents_of_files_count_and_their_names_do_not(self):
        self.assertTrue(self.finds(model_path=stand_ins.model("elsewhere/same")))
        self.assertFalse(self.finds(model_path=stand_ins.model("other/llama", b"weightz")))
        scales, adapter = stand_ins.FOLDER / "scales.json", stand_ins.model("adapter", b"a")
        scales.write_text("1")
        lora = [{"lora_id": "5", "lora_name": "a", "lora_path": adapter}]
        files = {"quantization_param_path": str(scales), "lora_paths": lora}
        one = self.server(**files)
        self.filled(one, 2)
        one.batch_set_v1(self.names, one.pool.at(0, 1))
        self.assertTrue(self.finds(**files))
        scales.write_text("2")
        self.assertFalse(self.finds(**files))
        scales.write_text("1")
        self.assertTrue(self.finds(**files))
        stand_ins.model("adapter", b"b")
        self.assertFalse(self.finds(**files))

    def test_weights_that_are_named(self):
        text = self.server(weights="rev 1", model_path="/a/llama")
        self.filled(text, 1)
        text.batch_set_v1(self.names[:1], text.pool.at(0))
        self.assertEqual(self.server(weights="rev 1", model_path="/a/llama")
                         .batch_exists(self.names), 1)
        self.assertEqual(self.server(weights="rev 2", model_path="/a/llama")
                         .batch_exists(self.names), 0)
        self.assertEqual(self.server(weights="rev 1", model_path="/b/llama")
                         .batch_exists(self.names), 0)

    def test_what_cannot_be_known_is_asked_for(self):
        for args in ({"model_path": "no/such-model"}, {"load_format": "dummy"},
                     {"load_format": "remote"}, {"custom_weight_loader": ["x"]},
                     {"weight_cache_mode": "client"}):
            with self.assertRaisesRegex(ValueError, 'set the option "weights"'):
                self.server(**args)
            self.server(weights="text", **args)
        with self.assertRaisesRegex(ValueError, "the field odd .* cannot be compared"):
            self.server(odd=object())


    def test_files_from_elsewhere_are_not_those_of_the_usual_cache(self):
        usual = {"org/a": stand_ins.model("usual a"), "org/b": stand_ins.model("usual b", b"b")}
        hub = types.ModuleType("huggingface_hub")
        hub.try_to_load_from_cache = lambda name, file, revision=None: (
            f"{usual[name]}/{file}" if revision in (None, "1") else None)
        with unittest.mock.patch.dict(sys.modules, {"huggingface_hub": hub}):
            for args in ({"model_path": "org/a"}, {"speculative_draft_model_path": "org/b"}):
                self.server(**args)
                with self.assertRaisesRegex(ValueError, 'set the option "weights"'):
                    self.server(**args, download_dir="/somewhere")
            with self.assertRaisesRegex(ValueError, "not on this machine"):
                self.server(speculative_draft_model_path="org/b",
                            speculative_draft_model_revision="2")


class Spaces(Case):
    """After a reset nothing old is found, and nothing new by others."""

    def setUp(self):
        path = stand_ins.model(self.id())
        patch = unittest.mock.patch.dict(stand_ins.ServerArgs.fields, model_path=path)
        patch.start()
        self.addCleanup(patch.stop)
        self.updater = stand_ins.WeightUpdater()

    def stored(self, backend, names, page=0):
        return backend.batch_set_v1(names, backend.pool.at(*range(page, page + len(names))))

    def test_resets(self):
        def flush(one):
            one.pool.clear()

        for reset in (flush, lambda one: one.clear(),
                      lambda one: self.updater.update_weights_from_disk("/elsewhere", "auto"),
                      lambda one: self.updater.update_weights_from_disk(model_path="/elsewhere",
                                                                        load_format="auto"),
                      lambda one: self.updater.update_weights_from_tensor([]),
                      lambda one: self.updater.load_weights_from_distributed([]),
                      lambda one: self.updater.update_weights_from_ipc(None)):
            for weights in ("", "text") if reset is flush else ("", "text", "files"):
                one, names = self.backend(weights=weights), hashes(3)
                datas = self.filled(one, 3)
                self.assertEqual(self.stored(one, names[:2]), [True] * 2)
                with self.assertLogs("icms.sglang", "WARNING") as logged:
                    reset(one)
                self.assertIn("volume kv: private key space", logged.output[0])
                self.assertEqual(one.batch_exists(names), 0)
                self.assertEqual(self.stored(one, names[1:], 1), [True] * 2)
                self.assertEqual(one.batch_get_v1(names[1:], one.pool.at(4, 5)), [True] * 2)
                self.assertEqual(one.pool.page(5), datas[2])
                other = self.backend(weights=weights)
                self.assertEqual(other.batch_exists(names), 2)
                self.assertEqual(other.batch_exists(names[2:]), 0)
                other.close()
                one.close()

    def test_the_updater_still_works_and_closed_servers_are_left_alone(self):
        one = self.backend()
        self.assertEqual(self.updater.update_weights_from_disk("/a", "auto"), (True, "/a"))
        self.assertEqual(self.updater.update_weights_from_tensor([1]), (True, [1]))
        spaces = one._spaces
        self.assertEqual(spaces, 2)
        one.close()
        self.updater.update_weights_from_tensor([1])
        one.pool.clear()
        self.assertEqual(one._spaces, spaces)
        self.assertNotIn("clear", vars(one.pool))

    def test_each_reset_is_a_new_space(self):
        one, names = self.backend(), hashes(1)
        self.filled(one, 1)
        for _ in range(3):
            self.assertEqual(one.batch_exists(names), 0)
            self.assertEqual(self.stored(one, names), [True])
            self.assertEqual(one.batch_exists(names), 1)
            one.clear()
        self.assertEqual(self.backend().batch_exists(names), 1)

    def test_ranks_agree_and_engines_do_not(self):
        names = hashes(1)
        config = {"is_mla_model": True, "tp_size": 2}
        self.addCleanup(setattr, stand_ins.Ranks, "nonce", None)
        engines = []
        for nonce in (b"1" * 32, b"2" * 32):
            stand_ins.Ranks.nonce = nonce
            engines.append([self.backend(Pool((5000,)), config={**config, "tp_rank": rank})
                            for rank in (0, 1)])
        (one, sister), (other, _) = engines
        for engine in (one, sister, other):
            engine.clear()
        self.filled(one, 1)
        self.assertEqual(self.stored(one, names), [True])
        self.assertEqual([engine.batch_exists(names) for engine in (one, sister, other)], [1, 1, 0])

    def test_with_files_a_flush_goes_back_to_what_others_share(self):
        one, names = self.backend(weights="files"), hashes(1)
        self.filled(one, 1)
        self.stored(one, names)
        one.pool.clear()  # sleep: the weights stay what they were
        self.assertEqual(one.batch_exists(names), 1)
        path = stand_ins.ServerArgs.fields["model_path"]
        stand_ins.model(self.id(), b"new files, which nobody has loaded")
        one.pool.clear()
        self.assertEqual(one.batch_exists(names), 1)
        self.assertNotEqual(one._scheme.fingerprint, self.backend()._scheme.fingerprint)
        self.updater.update_weights_from_disk(path, "auto")
        self.assertTrue(one._space)  # until what was computed before is gone
        one.pool.clear()
        wait_for(lambda: not one._space)
        self.assertEqual(one.batch_exists(names), 0)
        self.stored(one, names)
        self.assertEqual(self.backend().batch_exists(names), 1)
        self.assertEqual(one._scheme.fingerprint, self.backend()._scheme.fingerprint)
        one.clear()
        self.assertEqual(one.batch_exists(names), 0)
        one.pool.clear()
        self.assertEqual(one.batch_exists(names), 1)

    def test_with_files_weights_of_other_kinds_stay_private(self):
        other, fails = (stand_ins.model(f"{self.id()} {name}") for name in ("other", "fails"))
        different = pathlib.Path(stand_ins.model(f"{self.id()} different"))
        (different / "config.json").write_text('{"rope_theta": 5}')
        for update, says in (
                (lambda: self.updater.update_weights_from_tensor([]), ""),  # of a trainer
                (lambda: self.updater.update_weights_from_disk(fails, "auto"), ""),
                (lambda: self.updater.update_weights_from_disk(other, "auto", len), ""),
                (lambda: self.updater.update_weights_from_disk(
                    other, "auto", weight_name_filter=len), ""),
                (lambda: self.updater.update_weights_from_disk("/no/such/folder", "auto"),
                 "not on this machine"),
                (lambda: self.updater.update_weights_from_disk(str(different), "auto"),
                 "beside the weights are not those")):
            one = self.backend(weights="files")
            with self.assertLogs("icms.sglang", "WARNING") as logged:
                update()
                one.pool.clear()
                wait_for(lambda: says in logged.output[-1])
            wait_for(lambda: "icms-fingerprint" not in {thread.name for thread
                                                        in threading.enumerate()})
            self.assertTrue(one._space)
            one.close()

    def test_a_reset_before_the_tier_came(self):
        mine = Tier()
        self.addCleanup(mine.end)
        names = hashes(1)
        other = self.backend(where=mine.where)
        self.filled(other, 1)
        other.volume.put(other._pools["kv"].keys(other._scheme.keys(names)), [b"1"] * 2,
                         on_flash=True)
        mine.agent.kill()
        one = self.backend(where=mine.where)
        one.clear()
        mine.agent.start()
        mine.agent.wait_ready()
        wait_for(lambda: not one._absent(), 30)
        self.assertEqual(one.batch_exists(names), 0)
        self.assertTrue(one._scheme.space)


class Failures(Case):
    def test_a_stopped_agent_is_misses_in_time_and_a_dead_one_too(self):
        mine = Tier()
        self.addCleanup(mine.end)
        backend = self.backend(where=mine.where, load_ms=200, store_ms=200)
        names = hashes(3)
        self.filled(backend, 3)
        backend.batch_set_v1(names[:2], backend.pool.at(0, 1))
        mine.agent.stand_still()
        # What lies in the mapped arena comes even so.
        self.assertEqual(backend.batch_get_v1(names[2:], backend.pool.at(2)), [False])
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            self.assertEqual(backend.batch_set_v1(names[2:], backend.pool.at(2)), [False])
        self.assertIn("did not take 2 of 2 pieces: {'DEADLINE': 2}", logged.output[0])
        self.assertEqual(backend.counters.misses, {"DEADLINE": 2})
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            mine.agent.kill()
            wait_for(lambda: logged.output)
            for _ in range(3):
                self.assertEqual(backend.batch_get_v1(names, backend.pool.at(0, 1, 2)), [False] * 3)
            self.assertEqual(backend.batch_set_v1(names, backend.pool.at(0, 1, 2)), [False] * 3)
            self.assertEqual(backend.batch_exists(names), 0)
        self.assertEqual(len(logged.output), 4, logged.output)  # one of each kind
        self.assertIn("no agent: ", logged.output[0])
        self.assertIn("cannot load pages in the volume kv: ", logged.output[1])
        self.assertEqual(backend.counters.failures, {"PeerDownError": 5})

    def test_a_tier_that_comes_later_is_used(self):
        mine = Tier()
        self.addCleanup(mine.end)
        mine.agent.kill()
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            backend = self.backend(where=mine.where)
            names, datas = hashes(2), self.filled(backend, 2)
            self.assertEqual(backend.batch_exists(names), 0)
            self.assertEqual(backend.batch_get_v1(names, backend.pool.at(0, 1)), [False] * 2)
            self.assertEqual(backend.batch_set_v1(names, backend.pool.at(0, 1)), [False] * 2)
            state = Pool((700,))
            backend.register_mem_host_pool_v2(state, PoolName.MAMBA)
            wait_for(lambda: logged.output)
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("no agent: ", logged.output[0])
        mine.agent.start()
        mine.agent.wait_ready()
        wait_for(lambda: backend.batch_set_v1(names, backend.pool.at(0, 1)) == [True] * 2, 30)
        self.assertEqual(backend.batch_get_v1(names, backend.pool.at(3, 2)), [True] * 2)
        self.assertEqual([backend.pool.page(page) for page in (3, 2)], datas)
        transfers = [PoolTransfer(PoolName.MAMBA, keys=names, host_indices=state.at(0, 1))]
        self.assertEqual(backend.batch_set_v2(transfers), {PoolName.MAMBA: [True] * 2})

    def test_a_pool_that_is_registered_again_without_an_agent_is_used_when_there_is_one(self):
        mine = Tier()
        self.addCleanup(mine.end)
        backend = self.backend(where=mine.where)
        mine.agent.kill()
        wait_for(lambda: backend.volume.state == icms.Status.PEER_DOWN)
        backend.pool = Pool(PIECES)
        backend.register_mem_pool_host(backend.pool)
        names, datas = hashes(2), self.filled(backend, 2)
        self.assertEqual(backend.batch_exists(names), 0)
        mine.agent.start()
        mine.agent.wait_ready()
        wait_for(lambda: backend.batch_set_v1(names, backend.pool.at(0, 1)) == [True] * 2, 30)
        self.assertEqual(backend.batch_get_v1(names, backend.pool.at(3, 2)), [True] * 2)
        self.assertEqual([backend.pool.page(page) for page in (3, 2)], datas)

    def test_an_agent_with_another_value_max_is_used(self):
        mine = Tier()
        self.addCleanup(mine.end)
        backend = self.backend(Pool((9000, 3000)), where=mine.where)
        config = mine.agent.config_path.read_text()
        for value_max, largest in ((4, 4096), (64, 9000)):
            mine.agent.kill()
            mine.agent.config_path.write_text(config.replace("value_max: 64KiB", f"value_max: {value_max}KiB"))
            mine.agent.start()
            mine.agent.wait_ready()
            wait_for(lambda: backend.volume.value_bytes_max == value_max << 10)
            names, datas = hashes(2), self.filled(backend, 2)
            wait_for(lambda: backend.batch_set_v1(names, backend.pool.at(0, 1)) == [True] * 2)
            self.assertEqual(backend.batch_exists(names), 2)
            self.assertEqual(backend.batch_get_v1(names, backend.pool.at(3, 2)), [True] * 2)
            self.assertEqual([backend.pool.page(page) for page in (3, 2)], datas)
            self.assertEqual(max(size for _, _, size in backend._pools["kv"]._cuts), largest)

    def test_copies_without_a_tier_are_misses(self):
        backend = self.backend(where="unix:/nowhere/at/all", config={"interface_v1": 0})
        names = hashes(2)
        pages = [Page(b"1" * 10) for _ in names]
        self.assertEqual((backend.batch_exists(names), backend.exists(names[0])), (0, False))
        self.assertEqual(backend.batch_get(names, pages), [None, None])
        self.assertFalse(backend.batch_set(names, pages))
        self.assertEqual(backend.counters.failures, {"PeerDownError": 4})


if __name__ == "__main__":
    unittest.main()
