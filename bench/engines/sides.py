# SPDX-License-Identifier: Apache-2.0
"""What takes part: vLLM with nothing, with its own `fs` tier, with LMCache's server, and with icms.

A side has daemons, or none, and the configuration of engines that use it. Life cycle: Side() ->
start() -> an engine stores -> fresh() -> other engines load -> stop(). After fresh() nothing that
was stored is in any memory of the side, but all is on disk.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

import pod

HOST_BYTES = 160 << 20  # vLLM's own memory of the host: two prompts
DRAM_BYTES = 192 << 20  # what a side may keep in memory besides: three
LMCACHE_BYTES = 1 << 30  # LMCache finds nothing on the disk as long as its memory has no room


class Side:
    """The interface. setting: folder, build, bin (of the environment), block_bytes, disk_bytes."""

    TITLE = ""
    #: What it has in memory after a prompt was loaded: a second load reads nothing from the disk.
    KEEPS = True
    #: vLLM's memory of the host belongs to the connector and has to be emptied with the engine's.
    HOST = True
    #: The fs tier shall go through the page cache.
    BUFFERED = False

    def __init__(self, name, setting):
        self.name = name
        self.setting = setting
        self.folder = setting.folder / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def start(self):
        """Starts the daemons."""

    def fresh(self):
        """Nothing of what was stored is in the side's memory any more."""

    def config(self):
        """vLLM's --kv-transfer-config; {} for none."""
        return {}

    def pids(self):
        """Of the daemons, without the engine's."""
        return []

    def far_pids(self):
        """Those of them that a pod has on other machines."""
        return []

    def files(self):
        """What lies on the disk."""
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def stop(self):
        """Ends the daemons and removes the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Nothing(Side):
    TITLE = "vLLM alone"
    HOST = False


def offloading(*tiers):
    """vLLM's OffloadingConnector with these secondary tiers."""
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "CpuTieringSpec", "spec_module_path": "cpu_spec",
                "cpu_bytes_to_use": HOST_BYTES, "secondary_tiers": list(tiers)}}


def icms_offloading(where, load, **options):
    """The same with IcmsTier; options: others of its own."""
    return {**offloading({"type": "IcmsTier", "module_path": "icms.vllm.tier", "where": where, "volume": "kv",
                          "weights": "files", "load": load, **options}),
            "kv_connector": "IcmsOffloadingConnector", "kv_connector_module_path": "icms.vllm.offloading"}


class Host(Side):
    TITLE = "vLLM's OffloadingConnector with memory of the host and no tier behind it"

    def config(self):
        return offloading()


class Fs(Side):
    TITLE = "vLLM's own tier fs, as it comes: O_DIRECT"
    KEEPS = False

    def config(self):
        return offloading({"type": "fs", "root_dir": str(self.folder / "fs")})


class FsBuffered(Fs):
    TITLE = "vLLM's own tier fs through the page cache, as where a folder takes no O_DIRECT"
    KEEPS = True
    BUFFERED = True


class Lmcache(Side):
    TITLE = "LMCache's server with its native file back end, O_DIRECT, and shared memory"
    HOST = False
    SHARED = f"icms-bench-{os.getpid()}"  # LMCache's name of its memory

    def start(self):
        self.port, http_port = pod.free_port(), pod.free_port()
        (self.folder / "files").mkdir(exist_ok=True)
        adapter = {"type": "fs_native", "base_path": str(self.folder / "files"),
                   "use_odirect": True}
        with open(self.folder / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                [str(self.setting.bin / "lmcache"), "server", "--host", "127.0.0.1", "--port",
                 str(self.port), "--http-host", "127.0.0.1", "--http-port", str(http_port),
                 "--disable-observability", "--l1-size-gb", f"{LMCACHE_BYTES / (1 << 30)}",
                 "--no-l1-use-lazy", "--chunk-size", "128", "--eviction-policy", "LRU",
                 "--l2-prefetch-policy", "retain", "--supported-transfer-mode", "engine_driven",
                 "--shm-name", self.SHARED, "--l2-adapter", json.dumps(adapter)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.setting.environment, preexec_fn=pod.die_with_parent,
                start_new_session=True)
        give_up = time.monotonic() + 300
        while not self._answers(http_port):
            assert self.process.poll() is None and time.monotonic() < give_up, \
                (self.folder / "server.log").read_text(errors="replace")[-3000:]
            time.sleep(0.2)

    def _answers(self, http_port):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{http_port}/healthcheck", timeout=5).close()
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        return False

    def _kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        pathlib.Path(f"/dev/shm/lmcache_l1_pool_{self.SHARED}").unlink(missing_ok=True)

    def fresh(self):
        self._kill()
        self.start()

    def config(self):
        return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": self.port,
                    "lmcache.mp.mq_timeout": 300}}

    def pids(self):
        return [self.process.pid]

    def files(self):
        return [path for path in (self.folder / "files").rglob("*") if path.is_file()]

    def stop(self):
        self._kill()
        super().stop()


class Icms(Side):
    """A pod of one enclosure, which stays, and an agent, which is another after fresh()."""

    TITLE = "IcmsTier behind an agent (unix:), flash behind NVMe/TCP over loopback"

    def __init__(self, name, setting):
        super().__init__(name, setting)
        self.volume = {"name": "kv", "value_max": f"{setting.block_bytes}B",
                       "memory_max": f"{DRAM_BYTES}B"}
        self.agents = 0
        self.target = self.agent = None

    def start(self):
        self.target = pod.Target(self.setting.build, self.folder, "enclosure", 1,
                                 f"{self.setting.disk_bytes >> 20}MiB", [self.volume], "127.0.0.1",
                                 {})
        self.target.start()
        self.target.wait_ready(60)
        self._add_agent([self.target])

    def _add_agent(self, targets, **extra):
        self.agents += 1
        self.agent = pod.Agent(self.setting.build, self.folder, f"agent-{self.agents}", targets,
                               [self.volume], extra)
        self._start_agent()

    def _start_agent(self):
        self.agent.start()
        self.agent.wait_ready()

    def fresh(self):
        self.agent.stop(60)
        self._add_agent([self.target])

    def where(self):
        return f"unix:{self.agent.socket}"

    def config(self):
        return icms_offloading(self.where(), "always")

    def pids(self):
        return [daemon.pid for daemon in (self.target, self.agent)
                if daemon is not None and daemon.process is not None]

    def far_pids(self):
        return [self.target.pid] if self.target else []

    def files(self):
        return self.target.drives

    def stop(self):
        for daemon in (self.agent, self.target):
            if daemon is not None:
                daemon.kill()
        super().stop()


class IcmsInside(Icms):
    TITLE = "IcmsTier with the agent in the engine (pod:), flash behind NVMe/TCP over loopback"
    KEEPS = False  # blocks are received where vLLM wants them, and kept nowhere else

    def _start_agent(self):
        pass  # the engine is the agent

    def fresh(self):
        self._add_agent([self.target])

    def where(self):
        return f"pod:{self.agent.config_path}"


class IcmsLocal(IcmsInside):
    TITLE = "IcmsTier with the agent in the engine (pod:) and a drive of its own: no network"

    def start(self):
        self._add_agent([], local=f"\n  path: {self.folder}/drive\n"
                                  f"  size: {self.setting.disk_bytes >> 20}MiB")

    def fresh(self):
        pass  # its agent ended with the engine

    def files(self):
        return [self.folder / "drive"]


class IcmsConnector(Icms):
    TITLE = "IcmsConnector behind an agent (unix:), flash behind NVMe/TCP over loopback"
    HOST = False

    def config(self):
        return {"kv_connector": "IcmsConnector", "kv_connector_module_path": "icms.vllm.connector",
                "kv_role": "kv_both", "kv_connector_extra_config": {
                    "where": self.where(), "volume": "kv", "host_bytes": HOST_BYTES, "load": "always"}}


#: In the order of the document.
SIDES = {"none": Nothing, "host": Host, "fs": Fs, "fs-buffered": FsBuffered, "lmcache": Lmcache,
         "icms-agent": Icms, "icms-inside": IcmsInside, "icms-local": IcmsLocal,
         "icms-connector": IcmsConnector}
