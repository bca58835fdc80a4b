# SPDX-License-Identifier: Apache-2.0
"""vLLM engines, each in a process of its own, driven by run.py.

usage: engine.py
Forked by bench/engines/nest.py for each order {"model": folder, "config": {...}, "environment":
{...}, "options": {...}}, an engine says {"ready": seconds, "pid": n, "policy": what vLLM does with requests whose
load fails}, and then answers
    {"prompt": [token, ...], "tokens": n}   with the answer's tokens and sum of log-probabilities
    {"prompt": text, "limit": m, ...}       the same for the first m tokens of a text
    {"prompts": [[token, ...], ...], "tokens": n}  with the tokens of all, that were asked for at once
    {"reset": true}                         having forgotten the prefix cache and vLLM's memory
    {"call": name, "words": {...}}          having had it called in its workers
    {"sleep": level}                        having slept and woken up
    {"end": true}                           having ended in good order
"""
import json
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
from engines import nest  # noqa: E402

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


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


def answers(llm, job):
    from vllm import SamplingParams

    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in job["prompts"]],
                           SamplingParams(temperature=0, max_tokens=job["tokens"], ignore_eos=True),
                           use_tqdm=False)
    return {"answers": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs], "metrics": metrics(llm)}


def engine(order, peer):
    """One engine, to its end."""
    os.environ.update(order["environment"])
    from vllm import LLM
    from vllm.config import KVEventsConfig, KVTransferConfig

    def say(**words):
        peer.write(json.dumps(words) + "\n")
        peer.flush()

    config = order["config"]
    if "kv_events_config" in order["options"]:
        order["options"]["kv_events_config"] = KVEventsConfig(**order["options"]["kv_events_config"])
    begin = time.monotonic()
    llm = LLM(**{"model": order["model"], "dtype": "float32", "max_model_len": 4096,
                 "enforce_eager": True, "max_num_batched_tokens": 4096, "max_num_seqs": 4,
                 "block_size": 128, "seed": 0, "distributed_executor_backend": "uni",
                 "disable_log_stats": False,
                 **({"kv_transfer_config": KVTransferConfig(**config)} if config else {}),
                 **order["options"]})
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
        elif job.get("prompts"):
            say(**answers(llm, job))
        elif job.get("call"):
            llm.collective_rpc(job["call"], kwargs=job["words"])
            say(called=True)
        elif job.get("sleep"):
            llm.sleep(job["sleep"])
            llm.wake_up()
            say(awake=True)
        else:
            say(**answer(llm, job))
    llm.llm_engine.engine_core.shutdown()
    say(bye=True)


if __name__ == "__main__":
    nest.serve(engine)
