# SPDX-License-Identifier: Apache-2.0
"""Creating backends: what is written is taken, what is wrong is an error with a sentence."""
import os

import numpy
from nixl_cu12._bindings import nixlBackendError

import support
from support import NGUID, SECRET_NGUID, Side, agent_of, blocks, keys, tier


MEMORIES = ["DRAM_SEG", "OBJ_SEG", "VRAM_SEG"]


class Creation(support.TestCase):
    def refused(self, backend, params, *words):
        """No backend is made, and it is said why."""
        with self.told(f"NIXL {backend}: error: ", *words), self.assertRaises(nixlBackendError):
            agent_of("refused").create_backend(backend, params)

    def test_both_plugins_are_listed_with_their_defaults(self):
        agent = agent_of("list")
        self.assertLessEqual({"ICMS", "DOCA_MEMOS"}, set(agent.get_plugin_list()))
        for backend in support.BACKENDS:
            self.assertEqual(sorted(agent.get_plugin_mem_types(backend)), MEMORIES)
        self.assertEqual(agent.get_plugin_params("ICMS")["query_mem_mode"], "actual")
        self.assertEqual(agent.get_plugin_params("DOCA_MEMOS"), {
            "device_name": "", "nguid": "", "num_tasks": "8192",
            "query_mem_mode": "assume_success", "ignore_read_not_found": "false"})

    def test_a_backend_has_the_parameters_it_was_made_with(self):
        """NIXL reads them from the engine's own memory: so its layout is right."""
        params = tier().params("ICMS", 0, num_tasks="7")
        agent = agent_of("params")
        agent.create_backend("ICMS", params)
        self.assertEqual(agent.get_backend_params("ICMS"), params)
        self.assertEqual(sorted(agent.get_backend_mem_types("ICMS")), MEMORIES)

    def test_defaults_can_be_handed_back(self):
        agent = agent_of("defaults")
        defaults = agent.get_plugin_params("ICMS")
        agent.create_backend("ICMS", {**defaults, **tier().params("ICMS", 0)})
        agent.create_backend("DOCA_MEMOS", {**agent.get_plugin_params("DOCA_MEMOS"),
                                            "device_name": "/dev/nvme0n1"})

    def test_the_program_of_the_readme(self):
        memory = blocks(1, 5)
        program = support.readme.program("integrations/nixl/README.md")
        there = "unix:/run/icms/agent.sock"
        self.assertIn(there, program)
        agent = agent_of("readme")
        exec(program.replace(there, f"unix:{tier().agents[0].socket}"),
             {"agent": agent, "address": memory.ctypes.data, "nbytes": memory.nbytes, "number": 3})
        local = agent.get_xfer_descs([(memory.ctypes.data, memory.nbytes, 0)], "DRAM")
        remote = agent.get_xfer_descs([(0, memory.nbytes, 3)], "OBJ")
        handle = agent.initialize_xfer("WRITE", local, remote, "readme", backends=["ICMS"])
        side = Side("ICMS", 0)
        side.agent = agent
        self.assertEqual(side.wait(handle, agent.transfer(handle)), "DONE")
        self.assertEqual(Side("ICMS", 1).query(["name of the block"]), [True])

    def test_parameters_that_do_not_exist_are_refused(self):
        good = tier().params("ICMS", 0)
        self.refused("ICMS", {**good, "bucket": "b"}, "no parameter 'bucket'", "connection")
        self.refused("ICMS", {**good, "device_name": "/dev/nvme0n1"}, "no parameter 'device_name'")
        self.refused("DOCA_MEMOS", {"device_name": "/dev/nvme0n1", "volume": "kv"},
                     "no parameter 'volume'")

    def test_values_that_are_wrong_are_refused(self):
        good = tier().params("ICMS", 0)
        self.refused("ICMS", {"connection": good["connection"]}, "volume is missing")
        self.refused("ICMS", {**good, "num_tasks": "many"}, "num_tasks is 'many'")
        self.refused("ICMS", {**good, "deadline_ms": "0"}, "deadline_ms is '0'")
        self.refused("ICMS", {**good, "query_mem_mode": "x"}, "actual or assume_success")
        self.refused("ICMS", {**good, "connection": "tcp:host"}, "tcp:host")
        self.refused("ICMS", {**good, "connection": "pod:/nonexistent"}, "/nonexistent")
        self.refused("ICMS", {**good, "volume": "other"}, "other", "kv")

    def test_devices_that_the_table_does_not_have_are_refused(self):
        self.refused("DOCA_MEMOS", {}, "device_name is missing")
        self.refused("DOCA_MEMOS", {"device_name": "/dev/nvme9n1"}, "/dev/nvme9n1", "nixl.yaml")
        device = {"device_name": "/dev/nvme0n1"}
        self.refused("DOCA_MEMOS", {**device, "nguid": "12"}, "32 hex digits")
        self.refused("DOCA_MEMOS", {**device, "nguid": "a" * 32}, "no volume for the nguid aaa")
        self.refused("DOCA_MEMOS", {**device, "nguid": "f" * 32}, "another UUID")
        self.refused("DOCA_MEMOS", {**device, "nguid": "e" * 32}, "nosuch")
        self.refused("DOCA_MEMOS", {**device, "ignore_read_not_found": "1"}, "false or true")
        kept = os.environ["ICMS_NIXL_CONFIG"]
        os.environ["ICMS_NIXL_CONFIG"] = "/nonexistent/nixl.yaml"
        try:
            self.refused("DOCA_MEMOS", device, "/nonexistent/nixl.yaml", "ICMS_NIXL_CONFIG")
        finally:
            os.environ["ICMS_NIXL_CONFIG"] = kept

    def test_an_encrypted_volume_is_ciphertext_on_drives_and_needs_a_key(self):
        names, values, room, shown = keys(3), blocks(3, 7), blocks(3), blocks(1, 8)
        one = Side("ICMS", 0, volume="secret", keys=str(tier().keys), key_form="hex")
        other, plain = Side("DOCA_MEMOS", 1, nguid=SECRET_NGUID), Side("ICMS", 0)
        for side, memory in ((one, values), (other, room), (plain, shown)):
            side.memory(memory)
        self.assertEqual(one.run("WRITE", values, one.objects(names)), "DONE")
        self.assertEqual(plain.run("WRITE", shown, plain.objects(keys(1))), "DONE")
        content = tier().target.drives[0].read_bytes()
        self.assertIn(shown.tobytes()[:64], content)  # the search finds what is not encrypted
        for value in values:
            self.assertNotIn(value.tobytes()[:64], content)
        self.assertEqual(other.run("READ", room, other.objects(names)), "DONE")
        self.assertTrue(numpy.array_equal(values, room))
        self.refused("ICMS", tier().params("ICMS", 0, volume="secret"), "it is encrypted")

    def test_both_names_lead_to_the_same_blocks(self):
        """One agent with both backends; the hex form of keys is theirs in common."""
        names, values, room = keys(3) + ["short"], blocks(4, 1), blocks(4)
        cmx = Side("DOCA_MEMOS", 0, nguid=NGUID.upper())
        own = Side("ICMS", 1, key_form="hex")
        cmx.memory(values)
        own.memory(room)
        self.assertEqual(cmx.run("WRITE", values, cmx.objects(names)), "DONE")
        self.assertEqual(own.run("READ", room, own.objects(names)), "DONE")
        self.assertTrue(numpy.array_equal(values, room))
        both = agent_of("both")
        for backend in support.BACKENDS:
            both.create_backend(backend, tier().params(backend, 0))
            self.assertEqual(len(both.query_memory([(0, 0, 0, names[0])], backend, "OBJ")), 1)

    def test_cmx_answers_queries_without_asking_unless_it_is_told_to(self):
        device = {"device_name": "/dev/nvme0n1"}
        name = keys(1)
        agent = agent_of("assume")
        agent.create_backend("DOCA_MEMOS", device)
        self.assertIsNotNone(agent.query_memory([(0, 0, 0, name[0])], "DOCA_MEMOS", "OBJ")[0])
        self.assertEqual(Side("DOCA_MEMOS", 0).query(name), [False])

    def test_names_that_have_no_key_are_refused(self):
        cmx = Side("DOCA_MEMOS", 0)
        for name in ("0123456789abcdefg", "ab" * 17):
            with self.told("has no key"), self.assertRaises(nixlBackendError):
                cmx.objects([name])
        own = Side("ICMS", 0)
        long = "a name of any length, as object stores have them/" + keys(1)[0]
        values, room = blocks(1, 2), blocks(1)
        own.memory(values)
        own.memory(room)
        devices = own.objects([long])
        self.assertEqual(own.run("WRITE", values, devices), "DONE")
        self.assertEqual(own.run("READ", room, devices), "DONE")
        self.assertTrue(numpy.array_equal(values, room))
        self.assertEqual(own.query([long, long + "x"]), [True, False])

    def test_an_object_without_a_name_is_its_number(self):
        side = Side("ICMS", 0)
        values, room = blocks(1, 3), blocks(1)
        side.memory(values)
        side.memory(room)
        side.device = int.from_bytes(os.urandom(6), "big")
        self.assertEqual(side.run("WRITE", values, side.objects([""])), "DONE")
        side.device -= 1
        other = Side("ICMS", 1)
        other.memory(room)
        other.device = side.device
        self.assertEqual(other.run("READ", room, other.objects([""])), "DONE")
        self.assertTrue(numpy.array_equal(values, room))
