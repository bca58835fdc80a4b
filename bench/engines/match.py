# SPDX-License-Identifier: Apache-2.0
"""Plays the sides against each other, in turns, on the same prompts and disk.

play_reuse: every side's engine stores the same prompts; engine, agent and LMCache's server are
replaced by new ones; then, prompt by prompt, every side loads it cold, loads it again from what it
keeps in memory, and answers it a third time from the engine's own KV cache, which costs what a
request costs that loads nothing. play_no_reuse: every side answers prompts that nobody has seen.

Every answer is compared with that of vLLM alone, and every load is held against what the disk, the
tier and vLLM say of it. A side that does not do what it claims raises Failed.
"""
import contextlib
import ctypes
import itertools
import mmap
import os
import pathlib
import random
import shutil
import time

from engines import forked, sides
from engines.forked import Failed
from peers import cpu

BLOCK = 128    # tokens
ANSWER = 16    # tokens of an answer
WARM_UP = 2    # prompts that everybody loads first, and that are not counted
FREE_BYTES = 1536 << 20  # of memory that the machine has to have left after each engine's start
NUMBERS = itertools.count(1)  # of engines
HERE = pathlib.Path(__file__).resolve().parent
LIBC = ctypes.CDLL(None, use_errno=True)


def demand(what, text):
    if not what:
        raise Failed(text)


def prompt(number, tokens):
    """Token ids that no other number's prompt begins with."""
    generator = random.Random(number)
    return [4 + generator.randrange(250) for _ in range(tokens)]


def cached(file):
    """Bytes of a file that lie in the page cache. Asking brings nothing there, as a read would that
    must not wait: it starts a read ahead."""
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        return 0
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as memory:
        room = ctypes.c_char.from_buffer(memory)
        failed = LIBC.mincore(ctypes.c_void_p(ctypes.addressof(room)), ctypes.c_size_t(size), pages)
        del room  # else the memory could not be unmapped
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def drop(paths):
    """Writes back and drops what the page cache has of these files. The kernel keeps pages that
    somebody looks at just then, so it is asked again."""
    for path in paths:
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
            for _ in range(50):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                if not cached(file):
                    break
                time.sleep(0.01)


def disk_read(pids):
    """Bytes that these processes have fetched from storage."""
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                total += int(line.split()[1])
    return total


# ---- engines --------------------------------------------------------------------------------------

class Engine:
    """One engine process of one side."""

    def __init__(self, nest, side, model):
        path = side.setting.folder / f"engine-{next(NUMBERS)}-{side.name}"
        self.side = side
        config = side.config()
        self.name = f"icms-bench-{os.getpid()}-{path.name}"  # vLLM's, of memory of the host
        if config:
            config["engine_id"] = self.name
        self.peer = nest.fork({"model": str(model), "config": config, "buffered": side.BUFFERED}, path)
        self.peer.wait()

    @property
    def pid(self):
        return self.peer.hello["pid"]

    def tell(self, **job):
        return self.peer.ask(**job)

    def pids(self):
        return [self.pid] + [pid for daemon in self.side.pids() for pid in cpu.tree(daemon)]

    def settle(self):
        """Waits until what goes on behind the last answer is over: nobody works any more."""
        give_up, before = time.monotonic() + 120, cpu.seconds(self.pids())
        while True:
            time.sleep(0.3)
            after = cpu.seconds(self.pids())
            if after - before < 0.012:
                return
            demand(time.monotonic() < give_up, f"{self.side.name} does not settle")
            before = after

    def ask(self, tokens, answer=ANSWER, settle=False):
        """One answer, with the processor time and the disk reads of all processes of the side."""
        demand(pathlib.Path(f"/proc/{self.pid}").exists(), f"{self.side.name}: its engine was killed")
        pids, far = self.pids(), self.side.far_pids()
        before = self.tell(work=True)
        work, there, read = cpu.seconds(pids), cpu.seconds(far), disk_read(pids)
        said = self.tell(ask=tokens, answer=answer, daemons=pids[1:])
        if settle:
            self.settle()
        after = self.tell(work=True)
        said |= {f"engine_{key}": after[key] - before[key] for key in before}
        said |= {"cpu_s": cpu.seconds(pids) - work, "far_cpu_s": cpu.seconds(far) - there,
                 "disk_bytes": disk_read(pids) - read}
        return said

    def reset(self, host):
        give_up = time.monotonic() + 30
        while not self.tell(reset=host)["reset"]:
            demand(time.monotonic() < give_up, f"{self.side.name}: the engine does not forget")
            time.sleep(0.1)

    def end(self):
        """In good order: what was accepted goes to the disk."""
        self.tell(end=True)
        give_up = time.monotonic() + 300
        while pathlib.Path(f"/proc/{self.pid}").exists():
            demand(time.monotonic() < give_up, f"{self.side.name}: the engine does not end")
            time.sleep(0.05)
        self.peer.ends()

    def kill(self):
        self.peer.kill()
        for path in pathlib.Path("/dev/shm").glob(f"vllm_offload_{self.name}*"):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def started(setting, names):
    """The sides with their daemons, and the process that forks engines; nothing is left of them."""
    shutil.rmtree(setting.folder, ignore_errors=True)
    setting.folder.mkdir(parents=True)
    nest, running = None, []
    try:
        for name in names:
            side = sides.SIDES[name](name, setting)
            running.append(side)
            side.start()
        nest = forked.Nest(setting.bin / "python", HERE / "engine.py",
                           setting.folder / "engines.log", setting.environment)
        yield nest, running
    finally:
        if nest:
            nest.close()
        for side in running:
            side.stop()


def free_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


@contextlib.contextmanager
def engines_of(nest, running, model):
    """An engine a side, by name."""
    engines = {}
    try:
        for side in running:
            engines[side.name] = Engine(nest, side, model)
            demand(free_bytes() >= FREE_BYTES, f"{free_bytes() >> 20} MiB of memory are left")
        time.sleep(1.5)  # links of icms learn the seed of hashes right after the start
        yield engines
    finally:
        for engine in engines.values():
            engine.kill()


# ---- what is measured -------------------------------------------------------------------------------

def steps(said):
    """Each step that computed something, in ms; of the others how many, and the longest."""
    found, computing = {}, [tokens > 0 for tokens in said["step_tokens"]]
    for what in ("scheduling", "steps", "calls"):
        both = list(zip(said[f"{what}_s"], computing))
        found[f"{what}_ms"] = [round(1e3 * one, 3) for one, some in both if some]
        found[f"idle_{what}_ms"] = round(1e3 * max((one for one, some in both if not some),
                                                   default=0), 3)
    return {**found, "idle_steps": computing.count(False)}


def row(said, **more):
    return {**more, "ttft_s": round(said["ttft_s"], 6), "cpu_s": round(said["cpu_s"], 6),
            "far_cpu_s": round(said["far_cpu_s"], 6),
            **{key: round(said[key], 6) for key in ("engine_own_s", "engine_others_s",
                                                    "engine_calls_s")}, "cached": said["cached"],
            "disk_bytes": said["disk_bytes"], **steps(said)}


def turns(running, number):
    """Who goes first changes."""
    number %= len(running)
    return running[number:] + running[:number]


def same(name, what, said, reference):
    demand(said["tokens"] == reference["tokens"] and said["finish"] == "length",
           f"{name} says another thing {what}: {said['tokens']}, vLLM alone {reference['tokens']}")


def loaded(side, regime, said, sources, nbytes, tokens):
    """Holds a load against what everybody says of it; returns what is in the row beside times."""
    name = f"{side.name} {regime}"
    demand(said["cached"] == tokens, f"{name}: {said['cached']} tokens were matched, not {tokens}")
    moved = {key: value - sources.get(key, 0) for key, value in said["sources"].items()}
    if said["tier_s"] is not None:
        demand(said["tier_bytes"] == nbytes, f"{name}: its tier loaded {said['tier_bytes']} bytes")
    if side.name.startswith("icms-"):
        demand(sum(moved.values()) == nbytes, f"{name}: icms loaded {moved}, not {nbytes}")
        from_memory = moved.get("dram", 0)
        demand(from_memory == (nbytes if regime == "warm" and side.KEEPS else 0), f"{name}: {moved}")
    if regime == "cold" or not side.KEEPS:
        demand(said["disk_bytes"] >= nbytes, f"{name}: {said['disk_bytes']} bytes from the disk")
    else:
        demand(said["disk_bytes"] < nbytes / 100, f"{name}: {said['disk_bytes']} from the disk")
    seconds = said["loaded_s"] - said["asked_s"]
    return {"bytes": nbytes, "load_s": round(seconds, 6),
            "load_cpu_s": round(said["load_cpu_s"], 6), "tier_s": said["tier_s"],
            "sources": moved}


def play_reuse(setting, names, rounds, tokens, note):
    """Yields rows of all prompts but those that warm everything up."""
    nbytes = tokens // BLOCK * setting.block_bytes
    numbers = range(rounds + WARM_UP)
    with started(setting, names) as (nest, running):
        for side in running[1:]:
            with engines_of(nest, [side], setting.model) as engines:
                for number in numbers:
                    engines[side.name].ask(prompt(number, tokens), settle=True)
                engines[side.name].end()  # what it has accepted goes to the disk
            note(f"{side.name} has stored")
        for side in running:
            side.fresh()
            drop(side.files())
        with engines_of(nest, running, setting.model) as engines:
            for number in numbers:
                reference = engines["none"].ask(prompt(number, tokens))
                for side in turns(running, number):
                    yield from _reuse(side, engines[side.name], number, tokens, nbytes, reference)
                note(f"prompt {number + 1} of {len(numbers)} is loaded")


def _reuse(side, engine, number, tokens, nbytes, reference):
    """One prompt on one side: cold, from memory, and from the engine's own cache."""
    what, counted = prompt(number, tokens), number >= WARM_UP
    regimes = () if side.name == "none" else ("cold", "warm")
    for regime in regimes:
        engine.reset(side.HOST)
        engine.settle()
        if regime == "cold":
            drop(side.files())
        before = engine.tell(sources=True)["sources"]
        said = engine.ask(what)
        same(side.name, regime, said, reference)
        more = loaded(side, regime, said, before, nbytes, tokens // BLOCK * BLOCK)
        if counted:
            yield row(said, phase="reuse", side=side.name, round=number - WARM_UP, regime=regime,
                      **more)
    engine.settle()
    said = engine.ask(what)
    same(side.name, "from its own cache", said, reference)
    demand(said["cached"] == tokens // BLOCK * BLOCK and not said["tier_bytes"],
           f"{side.name}: {said['cached']} tokens are in the engine's own cache")
    if counted:
        yield row(said, phase="reuse", side=side.name, round=number - WARM_UP, regime="own")


def play_no_reuse(setting, names, rounds, tokens, note):
    """Yields rows of all rounds but the first."""
    with started(setting, names) as (nest, running), \
            engines_of(nest, running, setting.model) as engines:
        for number in range(rounds + 1):
            reference = None
            rows = []
            for side in turns(running, number):
                said = engines[side.name].ask(prompt(1000 + number, tokens), 2 * ANSWER,
                                               settle=True)
                reference = reference or said
                same(side.name, "to a new prompt", said, reference)
                demand(said["cached"] == 0, f"{side.name}: {said['cached']} tokens of a new prompt")
                rows.append(row(said, phase="no reuse", side=side.name, round=number - 1,
                                seconds=round(said["seconds"], 6)))
            if number:
                yield from rows
            note(f"new prompt {number + 1} of {rounds + 1}")
