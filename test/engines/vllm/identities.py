# SPDX-License-Identifier: Apache-2.0
"""Cases of run.py about what makes blocks of one engine usable by another one, and when it ends.

Goal: an engine never loads KV that it would have computed differently, whatever differs, and engines
that compute the same do share.
Method: tokens are compared with those of an engine of the same model and options without a tier.
"""
import shutil

from lab import (BLOCK, BLOCK_BYTES, Engine, KINDS, PROMPT, VOLUME, counted, on_flash, prompt, same,
                 wait_stored)

EVERYTHING = PROMPT // BLOCK


def copied(lab, name, change=None):
    """A folder with a copy of the tiny model; change(tensors) changes its weights."""
    folder = lab.folder / name / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(lab.model("tiny"), folder)
    if change is not None:
        lab.change(folder / "model.safetensors", change)
    return folder


def store(lab, agent, engine, number, model="tiny", options=None):
    """The engine answers a prompt that it never saw, and all its blocks are stored."""
    before = on_flash(agent)
    answer = engine.ask(prompt(number))
    same(answer, lab.reference(prompt(number), model, options), f"prompt {number}")
    assert answer["cached"] == 0, answer
    wait_stored(agent, before, EVERYTHING, BLOCK_BYTES)


def check(lab, engine, number, blocks, model="tiny", options=None):
    """The engine's answer is right, with so many blocks from the tier."""
    answer = engine.ask(prompt(number))
    same(answer, lab.reference(prompt(number), model, options), f"prompt {number}")
    assert answer["cached"] == blocks * BLOCK, answer
    assert counted(answer, "vllm:kv_offload_icms_up") == 1, answer


def case_reloaded(lab, kind):
    """Other weights are loaded at run time, with a reset and without: nothing of before is used, and
    other engines get nothing of it."""
    configure, _ = KINDS[kind]
    other = copied(lab, "other", "query")
    with lab.pod(f"{kind}-reloaded", agents=2) as p:
        a, b = (Engine(lab, configure(agent), log=f"{kind}-{name}").ready()
                for agent, name in zip(p.agents, "ab"))
        store(lab, p.agents[0], a, 0)
        a.call("reload_weights", weights_path=str(other))
        store(lab, p.agents[0], a, 1, other)  # before it is reset
        check(lab, b, 1, 0)
        a.reset()
        store(lab, p.agents[0], a, 0, other)
        check(lab, b, 0, EVERYTHING)
        store(lab, p.agents[0], a, 2, other)
        check(lab, b, 2, 0)
        a.reset()
        check(lab, a, 2, 0, other)


def case_reset(lab, kind):
    """After a reset nothing is shared; with `weights: files` all is, as long as the files are what is
    loaded."""
    configure, _ = KINDS[kind]
    other = copied(lab, "other", "query")
    with lab.pod(f"{kind}-reset", agents=2) as p:
        engine = Engine(lab, configure(p.agents[0]), log=f"{kind}-reset").ready()
        store(lab, p.agents[0], engine, 0)
        engine.reset()
        check(lab, engine, 0, 0)
        engine = Engine(lab, configure(p.agents[1], weights="files"), log=f"{kind}-files").ready()
        check(lab, engine, 0, EVERYTHING)
        engine.sleep(1)
        check(lab, engine, 0, EVERYTHING)
        engine.sleep(2)
        engine.call("reload_weights")
        check(lab, engine, 0, EVERYTHING)
        engine.call("reload_weights", weights_path=str(other))
        engine.reset()
        check(lab, engine, 0, 0, other)
        engine.call("reload_weights")  # of the other folder: vLLM remembers it
        engine.reset()
        check(lab, engine, 0, 0, other)


def case_differing(lab, kind):
    """Engines whose weights or configuration differ live beside each other in one volume."""
    configure, _ = KINDS[kind]
    rope = {"hf_overrides": {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}}
    with lab.pod(f"{kind}-differing", agents=2) as p:
        first = Engine(lab, configure(p.agents[0]), log=kind).ready()
        store(lab, p.agents[0], first, 0)
        for name, model, options in (("rope", "tiny", rope),
                                     ("norm", copied(lab, "tiny", "norm"), None)):
            engine = Engine(lab, configure(p.agents[1]), model, f"{kind}-{name}", options).ready()
            store(lab, p.agents[1], engine, 0, model, options)
            engine.end()
            engine = Engine(lab, configure(p.agents[0]), model, f"{kind}-{name}", options).ready()
            check(lab, engine, 0, EVERYTHING, model, options)
            engine.end()
        check(lab, first, 0, EVERYTHING)


def case_alike(lab, kind):
    """Engines that differ in ports, memory, limits of batches, log levels and folders share."""
    configure, _ = KINDS[kind]
    with lab.pod(f"{kind}-alike", agents=2) as p:
        store(lab, p.agents[0], Engine(lab, configure(p.agents[0]), log=kind).ready(), 0)
        options = {"max_num_seqs": 7, "max_num_batched_tokens": 2048, "max_model_len": 2048,
                   "served_model_name": "another", "seed": 7, "gpu_memory_utilization": 0.5,
                   "max_logprobs": 5}
        environment = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_CPU_KVCACHE_SPACE": "2",
                       "VLLM_PORT": "23456", "VLLM_HOST_IP": "127.0.0.1"}
        engine = Engine(lab, configure(p.agents[1], load_ms=8000), copied(lab, "elsewhere"),
                        f"{kind}-alike", options, **environment).ready()
        check(lab, engine, 0, EVERYTHING)


CASES = {"reloaded": case_reloaded, "reset": case_reset, "differing": case_differing,
         "alike": case_alike}
