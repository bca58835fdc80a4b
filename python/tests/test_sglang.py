# SPDX-License-Identifier: Apache-2.0
"""icms.sglang keeps the promises of its interface, on stand-ins for SGLang's own classes."""
import random
import threading
import unittest
import unittest.mock

import icms
import sglang_stand_ins as stand_ins
from sglang_stand_ins import (Config, ExtraInfo, Page, Pool, PoolHitPolicy, PoolName, PoolTransfer,
                             PoolTransferResult)
from support import Tier, hints_of_puts, tier, value, wait_for

stand_ins.install()

from icms.sglang import HiCacheIcms  # noqa: E402

PIECES = (3000, 3000)


def hashes(count):
    return [random.randbytes(32).hex() for _ in range(count)]


class Case(unittest.TestCase):
    def backend(self, pool=None, *, config=None, where=None, **options):
        """One server: its storage, with a host pool."""
        config = config or {}
        extra = {"interface_v1": config.pop("interface_v1", 1),
                 "icms": {"where": where or tier().where, "volume": "kv", **options}}
        config.setdefault("model_name", self.id())
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

    def test_pieces_of_a_page_lie_together(self):
        backend = self.backend(Pool((100,) * 6))
        names = hashes(9)
        keys = backend._pools["kv"].keys(backend._scheme.keys(names))
        self.assertEqual(len(set(keys)), 54)
        self.assertEqual([len({key[:8] for key in keys[6 * i:6 * i + 6]}) for i in range(9)],
                         [1] * 9)
        self.assertEqual(len({key[:8] for key in keys}), 9)

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
        base = {"tp_size": 2, "model_name": self.id() + "a"}
        one = self.backend(config=dict(base))
        self.filled(one, 2)
        one.batch_set_v1(names, one.pool.at(0, 1))
        for pool, config, options in (
                (None, {"tp_rank": 1}, {}), (None, {"pp_rank": 1, "pp_size": 2}, {}),
                (None, {"attn_cp_rank": 1, "attn_cp_size": 2}, {}),
                (None, {"model_name": self.id() + "b"}, {}), (None, {}, {"tenant": "other"}),
                (Pool((6000,)), {}, {}), (Pool((3000, 2999)), {}, {})):
            other = self.backend(pool, config={**base, **config}, **options)
            self.assertEqual(other.batch_exists(names), 0, (config, options))
        self.assertEqual(self.backend(config=dict(base)).batch_exists(names), 2)

    def test_servers_that_differ_are_told_and_live_beside_each_other(self):
        names = hashes(1)
        for pool, options in ((None, {}), (Pool(PIECES, page_size=16), {}), (None, {"weights": "v2"})):
            one = self.backend(pool, tenant=self.id(), **options)
            self.filled(one, 1)
            self.assertEqual(one.batch_exists(names), 0)
            self.assertEqual(one.batch_set_v1(names, one.pool.at(0)), [True])
            self.assertEqual(one.batch_exists(names), 1)
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            self.backend(tenant=self.id(), weights="v3")
            wait_for(lambda: any("weights: " in text for text in logged.output))
        self.assertEqual(self.backend(tenant=self.id()).batch_exists(names), 1)

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
        self.assertEqual(len({key[:8] for key in backend._scheme.keys(names)}), 3)
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

    def test_drives_are_told_where_pages_lie(self):
        backend = self.backend(chained=True)
        self.filled(backend, 5)
        names = hashes(5)
        with hints_of_puts() as seen:
            backend.batch_set_v1(names[:2], backend.pool.at(0, 1), ExtraInfo([]))
            backend.batch_set_v1(names[2:], backend.pool.at(2, 3, 4), ExtraInfo(names[:2]))
        hint = icms.prompt_hint  # one a piece
        self.assertEqual(seen, [[hint(2, 0, i) for i in (0, 0, 1, 1)],
                                [hint(5, 2, i) for i in (2, 2, 3, 3, 4, 4)]])
        self.assertNotIn(0, seen[0] + seen[1])
        unchained = self.backend(config={"model_name": f"{self.id()} unchained"})
        with hints_of_puts() as seen:
            unchained.batch_set_v1(names[:1], unchained.pool.at(0))
        self.assertEqual(seen, [[0, 0]])

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

    def test_a_page_of_another_size_is_not_taken(self):
        backend = self.backend(config={"interface_v1": 0})
        names = hashes(1)
        self.assertTrue(backend.set(names[0], Page(bytes(4000))))
        for nbytes in (3998, 4002):
            self.assertIsNone(backend.get(names[0], Page(bytes(nbytes))))


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

    def test_clear_says_that_the_tier_is_shared(self):
        backend = self.backend()
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            backend.clear()
        self.assertIn("is not cleared", logged.output[0])


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
        mine.agent.kill()
        with self.assertLogs("icms.sglang", "WARNING") as logged:
            for _ in range(3):
                self.assertEqual(backend.batch_get_v1(names, backend.pool.at(0, 1, 2)), [False] * 3)
            self.assertEqual(backend.batch_set_v1(names, backend.pool.at(0, 1, 2)), [False] * 3)
            self.assertEqual(backend.batch_exists(names), 0)
        self.assertEqual(len(logged.output), 3, logged.output)  # one of each kind
        self.assertIn("cannot load pages in the volume kv: ", logged.output[0])
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
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("serving without it, and using it when it comes", logged.output[0])
        mine.agent.start()
        mine.agent.wait_ready()
        wait_for(lambda: backend.batch_set_v1(names, backend.pool.at(0, 1)) == [True] * 2, 30)
        self.assertEqual(backend.batch_get_v1(names, backend.pool.at(3, 2)), [True] * 2)
        self.assertEqual([backend.pool.page(page) for page in (3, 2)], datas)
        transfers = [PoolTransfer(PoolName.MAMBA, keys=names, host_indices=state.at(0, 1))]
        self.assertEqual(backend.batch_set_v2(transfers), {PoolName.MAMBA: [True] * 2})

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
