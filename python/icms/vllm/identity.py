# SPDX-License-Identifier: Apache-2.0
"""What makes a KV block of a vLLM engine usable by another one: made into an icms.Layout.

vLLM's block hashes cover token ids, images and the names of adapters. They say nothing of model,
weights, data type, byte order or ranks; all of that is bound into the keys here, so that a block of
another model is not found instead of being loaded.
"""
from __future__ import annotations

import hashlib
import os
import pathlib
import platform
from collections.abc import Iterable, Sequence

from ..client import Layout

#: Bytes read from each of the places of a weights file.
_SAMPLE_BYTES = 4096
#: Places of a weights file that are read, first and last among them.
_SAMPLES = 64
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
#: Besides weights: what decides how they are used.
_CONFIGS = ("config.json", "adapter_config.json", "quantize_config.json", "hf_quant_config.json",
            "params.json")


def weights_fingerprint(model: str) -> bytes:
    """32 bytes that differ when the weights of a model differ; the same on every machine.

    model is a folder, a file, or a name whose files are in the Hugging Face cache of this machine.
    Of a weights file its name, size and 64 samples are hashed, of configurations everything: reading
    terabytes would cost an engine's start minutes. ValueError when no weights can be found here.
    """
    where = _files_of(model)
    if where is None:
        raise ValueError(f"icms: the weights of {model} are not on this machine as files, so they "
                         'have no fingerprint: set "weights" to a text that names them')
    digest = hashlib.sha256(b"icms vllm weights v1")
    for path in where:
        _hash_file(digest, path)
    return digest.digest()


def _files_of(model: str) -> list[pathlib.Path] | None:
    given = pathlib.Path(model)
    if given.is_file():
        return [given]
    folder = given if given.is_dir() else _in_hub_cache(model)
    if folder is None:
        return None
    files = sorted(file for file in folder.rglob("*") if file.is_file() and
                   (file.suffix in _WEIGHTS or file.name in _CONFIGS))
    return files if any(file.suffix in _WEIGHTS for file in files) else None


def _in_hub_cache(model: str) -> pathlib.Path | None:
    """The folder of a model that was downloaded by its name."""
    try:
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(model, "config.json")
    except (ImportError, ValueError, OSError):
        return None
    return pathlib.Path(found).parent if isinstance(found, str) else None


def _hash_file(digest: "hashlib._Hash", path: pathlib.Path) -> None:
    size = path.stat().st_size
    digest.update(f"\0{path.name}\0{size}\0".encode())
    whole = path.name in _CONFIGS or size <= _SAMPLES * _SAMPLE_BYTES
    with open(path, "rb") as file:
        if whole:
            digest.update(file.read())
            return
        for i in range(_SAMPLES):
            file.seek(i * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))


def machine() -> str:
    """What of this machine decides the order of bytes in a block: nothing on a GPU but its kind;
    on a CPU the instruction set, as vLLM packs blocks for it."""
    import torch
    from vllm.platforms import current_platform

    words = [current_platform.device_type]
    if current_platform.device_type == "cpu":
        words += [platform.machine(), torch.backends.cpu.get_cpu_capability(),
                  "amx" if torch.cpu._is_amx_tile_supported() else ""]
    backend = os.environ.get("VLLM_ATTENTION_BACKEND")
    return " ".join(filter(None, [*words, backend]))


def layouts(*, tenant: str, model: str, weights: str, dtype: str, block_tokens: int,
            shape: Iterable[object], ranks: tuple[int, int, int, int], separate_ranks: bool,
            variant: str) -> Sequence[Layout]:
    """The layout of each rank's blocks; one for all ranks when a block holds those of all.

    weights is the operator's name for them, "" to take their fingerprint. shape is everything else
    that decides the bytes of a block; variant is the operator's word for what cannot be seen.
    """
    import vllm

    said = weights.encode() or weights_fingerprint(model)
    name = os.path.basename(os.path.normpath(model)) if os.path.exists(model) else model
    order = " ".join(str(word) for word in ("vllm", vllm.__version__, machine(), *shape, variant))
    tensor = range(ranks[0]) if separate_ranks else (0,)
    return tuple(Layout(tenant=tenant, model=name, weights=said, dtype=dtype, layout=order,
                        block_tokens=block_tokens, rank=(rank, 0, 0, 0), ranks=ranks)
                 for rank in tensor)


def probe() -> bytes | None:
    """What this process makes of its hash seed and function; None until vLLM has chosen them.

    vLLM does that at the end of an engine's start, after it has made its connectors. With another
    PYTHONHASHSEED, or another hash function, this differs, and no key would ever meet another's.
    """
    from vllm.v1.core import kv_cache_utils

    seed: bytes | None = getattr(kv_cache_utils, "NONE_HASH", None)
    return None if seed is None else bytes(seed)
