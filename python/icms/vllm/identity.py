# SPDX-License-Identifier: Apache-2.0
"""What makes a KV block of a vLLM engine usable by another one, and when it stops being so.

vLLM's block hashes cover token ids, images, salts, and the names of adapters. They say nothing of
weights, configuration or ranks; all of that is in the keys, so that a block of another model is not
found instead of being loaded. Weights can change while an engine runs. Then it leaves the key space
that it shares with others, and has one of its own.

    Engine    one a connector: configuration, facts of the workers, and what vLLM announces
    Identity  one a Link: what of the engine and of the operator's options is in the keys
    KeySpace  shared or private; see its life cycle
"""
from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.logger import init_logger

from .. import fingerprint
from ..canonical import Scalar
from ..client import Layout
from . import changes, configuration
from .choice import Prefill
from .link import WrongTier
from .waiting import Waiting

logger = init_logger("vllm.icms.identity")

#: The value of the option `weights` that says: they only ever come from the model's files.
FILES = "files"
#: What `hash` of an entry of models in icms-agent.yaml(5) may be.
HASHES = ("sha256", "sha256_cbor")


@dataclasses.dataclass(frozen=True)
class Options:
    """What an operator says of the identity; tier and connector have them in common."""

    tenant: str = ""
    weights: str = ""
    variant: str = ""
    adapters: str = ""


@dataclasses.dataclass(frozen=True)
class Shape:
    """How one adapter cuts KV into blocks."""

    dtype: str
    layout: str  # all else that decides the bytes of a block
    block_tokens: int
    ranks: tuple[int, int, int, int]
    separate_ranks: bool  # a block a rank, or one for all of them
    hash_tokens: int  # vLLM hashes so many at a time


class KeySpace:
    """Shared with other engines, or private to this one. The scheduler's thread changes it, any thread
    reads it.

    Life cycle: shared -> reset or change -> private, another one each time. With `weights: files` a
    reset leads back to shared when no KV is left and nothing but reloads of the files has changed the
    weights. After any other change it is private for good: it may also have changed which files a
    reload reads. Outputs of an encoder, as of images, are cached apart from KV: those of other weights
    make KV of other weights, until that cache is reset too.
    """

    def __init__(self, from_files: bool, has_encoder: bool = False) -> None:
        self._from_files = from_files  # False: for good
        self._has_encoder = has_encoder
        self._is_encoded = False  # its outputs may be cached
        self._is_stale = False  # some of them may be of other weights
        self._are_files = True  # the weights are those of the model's files, as far as was seen
        self._is_clean = True  # no KV is left of before
        self.reloads = 0  # how often the files were loaded again
        self.number = 0  # how often it was renewed
        self.space = b""  # private when not empty

    def stepped(self) -> None:
        """The engine computes KV."""
        self._is_clean = False
        self._is_encoded = self._has_encoder

    def reset(self, is_clean: bool) -> None:
        """vLLM forgets KV: all of it if is_clean."""
        self._is_clean = is_clean
        self._renew(self._are_files and is_clean)

    def changed(self, for_good: bool) -> None:
        """Weights are changed, or may be; for_good: no reload of the files mends it."""
        self._are_files = False
        self._is_stale = self._is_stale or self._is_encoded
        self._from_files = self._from_files and not for_good
        self._renew(False)

    def loaded_files(self) -> None:
        """All weights were loaded from the model's files."""
        self._are_files = True
        self.reloads += 1
        self._renew(self._is_clean)

    def forgot_encoded(self) -> bool:
        """vLLM has reset the cache of its encoder. True when the space is another one."""
        was_stale, self._is_encoded, self._is_stale = self._is_stale, False, False
        if was_stale:
            self._renew(self._are_files and self._is_clean)
        return was_stale

    def _renew(self, is_shared: bool) -> None:
        is_shared = is_shared and self._from_files and not self._is_stale
        self.space = b"" if is_shared else os.urandom(16)
        self.number += 1  # last: who sees the number sees the space


class Engine:
    """One engine, as its connector in the scheduler's process knows it: for all ranks, since that
    process alone makes keys. Engines of data parallelism have one each."""

    #: The engine whose connector is being made: vLLM makes its tiers meanwhile.
    _making: contextvars.ContextVar[Engine | None] = contextvars.ContextVar("icms_engine",
                                                                            default=None)

    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        self.config = config
        self.fields = configuration.fields(config, kv_cache_config)
        self.workers: str | None = None  # what they know, see `learn`
        self.identities: list[Identity] = []
        self._adapters: set[tuple[str, str]] = set()  # that were loaded: name, path
        self.pool: Any = None  # vLLM's blocks on the GPU
        self.queued: list[Callable[[Any], None]] = []  # of tiers: the engine has a request that waits
        self.prefill = Prefill()  # what its steps take
        self.waiting = Waiting(self.prefill)
        changes.watch(self)

    def close(self) -> None:
        """Its connector ends."""
        changes.forget(self)

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """While its connector is made."""
        token = self._making.set(self)
        try:
            yield
        finally:
            self._making.reset(token)

    @classmethod
    def made_now(cls) -> Engine | None:
        """The engine that is being made; None outside of `making`."""
        return cls._making.get()

    def learn(self, facts: Mapping[Any, Any]) -> None:
        """What each worker knows. Another connector's facts, beside which this one runs, say nothing:
        then the back end of attention has to be named."""
        texts = {one.text for one in facts.values() if isinstance(one, Facts)}
        if len(facts) > 0 and all(isinstance(one, Facts) for one in facts.values()):
            self.workers = "; ".join(sorted(texts))
        elif getattr(getattr(self.config, "attention_config", None), "backend", None) is not None:
            self.workers = f"{configuration.machine()}, back end as configured"
        else:
            logger.error("icms: the tier is not used: beside other connectors vLLM does not say which "
                         "attention back end its workers chose: set --attention-backend")

    def stepped(self, scheduled: Mapping[str, int]) -> None:
        """A step begins that computes so many tokens of each request; none: it has nothing to compute, and ends as
        others do."""
        self.prefill.step_begun(list(scheduled.values()))
        if scheduled:
            for identity in self.identities:
                identity.space.stepped()
            self.waiting.stepped(scheduled)

    def reset(self) -> None:
        """vLLM resets its caches. It keeps those of the GPU while a block is in use: another connector
        may still send those of a request that has ended."""
        is_empty = (self.pool is not None and
                    self.pool.num_gpu_blocks - self.pool.get_num_free_blocks() <= 1)  # the null block
        for identity in self.identities:
            identity.reset(is_empty)

    def changed(self, what: str, *, for_good: bool = True) -> None:
        """Something changes weights, or may; for_good: no reload of the files mends it."""
        logger.warning("icms: %s may change weights: blocks are not shared with other engines from now "
                       "on", what)
        for identity in self.identities:
            identity.changed(for_good)

    def loaded_files(self) -> None:
        """All weights were loaded from the model's files again."""
        for identity in self.identities:
            identity.loaded_files()

    def forgot_encoded(self) -> None:
        """vLLM has reset the cache of its encoder."""
        for identity in self.identities:
            identity.forgot_encoded()

    def saw_adapter(self, adapter: Any) -> None:
        """A LoRA adapter is loaded. vLLM's hashes have its name and path: with other contents behind
        them, blocks are not those of before."""
        name = adapter.lora_name, adapter.lora_path
        if adapter.load_inplace or name in self._adapters:
            self.changed(f"loading adapter {adapter.lora_name} again")
        self._adapters.add(name)


@dataclasses.dataclass
class Facts(KVConnectorHandshakeMetadata):
    """What a worker tells the scheduler's process while the engine starts."""

    text: str

    def of(self, connector: Any) -> Facts | None:
        """These facts; None beside other connectors, of which vLLM hands over the first one's alone, and
        others cannot do without theirs."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return self if get_kv_transfer_group() is connector else None


class Identity:
    """What of an engine is in the keys of one Link."""

    def __init__(self, engine: Engine, options: Options, shape: Shape, *,
                 is_idle: Callable[[], bool], forget: Callable[[], None]) -> None:
        """is_idle says whether the engine has no request; forget drops what is known of blocks."""
        config = engine.config
        configuration.refuse(config, weights=options.weights, adapters=options.adapters)
        self._engine = engine
        self._options = options
        self._shape = shape
        self._is_idle = is_idle
        self._forget = forget
        self._models = configuration.models(config)
        self._is_of_files = options.weights in ("", FILES)
        self._loaded: bytes | None = None  # fingerprint of the files that were loaded
        self._loaded_at = 0  # of space.reloads
        self.space = KeySpace(options.weights == FILES, getattr(
            config.model_config, "multimodal_config", None) is not None)
        self.hashes = str(config.cache_config.prefix_caching_hash_algo)
        self.label = os.path.basename(os.path.normpath(self._models[0][0]))
        self.wake: Callable[[], None] = lambda: None  # the link's
        if self._is_of_files:
            for model, revision in self._models:
                if fingerprint.find(model, revision) is None:
                    raise WrongTier(f"icms: the files of {model} are not on this machine, so they have "
                                    'no fingerprint: set "weights" to a text that names the weights')
        engine.identities.append(self)

    def fields(self) -> dict[str, Scalar] | None:
        """The configuration that is in the keys; None until the workers have said their part."""
        if self._engine.workers is None:
            return None
        return {**self._engine.fields, "workers": self._engine.workers,
                "variant": self._options.variant, "adapters": self._options.adapters}

    def weights(self) -> bytes:
        """What stands for the weights. Takes as long as reading them, the first time on a machine.

        fingerprint.FilesError when there are none, or they change meanwhile.
        """
        if not self._is_of_files:
            model = self._models[0][0]  # whole: the last part of two names may be the same
            return f"{model} {self._options.weights}".encode()
        if self.space.space:
            return b"private"  # whatever they are
        reloads = self.space.reloads
        found = b"".join(fingerprint.of_files(model, revision=revision, log=logger)
                         for model, revision in self._models)
        if self._loaded is None or self._loaded_at != reloads:
            self._loaded, self._loaded_at = found, reloads
        elif self._loaded != found:
            raise fingerprint.FilesError(f"the files of {self.label} have changed, and the engine has "
                                         "not loaded them: start it again")
        return self._loaded

    def layouts(self, weights: bytes) -> Sequence[Layout]:
        """The layout of each rank's blocks; one for all ranks when a block holds those of all."""
        shape = self._shape
        tensor = range(shape.ranks[0]) if shape.separate_ranks else (0,)
        return tuple(Layout(tenant=self._options.tenant, weights=weights, dtype=shape.dtype,
                            layout=f"vllm {shape.layout}", block_tokens=shape.block_tokens,
                            rank=(rank, 0, 0, 0), ranks=shape.ranks) for rank in tensor)

    @staticmethod
    def probe() -> bytes | None:
        """What this process makes of its hash seed and function; None until vLLM has chosen them.

        vLLM does that at the end of an engine's start, after it has made its connectors.
        """
        from vllm.v1.core import kv_cache_utils

        seed: bytes | None = getattr(kv_cache_utils, "NONE_HASH", None)
        return None if seed is None else bytes(seed)

    def hashing(self) -> tuple[str, str, int] | None:
        """How token ids become this engine's hashes, for icms-agent: function, seed, tokens of a hash.

        None when icms-agent does not have the function, or vLLM does not say its seed, as it does not
        where that is random. Once `probe` is known.
        """
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils

        seed = str(getattr(kv_cache_utils, "get_none_hash_seed",
                           lambda: os.environ.get("PYTHONHASHSEED", ""))())
        if self.hashes not in HASHES or not re.fullmatch("[0-9A-Za-z-]{1,63}", seed) or \
                get_hash_fn_by_name(self.hashes)(seed) != self.probe():
            return None
        return self.hashes, seed, self._shape.hash_tokens

    def reset(self, is_empty: bool) -> None:
        """vLLM resets its caches; is_empty: no block is left on the GPU."""
        self.space.reset(is_empty and self._is_idle())
        if self.space.space:
            logger.warning("icms: vLLM has reset its caches, which may be because of other weights: "
                           "blocks are not shared with other engines from now on%s",
                           "" if self._options.weights == FILES else
                           '; with "weights": "files" they would be')
        self._renewed()

    def changed(self, for_good: bool) -> None:
        """Something changes weights, or may."""
        self.space.changed(for_good)
        self._renewed()

    def loaded_files(self) -> None:
        """All weights were loaded from the model's files again."""
        self.space.loaded_files()
        self._renewed()

    def forgot_encoded(self) -> None:
        """vLLM has reset the cache of its encoder."""
        if self.space.forgot_encoded():
            self._renewed()

    def _renewed(self) -> None:
        self._forget()
        self.wake()
