# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of a model's files: equal where the contents are equal, whatever the folder is called.

    weights = of_files("/models/llama", log=log)      # 32 bytes

Every byte is hashed of every file that is not known to be harmless, because one changed scale of one
tensor changes what an engine computes. SHA-256 over chunks of 64 MiB, in parallel; the digest of
each file is cached on this machine and is computed again when the file has changed.

The digest, so that others can do the same. H is SHA-256; L(x) is the length of x as 8 bytes,
little-endian, followed by x.

    file(f)  = H( L("icms file v1") L(size of f) L(H(chunk 0)) L(H(chunk 1)) ... )
    model    = H( L("icms model v1") then, by path in the order of its bytes: L(path) L(file(f)) )

path is relative to the folder, with "/", as UTF-8; it is empty for a model that is one file.
"""
from __future__ import annotations

import concurrent.futures
import fcntl
import fnmatch
import hashlib
import json
import logging
import os
import pathlib
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Iterator

#: The option `weights` of adapters: take the fingerprint of the files, also after weights have changed.
FILES = "files"

#: Bytes whose digest is made by one thread at a time, and read at once.
_CHUNK_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_THREADS_MAX = 16
#: A file that was changed so lately may change again without a change of its time stamps.
_RACY_SECONDS = 2.0
#: Of time stamps in nanoseconds.
_SECOND = 1_000_000_000
#: Files in the cache; each entry has about 150 bytes.
_CACHE_FILES_MAX = 4096
_CACHE_BYTES_MAX = 4 << 20
#: What a model needs at least one of.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz")
#: Files that do not change KV: it is computed from token ids. In lower case; Python and weights are
#: never harmless, since engines load them by their endings.
_HARMLESS = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
             "*.tiktoken", "tekken.json", "chat_template*", "generation_config.json", "readme*",
             "*.md", "license*", "notice*", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp",
             "*.pdf", ".*",
             # Weights for frameworks that no engine here loads.
             "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.tflite")
#: Folders that engines do not load from: copies of the weights in other formats.
_HARMLESS_FOLDERS = (".*", "original", "metal", "onnx", "openvino", "coreml", "__pycache__")

_lock = threading.Lock()  # one fingerprint at a time in a process


class FilesError(ValueError):
    """The files of a model cannot be found or read; says what to do."""


def of_files(model: str, *, revision: str | None = None, weights: bool | None = True,
             log: logging.Logger | None = None) -> bytes:
    """32 bytes that differ when a byte of the model differs; the same on every machine.

    model is a folder, a file, or a name whose files are in the Hugging Face cache of this machine.
    weights: True: there have to be some; None: any files will do; False: those that have weights do
    not count. FilesError also when a file changes meanwhile.
    """
    begin = time.monotonic()
    where = find(model, revision)
    if where is None:
        raise FilesError(f"cannot take the fingerprint of the model {model!r}: its files are not on "
                         'this machine; set the option "weights" to a text that names the weights')
    with _lock, _Cache() as cache:
        files = [(name, path) for name, path in _files(where)
                 if weights is not False or path.suffix.lower() not in _WEIGHTS]
        if weights and not any(path.suffix.lower() in _WEIGHTS for _, path in files):
            raise FilesError(f"cannot take the fingerprint of the model {model!r}: {where} has no "
                             f"weights ({', '.join(_WEIGHTS)}); set the option \"weights\" to a text "
                             "that names the weights")
        reader = _Reader(cache)
        try:
            digest = hashlib.sha256(_framed(b"icms model v1"))
            for name, path in files:
                digest.update(_framed(os.fsencode(name)) + _framed(reader.file(path)))
        except OSError as error:
            raise FilesError(f"cannot read {error.filename or where}: {error.strerror}") from error
        finally:
            reader.close()
    if log is not None:
        log.info("icms: fingerprint of %s: %s files=%d bytes=%d hashed=%d seconds=%.1f", where,
                 digest.hexdigest()[:16], len(files), reader.bytes_all, reader.bytes_hashed,
                 time.monotonic() - begin)
    return digest.digest()


def of_option(weights: str, model: str, *, revision: str | None = None,
              log: logging.Logger | None = None) -> tuple[bytes, str]:
    """The fields `weights` and `model` of a Layout, from the option `weights` of an adapter.

    "" or FILES: the fingerprint of the model's files, and no name, since contents say it all. Any
    other text names the weights together with the model's full name. FilesError as of `of_files`.
    """
    if weights in ("", FILES):
        return of_files(model, revision=revision, log=log), ""
    if not model:
        raise FilesError('cannot name the weights: the option "weights" is a text, which names them '
                         "together with the name of the model, and there is none")
    return b"text " + weights.encode(), model


def find(model: str, revision: str | None = None) -> pathlib.Path | None:
    """The folder or file of a model on this machine; None when it is not here."""
    given = os.path.expanduser(model)
    if given and os.path.exists(given):
        return pathlib.Path(given)
    try:
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except (ImportError, ValueError, OSError):
        return None
    return pathlib.Path(found).parent if isinstance(found, str) else None


def _files(where: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """(name, path) of each file that counts, by name. Links are followed, as engines follow them."""
    if not where.is_dir():
        yield "", where
        return
    found = [(path.relative_to(where).as_posix(), path) for path in _walk(where, frozenset())]
    yield from sorted(found, key=lambda entry: os.fsencode(entry[0]))


def _walk(folder: pathlib.Path, above: frozenset[tuple[int, int]]) -> Iterator[pathlib.Path]:
    """The files in a folder that count. above are the folders that it lies in: a link to one of these
    is a cycle."""
    status = os.stat(folder)
    here = status.st_dev, status.st_ino
    if here in above:
        return
    try:
        names = os.listdir(folder)
    except PermissionError:
        return  # the engine cannot read it either
    for name in names:
        path = folder / name
        if path.is_dir():
            if not _matches(name, _HARMLESS_FOLDERS):
                yield from _walk(path, above | {here})
        elif not _matches(name, _HARMLESS) or (
                name[0] != "." and name.lower().endswith((".py", *_WEIGHTS))):
            yield path


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


class _Reader:
    """Makes digests of files, with the cache, on threads."""

    def __init__(self, cache: _Cache) -> None:
        self._cache = cache
        self._threads = concurrent.futures.ThreadPoolExecutor(
            min(_THREADS_MAX, os.cpu_count() or 1), thread_name_prefix="icms-fingerprint")
        self.bytes_all = 0
        self.bytes_hashed = 0

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def file(self, path: pathlib.Path) -> bytes:
        begin = time.time()
        with open(path, "rb", buffering=0, opener=_open) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise FilesError(f"cannot take the fingerprint of {path}: it is not a regular file")
            self.bytes_all += before.st_size
            known = self._cache.get(before)
            if known is not None:
                return known
            chunks = self._threads.map(
                lambda at: self._chunk(file.fileno(), path, at, before.st_size),
                range(0, before.st_size, _CHUNK_BYTES))
            digest = hashlib.sha256(_framed(b"icms file v1") +
                                    _framed(struct.pack("<Q", before.st_size)))
            for chunk in chunks:
                digest.update(_framed(chunk))
            self.bytes_hashed += before.st_size
            after, named = os.fstat(file.fileno()), os.stat(path)
        if not _entry(before) == _entry(after) == _entry(named):
            raise _changed(path)
        if _is_lasting(before, begin):
            self._cache.put(before, digest.digest())
        return digest.digest()

    def _chunk(self, descriptor: int, path: pathlib.Path, begin: int, size: int) -> bytes:
        digest, room = hashlib.sha256(), bytearray(_READ_BYTES)
        end = min(begin + _CHUNK_BYTES, size)
        while begin < end:
            nbytes = os.preadv(descriptor, [memoryview(room)[:min(_READ_BYTES, end - begin)]], begin)
            if nbytes == 0:
                raise _changed(path)
            digest.update(memoryview(room)[:nbytes])
            begin += nbytes
        return digest.digest()


def _changed(path: pathlib.Path) -> FilesError:
    return FilesError(f"cannot take the fingerprint of {path}: the file changed while it was read; "
                      "start again when it is complete")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # which does not wait for the writer of a pipe


def _is_lasting(status: os.stat_result, now: float) -> bool:
    """True when a change of the file changes its entry.

    Images such as squashfs, and stores of objects, show a time that their maker chose as the time of
    change, in whole seconds: files of two images can have one entry and different contents.
    """
    return (max(status.st_ctime, status.st_mtime) < now - _RACY_SECONDS and
            status.st_ctime_ns % _SECOND != 0)


def _entry(status: os.stat_result) -> str:
    """What has to be the same for a digest to hold."""
    return (f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:"
            f"{status.st_ctime_ns}")


class _Cache:
    """Digests of files on this machine, in a file that is replaced as a whole. While a process has it
    open the others of this user wait, so the ranks of an engine read each file once. Without a folder
    that this user alone can write to, nothing is cached."""

    def __init__(self) -> None:
        self._folder = pathlib.Path()
        self._descriptor = -1  # of the file that is locked; -1: there is no cache
        self._digests: dict[str, str] = {}
        self._is_changed = False

    def __enter__(self) -> _Cache:
        try:
            base = os.environ.get("XDG_CACHE_HOME", "")
            self._folder = (pathlib.Path(base) if os.path.isabs(base)
                            else pathlib.Path.home() / ".cache") / "icms"
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(os.lstat(self._folder), stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError("others can write into the folder of the cache")
            self._descriptor = os.open(self._folder / "fingerprints.lock",
                                       os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._digests = self._read()
        except (OSError, RuntimeError):  # RuntimeError: this user has no home
            self._close()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._is_changed and self._descriptor >= 0:
                self._write()
        except OSError:
            pass  # the next one computes
        finally:
            self._close()

    def get(self, status: os.stat_result) -> bytes | None:
        """The digest of an unchanged file."""
        known = self._digests.get(_entry(status))
        return bytes.fromhex(known) if known is not None else None

    def put(self, status: os.stat_result, digest: bytes) -> None:
        """Remembers one."""
        self._digests[_entry(status)] = digest.hex()
        self._is_changed = True

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> dict[str, str]:
        try:
            descriptor = os.open(self._folder / "fingerprints.json",
                                 os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        with open(descriptor, "rb") as file:
            if not _is_private(os.fstat(descriptor), stat.S_IRWXG | stat.S_IRWXO):
                return {}
            try:
                found = json.loads(file.read(_CACHE_BYTES_MAX))
            except (ValueError, RecursionError):
                return {}
        if not isinstance(found, dict):
            return {}
        return {name: digest for name, digest in found.items() if _is_digest(digest)}

    def _write(self) -> None:
        kept = dict(list(self._digests.items())[-_CACHE_FILES_MAX:])
        descriptor, name = tempfile.mkstemp(prefix=".fingerprints-", dir=self._folder)  # 0600
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                json.dump(kept, file)
            os.rename(name, self._folder / "fingerprints.json")
        except BaseException:
            os.unlink(name)
            raise


def _is_private(status: os.stat_result, others: int) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & others


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")
