# SPDX-License-Identifier: Apache-2.0
"""IcmsTier between a scheduler that never waits and a tier that may: without vLLM.

Goal: questions and jobs are answered by their deadlines whatever the tier does, what succeeded of a
job is told, memory is left alone after its job, and wrong configurations are told at once.
Method: the class of the product on stand-ins for vLLM's, against real daemons.
"""
import hashlib
import logging
import random
import sys
import time
import types
import unittest
import unittest.mock

import icms
import vllm_stand_ins as stand_ins
from support import EncryptedTier, Tier, VALUE_BYTES, gets_of_twins, puts_that_replace, tier, value, wait_for
from vllm_rig import CHUNKS, HIT, MISS, RETRY, TOKENS, Engine, Memory, agent_hints, chunks, engine_of, spec
from icms.vllm.identity import Facts  # noqa: E402
from icms.vllm.link import WrongTier  # noqa: E402
from icms.vllm.offloading import IcmsOffloadingConnector  # noqa: E402
from icms.vllm.choice import Choice  # noqa: E402
from icms.vllm.tier import IcmsTier, _Request  # noqa: E402


class EncryptedTiers(unittest.TestCase):
    def test_drives_have_ciphertext_and_who_has_no_key_computes(self):
        shared, prompt = EncryptedTier(self), f"{random.random()}"

        def engine(keys):
            made = Engine(self, shared.where, keys=shared.lists[keys]).wait_up()
            return (made, *made.request(prompt))

        one, context, names = engine("keys")
        one.fill(prompt)
        self.assertTrue(one.job(context, names, list(range(CHUNKS)), load=False).success)
        values = [one.chunk(i) for i in range(CHUNKS)]
        one.end()
        shared.check_ciphertext(self, values)
        other, context, names = engine("keys")
        self.assertEqual(other.lookup(context, names)[0], [HIT] * CHUNKS)
        self.assertTrue(other.job(context, names, list(range(CHUNKS)), load=True).success)
        self.assertEqual([other.chunk(i) for i in range(CHUNKS)], values)
        for keys, reason in (("other_id", "no_key"), ("other_key", "checksum")):
            with self.subTest(keys):
                other, context, names = engine(keys)
                self.assertFalse(other.job(context, names, list(range(CHUNKS)), load=True).success)
                misses = {label: number for (name, *labels), number in other.counters().items()
                          for label in labels if "load_misses" in name}
                self.assertIn(reason, str(misses))
        with self.assertRaisesRegex(WrongTier, "it is encrypted, and no list of keys was given"):
            Engine(self, shared.where)


class Choices(unittest.TestCase):
    """Jobs are of some chunks of a choice: others may have been asked for by another request."""

    def test_each_chunk_is_expected_when_its_choice_says(self):
        request, keys = _Request(False), chunks("a prompt", 8)
        request.choose(keys[:6], Choice(6, (0.0, 0.0, 0.0, 0.0, 1.0, 2.0), 60.0))
        whole, part = request.phases(keys[:5], 9.0), request.phases(keys[4:6], 9.0)
        self.assertEqual((whole.expected, part.expected), (1.0, 0.0))  # of a part nothing was said that is its time alone
        self.assertEqual(part.begin(), (2, 2.0 + 10.0) if part.limit > 12 else (1, 9.0))
        self.assertEqual(request.phases(keys[4:6], 20.0).begin(), (2, 12.0))
        request.choose(keys[6:], Choice(2, (0.5, 0.6), 8.0))
        found = request.phases(keys[4:], 60.0)
        self.assertEqual((found.expected, found.begin()), (0.0, (4, 2.0 + 4.0)))
        request.forget()
        self.assertEqual(request.phases(keys[:2], 9.0).begin(), (2, 9.0))


class Tiers(unittest.TestCase):
    def setUp(self):
        self.shared = tier()
        self.prompt = f"{random.random()}"

    def stored(self, count=CHUNKS, **options):
        """An engine that has stored a prompt, its chunks in no order."""
        engine = Engine(self, self.shared.where, **options).wait_up()
        context, names = engine.request(self.prompt, count)
        engine.fill(self.prompt, count)
        order = random.sample(range(count), count)
        result = engine.job(context, [names[i] for i in order], order, load=False)
        self.assertTrue(result.success, engine.counters())
        return engine

    def test_another_engine_finds_and_loads_what_one_has_stored(self):
        self.stored()
        engine = Engine(self, self.shared.where).wait_up()
        context, names = engine.request(self.prompt)
        found, steps = engine.lookup(context, names)
        self.assertEqual(found, [HIT] * CHUNKS)
        self.assertGreater(steps, 0)  # the first answer never waits
        order = random.sample(range(CHUNKS), CHUNKS)
        result = engine.job(context, names, order, load=True)
        self.assertTrue(result.success)
        self.assertEqual(result.transfer_bytes, CHUNKS * VALUE_BYTES)
        for i, chunk in enumerate(order):
            self.assertEqual(engine.chunk(chunk), value(f"{self.prompt} {i}"))
        loaded = {name: number for name, number in engine.counters().items()
                  if "loaded_bytes" in name[0]}
        self.assertEqual(sum(loaded.values()), CHUNKS * VALUE_BYTES)

    def test_what_is_faster_to_compute_is_a_miss(self):
        self.stored()
        engine = Engine(self, self.shared.where).wait_up()

        def found():
            context, names = engine.request(self.prompt)
            answers, _ = engine.lookup(context, names)
            if answers[0] == HIT:
                self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=True).success)
            return answers

        self.assertEqual(found(), [HIT] * CHUNKS)  # nothing is known of the engine
        engine.tier._prefill.add(TOKENS, 3600.0)
        self.assertEqual(found(), [HIT] * CHUNKS)
        for _ in range(400):
            engine.tier._prefill.add(TOKENS, 1e-12)
        self.assertEqual(found(), [MISS] * CHUNKS)
        choices = {labels: number for (name, labels), number in engine.counters().items()
                   if "found_blocks" in name}
        self.assertEqual(choices, {("load",): CHUNKS, ("compute",): CHUNKS})
        engine = Engine(self, self.shared.where, load="always").wait_up()
        engine.engine.prefill.add(TOKENS, 1e-12)
        self.assertEqual(found(), [HIT] * CHUNKS)
        with self.assertRaisesRegex(ValueError, "the option load is"):
            Engine(self, self.shared.where, load="sometimes")

    def test_a_question_that_is_never_answered_is_a_miss_at_its_deadline(self):
        engine = Engine(self, self.shared.where, lookup_ms=50).wait_up()
        context, names = engine.request(self.prompt, 1)
        begin = time.monotonic()
        self.assertEqual(engine.tier.lookup(names[0], context), RETRY)  # and nobody asks for it
        while engine.tier.lookup(names[0], context) == RETRY:
            self.assertLess(time.monotonic() - begin, 10)
            time.sleep(0.01)
        self.assertEqual(engine.tier.lookup(names[0], context), MISS)
        self.assertGreater(time.monotonic() - begin, 0.05)

    def test_a_question_that_finds_no_tier_is_a_miss_at_once(self):
        engine = self.stored()
        context, names = engine.request(self.prompt, 2)
        link = engine.tier._link
        self.assertEqual(engine.tier.lookup(names[0], context), RETRY)
        with unittest.mock.patch.object(engine.tier, "_link", types.SimpleNamespace(schemes=())):
            engine.end_step()
        self.assertTrue(link.up)  # it is back
        self.assertEqual(engine.tier.lookup(names[0], context), MISS)

    def test_a_hit_longer_than_vllms_memory_is_used_as_far_as_there_is_room(self):
        self.stored()
        for compares in (False, True):
            engine = Engine(self, self.shared.where).wait_up()
            if compares:
                engine.tier._prefill.add(TOKENS, 3600.0)
            context, names = engine.request(self.prompt)
            rooms, found = 7, []
            memory = Memory(engine, context, names, rooms)

            def is_over():
                found[:] = [memory.step()]
                return found != [None] or len(memory.jobs) > 3

            wait_for(is_over)
            self.assertEqual(found, [rooms])
            self.assertEqual([name for loads in memory.jobs for name in loads], names[:rooms])
            other, _ = engine.request(self.prompt)  # is asked for anew
            self.assertEqual(engine.lookup(other, names)[0], [HIT] * CHUNKS)

    def test_what_had_no_room_is_asked_for_again_after_a_preemption(self):
        engine = self.stored()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)
        self.assertTrue(engine.job(context, names[:5], list(range(5)), load=True).success)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * 5 + [MISS] * (CHUNKS - 5))
        self.assertTrue(engine.job(context, names[:5], list(range(5)), load=True).success)
        engine.end_step(preempted=(context.req_id, "another, which the tier does not know"))
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_answers_do_not_outlive_a_preemption(self):
        engine = Engine(self, self.shared.where).wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)
        self.stored()
        engine.end_step(preempted=("another",))
        self.assertEqual(engine.lookup(context, names), ([MISS] * CHUNKS, 0))
        engine.end_step(preempted=(context.req_id,))
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_what_is_there_is_not_stored_again(self):
        engine = self.stored(2)
        context, names = engine.request(self.prompt, 4)
        engine.counters()
        self.assertTrue(engine.job(context, names, [0, 1, 2, 3], load=False).success)
        self.assertEqual([number for name, number in engine.counters().items()
                          if "stored_bytes" in name[0]], [2 * VALUE_BYTES])

    def test_part_of_a_load_is_told_and_the_rest_is_not_asked_for_again(self):
        engine = self.stored()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)
        request = engine.tier._requests[context.req_id]
        gone = names[3], names[7]
        engine.tier._link.schemes[0].volume.remove([request.names[name] for name in gone])
        result = engine.job(context, names, list(range(CHUNKS)), load=True)
        self.assertFalse(result.success)
        self.assertEqual(set(result.successful_keys), set(names) - set(gone))
        self.assertEqual(result.transfer_bytes, (CHUNKS - 2) * VALUE_BYTES)
        self.assertEqual([engine.tier.lookup(name, context) for name in gone], [MISS, MISS])
        other, _ = engine.request(self.prompt)
        self.assertEqual([engine.tier.lookup(name, other) for name in gone], [RETRY, RETRY])

    def test_chunks_that_are_there_are_left_as_they_are(self):
        engine = Engine(self, self.shared.where).wait_up()
        context, names = engine.request(self.prompt, 10)
        context._offload_key_positions[chunks("a tail", 1)[0]] = 10 * TOKENS + 5
        names = list(context._offload_key_positions)
        with puts_that_replace() as seen:
            for _ in range(2):
                result = engine.job(context, names[4:], list(range(7)), load=False)
                self.assertTrue(result.success)
        self.assertEqual(seen, [])

    def test_a_load_never_takes_a_value_of_another_size(self):
        engine = self.stored(4)
        context, names = engine.request(self.prompt, 4)
        engine.lookup(context, names)
        volume = engine.tier._link.schemes[0].volume
        name = engine.tier._requests[context.req_id].names[names[1]]
        self.assertTrue(volume.put([name], [b"short"]).ok)
        result = engine.job(context, names, [0, 1, 2, 3], load=True)
        self.assertEqual(set(result.successful_keys), set(names) - {names[1]})
        self.assertEqual(engine.counters()["vllm:kv_offload_icms_load_misses", ("size",)], 1)

    def test_a_load_never_takes_another_block_of_the_same_16_bytes(self):
        engine = self.stored(4)
        context, names = engine.request(self.prompt, 4)
        engine.lookup(context, names)
        with gets_of_twins():
            result = engine.job(context, names, [0, 1, 2, 3], load=True)
        self.assertEqual((result.success, set(result.successful_keys or ())), (False, set()))
        self.assertEqual(
            engine.counters()["vllm:kv_offload_icms_load_misses", ("collision",)], 4)

    def test_a_stopped_agent_delays_nobody_beyond_the_deadlines(self):
        own = Tier()
        self.addCleanup(own.end)
        engine = Engine(self, own.where, lookup_ms=1000, load_ms=2000, store_ms=2000).wait_up()
        context, names = engine.request(self.prompt)
        engine.fill(self.prompt)
        self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=False).success)
        own.agent.stand_still()
        self.addCleanup(own.agent.kill)
        other, far = engine.request("never stored")
        self.assertEqual(engine.tier.lookup(far[0], other), RETRY)
        engine.end_step()
        job = stand_ins.TransferJob(99, far, list(range(CHUNKS)), True, other)
        engine.tier.submit_load(job)
        self.assertEqual(list(engine.tier.get_finished_jobs()), [])  # nothing of it waited
        self.assertEqual(engine.lookup(other, far)[0], [MISS] * CHUNKS)
        result = engine.finished(99)
        self.assertFalse(result.success)
        self.assertFalse(engine.job(context, names, list(range(CHUNKS)), load=False).success)
        engine.tier.drain_jobs()

    def test_what_is_known_at_the_deadline_is_used(self):
        own = Tier()
        self.addCleanup(own.end)
        engine = Engine(self, own.where, lookup_ms=2000).wait_up()
        context, names = engine.request(self.prompt)
        engine.fill(self.prompt)
        self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=False).success)
        own.agent.stand_still()  # its memory is still there; for all else it would have to answer
        self.addCleanup(own.agent.kill)
        context, names = engine.request(self.prompt, CHUNKS + 3)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS + [MISS] * 3)

    def test_a_tier_that_comes_later_is_used(self):
        own = Tier()
        self.addCleanup(own.end)
        own.agent.kill()
        with self.assertLogs("vllm.icms.tier", logging.WARNING) as said:
            engine = Engine(self, own.where)
            context, names = engine.request(self.prompt)
            self.assertEqual(engine.lookup(context, names), ([MISS] * CHUNKS, 0))
            self.assertFalse(engine.job(context, names, list(range(CHUNKS)), load=False).success)
            time.sleep(2.5)  # more attempts, no more warnings
        self.assertEqual(len(said.records), 1, said.output)
        self.assertIn("no agent: ", said.output[0])
        own.agent.start()
        own.agent.wait_ready()
        engine.wait_up()
        context, names = engine.request(self.prompt)
        engine.fill(self.prompt)
        self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=False).success)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_an_agent_that_dies_is_not_asked_and_used_when_it_is_back(self):
        own = Tier()
        self.addCleanup(own.end)
        engine = Engine(self, own.where).wait_up()
        with self.assertLogs("vllm.icms.tier", logging.WARNING) as said:
            own.agent.kill()
            wait_for(lambda: not engine.tier._link.up)
            wait_for(lambda: said.output)
        self.assertIn("no agent: ", said.output[0])
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names), ([MISS] * CHUNKS, 0))
        self.assertFalse(engine.job(context, names, list(range(CHUNKS)), load=False).success)
        own.agent.start()
        own.agent.wait_ready()
        engine.wait_up()  # nobody asked for anything meanwhile
        context, names = engine.request(self.prompt)
        engine.fill(self.prompt)
        self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=False).success)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_an_agent_that_comes_back_without_the_volume_is_not_asked(self):
        own = Tier()
        self.addCleanup(own.end)
        engine = Engine(self, own.where).wait_up()
        config = own.agent.config_path.read_text()
        own.agent.kill()
        own.agent.config_path.write_text(config.replace("name: kv", "name: other"))
        with self.assertLogs("vllm.icms.tier", logging.WARNING) as said:
            own.agent.start()
            own.agent.wait_ready()
            wait_for(lambda: "cannot open volume kv: no such volume" in said.output[-1] if said.output else False)
        self.assertFalse(engine.tier._link.up)
        own.agent.kill()
        own.agent.config_path.write_text(config)
        own.agent.start()
        own.agent.wait_ready()
        engine.wait_up()
        context, names = engine.request(self.prompt)
        engine.fill(self.prompt)
        self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=False).success)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_an_agent_that_comes_back_with_a_smaller_value_max_is_not_used(self):
        own = Tier()
        self.addCleanup(own.end)
        engine = Engine(self, own.where).wait_up()
        config = own.agent.config_path.read_text()
        for value_max in (4, 64):
            own.agent.kill()
            own.agent.config_path.write_text(config.replace("value_max: 64KiB", f"value_max: {value_max}KiB"))
            with self.assertLogs("vllm.icms.tier", logging.WARNING) as said:
                own.agent.start()
                own.agent.wait_ready()
                link = engine.tier._link
                wait_for(lambda: link._volume.value_bytes_max == value_max << 10)
                if value_max == 4:
                    wait_for(lambda: "the volume kv of " in said.output[-1] if said.output else False)
                    self.assertIn("takes 4096: raise its value_max", said.output[-1])
                    self.assertFalse(link.up)
                else:
                    engine.wait_up()
                    wait_for(lambda: said.output)

    def test_wrong_configurations_are_told_when_the_engine_starts(self):
        view = memoryview(bytearray(2 * VALUE_BYTES)).cast("B", (2, VALUE_BYTES))
        large = memoryview(bytearray(4 * VALUE_BYTES)).cast("B", (2, 2 * VALUE_BYTES))
        for options, memory, says in (
                ({"volume": "nothing"}, view, "nothing"),
                ({"volume": "kv", "where": "carrier pigeon:"}, view, "carrier pigeon"),
                ({"volume": "kv"}, large, "value_max"),
                ({"volume": "kv", "weights": ""}, view, "weights")):
            words = {"where": self.shared.where, "weights": "w", **options}
            with self.subTest(options), self.assertRaises(ValueError) as refused, \
                    engine_of("no-such-model").making():
                IcmsTier(spec("no-such-model"), memory, "1", **words)
            self.assertIn(says, str(refused.exception))

    def test_another_seed_is_explained_and_shares_nothing(self):
        words = {"model": f"m{random.random()}", "tenant": self.id()}
        self.stored(**words)
        seeds = sys.modules["vllm.v1.core.kv_cache_utils"]
        self.addCleanup(setattr, seeds, "NONE_HASH", seeds.NONE_HASH)
        seeds.NONE_HASH = b"another " * 4
        with self.assertLogs("vllm.icms.tier", logging.WARNING) as said:
            engine = Engine(self, self.shared.where, **words).wait_up()
            wait_for(lambda: said.records)
        self.assertIn("probe: ", said.output[0])
        self.assertIn("set PYTHONHASHSEED", said.output[0])
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)

    def test_an_entry_of_models_says_how_vllm_hashes(self):
        for seeded, said_of_it in ((stand_ins.seeded("sha256", "0"), ", hash: sha256, hash_seed: '0'"),
                                   (stand_ins.seeded("other", "0"), "")):
            with seeded, self.assertLogs("vllm.icms.tier", logging.INFO) as said:
                link = Engine(self, self.shared.where).wait_up().tier._link
                self.assertRegex("\n".join(said.output), "an entry of models in icms-agent.yaml, but for its name: "
                                 rf"\{{volume: kv, state: '[0-9a-f]{{64}}', block_tokens: {TOKENS}, of: hashes, "
                                 rf"suffix: '00000000'{said_of_it}\}}")
                self.assertEqual(link._say_hashing(2 * TOKENS),
                                 f"{said_of_it}, hash_tokens: {TOKENS}" if said_of_it else "")

    def test_an_entry_of_models_has_the_number_of_the_group(self):
        with self.assertLogs("vllm.icms.tier", logging.INFO) as said:
            engine = Engine(self, self.shared.where, groups=(258,)).wait_up()
        self.assertIn(", suffix: '00000102'", "\n".join(said.output))
        name = hashlib.sha256(self.prompt.encode()).digest() + bytes.fromhex("00000102")
        context = stand_ins.ReqContext("one")
        context._offload_key_positions[name] = TOKENS
        engine.tier.on_new_request(context)
        self.assertTrue(engine.job(context, [name], [0], load=False).success)
        # what an agent makes of the entry and the hash
        scheme = engine.tier._link.schemes[0]
        self.assertTrue(scheme.volume.exists(scheme.keys([name])[0]))

    def test_groups_have_no_entry_of_models_and_it_is_said_why(self):
        with self.assertLogs("vllm.icms.tier", logging.INFO) as said:
            Engine(self, self.shared.where, groups=(0, 1)).wait_up()
        self.assertEqual([line.partition(": for routers, ")[2] for line in said.output if "for routers" in line],
                         ["no entry of models in icms-agent.yaml: each of 2 KV cache groups has keys of its own, and an "
                          "entry stands for those of one"])

    def test_chunks_that_are_larger_than_those_of_agents_have_no_entry_of_models(self):
        for blocks, says in ((4096, "of: hashes, suffix: '00000000', hash: sha256, hash_seed: '0', hash_tokens: 16}"),
                             (4097, "no entry of models in icms-agent.yaml: blocks have 65552 tokens, and those of an "
                                    "entry 65536 at most")):
            with self.subTest(blocks), stand_ins.seeded("sha256", "0"), \
                    self.assertLogs("vllm.icms.tier", logging.INFO) as said:
                Engine(self, self.shared.where, blocks=blocks).wait_up()
                self.assertEqual([line[-len(says):] for line in said.output if "for routers" in line], [says])

    def test_a_volume_that_is_reset_has_another_entry_of_models(self):
        own = Tier()
        self.addCleanup(own.end)
        with self.assertLogs("vllm.icms.tier", logging.INFO) as said:
            link = Engine(self, own.where).wait_up().tier._link
            before = link.schemes[0].begins()["state"]
            own.agent.kill()
            own.target.stop()
            for daemon in own.target, own.agent:
                config = daemon.config_path.read_text()
                daemon.config_path.write_text(config.replace("name: kv\n", "name: kv\n    generation: 1\n"))
                daemon.start()
                daemon.wait_ready()
            wait_for(lambda: sum("an entry of models" in line for line in said.output) == 2)
        states = [line.partition("state: '")[2][:64] for line in said.output if "an entry of models" in line]
        self.assertEqual(states, [before, link.schemes[0].begins()["state"]])
        self.assertNotEqual(*states)

    def test_another_tenant_shares_nothing(self):
        model = f"m{random.random()}"
        self.stored(model=model)
        engine = Engine(self, self.shared.where, model=model, tenant="somebody").wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)

    def test_other_weights_are_explained_and_share_nothing(self):
        words = {"model": f"m{random.random()}", "tenant": self.id()}
        self.stored(**words)
        with self.assertLogs("vllm.icms.tier", logging.WARNING) as said:
            engine = Engine(self, self.shared.where, **{**words, "weights": "v"}).wait_up()
            wait_for(lambda: said.records)
        self.assertIn("weights: ", said.output[0])
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)

    def test_servers_that_differ_in_what_is_harmless_share(self):
        self.stored(model="/a/llama")
        engine = Engine(self, self.shared.where, model="/a/llama", config={
            "scheduler_config": {"max_num_seqs": 99}, "parallel_config": {"data_parallel_rpc_port": 7},
            "cache_config": {"gpu_memory_utilization": 0.3}}).wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_another_configuration_lives_beside_the_first(self):
        self.stored()
        other = {"model_config": {"hf_config": {"rope_theta": 7.0}}}
        engine = Engine(self, self.shared.where, config=other).wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)
        self.stored(config=other)
        engine = Engine(self, self.shared.where, config=other).wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_a_tier_that_hears_of_no_reset_is_refused(self):
        view = memoryview(bytearray(2 * VALUE_BYTES)).cast("B", (2, VALUE_BYTES))
        with self.assertRaisesRegex(WrongTier, "IcmsOffloadingConnector"):
            IcmsTier(spec(), view, "1", where=self.shared.where, volume="kv", weights="w")

    def test_after_a_reset_nothing_is_shared(self):
        for event in ("reset", "changed"):
            with self.subTest(event):
                self.prompt = f"{random.random()}"
                engine = self.stored()
                context, names = engine.request(self.prompt)
                self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)
                getattr(engine.engine, event)(*([] if event == "reset" else ["a test"]))
                self.assertEqual(engine.tier.lookup(names[0], context), MISS)  # at once
                engine.wait_up()
                context, names = engine.request(self.prompt)
                self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)
                after = f"after {self.prompt}"
                context, names = engine.request(after)
                self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=False).success)
                context, names = engine.request(after)
                self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)
                other = Engine(self, self.shared.where).wait_up()
                for prompt, found in ((after, MISS), (self.prompt, HIT)):
                    context, names = other.request(prompt)
                    self.assertEqual(other.lookup(context, names)[0], [found] * CHUNKS)

    def test_jobs_of_before_a_reset_end_under_the_keys_of_before(self):
        engine = Engine(self, self.shared.where).wait_up()
        context, names = engine.request(self.prompt)
        engine.fill(self.prompt)
        engine.tier.submit_store(stand_ins.TransferJob(1, names, list(range(CHUNKS)), False, context))
        engine.engine.reset()
        self.assertTrue(engine.finished(1).success)
        engine.wait_up()
        engine.tier.on_request_finished(context)
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)
        other = Engine(self, self.shared.where).wait_up()
        context, names = other.request(self.prompt)
        self.assertEqual(other.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_a_prompt_is_one_question_and_a_window_is_asked_for_chunk_by_chunk(self):
        engine, asked = self.stored(), []
        engine.tier._prefill.add(TOKENS, 3600.0)
        volume = engine.tier._link.schemes[0].volume
        for what in ("exists", "match_estimate"):
            def told(volume, names, *, what=what, real=getattr(icms.Volume, what), **words):
                asked.append((what, len(names)))
                return real(volume, names, **words)

            patch = unittest.mock.patch.object(icms.Volume, what, told)
            patch.start()
            self.addCleanup(patch.stop)
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)
        self.assertEqual(asked, [("match_estimate", CHUNKS)])
        del asked[:]
        hole = engine.tier._requests[context.req_id].names[names[0]]
        self.assertTrue(volume.remove([hole]).ok)
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names[::-1])[0], [HIT] * (CHUNKS - 1) + [MISS])
        self.assertEqual(asked, [("exists", CHUNKS), ("match_estimate", CHUNKS - 1)])  # as of a sliding window
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.lookup(context, names)[0], [MISS] * CHUNKS)

    def test_a_slow_answer_is_waited_for_as_long_as_a_load(self):
        engine = self.stored()
        exists = icms.Volume.exists

        def slow(*arguments, **words):
            time.sleep(1.2)
            return exists(*arguments, **words)

        context, names = engine.request(self.prompt)
        with unittest.mock.patch.object(icms.Volume, "exists", slow):
            self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)

    def test_the_connector_tells_its_tiers_of_resets_and_steps(self):
        view = memoryview(bytearray(2 * VALUE_BYTES)).cast("B", (2, VALUE_BYTES))
        caches = types.SimpleNamespace(kv_cache_groups=[])

        def made():
            return IcmsTier(spec(), view, "1", where=self.shared.where, volume="kv", weights="w")

        with unittest.mock.patch.object(stand_ins.OffloadingConnector, "tier", staticmethod(made)):
            connector = IcmsOffloadingConnector(stand_ins.vllm_config(), stand_ins.Role.SCHEDULER, caches)
        self.addCleanup(connector.made.shutdown)
        self.addCleanup(connector.shutdown)
        link = connector.made._link
        self.assertFalse(link.up)  # the workers have said nothing
        connector.set_xfer_handshake_metadata_pp_aware({(0, 0): Facts("a machine")})
        wait_for(lambda: link.up)
        before = link.schemes[0].fingerprint
        prefill = connector._engine.prefill
        for scheduled in ({}, {}, {"a": 3}):  # ahead of their ends
            connector.build_connector_meta(types.SimpleNamespace(num_scheduled_tokens=scheduled))
        for is_known in (False, False, True):
            connector.get_kv_connector_stats()
            self.assertEqual(prefill.seconds(1) is not None, is_known)
        self.assertTrue(connector.reset_cache())
        self.assertFalse(link.up and link.schemes[0].fingerprint == before)
        wait_for(lambda: link.up)
        self.assertNotEqual(link.schemes[0].fingerprint, before)
        pool = object()
        connector.bind_gpu_block_pool(pool)
        self.assertIs(connector._engine.pool, pool)
        self.assertEqual(connector.asked, 3 * ["step"] + 3 * ["stats"] + ["reset", "pool"])
        before = agent_hints(self.shared)
        connector.on_new_request(types.SimpleNamespace(request_id="r", chunks={
            name: (i + 1) * TOKENS for i, name in enumerate(chunks(self.prompt))}))
        wait_for(lambda: agent_hints(self.shared)["taken"] - before["taken"] == CHUNKS)
        queued = []
        connector._engine.queued[:] = [queued.append]
        for computes_all in (True, False):
            connector.on_new_request(types.SimpleNamespace(request_id=f"{computes_all}", chunks={},
                                                           skip_reading_prefix_cache=computes_all))
        self.assertEqual([context.req_id for context in queued], ["False"])

    def test_the_agent_learns_the_chunks_of_a_queued_request(self):
        self.shared = Tier()  # no other test's hints end meanwhile
        self.addCleanup(self.shared.end)
        self.stored()
        before = agent_hints(self.shared)
        engine = Engine(self, self.shared.where).wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(len(engine.engine.queued), 1)
        engine.engine.queued[0](context)  # as IcmsOffloadingConnector does
        wait_for(lambda: agent_hints(self.shared)["taken"] - before["taken"] == CHUNKS)
        self.assertEqual(engine.lookup(context, names)[0], [HIT] * CHUNKS)
        self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=True).success)
        engine.tier.on_request_finished(context)
        wait_for(lambda: sum(agent_hints(self.shared)[end] - before[end]
                             for end in ("in_time", "late", "unused")) == CHUNKS)
        hints = {name[1]: number for name, number in engine.counters().items() if "hints" in name[0]}
        self.assertEqual(sum(hints.values()), CHUNKS)
        # Those of a request that ends before its turn end by themselves.
        short = Engine(self, self.shared.where, prestage_ms=1000).wait_up()
        before = agent_hints(self.shared)
        context, names = short.request(self.prompt)
        short.engine.queued[0](context)
        wait_for(lambda: agent_hints(self.shared)["taken"] - before["taken"] == CHUNKS)
        short.tier.on_request_finished(context)
        wait_for(lambda: sum(agent_hints(self.shared)[end] - before[end]
                             for end in ("unused", "dropped", "late")) == CHUNKS)
        silent = Engine(self, self.shared.where, prestage_ms=0).wait_up()
        self.assertEqual(silent.engine.queued, [])

    def test_a_request_behind_others_is_asked_for_later(self):
        engine = self.stored(prestage_ms=60000)
        engine.engine.prefill.add(2, 1.0)
        took, said = 1000 * CHUNKS * TOKENS // 2, []  # each of them
        patch = unittest.mock.patch.object(icms.Volume, "prestage", lambda self, keys, *, deadline_ms, **rest:
                                           said.append(round((deadline_ms - 60000) / took)) or len(keys))
        patch.start()
        self.addCleanup(patch.stop)
        requests = [engine.request(self.prompt)[0] for _ in range(3)]
        for context in requests:
            engine.engine.queued[0](context)
        wait_for(lambda: stand_ins.is_settled(engine.tier._movers))
        self.assertEqual(said, [0, 1, 2])
        engine.engine.stepped({requests[0].req_id: CHUNKS * TOKENS})  # its turn has come
        engine.tier.on_request_finished(requests[1])
        engine.engine.queued[0](requests[0])
        wait_for(lambda: stand_ins.is_settled(engine.tier._movers))
        self.assertEqual(said[3:], [1])

    def test_a_request_leaves_pins_alone(self):
        engine = self.stored()
        volume = engine.tier._link.schemes[0].volume
        for is_read in (False, True):
            context, names = engine.request(self.prompt)
            engine.lookup(context, names)  # which names them
            pinned = [engine.tier._requests[context.req_id].names[name] for name in names[:4]]
            self.assertEqual(volume.prestage(pinned, pin_seconds=600), 4)  # a gateway's: the same user
            before = agent_hints(self.shared)["pins"]
            self.assertGreaterEqual(before, 4)
            engine.engine.queued[0](context)
            wait_for(lambda: stand_ins.is_settled(engine.tier._movers))  # the agent has the hints
            if is_read:
                self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=True).success)
            engine.tier.on_request_finished(context)
            wait_for(lambda: stand_ins.is_settled(engine.tier._movers))
            self.assertEqual(agent_hints(self.shared)["pins"], before)
            self.assertEqual(volume.prestage_cancel(pinned), 4)

    def test_a_request_says_that_its_prompt_is_read_once(self):
        engine = Engine(self, self.shared.where).wait_up()
        said = []

        def noted(name, call):
            def run(*arguments, **rest):
                if "once" in rest:  # else it is a statement of the server
                    said.append((name, rest["once"]))
                return call(*arguments, **rest)
            return run

        for name in ("put", "get", "prestage"):
            patch = unittest.mock.patch.object(icms.Volume, name, noted(name, getattr(icms.Volume, name)))
            patch.start()
            self.addCleanup(patch.stop)
        for i, (params, once) in enumerate(
                ((None, False), ({}, False), ({"do_remote_decode": True}, False), ({"icms_once": False}, False),
                 ({"icms_once": True}, True), ({"icms_once": "true"}, False), ({"icms_once": 1}, False),
                 ({"icms_once": None}, False))):
            engine.fill(f"{self.prompt} {i}")
            context, names = engine.request(f"{self.prompt} {i}", params=params)
            self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=False).success)
            self.assertTrue(engine.job(context, names, list(range(CHUNKS)), load=True).success)
            engine.engine.queued[0](context)
            wait_for(lambda: {name for name, _ in said} == {"put", "get", "prestage"})
            self.assertEqual({one for _, one in said}, {once}, params)
            engine.tier.on_request_finished(context)
            wait_for(lambda: stand_ins.is_settled(engine.tier._movers))
            said.clear()

    def test_chunks_that_are_no_part_of_the_prompt_are_misses(self):
        engine = Engine(self, self.shared.where).wait_up()
        context, names = engine.request(self.prompt)
        self.assertEqual(engine.tier.lookup(chunks("another")[0], context), MISS)
        result = engine.job(context, chunks("another")[:1], [0], load=False)
        self.assertFalse(result.success)
        engine.tier.on_request_finished(context)
        self.assertEqual(engine.tier.lookup(names[0], context), MISS)

    def test_a_tier_that_comes_and_goes_at_every_step(self):
        engine = self.stored(lookup_ms=50)
        engine.tier._link = stand_ins.Flapping(engine.tier._link)
        whole = 0
        for i in range(1200):
            if whole and i >= 60:
                break
            context, names = engine.request(self.prompt)
            found, _ = engine.lookup(context, names)
            if found[0] == HIT:
                whole += engine.job(context, names, list(range(CHUNKS)), load=True).success
            engine.job(context, names, list(range(CHUNKS)), load=False)
            engine.counters()
            engine.tier.on_request_finished(context)
        self.assertGreater(whole, 0)

    def test_the_end_in_the_middle_of_work(self):
        engine = self.stored()
        context, names = engine.request(self.prompt)
        for number in range(8):
            engine.tier.submit_load(stand_ins.TransferJob(1000 + number, names,
                                                          list(range(CHUNKS)), True, context))
        engine.end()
        engine.memory.extend(b"nobody holds it any more")


if __name__ == "__main__":
    unittest.main()
