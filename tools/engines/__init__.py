# SPDX-License-Identifier: Apache-2.0
"""icms under vLLM beside vLLM's and LMCache's own storage. tools/engines/README.md has the rules.

Called by tools/bench_engines.py (`make bench-engines`).
"""
