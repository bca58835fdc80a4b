# SPDX-License-Identifier: Apache-2.0
"""What of a vLLM engine is in its keys, and which events end that it shares, without vLLM.

Goal: whatever changes KV changes the keys, what is known to be harmless does not, what cannot be known
is refused, and no change of weights that vLLM's engine core is asked for goes unseen.
Method: the classes of the product on stand-ins for vLLM's configuration and engine core.
"""
import os
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock

import vllm_stand_ins as stand_ins

stand_ins.install()
from icms.vllm import configuration  # noqa: E402
from icms.vllm.identity import Engine, Facts, Identity, KeySpace, Options, Shape  # noqa: E402
from icms.vllm.link import WrongTier  # noqa: E402

SHAPE = Shape("float32", "block", 16, (1, 1, 1, 1), False, 16)
KV = types.SimpleNamespace(kv_cache_groups=[types.SimpleNamespace(
    layer_names=["a"], kv_cache_spec=types.SimpleNamespace(block_size=16, head_size=64))])


def fields(model="m", **more):
    return configuration.fields(stand_ins.vllm_config(model, **more), KV)


class Configurations(unittest.TestCase):
    def test_what_is_harmless_is_not_in_the_keys(self):
        ours = fields()
        for what, more in (
                ("folder", {"model_config": {"hf_config": {
                    "rope_theta": 10000.0, "_name_or_path": "/b/m",
                    "rope_parameters": {"rope_type": "default"}}}}),
                ("port", {"parallel_config": {"data_parallel_rpc_port": 2}}),
                ("memory", {"cache_config": {"gpu_memory_utilization": 0.5}}),
                ("batches", {"scheduler_config": {"max_num_seqs": 99}}),
                ("context", {"model_config": {"max_model_len": 8192}}),
                ("secret", {"model_config": {"hf_token": "hf_secret"}})):
            with self.subTest(what):
                self.assertEqual(fields(**more), ours)
        self.assertEqual(fields("/b/other"), ours)
        with unittest.mock.patch.dict(os.environ, {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_PORT": "1"}):
            self.assertEqual(fields(), ours)
        for name in ("VLLM_SERVICE_HOST", "VLLM_SERVICE_PORT_HTTP", "VLLM_PORT_8000_TCP",
                     "VLLM_PORT_8000_TCP_PROTO", "VLLM_ROUTER_PORT_80_TCP_ADDR"):  # of Kubernetes
            with unittest.mock.patch.dict(os.environ, {name: "10.0.0.7"}):
                self.assertEqual(fields(), ours)

    def test_what_changes_kv_is(self):
        seen = [fields()]
        for more in (
                {"model_config": {"hf_config": {"rope_theta": 500000.0}}},
                {"model_config": {"hf_config": {"rope_theta": 10000.0, "nobody": "knows"}}},
                {"model_config": {"quantization": "fp8"}},
                {"model_config": {"trust_remote_code": True}},
                {"model_config": {"a_later_option": 1}},
                {"cache_config": {"cache_dtype": "fp8_e4m3"}},
                {"cache_config": {"kv_cache_layout": "Y"}},
                {"speculative_config": {"method": "eagle"}},
                {"attention_config": {"backend": "FLASHINFER"}},
                {"load_config": {"load_format": "dummy"}},
                {"lora_config": {"max_loras": 1}}):
            seen.append(fields(**more))
        with unittest.mock.patch.dict(os.environ, {"VLLM_MLA_DISABLE": "1"}):
            seen.append(fields())
        with unittest.mock.patch("importlib.metadata.version", return_value="4.99"):
            seen.append(fields())
        for i, one in enumerate(seen):
            self.assertNotIn(one, seen[:i], i)

    def test_the_length_of_the_context_counts_where_the_rotation_may_depend_on_it(self):
        def scaled(length):
            return fields(model_config={"max_model_len": length, "hf_config": {
                "rope_parameters": {"rope_type": "longrope"}}})

        self.assertNotEqual(scaled(4096), scaled(8192))

    def test_the_content_of_files_counts_that_options_name(self):
        def scaled(path):
            return fields(model_config={"multimodal_config": {"mm_encoder_fp8_scale_path": path}})

        with tempfile.TemporaryDirectory() as folder:
            made = []
            for name, text in (("a", "1"), ("b", "1"), ("a", "2")):
                pathlib.Path(folder, name).write_text(text)
                made.append(scaled(f"{folder}/{name}"))
            self.assertEqual(made[0], made[1])
            self.assertNotEqual(made[0], made[2])
            with self.assertRaisesRegex(WrongTier, "not on this machine"):
                scaled(f"{folder}/gone")

    def test_no_secret_is_stated(self):
        with unittest.mock.patch.dict(os.environ, {"VLLM_API_KEY": "secret"}):
            said = fields(model_config={"hf_token": "secret"}, additional_config={"key": "secret"},
                          load_config={"model_loader_extra_config": {"s3_secret_access_key": "secret"}})
        self.assertNotIn("secret", str(said))
        self.assertNotEqual(said, fields())

    def test_what_cannot_be_compared_is_refused(self):
        with self.assertRaisesRegex(WrongTier, "additional_config"):
            fields(additional_config={"x": object()})

    def test_what_is_in_no_hash_is_asked_for(self):
        for config, says in (
                ({"lora_config": {"max_loras": 1}}, '"adapters"'),
                ({"cache_config": {"enable_prefix_caching": False}}, "prefix caching is off"),
                ({"load_config": {"load_format": "runai_streamer"}}, '"weights"'),
                ({"load_config": {"download_dir": "/somewhere"}}, '"weights"'),
                ({"model_config": {"model_weights": "s3://m"}}, '"weights"')):
            with self.subTest(says), self.assertRaisesRegex(WrongTier, says):
                configuration.refuse(stand_ins.vllm_config(**config), weights="", adapters="")
        configuration.refuse(stand_ins.vllm_config(lora_config={"max_loras": 1},
                                                   load_config={"load_format": "runai_streamer"}),
                             weights="w", adapters="v1")

    def test_files_from_elsewhere_are_not_those_of_the_usual_cache(self):
        draft = types.SimpleNamespace(model="org/draft", revision=None)
        config = stand_ins.vllm_config("/", speculative_config={"draft_model_config": draft},
                                       load_config={"download_dir": "/somewhere"})
        with self.assertRaisesRegex(WrongTier, '"weights"'):
            configuration.refuse(config, weights="", adapters="")
        with unittest.mock.patch.dict(os.environ, {"VLLM_USE_MODELSCOPE": "True"}):
            configuration.refuse(stand_ins.vllm_config("/"), weights="", adapters="")
            with self.assertRaisesRegex(WrongTier, '"weights"'):
                configuration.refuse(stand_ins.vllm_config("org/m"), weights="", adapters="")

    def test_a_draft_model_is_part_of_the_weights(self):
        draft = types.SimpleNamespace(model="/draft", revision=None)
        config = stand_ins.vllm_config("/m", speculative_config={"draft_model_config": draft})
        self.assertEqual(configuration.models(config), [("/m", None), ("/draft", None)])


class Workers(unittest.TestCase):
    @staticmethod
    def said(blocks=100, dtype="bfloat16", backend="FLASH", scale=1.0, row=64):
        class Cache:
            shape = (blocks, 16, row)

            @staticmethod
            def stride():
                return (16 * row, row, 1)

        Cache.dtype = dtype
        layer = types.SimpleNamespace(
            get_attn_backend=lambda: types.SimpleNamespace(get_name=lambda: backend),
            _k_scale_float=scale, _v_scale_float=1.0)
        config = types.SimpleNamespace(compilation_config=types.SimpleNamespace(
            static_forward_context={"a": layer}))
        kernel = sys.modules["vllm.v1.kv_cache_interface"]
        with unittest.mock.patch.object(configuration, "machine", lambda: "a machine"), \
                unittest.mock.patch.object(kernel, "group_kernel_blocks", lambda cache, count: cache):
            return configuration.of_worker(config, types.SimpleNamespace(num_blocks=blocks),
                                           {"a": Cache})

    def test_how_kv_lies_in_memory_counts_and_how_much_does_not(self):
        self.assertEqual(self.said(), self.said(blocks=7))
        seen = [self.said(**more) for more in ({}, {"dtype": "fp8"}, {"backend": "FLASHINFER"},
                                               {"scale": 0.5}, {"row": 128})]
        self.assertEqual(len(set(seen)), len(seen))
        self.assertIn("FLASHINFER", seen[2])


class Spaces(unittest.TestCase):
    #: What happens, and whether the space is shared afterwards with `weights: files`.
    LIVES = (("reset", True), ("step", True), ("reset", True), ("busy reset", False), ("reset", True),
             ("sleep", False), ("reset", False), ("load", True), ("step", True), ("sleep", False),
             ("load", False), ("reset", True), ("step", True), ("load", False), ("step", False),
             ("busy reset", False), ("reset", True), ("change", False), ("reset", False),
             ("load", False), ("reset", False))

    def test_the_life_of_a_key_space(self):
        for from_files in (True, False):
            space, seen = KeySpace(from_files), set()
            for i, (what, is_shared) in enumerate(self.LIVES):
                {"reset": lambda: space.reset(True), "busy reset": lambda: space.reset(False),
                 "step": space.stepped, "sleep": lambda: space.changed(False),
                 "change": lambda: space.changed(True), "load": space.loaded_files}[what]()
                with self.subTest(from_files=from_files, event=i, what=what):
                    self.assertEqual(space.space == b"", is_shared and from_files)
                    self.assertEqual(space.space in seen, what == "step" and space.space != b"")
                    seen.add(space.space or os.urandom(16))


class Identities(unittest.TestCase):
    def setUp(self):
        self.engine = self.made(stand_ins.vllm_config())
        self.core = stand_ins.EngineCore()
        self.forgotten = 0

    def made(self, config):
        engine = Engine(config, KV)
        self.addCleanup(engine.close)
        return engine

    def identity(self, **options):
        def forget():
            self.forgotten += 1

        return Identity(self.engine, Options(**{"weights": "w", **options}), SHAPE,
                        is_idle=lambda: True, forget=forget)

    def test_how_vllm_hashes_is_said_where_it_is_known(self):
        for name, seed, hashed_with, is_said in (
                ("sha256", "0", "sha256", True), ("sha256_cbor", "vllm-none-hash", "sha256_cbor", True),
                ("sha256", "0", "sha256_cbor", False),  # NONE_HASH is not of this seed
                ("xxhash", "0", "xxhash", False), ("sha256", "", "sha256", False),
                ("sha256", "it's", "sha256", False), ("sha256", "0" * 64, "sha256", False)):
            self.engine = self.made(stand_ins.vllm_config(cache_config={"prefix_caching_hash_algo": name}))
            with self.subTest(name=name, seed=seed), stand_ins.seeded(hashed_with, seed):
                self.assertEqual(self.identity().hashing(), (name, seed, 16) if is_said else None)
        module = sys.modules["vllm.v1.core.kv_cache_utils"]
        self.engine = self.made(stand_ins.vllm_config())
        with stand_ins.seeded("sha256", "7"), unittest.mock.patch.dict(os.environ, {"PYTHONHASHSEED": "7"}):
            del module.get_none_hash_seed  # a vLLM that has only the variable; the patch puts it back
            self.assertEqual(self.identity().hashing(), ("sha256", "7", 16))

    def test_calls_that_may_change_weights_are_seen_before_they_run(self):
        identity = self.identity()

        class Adapter(types.SimpleNamespace):
            lora_name, lora_path, load_inplace = "a", "/a", False

        class InPlace(Adapter):
            lora_path, load_inplace = "/b", True

        for call, is_seen in (
                (lambda: self.core.collective_rpc("compute_weight_checksums"), False),
                (lambda: self.core.collective_rpc("reload_weights"), True),
                (lambda: self.core.collective_rpc("update_weights", None, (), {"update_info": {}}), True),
                (lambda: self.core.collective_rpc(len), True),
                (lambda: self.core.collective_rpc(method="whatever"), True),
                (lambda: self.core.sleep(1), False),
                (lambda: self.core.sleep(2), True),
                (lambda: self.core.add_lora(Adapter()), False),
                (lambda: self.core.add_lora(Adapter()), True),
                (lambda: self.core.add_lora(InPlace()), True)):
            before, asked = identity.space.number, len(self.core.asked)
            when = []
            with unittest.mock.patch.object(
                    identity, "_forget", lambda when=when: when.append(len(self.core.asked))):
                call()
            with self.subTest(self.core.asked[-1]):
                self.assertEqual(len(self.core.asked), asked + 1)
                self.assertEqual(identity.space.number > before, is_seen)
                self.assertEqual(when[:1], [asked] if is_seen else [])

    def test_blocks_that_a_reset_leaves_on_the_gpu_are_not_shared(self):
        with tempfile.TemporaryDirectory() as folder:
            self.engine = self.made(stand_ins.vllm_config(folder))
            identity = self.identity(weights="files")
            pool = types.SimpleNamespace(num_gpu_blocks=9, get_num_free_blocks=lambda: self.free)
            for bound, self.free, is_shared in ((None, 8, False), (pool, 7, False), (pool, 8, True)):
                self.engine.pool = bound
                self.engine.stepped({"a": 1})
                self.engine.reset()
                self.assertEqual(identity.space.space == b"", is_shared)
                self.core.collective_rpc("reload_weights")
                self.assertEqual(identity.space.space == b"", is_shared)

    def test_outputs_of_an_encoder_with_other_weights_are_not_shared(self):
        with tempfile.TemporaryDirectory() as folder:
            for has_encoder in (False, True):
                more = {"model_config": {"multimodal_config": {}}} if has_encoder else {}
                self.engine = self.made(stand_ins.vllm_config(folder, **more))
                self.engine.pool = types.SimpleNamespace(num_gpu_blocks=9,
                                                         get_num_free_blocks=lambda: 8)
                identity = self.identity(weights="files")
                for begin in (lambda: None, lambda: self.core.collective_rpc("reload_weights")):
                    self.engine.stepped({"a": 1})
                    begin()
                    self.engine.reset()
                    self.core.collective_rpc("reload_weights")  # an image's output is still there
                    self.assertEqual(identity.space.space == b"", not has_encoder)
                    self.engine.reset()
                    self.assertEqual(identity.space.space == b"", not has_encoder)
                    self.core.reset_encoder_cache()
                    self.assertEqual(identity.space.space, b"")
                self.engine.stepped({"a": 1})
                self.engine.reset()  # of caches alone: the weights are those of before
                self.assertEqual(identity.space.space, b"")

    def test_an_engine_that_ended_is_not_told(self):
        identity = self.identity()
        self.engine.close()
        self.core.collective_rpc("reload_weights")
        self.assertEqual((self.forgotten, identity.space.number), (0, 0))

    def test_a_text_names_weights_together_with_the_whole_name_of_the_model(self):
        seen = set()
        for model in ("org1/llama", "org2/llama", "/a/llama", "/b/llama"):
            self.engine = self.made(stand_ins.vllm_config(model))
            seen.add(self.identity(weights="v1").weights())
        self.assertEqual(len(seen), 4)

    def test_a_fingerprint_is_of_the_files_that_were_loaded(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(
                os.environ, {"XDG_CACHE_HOME": folder}):
            model = pathlib.Path(folder, "model")
            model.mkdir()
            (model / "config.json").write_text("{}")
            weights = model / "w.safetensors"
            weights.write_bytes(bytes(1 << 20) + b"1")
            self.engine = self.made(stand_ins.vllm_config(str(model)))
            identity = self.identity(weights="files")
            first = identity.weights()
            weights.write_bytes(bytes(1 << 19) + b"2" + bytes(1 << 19))  # not loaded by anybody
            identity.reset(True)
            with self.assertRaisesRegex(ValueError, "have changed"):
                identity.weights()
            self.core.collective_rpc("reload_weights")
            self.assertEqual(identity.space.space, b"")
            self.assertNotEqual(identity.weights(), first)
            self.core.collective_rpc("reload_weights", None, (), {"weights_path": "/other"})
            self.core.collective_rpc("reload_weights")  # of the other path: vLLM remembers it
            identity.reset(True)
            self.assertNotEqual(identity.space.space, b"")

    def test_nothing_is_known_until_the_workers_have_said_their_part(self):
        identity = self.identity()
        self.assertIsNone(identity.fields())
        self.engine.learn({(0, 0): Facts("FLASH"), (0, 1): Facts("FLASH")})
        one = identity.fields()
        self.engine.learn({(0, 0): Facts("FLASHINFER"), (0, 1): Facts("FLASHINFER")})
        self.assertNotEqual(identity.fields(), one)

    def test_beside_another_connector_the_back_end_has_to_be_named(self):
        identity = self.identity()
        with self.assertLogs("vllm.icms.identity", "ERROR") as said:
            self.engine.learn({(0, 0): object()})
        self.assertIn("--attention-backend", said.output[0])
        self.assertIsNone(identity.fields())
        self.engine = self.made(stand_ins.vllm_config(attention_config={"backend": "FLASH"}))
        identity = self.identity()
        with unittest.mock.patch.object(configuration, "machine", lambda: "a machine"):
            self.engine.learn({(0, 0): object()})
        self.assertIsNotNone(identity.fields())

    def test_what_an_operator_says_is_in_the_keys(self):
        made = []
        for options in ({}, {"variant": "v"}, {"adapters": "v"}, {"weights": "x"}, {"tenant": "t"}):
            identity = self.identity(**options)
            self.engine.learn({(0, 0): Facts("FLASH")})
            made.append((identity.fields(), identity.layouts(identity.weights())))
        for i, one in enumerate(made):
            self.assertNotIn(one, made[:i])

    def test_weights_without_files_have_to_be_named(self):
        with self.assertRaisesRegex(WrongTier, '"weights"'):
            self.identity(weights="")


if __name__ == "__main__":
    unittest.main()
