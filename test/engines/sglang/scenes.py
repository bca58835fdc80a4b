# SPDX-License-Identifier: Apache-2.0
"""icms.sglang under SGLang's own code.

Goal: what one server stores through SGLang's storage interface another one gets back byte for byte,
over NVMe/TCP, whatever the layout of the host pool; what is lost is a miss that the controller turns
into a shorter prefix.
Method: SGLang's factory makes the back end, as --hicache-storage-backend dynamic does, with server
arguments that SGLang has resolved and published; SGLang's controller methods that back up, look up and prefetch drive it, on host pools with SGLang's own page
addressing. The engine itself needs a GPU, so the pools are filled by hand. Between the servers the
agents are new, so every byte comes from the enclosures; that is read off their counters.

usage: scenes.py BUILD [NAME of a case ...], by run.py
"""
import array
import contextlib
import hashlib
import os
import pathlib
import queue
import random
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import pod  # noqa: E402
import readme  # noqa: E402

import torch  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.managers import cache_controller  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheFile, HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402
from sglang.srt.model_executor.model_runner_components.weight_updater import (  # noqa: E402
    WeightUpdater)
from sglang.srt.server_args import ServerArgs  # noqa: E402

VOLUME = {"name": "kv", "value_max": "256KiB", "memory_max": "16MiB"}
PAGE, LAYERS, HEADS, DIM, TOKENS = 16, 4, 2, 64, 16 * 40


class MhaPool(MHATokenToKVPoolHost):
    """The page addressing of SGLang's pool, without the device that its constructor wants."""

    def __init__(self, layout):
        self.layout, self.page_size, self.dtype, self.device = layout, PAGE, torch.bfloat16, "cpu"
        self.layer_num, self.head_num, self.head_dim, self.v_head_dim = LAYERS, HEADS, DIM, DIM
        self.size, self.page_num, self.pin_memory = TOKENS, TOKENS // PAGE, False
        self.lock = threading.RLock()
        self.kv_buffer = torch.zeros({
            "layer_first": (2, LAYERS, TOKENS, HEADS, DIM),
            "page_first": (2, TOKENS, LAYERS, HEADS, DIM),
            "page_first_direct": (2, TOKENS // PAGE, LAYERS, PAGE, HEADS, DIM),
            "page_head": (2, TOKENS // PAGE, HEADS, PAGE, LAYERS, DIM)}[layout],
            dtype=self.dtype)


class MlaPool(MLATokenToKVPoolHost):
    """The same for models with latent attention."""

    def __init__(self, layout):
        self.layout, self.page_size, self.dtype, self.device = layout, PAGE, torch.bfloat16, "cpu"
        self.layer_num, self.kv_lora_rank, self.qk_rope_head_dim = LAYERS, 64, 32
        self.kv_cache_dim = 96
        self.size, self.page_num, self.pin_memory = TOKENS, TOKENS // PAGE, False
        self.lock = threading.RLock()
        self.kv_buffer = torch.zeros({
            "layer_first": (LAYERS, TOKENS, 1, 96),
            "page_first": (TOKENS, LAYERS, 1, 96),
            "page_first_direct": (TOKENS // PAGE, LAYERS, PAGE, 1, 96)}[layout], dtype=self.dtype)


#: What our READMEs say, whose lines these scenes check.
EXTRA, = readme.objects("--hicache-storage-backend-extra-config", "README.md", "python/README.md")


def model(folder, weights=b"weights"):
    """The path of a model, for its fingerprint alone."""
    path = pathlib.Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return str(path)


class Server:
    """One engine's storage: the back end as SGLang makes it, and the controller around it."""

    #: Server arguments, unless args has others.
    args = {}

    def __init__(self, agent, pool, *, interface_v1=1, args=None, **options):
        config = HiCacheStorageConfig(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
            is_mla_model=isinstance(pool, MlaPool), enable_storage_metrics=True,
            is_page_first_layout=pool.layout == "page_first",
            model_name="tiny",
            extra_config={**EXTRA, "interface_v1": interface_v1,
                          "icms": {"where": f"unix:{agent.socket}", "volume": "kv", **options}})
        self.pool = pool
        with runtime_context.get_context().override_server_args(**{**self.args, **(args or {})}):
            self.backend = StorageBackendFactory.create_backend("dynamic", config, pool)
        self.backend.register_mem_pool_host(pool)
        self.backend.on_host_pools_registered()
        make = cache_controller.HiCacheController
        self.controller = controller = make.__new__(make)
        controller.storage_backend = self.backend
        controller.storage_host_pool = controller.mem_pool_host = pool
        controller.page_size = PAGE
        controller.prefetch_sync_queue = queue.Queue()
        controller.page_get_func = (controller._page_get_zero_copy if interface_v1
                                    else controller._generic_page_get)
        controller.page_set_func = (controller._page_set_zero_copy if interface_v1
                                    else controller._generic_page_set)

    def store(self, names, pages, prefix=None):
        """What the backup thread does. Tokens that it says are stored."""
        operation = cache_controller.StorageOperation(positions(pages), [], hash_value=names,
                                                      prefix_keys=prefix)
        self.controller._page_backup(operation)
        return operation.completed_tokens

    def prefetch(self, tokens, pages, prefix=None, last_hash=None):
        """What the prefetch threads do. Pages that were found, pages that came."""
        operation = cache_controller.PrefetchOperation("a request", array.array("q", tokens),
                                                       last_hash, prefix)
        found, hit_tokens = self.controller._storage_hit_query(operation)
        assert hit_tokens == len(found) * PAGE
        operation.hash_value = found
        operation.host_indices = positions(pages)[:hit_tokens]
        return len(found), self.controller._page_transfer(operation)

    def close(self):
        self.backend.close()


def positions(pages):
    return torch.tensor([page * PAGE + token for page in pages for token in range(PAGE)],
                        dtype=torch.int64)


def page_hashes(tokens, prior=b""):
    """The names that SGLang gives to pages."""
    names = []
    for at in range(0, len(tokens), PAGE):
        prior = hashlib.sha256(prior + b"".join(token.to_bytes(4, "little")
                                                for token in tokens[at:at + PAGE])).digest()
        names.append(prior.hex())
    return names


def fill(pool):
    """Writes what no other pool has into all of it."""
    raw = pool.kv_buffer.view(torch.uint8).reshape(-1)
    raw.copy_(torch.frombuffer(bytearray(random.randbytes(raw.numel())), dtype=torch.uint8))


def page_bytes(pool, page):
    """The bytes of a page as SGLang's generic interface hands them over."""
    return pool.get_data_page(page * PAGE).contiguous().view(torch.uint8).numpy().tobytes()


class Scenes:
    """Each method that CASES names is one case."""

    def __init__(self, build, folder):
        self.folder = folder
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        Server.args = {"model_path": model(folder / "tiny")}
        self.p = pod.Pod(build, folder)
        self.targets = [self.p.add_target(f"enclosure{i}", 1, "256MiB", [VOLUME], segment="8MiB",
                                          memory="32MiB") for i in range(2)]
        for target in self.targets:
            target.wait_ready()
        self.count = 0

    def agent(self):
        """One that has nothing in its memory."""
        self.count += 1
        agent = self.p.add_agent(f"server-{self.count}", self.targets, [VOLUME])
        agent.wait_ready()
        return agent

    def share(self, make_pool, pages=30, **options):
        """One server stores a prompt, another gets it."""
        tokens = [random.randrange(1 << 17) for _ in range(pages * PAGE)]
        names = page_hashes(tokens)
        prefix = [] if options.get("chained") else None
        one = Server(self.agent(), make_pool(), **options)
        fill(one.pool)
        assert one.store(names, range(pages), prefix) == pages * PAGE
        one.backend.volume.flush(deadline_ms=10000)
        agent = self.agent()
        other = Server(agent, make_pool(), **options)
        there = list(range(5, 5 + pages))
        random.shuffle(there)
        assert other.prefetch(tokens, there, prefix) == (pages, pages)
        for page, place in enumerate(there):
            assert page_bytes(other.pool, place) == page_bytes(one.pool, page), page
        nbytes = pages * len(page_bytes(one.pool, 0))
        loaded = agent.metrics()['icms_agent_bytes_total{dir="load",tier="pod"}']
        assert loaded >= nbytes, (loaded, nbytes)
        said = other.backend.counters
        assert (said.pages_loaded, said.bytes_loaded, said.misses) == (pages, nbytes, {}), said
        if options.get("interface_v1", 1):
            metrics = other.backend.get_stats()
            assert sum(metrics.prefetch_pgs) == pages, metrics
            assert min(metrics.prefetch_bandwidth) > 0, metrics
        half = tokens[:pages // 2 * PAGE] + [1] * PAGE * 3
        assert other.prefetch(half, range(pages), prefix) == (pages // 2, pages // 2)
        one.close()
        other.close()

    def the_lines_of_the_readme(self):
        """Its options, taken as they are."""
        assert EXTRA["hicache_storage_pass_prefix_keys"] and EXTRA["interface_v1"] == 1, EXTRA
        self.share(lambda: MhaPool("page_first"), **EXTRA["icms"])

    def layouts_of_mha_pools(self):
        for layout in ("page_first", "page_first_direct", "page_head", "layer_first"):
            self.share(lambda layout=layout: MhaPool(layout))

    def layouts_of_mla_pools(self):
        for layout in ("page_first", "page_first_direct", "layer_first"):
            self.share(lambda layout=layout: MlaPool(layout))

    def chained_pages(self):
        self.share(lambda: MhaPool("page_first"), chained=True)

    def copies_without_interface_v1(self):
        self.share(lambda: MhaPool("layer_first"), interface_v1=0)

    def more_than_a_batch(self):
        """SGLang moves 128 pages a call; with prefixes, later calls go on where others ended."""
        global TOKENS
        before, TOKENS = TOKENS, PAGE * 300
        try:
            self.share(lambda: MhaPool("page_first"), pages=290, chained=True)
        finally:
            TOKENS = before

    def a_prompt_in_two_requests(self):
        """The second one stores and looks up only what comes after the first."""
        tokens = [random.randrange(1 << 17) for _ in range(20 * PAGE)]
        names = page_hashes(tokens)
        one = Server(self.agent(), MhaPool("page_first"), chained=True)
        fill(one.pool)
        one.store(names[:8], range(8), [])
        one.store(names[8:], range(8, 20), names[:8])
        one.backend.volume.flush(deadline_ms=10000)
        other = Server(self.agent(), MhaPool("page_first"), chained=True)
        assert other.prefetch(tokens, range(20), []) == (20, 20)
        assert other.prefetch(tokens[8 * PAGE:], range(20, 32), names[:8], names[7]) == (12, 12)
        for page in range(12):
            assert page_bytes(other.pool, 20 + page) == page_bytes(one.pool, 8 + page)
        one.close()
        other.close()

    def what_can_be_restored(self):
        """The verdicts on several pools are those of SGLang's own back end, on random cases."""
        options = {"where": f"unix:{self.agent().socket}", "volume": "kv"}
        pools = {PoolName.MAMBA: MhaPool("page_first"), PoolName.SWA: MhaPool("page_first"),
                 PoolName.INDEXER: MhaPool("page_first")}
        kv = MhaPool("page_first")
        with tempfile.TemporaryDirectory() as folder:
            config = HiCacheStorageConfig(
                0, 1, 0, 1, 0, 1, False, False, True, "tiny restored",
                extra_config={"backend_name": "icms", "module_path": "icms.sglang",
                              "class_name": "HiCacheIcms", "interface_v1": 1, "icms": options})
            with runtime_context.get_context().override_server_args(**Server.args):
                backends = [StorageBackendFactory.create_backend("dynamic", config, kv),
                            HiCacheFile(config, folder)]
            for backend in backends:
                backend.register_mem_pool_host(kv)
                for name, pool in pools.items():
                    backend.register_mem_host_pool_v2(pool, name)
            seen = set()
            for _ in range(60):
                names = page_hashes([random.randrange(1 << 17) for _ in range(10 * PAGE)])
                transfers = [PoolTransfer(
                    name, keys=names[:random.randint(1, 3)],
                    hit_policy=random.choice([PoolHitPolicy.ALL_PAGES,
                                              PoolHitPolicy.TRAILING_PAGES]))
                    for name in random.sample(list(pools), random.randint(0, 3))]
                stored = [PoolTransfer(name, positions(some), keys=[names[i] for i in some])
                          for name in pools
                          if (some := [i for i in range(10) if random.random() < 0.9])]
                depth = random.randint(0, 10)
                for backend in backends:
                    backend.batch_set_v2(stored)
                if depth:
                    backends[0].batch_set_v1(names[:depth], positions(range(depth)))
                    for page in range(depth):
                        backends[1].set(names[page], kv.get_data_page(page * PAGE))
                said = [backend.batch_exists_v2(names, transfers) for backend in backends]
                # SGLang's stops to look at pools once nothing can be restored.
                assert (said[0].kv_hit_pages, said[0].restorable_prefix_pages) == \
                    (said[1].kv_hit_pages, said[1].restorable_prefix_pages), said
                assert said[1].extra_pool_hit_pages.items() <= \
                    said[0].extra_pool_hit_pages.items(), said
                seen.add(said[0].kv_hit_pages)
            assert len(seen) > 4, seen
            backends[0].close()

    def an_enclosure_is_lost(self):
        """Prompts end at their first hole, in time, and what comes is right."""
        tokens = [random.randrange(1 << 17) for _ in range(30 * PAGE)]
        names = page_hashes(tokens)
        one = Server(self.agent(), MhaPool("page_first"))
        fill(one.pool)
        assert one.store(names, range(30)) == 30 * PAGE
        one.backend.volume.flush(deadline_ms=10000)
        other = Server(self.agent(), MhaPool("page_first"), load_ms=2000)
        self.targets[1].kill()
        found, came = other.prefetch(tokens, range(30))
        assert found == came < 30, (found, came)
        whole = other.backend.batch_get_v1(names, positions(range(30)))
        assert 0 < sum(whole) < 30, (whole, other.backend.counters)
        for page, is_whole in enumerate(whole):
            if is_whole:
                assert page_bytes(other.pool, page) == page_bytes(one.pool, page)
        assert set(other.backend.counters.misses) <= {"ENCLOSURE_DOWN", "ABSENT", "DEADLINE"}
        self.targets[1].start()
        self.targets[1].wait_ready()
        one.close()
        other.close()

    def a_tier_that_comes_later(self):
        """A server starts without its agent, and uses it when it comes."""
        tokens = [random.randrange(1 << 17) for _ in range(8 * PAGE)]
        names = page_hashes(tokens)
        agent = self.agent()
        agent.kill()
        server = Server(agent, MhaPool("page_first"))
        fill(server.pool)
        assert server.store(names, range(8)) == 0
        assert server.prefetch(tokens, range(8)) == (0, 0)
        agent.start()
        agent.wait_ready()
        give_up = time.monotonic() + 60
        while server.store(names, range(8)) != 8 * PAGE:
            assert time.monotonic() < give_up, server.backend.counters
            time.sleep(0.1)
        server.backend.volume.flush(deadline_ms=10000)
        other = Server(self.agent(), MhaPool("page_first"))
        assert other.prefetch(tokens, range(8)) == (8, 8)
        for page in range(8):
            assert page_bytes(other.pool, page) == page_bytes(server.pool, page), page
        server.close()
        other.close()

    def what_can_never_work(self):
        """A wrong volume, address or option, and weights that are no files, are told while a server
        starts."""
        agent = self.agent()
        for words, says in (({"volume": "nothing"}, "nothing"),
                            ({"where": "carrier pigeon:"}, "carrier pigeon:"),
                            ({"wher": "unix:"}, "no option 'wher'"),
                            ({"args": {"load_format": "dummy"}}, 'set the option "weights"'),
                            ({"args": {"model_path": "no/such"}}, 'set the option "weights"')):
            try:
                Server(agent, MhaPool("page_first"), **words)
            except Exception as error:
                assert says in str(error), error
            else:
                raise AssertionError(f"a server started with {words}")

    def servers_that_differ(self):
        """They live beside each other; those that differ in what is harmless share."""
        from icms import _sglang

        known = set(ServerArgs.__struct_fields__)
        assert {*_sglang._HARMLESS, *_sglang._FILES, *_sglang._OTHER_SOURCES} <= known
        assert {f"SGLANG_{name}" for name in _sglang._HARMLESS_ENVIRONMENT} <= {*dir(type(envs))}
        agent = self.agent()
        names = page_hashes([random.randrange(1 << 17) for _ in range(4 * PAGE)])
        one = Server(agent, MhaPool("page_first"))
        fill(one.pool)
        assert one.store(names, range(4)) == 4 * PAGE
        same = model(self.folder / "elsewhere" / "same")
        for args in ({"model_path": same}, {"port": 1}, {"mem_fraction_static": 0.1},
                     {"max_running_requests": 3}, {"log_level": "debug"}, {"api_key": "x"},
                     {"schedule_policy": "lpm"}, {"chunked_prefill_size": 64}):
            server = Server(agent, MhaPool("page_first"), args=args)
            assert server.backend.batch_exists(names) == 4, args
            server.close()
        other = model(self.folder / "other" / "tiny", b"weightz")
        for args in ({"model_path": other}, {"attention_backend": "torch_native"},
                     {"json_model_override_args": '{"rope_theta": 500000.0}'},
                     {"quantization": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}, {"dtype": "half"}):
            server = Server(agent, MhaPool("page_first"), args=args)
            assert server.backend.batch_exists(names) == 0, args
            assert server.store(names, range(4)) == 4 * PAGE
            server.close()
        assert one.backend.batch_exists(names) == 4
        one.close()

    def resets(self):
        """After SGLang has flushed, cleared or changed weights nothing old is found."""
        def update(server):
            with contextlib.suppress(AttributeError, ValueError):  # there is no model to load into
                WeightUpdater.__new__(WeightUpdater).update_weights_from_disk("/elsewhere", "auto")

        def from_tensor(server):
            with contextlib.suppress(AttributeError, ValueError):
                WeightUpdater.__new__(WeightUpdater).update_weights_from_tensor([])

        agent = self.agent()
        for reset in (lambda server: server.pool.clear(), lambda server: server.backend.clear(),
                      update, from_tensor):
            names = page_hashes([random.randrange(1 << 17) for _ in range(4 * PAGE)])
            one = Server(agent, MhaPool("page_first"))
            fill(one.pool)
            assert one.store(names[:2], range(2)) == 2 * PAGE
            reset(one)
            assert one.backend.batch_exists(names) == 0
            assert one.store(names, range(4)) == 4 * PAGE
            assert one.backend.batch_exists(names) == 4
            one.close()
            other = Server(agent, MhaPool("page_first"))
            assert other.backend.batch_exists(names) == 2
            other.close()

    def failures_that_sglang_makes(self):
        """SGLang's injector wraps the back end: what it lets through is right."""
        os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"] = "0.5"
        try:
            server = Server(self.agent(), MhaPool("page_first"))
            assert type(server.backend).__name__ == "HiCacheStorageFailureInjector"
            fill(server.pool)
            names = page_hashes(range(1000, 1000 + 8 * PAGE))
            stored = [all(server.backend.batch_set_v1(names, positions(range(8))))
                      for _ in range(20)]
            got = [all(server.backend.batch_get_v1(names, positions(range(10, 18))))
                   for _ in range(20)]
            assert {*stored} == {*got} == {True, False}, (stored, got)
            assert page_bytes(server.pool, 10) == page_bytes(server.pool, 0)
            server.close()
        finally:
            del os.environ["SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE"]


CASES = ["the-lines-of-the-readme", "layouts-of-mha-pools", "layouts-of-mla-pools", "chained-pages",
         "copies-without-interface-v1", "more-than-a-batch", "a-prompt-in-two-requests",
         "what-can-be-restored", "an-enclosure-is-lost", "a-tier-that-comes-later",
         "what-can-never-work", "servers-that-differ", "resets", "failures-that-sglang-makes"]


def main():
    good = True
    with tempfile.TemporaryDirectory(prefix="icms-sglang-") as folder:
        scenes = Scenes(pathlib.Path(sys.argv[1]), pathlib.Path(folder))
        with scenes.p:
            for name in CASES:
                if sys.argv[2:] and name not in sys.argv[2:]:
                    continue
                try:
                    getattr(scenes, name.replace("-", "_"))()
                    print(f"ok {name}", flush=True)
                except Exception:  # whatever it is, the other cases run
                    good = False
                    traceback.print_exc(file=sys.stdout)
                    print(f"not ok {name}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
