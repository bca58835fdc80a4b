# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half of IcmsConnector, without vLLM.

Goal: a token counts as matched only when its bytes lie in memory shared with the workers; the
scheduler never waits; every slot of that memory comes back, whatever became of its request.
Method: the class of the product between stand-ins for vLLM's scheduler and workers, and a real pod.
"""
import hashlib
import logging
import random
import time
import types
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins
from support import EncryptedTier, Tier, VALUE_BYTES, puts_that_replace, tier, value, wait_for

stand_ins.install()
from icms.vllm.connector import Copied, _Scheduler  # noqa: E402
from icms.vllm.link import WrongTier  # noqa: E402
from icms.vllm.movers import Movers  # noqa: E402
from icms.vllm.staging import attach  # noqa: E402

TOKENS = 16  # of a block
BLOCKS = 10  # of a prompt; and some tokens more
SLOTS = 64


def config(ranks, options):
    spec = types.SimpleNamespace(block_size=TOKENS, page_size_bytes=VALUE_BYTES // 4)
    group = types.SimpleNamespace(kv_cache_spec=spec, layer_names=("a", "b", "c", "d"))
    caches = types.SimpleNamespace(kv_cache_groups=[group])
    vllm = stand_ins.vllm_config(
        options.pop("model", "of connectors"),
        parallel_config={"tensor_parallel_size": ranks, "world_size": ranks})
    return stand_ins.engine_of(vllm, caches), caches, {
        "host_bytes": SLOTS * VALUE_BYTES, "volume": "kv", "weights": "w", **options}


class Engine:
    """As much of a scheduler and its workers as the connector meets."""

    def __init__(self, test, where, ranks=1, **options):
        self.ranks = ranks
        self.engine, *rest = config(ranks, {"where": where, **options})
        self.half = _Scheduler(self.engine, *rest)
        self.slots = options.get("host_bytes", SLOTS * VALUE_BYTES) // VALUE_BYTES
        self.cache = {}  # (block, rank): bytes
        self.blocks = 0
        test.addCleanup(self.half.close)
        test.addCleanup(self.engine.close)
        wait_for(lambda: self.half._link.up)

    def request(self, prompt, blocks=BLOCKS):
        hashes, state = [], prompt.encode()
        for _ in range(blocks):
            state = hashlib.sha256(state).digest()
            hashes.append(state)
        return types.SimpleNamespace(request_id=f"{random.random()}", block_hashes=hashes,
                                     num_tokens=blocks * TOKENS + 3)

    def matched(self, request, computed=0):
        """The final answer in tokens, and how often the scheduler was told to ask again."""
        again = 0
        give_up = time.monotonic() + 20
        while (found := self.half.matched(request, computed)) is None:
            assert time.monotonic() < give_up
            again += 1
            time.sleep(0.001)
        return found, again

    def prefill(self, request, computed, external, meanwhile=lambda: None):
        """meanwhile is called between the step and its work. Room for the request, one step over all of it, and what its workers do in that."""
        first = self.blocks
        self.blocks += len(request.block_hashes) + 1
        ids = list(range(first, self.blocks))
        self.half.allocated(request, types.SimpleNamespace(get_block_ids=lambda: (ids,)), external)
        before = computed + external
        new = types.SimpleNamespace(req_id=request.request_id, block_ids=(ids,),
                                    num_computed_tokens=before)
        step = self.half.step(types.SimpleNamespace(
            scheduled_new_reqs=[new],
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], num_computed_tokens=[],
                                                        new_block_ids=[], resumed_req_ids=set()),
            num_scheduled_tokens={request.request_id: request.num_tokens - before}))
        meanwhile()
        self.work(step, request, ids, before // TOKENS)
        return ids

    def work(self, step, request, ids, computed):
        memory = attach(step.handle)

        def room(slot):
            return slice(slot * step.slot_bytes, (slot + 1) * step.slot_bytes)

        for block, slots in step.loads:
            for rank, slot in enumerate(slots):
                self.cache[block, rank] = memory[room(slot)]
        for i in range(computed, len(request.block_hashes)):  # the model computes
            for rank in range(self.ranks):
                self.cache[ids[i], rank] = self.content(request, i, rank)
        for block, slots in step.stores:
            for rank, slot in enumerate(slots):
                memory[room(slot)] = self.cache[block, rank]
        if step.loads or step.stores:
            done = Copied({step.number: 1})
            for _ in range(self.ranks - 1):
                done = done.aggregate(Copied({step.number: 1}))
            self.half.copied(done)

    @staticmethod
    def content(request, i, rank):
        return value(f"{request.block_hashes[i]} {rank}")

    def idle(self):
        """All that was begun is over, and every slot is free again."""
        wait_for(lambda: stand_ins.is_settled(self.half._movers))
        wait_for(lambda: self.half._staging.free == self.slots)
        assert not self.half.copying


class EncryptedConnectors(unittest.TestCase):
    def test_drives_have_ciphertext_and_who_has_no_key_computes(self):
        shared, prompt = EncryptedTier(self), f"{random.random()}"
        one = Engine(self, shared.where, keys=shared.lists["keys"])
        request = one.request(prompt)
        one.prefill(request, 0, one.matched(request)[0])
        one.half.finished(request)
        one.idle()
        values = [one.content(request, i, 0) for i in range(BLOCKS)]
        shared.check_ciphertext(self, values)
        other = Engine(self, shared.where, keys=shared.lists["keys"])
        request = other.request(prompt)
        found, _ = other.matched(request)
        self.assertEqual(found, BLOCKS * TOKENS)
        ids = other.prefill(request, 0, found)
        self.assertEqual([bytes(other.cache[ids[i], 0]) for i in range(BLOCKS)], values)
        for keys in ("other_id", "other_key"):
            with self.subTest(keys):
                other = Engine(self, shared.where, keys=shared.lists[keys])
                self.assertEqual(other.matched(other.request(prompt))[0], 0)
        with self.assertRaisesRegex(WrongTier, "it is encrypted, and no list of keys was given"):
            Engine(self, shared.where)


class Connectors(unittest.TestCase):
    def setUp(self):
        self.shared = tier()
        self.prompt = f"{random.random()}"

    def store(self, engine, **words):
        request = engine.request(self.prompt, **words)
        self.assertEqual(engine.matched(request)[0], 0)
        engine.prefill(request, 0, 0)
        engine.half.finished(request)
        engine.idle()
        return request

    @staticmethod
    def found(engine, prompt):
        """How many tokens an engine finds of a prompt."""
        request = engine.request(prompt)
        found = engine.matched(request)[0]
        engine.half.finished(request)
        engine.idle()
        return found

    def test_a_request_that_computes_all_is_not_matched_and_is_stored(self):
        engine = Engine(self, self.shared.where)
        request = self.store(engine)
        for prompt, found in ((self.prompt, BLOCKS * TOKENS), (f"another {self.prompt}", 0)):
            request = engine.request(prompt)
            request.skip_reading_prefix_cache = True
            with unittest.mock.patch.object(Movers, "prestage") as hint, \
                    unittest.mock.patch.object(Movers, "match") as match:
                engine.half.queued(request)
                self.assertEqual(engine.matched(request), (0, 0))
                hint.assert_not_called()
                match.assert_not_called()
            self.assertEqual(self.found(engine, prompt), found)
            engine.prefill(request, 0, 0)
            engine.half.finished(request)
            engine.idle()
            self.assertEqual(self.found(engine, prompt), BLOCKS * TOKENS)

    def test_a_step_that_writes_to_blocks_that_are_stored_says_so(self):
        engine = Engine(self, self.shared.where)
        request = engine.request(self.prompt)

        def behind(new, cached=None):
            """Of a step in which requests get these blocks."""
            return engine.half.step(types.SimpleNamespace(
                scheduled_new_reqs=[types.SimpleNamespace(
                    req_id="another", block_ids=(new,), num_computed_tokens=0)],
                scheduled_cached_reqs=types.SimpleNamespace(
                    req_ids=["a third"], num_computed_tokens=[0], resumed_req_ids=set(),
                    new_block_ids=[cached]), num_scheduled_tokens={})).behind

        told = []
        self.assertEqual(engine.matched(request)[0], 0)
        ids = engine.prefill(request, 0, 0, lambda: told.extend(
            (behind([1000]), behind([1000, 3]), behind([1000], ([2],)), behind([BLOCKS]))))
        self.assertEqual(ids[:BLOCKS], list(range(BLOCKS)))  # the last one is not full
        self.assertEqual(told, [False, True, True, False])
        self.assertFalse(behind(ids))  # the workers have said that they are done
        engine.half.finished(request)
        engine.idle()

    def test_another_engine_loads_what_one_has_computed(self):
        for ranks in (1, 3):
            with self.subTest(ranks):
                model = f"m{random.random()}"
                self.store(Engine(self, self.shared.where, ranks, model=model))
                engine = Engine(self, self.shared.where, ranks, model=model)
                request = engine.request(self.prompt)
                found, again = engine.matched(request)
                self.assertEqual(found, BLOCKS * TOKENS)
                self.assertGreater(again, 0)
                ids = engine.prefill(request, 0, found)
                for i in range(BLOCKS):
                    for rank in range(ranks):
                        self.assertEqual(engine.cache[ids[i], rank],
                                         engine.content(request, i, rank))
                engine.half.finished(request)
                engine.idle()

    def test_a_hole_ends_the_prefix_and_what_is_behind_it_is_stored_again(self):
        engine = Engine(self, self.shared.where)
        request = self.store(engine)
        scheme = engine.half._link.schemes[0]
        scheme.volume.remove([scheme.keys(request.block_hashes)[4]])
        request = engine.request(self.prompt)
        found, _ = engine.matched(request)
        self.assertEqual(found, 4 * TOKENS)
        engine.prefill(request, 0, found)
        engine.half.finished(request)
        engine.idle()
        self.assertEqual(engine.matched(engine.request(self.prompt))[0], BLOCKS * TOKENS)

    def test_blocks_that_are_there_are_left_as_they_are(self):
        engine = Engine(self, self.shared.where, ranks=2, model=f"m{random.random()}")
        with puts_that_replace() as seen:
            self.store(engine)
        self.assertEqual(seen, [])

    def test_the_last_token_is_always_computed(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        request = engine.request(self.prompt)
        request.num_tokens = BLOCKS * TOKENS
        self.assertEqual(engine.matched(request)[0], (BLOCKS - 1) * TOKENS)

    def test_what_the_engine_has_itself_is_not_loaded(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        request = engine.request(self.prompt)
        self.assertEqual(engine.matched(request, 2 * TOKENS)[0], (BLOCKS - 2) * TOKENS)
        # Meanwhile it has more itself; then less than at first.
        self.assertEqual(engine.matched(request, 5 * TOKENS)[0], (BLOCKS - 5) * TOKENS)
        ids = engine.prefill(request, 5 * TOKENS, (BLOCKS - 5) * TOKENS)
        for i in range(5, BLOCKS):
            self.assertEqual(engine.cache[ids[i], 0], engine.content(request, i, 0))
        engine.half.finished(request)
        request = engine.request(self.prompt)
        self.assertEqual(engine.matched(request, 5 * TOKENS)[0], (BLOCKS - 5) * TOKENS)
        self.assertEqual(engine.matched(request, 0)[0], BLOCKS * TOKENS)
        engine.half.finished(request)
        engine.idle()

    def test_a_request_that_goes_away_leaves_no_slot_behind(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        for wait in (False, True):
            request = engine.request(self.prompt)
            if wait:
                engine.matched(request)
            else:
                self.assertIsNone(engine.half.matched(request, 0))
            engine.half.finished(request)
            engine.idle()

    def test_a_request_leaves_pins_alone(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        scheme = engine.half._link.schemes[0]
        for is_read in (False, True):
            request = engine.request(self.prompt)
            pinned = scheme.keys(request.block_hashes)[:4]
            self.assertEqual(scheme.volume.prestage(pinned, pin_seconds=600), 4)  # a gateway's: the same user
            engine.half.queued(request)
            wait_for(lambda: stand_ins.is_settled(engine.half._movers))  # the agent has the hints
            if is_read:
                found, _ = engine.matched(request)
                self.assertEqual(found, BLOCKS * TOKENS)
                engine.prefill(request, 0, found)
            engine.half.finished(request)
            engine.idle()
            self.assertEqual(scheme.volume.prestage_cancel(pinned), 4)

    def test_a_request_without_room_is_asked_for_again(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        request = engine.request(self.prompt)
        for _ in range(3):  # the scheduler has no blocks for it and comes back
            self.assertEqual(engine.matched(request)[0], BLOCKS * TOKENS)
        engine.prefill(request, 0, BLOCKS * TOKENS)
        engine.half.finished(request)
        engine.idle()

    def test_blocks_that_could_not_be_loaded_are_not_matched(self):
        engine = Engine(self, self.shared.where)
        request = self.store(engine)
        scheme = engine.half._link.schemes[0]
        scheme.volume.remove([scheme.keys(request.block_hashes)[4]])
        request = engine.request(self.prompt)
        with unittest.mock.patch.object(Movers, "_exists",
                                        lambda self, volume, names, *rest: [True] * len(names)):
            self.assertEqual(engine.matched(request)[0], 4 * TOKENS)
        engine.half.finished(request)
        engine.idle()

    def test_a_question_that_begins_late_is_asked(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        engine.half._movers._asks.submit(time.sleep, 1.6)  # the machine is busy
        self.assertEqual(self.found(engine, self.prompt), BLOCKS * TOKENS)

    def test_only_blocks_of_one_rank_have_an_entry_of_models(self):
        for ranks, says in ((1, "an entry of models in icms-agent.yaml, but for its name: {volume: kv, "),
                            (2, "no entry of models in icms-agent.yaml: each of 2 ranks has keys of its own, ")):
            with self.subTest(ranks), self.assertLogs("vllm.icms.connector", logging.INFO) as said:
                Engine(self, self.shared.where, ranks)
                self.assertEqual([line.partition(": for routers, ")[2][:len(says)] for line in said.output
                                  if "for routers" in line], [says])

    def test_after_a_reset_nothing_is_shared(self):
        for ranks in (1, 3):
            model = f"m{random.random()}"
            engine, other = (Engine(self, self.shared.where, ranks, model=model) for _ in range(2))
            self.store(engine)
            engine.engine.reset()
            wait_for(lambda: engine.half._link.up)
            self.store(engine)  # which finds nothing
            self.assertEqual(self.found(engine, self.prompt), BLOCKS * TOKENS)
            before, self.prompt = self.prompt, f"after {self.prompt}"
            self.store(engine)
            self.assertEqual(self.found(other, self.prompt), 0)
            self.assertEqual(self.found(other, before), BLOCKS * TOKENS)

    def test_a_match_of_before_a_reset_is_dropped(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        for is_over in (False, True):
            request = engine.request(self.prompt)
            self.assertIsNone(engine.half.matched(request, 0))
            if is_over:
                wait_for(lambda: engine.half._requests[request.request_id].match.over)
            engine.engine.changed("a test")
            self.assertEqual(engine.matched(request)[0], 0)
            engine.half.finished(request)
            engine.idle()
            self.setUp()
            engine = Engine(self, self.shared.where)
            self.store(engine)

    def test_what_outstanding_steps_have_computed_is_not_stored(self):
        engine, other = (Engine(self, self.shared.where) for _ in range(2))
        request = engine.request(self.prompt)
        self.assertEqual(engine.matched(request)[0], 0)
        engine.prefill(request, 0, 0, meanwhile=engine.engine.reset)
        engine.half.finished(request)
        engine.idle()
        wait_for(lambda: engine.half._link.up)
        for one in (engine, other):
            self.assertEqual(self.found(one, self.prompt), 0)

    def test_little_memory_shortens_and_breaks_nothing(self):
        engine = Engine(self, self.shared.where, host_bytes=4 * VALUE_BYTES)
        request = engine.request(self.prompt)
        engine.matched(request)
        engine.prefill(request, 0, 0)
        engine.half.finished(request)
        engine.idle()
        self.assertEqual(engine.half.stats().data["store_misses no_host_memory"], BLOCKS - 4)
        request = engine.request(self.prompt)
        found, _ = engine.matched(request)
        self.assertEqual(found, 4 * TOKENS)
        ids = engine.prefill(request, 0, found)
        self.assertEqual(engine.cache[ids[3], 0], engine.content(request, 3, 0))
        engine.half.finished(request)
        engine.idle()

    def test_a_stopped_agent_costs_the_deadline_and_no_more(self):
        own = Tier()
        self.addCleanup(own.end)
        engine = Engine(self, own.where, load_ms=400, store_ms=400)
        self.store(engine)
        own.agent.stand_still()
        self.addCleanup(own.agent.kill)
        request = engine.request("nowhere")  # the agent's memory would answer for the other one
        self.assertIsNone(engine.half.matched(request, 0))
        self.assertEqual(engine.matched(request)[0], 0)
        engine.prefill(request, 0, 0)
        engine.half.finished(request)
        engine.idle()

    def test_a_tier_that_comes_and_goes_at_every_step(self):
        engine = Engine(self, self.shared.where)
        self.store(engine)
        engine.half._link = stand_ins.Flapping(engine.half._link)
        loaded = 0
        for _ in range(60):
            request = engine.request(self.prompt)
            found, _ = engine.matched(request)
            ids = engine.prefill(request, 0, found)
            for i in range(BLOCKS):
                self.assertEqual(engine.cache[ids[i], 0], engine.content(request, i, 0))
            loaded += found
            engine.half.finished(request)
            engine.half.stats()
        self.assertGreater(loaded, 0)
        engine.idle()

    def test_wrong_options_are_told(self):
        for options, says in (({"volumes": "kv"}, "volumes"), ({"volume": ""}, "volume"),
                              ({"host_bytes": 1000}, "host_bytes"), ({"volume": "no"}, "no")):
            with self.subTest(options), self.assertRaises(WrongTier) as refused:
                _Scheduler(*config(1, {"where": self.shared.where, **options}))
            self.assertIn(says, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
