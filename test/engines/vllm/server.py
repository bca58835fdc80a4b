# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` for the cases of this folder."""
import contextlib
import http.client
import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.request

from engines import forked
from lab import ANSWER, environment, pod


class Server:
    """vllm serve: an HTTP server and its engine, in processes of their own."""

    def __init__(self, lab, config, *options):
        """options are words of its command line."""
        self.port = pod.free_port()
        self.log_path = lab.folder / f"serve-{self.port}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [str(lab.python), "-m", "vllm.entrypoints.cli.main", "serve",
                 str(lab.model("tiny")), "--host", "127.0.0.1", "--port", str(self.port),
                 "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "4096",
                 "--enforce-eager", "--kv-transfer-config", json.dumps(config), *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(lab),
                start_new_session=True)

    def wait_ready(self):
        give_up = time.monotonic() + forked.SECONDS
        while True:
            assert self.process.poll() is None and time.monotonic() < give_up, self.log()[-3000:]
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                time.sleep(1)
                return
            time.sleep(0.5)

    def ask(self, tokens, engine=None):
        """An answer, by the engine of this number of data parallelism when it is not None."""
        headers = {"Content-Type": "application/json"}
        if engine is not None:
            headers["X-data-parallel-rank"] = str(engine)
        body = json.dumps({"model": "tiny", "prompt": tokens, "max_tokens": ANSWER, "logprobs": 1,
                           "temperature": 0, "ignore_eos": True,
                           "return_token_ids": True}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body,
                                         headers)
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=forked.SECONDS) as answer:
            choice = json.load(answer)["choices"][0]
        return {"tokens": choice["token_ids"], "finish": choice["finish_reason"],
                "logprobs": sum(choice["logprobs"]["token_logprobs"]),
                "seconds": round(time.monotonic() - begin, 3)}

    def ask_unheard(self, tokens):
        """A request that nobody may answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.ask(tokens)

    def metric(self, *words):
        """The sum of the samples that have all of these words."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines
                   if not line.startswith("#") and all(word in line for word in words))

    def log(self):
        return self.log_path.read_text(errors="replace")

    def end(self, number=signal.SIGKILL):
        """A signal for all of its processes at once, as from a terminal or a service manager; again,
        for vLLM then waits for its clients, and at last SIGKILL.

        What ends in good order leaves no shared memory of any kind, but what vLLM mapped for its
        tiers: a signal that goes to all processes at once may leave that. When Python's cleaner of
        names is killed with the others, those of vLLM's own queues stay, with a tier or without.
        """
        names = self.shared_names()
        for number in (number, number, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=30)
                break
        if number == signal.SIGKILL:
            for path in names:
                if path.name.startswith(("psm_", "sem.mp-", "vllm_offload_")):
                    path.unlink(missing_ok=True)
        else:
            give_up = time.monotonic() + 60
            while left := [path.name for path in names
                           if path.exists() and not path.name.startswith("vllm_offload_")]:
                assert time.monotonic() < give_up, left
                time.sleep(0.1)

    def shared_names(self):
        """What its processes have mapped that has a name."""
        found = set()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(process.name)) == self.process.pid:
                    found |= {pathlib.Path(line.split()[-1]) for line
                              in (process / "maps").read_text().splitlines()
                              if line.split()[-1].startswith("/dev/shm/")}
        return found
