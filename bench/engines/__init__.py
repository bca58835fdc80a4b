# SPDX-License-Identifier: Apache-2.0
"""icms under vLLM beside vLLM's and LMCache's own storage. bench/engines/README.md has the rules.

Called by bench/bench_engines.py (`make bench-engines`).
"""
