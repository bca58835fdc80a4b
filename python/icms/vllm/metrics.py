# SPDX-License-Identifier: Apache-2.0
"""What tier and connector show on vLLM's /metrics: names, labels and words, in one place."""

#: Gauge without labels of its own.
UP = "vllm:kv_offload_icms_up"
UP_TEXT = "1 when the engine uses the icms tier, 0 when it serves without."

#: What `movers.Counts` counts: (name, its label, what it says)
COUNTERS = {
    "loaded_bytes": ("vllm:kv_offload_icms_loaded_bytes", "source",
                     "Bytes loaded and verified, by where they were: dram is the agent's memory, "
                     "pod an enclosure over NVMe/TCP."),
    "stored_bytes": ("vllm:kv_offload_icms_stored_bytes", "ack",
                     "Bytes that the agent has accepted."),
    "hints": ("vllm:kv_offload_icms_hints", "result",
              "Blocks of queued requests that the agent was told of, by whether it took the hint."),
    "choices": ("vllm:kv_offload_icms_found_blocks", "choice",
                "Blocks that were found, by whether they were loaded (load), or computed because that "
                "was expected to be faster (compute)."),
    "expected_loads": ("vllm:kv_offload_icms_expected_loads", "error",
                       "Loads from beyond the agent's memory of which something was expected, by how far their time was "
                       "from that, as a part of it: at most 0.1, 0.3 or 1, or more; late: some did not come in time."),
    "lookup_misses": ("vllm:kv_offload_icms_lookup_misses", "reason",
                      "Blocks that were asked for and are not there, by reason."),
    "load_misses": ("vllm:kv_offload_icms_load_misses", "reason",
                    "Blocks that could not be loaded in time, by reason."),
    "store_misses": ("vllm:kv_offload_icms_store_misses", "reason",
                     "Blocks that were not stored, by reason."),
    "skipped_events": ("vllm:kv_offload_icms_skipped_event_batches", "reason",
                       "Batches of the agent's events that were skipped, by reason: malformed is one that "
                       "cannot be read."),
}

#: Labels of expected_loads: that of a load that was cut short, and those of the others.
LATE = "late"
_ERRORS = (0.1, 0.3, 1.0)


def error_label(expected: float, took: float) -> str:
    """The label of a load that took so many seconds; expected: more than 0."""
    error = abs(took - expected) / expected
    return next((f"{most:g}" for most in _ERRORS if error <= most), "more")
