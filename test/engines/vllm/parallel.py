# SPDX-License-Identifier: Apache-2.0
"""Cases of run.py about engines with several workers, each a process.

Goal: blocks of all ranks are stored, and are loaded as a whole or not at all, with the tokens of an
engine without a tier.
Method: tokens are compared with those of an engine with the same parallelism and without a tier, as
sums over ranks round otherwise than those of one rank.
"""
from lab import (BLOCK, BLOCK_BYTES, Engine, KINDS, PROMPT, counted, over_network, prompt, same,
                 wait_stored)
from server import Server

EVERYTHING = PROMPT // BLOCK
TENSOR = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}


def case_tensor(lab, kind):
    """Two ranks store, two others load over the network; one rank uses nothing of them."""
    configure, loaded = KINDS[kind]
    reference = lab.reference(prompt(0), options=TENSOR, keep=False)
    with lab.pod(f"{kind}-tensor", agents=2) as p:
        first = Engine(lab, configure(p.agents[0]), log=f"{kind}-tensor", options=TENSOR).ready()
        cold = first.ask(prompt(0))
        same(cold, reference, "cold")
        wait_stored(p.agents[0], 0, EVERYTHING, BLOCK_BYTES)
        first.end()
        second = Engine(lab, configure(p.agents[1]), log=f"{kind}-tensor", options=TENSOR).ready()
        other = second.ask(prompt(0))
        same(other, reference, "from the pod")
        misses = {name: number for name, number in other["metrics"].items() if "misses" in name}
        print(f"# {kind}, two ranks: cold {cold['seconds']} s, from the pod {other['seconds']} s, "
              f"{other['cached']} tokens matched, {misses}")
        assert other["cached"] == EVERYTHING * BLOCK, other
        assert counted(other, loaded) == EVERYTHING * BLOCK_BYTES, other
        over_network(p.agents[1], EVERYTHING * BLOCK_BYTES)
        second.end()
        alone = Engine(lab, configure(p.agents[1]), log=f"{kind}-alone").ready()
        answer = alone.ask(prompt(0))
        same(answer, lab.reference(prompt(0)), "one rank")
        assert answer["cached"] == 0 and counted(answer, loaded) == 0, answer
        alone.end()


def case_data(lab, kind):
    """One of two engines of a server stores, the other one loads."""
    configure, loaded = KINDS[kind]
    reference = lab.reference(prompt(0))
    with lab.pod(f"{kind}-data") as p:
        server = Server(lab, configure(p.agents[0]), "--data-parallel-size", "2",
                        "--api-server-count", "1")
        try:
            server.wait_ready()
            same(server.ask(prompt(0), 0), reference, "the first engine")
            wait_stored(p.agents[0], 0, EVERYTHING, BLOCK_BYTES)
            answer = server.ask(prompt(0), 1)
            same(answer, reference, "the second engine")
            for engine, blocks in ((0, 0), (1, EVERYTHING)):
                got = server.metric(f"{loaded}_total", f'engine="{engine}"')
                assert got == blocks * BLOCK_BYTES, f"engine {engine}: {got} bytes"
            print(f"# {kind}, two engines: the second one {answer['seconds']} s")
        finally:
            server.end()


CASES = {"tensor": case_tensor, "data": case_data}
