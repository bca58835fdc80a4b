# SPDX-License-Identifier: Apache-2.0
"""icms beside other programs, on one machine, with one workload. bench/peers/README.md has the rules.

Called by bench/bench_peers.py (`make bench-peers`). NAMES is the order of the document.
"""
import importlib

#: "NAME" is the class Peer of peers/NAME.py, "NAME-variant" its class Variant; see side.Side.
NAMES = ("redis", "memcached", "nixl", "nixl-sleep", "lmcache", "lmcache-raw", "mooncake", "minio")


def folder(name):
    """The folder of a peer's installation, which its variants share."""
    return name.partition("-")[0]


def peer(name):
    """The class of a peer, also of one that is only there for tests ("fake")."""
    module, _, variant = name.partition("-")
    return getattr(importlib.import_module(f"peers.{module}"), variant.capitalize() or "Peer")
