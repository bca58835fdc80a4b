# SPDX-License-Identifier: Apache-2.0
"""vLLM engines, each in a process of its own, driven by run.py.

usage: engine.py
Imports vLLM once, then forks an engine for each line {"model": folder, "config": {...},
"socket": path, "log": path, "environment": {...}} on standard input; importing costs as much as
starting. The engine connects to that socket and speaks a JSON object a line. It says {"ready":
seconds, "pid": n, "policy": what vLLM does with requests whose load fails}, and then answers
    {"prompt": [token, ...], "tokens": n}   with the answer's tokens and sum of log-probabilities
    {"prompt": text, "limit": m, ...}       the same for the first m tokens of a text
    {"reset": true}                         having forgotten the prefix cache and vLLM's memory
    {"end": true}                           having ended in good order
"""
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
PR_SET_PDEATHSIG = 1


def metrics(llm):
    """What vLLM counts, by name and labels, without those of the engine."""
    found = {}
    for metric in llm.get_metrics():
        labels = ",".join(f"{key}={value}" for key, value in sorted(metric.labels.items())
                          if key not in ("engine", "model_name"))
        if hasattr(metric, "value"):
            found[f"{metric.name}{{{labels}}}"] = metric.value
    return {name: value for name, value in found.items()
            if "kv_offload" in name or "prefix_cache" in name or "kv_icms" in name}


def answer(llm, job):
    from vllm import SamplingParams

    prompt = job["prompt"]
    if isinstance(prompt, str):
        prompt = llm.get_tokenizer().encode(prompt)[:job["limit"]]
    begin = time.monotonic()
    output = llm.generate(
        [{"prompt_token_ids": prompt}],
        SamplingParams(temperature=0, max_tokens=job["tokens"], ignore_eos=True, logprobs=1),
        use_tqdm=False)[0]
    said = output.outputs[0]
    return {"tokens": list(said.token_ids), "finish": said.finish_reason, "text": said.text,
            "logprobs": sum(step[token].logprob
                            for step, token in zip(said.logprobs, said.token_ids)),
            "cached": output.num_cached_tokens, "seconds": round(time.monotonic() - begin, 3),
            "metrics": metrics(llm)}


def engine(model, config, peer):
    """One engine, to its end."""
    from vllm import LLM
    from vllm.config import KVTransferConfig

    def say(**words):
        peer.write(json.dumps(words) + "\n")
        peer.flush()

    begin = time.monotonic()
    llm = LLM(model=model, dtype="float32", max_model_len=4096, enforce_eager=True,
              max_num_batched_tokens=4096, max_num_seqs=4, block_size=128, seed=0,
              distributed_executor_backend="uni", disable_log_stats=False,
              **({"kv_transfer_config": KVTransferConfig(**config)} if config else {}))
    answer(llm, {"prompt": [5] * 40, "tokens": 1})
    transfer = llm.llm_engine.vllm_config.kv_transfer_config
    say(ready=round(time.monotonic() - begin, 1), pid=os.getpid(),
        policy=transfer and transfer.kv_load_failure_policy)
    for line in peer:
        job = json.loads(line)
        if job.get("end"):
            break
        if job.get("reset"):
            say(reset=bool(llm.reset_prefix_cache(reset_connector=True)))
        else:
            say(**answer(llm, job))
    llm.llm_engine.engine_core.shutdown()
    say(bye=True)


def reap(options):
    """Takes in engines that have ended, and with them the processor time that they took; without
    options waits until all have."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def main():
    import vllm.entrypoints.llm  # noqa: F401  for all engines at once
    import vllm.v1.engine.core  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401

    for line in sys.stdin:
        reap(os.WNOHANG)
        order = json.loads(line)
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ.update(order["environment"])
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(order["socket"])
                engine(order["model"], order["config"], connection.makefile("rw"))
            sys.exit(0)
    reap(0)


if __name__ == "__main__":
    main()
