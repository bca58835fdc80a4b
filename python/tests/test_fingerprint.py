# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of models' files: of every byte, and of each byte once."""
import hashlib
import json
import os
import pathlib
import stat
import struct
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

from icms import fingerprint
from icms.fingerprint import FilesError, of_files, of_option

OLD = 1_600_000_000  # seconds: long before any test


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="icms-fingerprint-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "cache"
        patch = unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.cache)})
        patch.start()
        self.addCleanup(patch.stop)
        self.read = 0
        real = os.preadv

        def preadv(*arguments):
            nbytes = real(*arguments)
            self.read += nbytes
            return nbytes

        patch = unittest.mock.patch.object(os, "preadv", preadv)
        patch.start()
        self.addCleanup(patch.stop)

    def model(self, name="model", **files):
        folder = self.folder / name
        files = {"config.json": b"{}", "model.safetensors": bytes(5 << 20), **files}
        for inner, data in files.items():
            path = folder / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    def aged(self):
        """Files that are not of this moment: as if they had been there for long."""
        return unittest.mock.patch.object(fingerprint, "_RACY_SECONDS", -1e9)


class Contents(Case):
    def test_the_digest_is_the_one_that_the_text_describes(self):
        def hashed(*parts):
            return hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part
                                           for part in parts)).digest()

        weights = os.urandom(3000)
        folder = self.model(**{"model.safetensors": weights})
        with unittest.mock.patch.object(fingerprint, "_CHUNK_BYTES", 1024):
            made = of_files(str(folder))
        files = {b"config.json": [b"{}"],
                 b"model.safetensors": [weights[:1024], weights[1024:2048], weights[2048:]]}
        self.assertEqual(made, hashed(b"icms model v1", *(
            part for name, chunks in files.items() for part in (
                name, hashed(b"icms file v1", struct.pack("<Q", sum(map(len, chunks))),
                             *(hashlib.sha256(chunk).digest() for chunk in chunks))))))

    def test_every_byte_counts(self):
        weights = bytearray(os.urandom(3 << 20))
        folder = self.model(**{"model.safetensors": weights})
        made = {of_files(str(folder))}
        for at in (0, 1, len(weights) // 3 + 17, len(weights) - 1):  # one byte of one tensor
            weights[at] ^= 1
            (folder / "model.safetensors").write_bytes(weights)
            made.add(of_files(str(folder)))
            weights[at] ^= 1
        self.assertEqual(len(made), 5)

    def test_all_files_count_that_are_not_known_to_be_harmless(self):
        alone = of_files(str(self.model()))
        for name in ("model.py", "modeling/remote.py", "tokenizer_x.py", "scales.json",
                     "kv_cache_scales.pt", "hf_quant_config.json", "preprocessor_config.json",
                     "more.safetensors", "new thing", "tokenizer-codec.safetensors",
                     "vocab_embedding.bin", "tokenizer.pt"):
            folder = self.model(f"with {name.replace('/', ' ')}", **{name: b"1"})
            self.assertNotEqual(of_files(str(folder)), alone, name)
            (folder / name).write_bytes(b"2")
            other = of_files(str(folder))
            (folder / name).write_bytes(b"1")
            self.assertNotEqual(of_files(str(folder)), other, name)

    def test_harmless_files_and_names_of_folders_do_not_count(self):
        alone = of_files(str(self.model("a/llama")))
        folder = self.model("b/mistral", **dict.fromkeys(
            ("README.md", "LICENSE", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
             "vocab.json", "merges.txt", "special_tokens_map.json", "generation_config.json",
             "chat_template.jinja", ".gitattributes", ".cache/huggingface/x.metadata",
             "original/consolidated.00.pth", "onnx/model.onnx", "figure.png"), b"1"))
        self.assertEqual(of_files(str(folder)), alone)
        for path in folder.rglob("*"):
            os.utime(path, (OLD, OLD))
        self.assertEqual(of_files(str(folder)), alone)

    def test_folders_behind_links_count(self):
        copied = self.model("copied", **{"whisper/model.safetensors": b"1"})
        (copied / "whisper" / "lost+found").mkdir(mode=0)
        linked = self.model("linked")
        other = self.model("other", **{"model.safetensors": b"1"})
        (other / "config.json").unlink()
        (other / "up").symlink_to(linked)  # a cycle
        alone = of_files(str(linked))
        (linked / "whisper").symlink_to(other)
        (linked / "itself").symlink_to(".")
        self.assertEqual(of_files(str(linked)), of_files(str(copied)))
        (other / "model.safetensors").write_bytes(b"2")
        self.assertNotIn(of_files(str(linked)), (alone, of_files(str(copied))))

    def test_files_without_weights(self):
        folder = self.model()
        others = of_files(str(folder), weights=False)
        (folder / "model.safetensors").write_bytes(b"2")
        self.assertEqual(of_files(str(folder), weights=False), others)
        (folder / "model.safetensors").unlink()
        self.assertEqual(of_files(str(folder), weights=None), others)
        (folder / "config.json").write_bytes(b"2")
        self.assertNotEqual(of_files(str(folder), weights=False), others)

    def test_a_model_of_one_file(self):
        for name in ("a.gguf", "b.gguf"):
            (self.folder / name).write_bytes(b"weights")
        self.assertEqual(of_files(str(self.folder / "a.gguf")),
                         of_files(str(self.folder / "b.gguf")))

    def test_names_in_the_hub_cache_are_links_to_blobs(self):
        blobs, snapshot = self.folder / "blobs", self.folder / "snapshots/1"
        blobs.mkdir()
        snapshot.mkdir(parents=True)
        real = self.model()
        for i, name in enumerate(("config.json", "model.safetensors")):
            (blobs / f"{i}").write_bytes((real / name).read_bytes())
            (snapshot / name).symlink_to(blobs / f"{i}")
        hub = types.ModuleType("huggingface_hub")
        hub.try_to_load_from_cache = lambda name, file, revision=None: (
            str(snapshot / file) if (name, revision) == ("org/model", "main") else None)
        with unittest.mock.patch.dict(sys.modules, {"huggingface_hub": hub}):
            self.assertEqual(of_files("org/model", revision="main"), of_files(str(real)))
            with self.assertRaisesRegex(FilesError, '"weights"'):
                of_files("org/model", revision="other")

    def test_no_weights_and_files_that_cannot_be_read(self):
        for name in ("no/such-model", "", "~nobody/model", "a\0b"):
            with self.assertRaisesRegex(FilesError, 'set the option "weights"'):
                of_files(name)
        folder = self.model()
        (folder / "model.safetensors").unlink()
        with self.assertRaisesRegex(FilesError, "no weights"):
            of_files(str(folder))
        (folder / "model.safetensors").symlink_to(self.folder / "gone")
        with self.assertRaisesRegex(FilesError, "cannot read .*model.safetensors"):
            of_files(str(folder))
        (folder / "model.safetensors").unlink()
        os.mkfifo(folder / "model.safetensors")
        with self.assertRaisesRegex(FilesError, "not a regular file"):
            of_files(str(folder))  # without a writer

    def test_a_file_that_changes_while_it_is_read(self):
        folder = self.model()
        path = folder / "model.safetensors"

        def changed():
            with open(path, "r+b") as file:
                file.write(b"1")
            os.utime(path, (OLD, OLD))  # what hides a change from whoever looks at mtime alone

        def replaced():
            other = folder / "new"
            other.write_bytes(bytes(5 << 20))
            os.rename(other, path)

        for change in (changed, replaced, lambda: os.truncate(path, 1 << 20)):
            real, done = os.preadv, []

            def preadv(*arguments, real=real, done=done, change=change):
                if not done and arguments[2] == 1 << 20:
                    done.append(change())
                return real(*arguments)

            with unittest.mock.patch.object(os, "preadv", preadv), \
                    self.assertRaisesRegex(FilesError, "changed while"):
                of_files(str(folder))
            path.write_bytes(bytes(5 << 20))

    def test_the_option_weights(self):
        folder = str(self.model())
        for text in ("", "files"):
            self.assertEqual(of_option(text, folder), (of_files(folder), ""))
        self.assertEqual(of_option("rev 2", "/a/llama"), (b"text rev 2", "/a/llama"))
        self.assertRaises(FilesError, of_option, "rev 2", "")


class Caches(Case):
    def entries(self):
        return json.loads((self.cache / "icms/fingerprints.json").read_text())

    def test_a_file_is_read_once(self):
        folder = str(self.model())
        with self.aged(), self.assertLogs("test", "INFO") as said:
            import logging
            made = of_files(folder, log=logging.getLogger("test"))
            self.assertEqual(self.read, (5 << 20) + 2)
            self.assertEqual(of_files(folder, log=logging.getLogger("test")), made)
            self.assertEqual(self.read, (5 << 20) + 2)
        self.assertIn(f"bytes={(5 << 20) + 2} hashed={(5 << 20) + 2}", said.output[0])
        self.assertIn("hashed=0", said.output[1])
        self.assertEqual(len(self.entries()), 2)
        self.assertEqual(stat.S_IMODE(os.stat(self.cache / "icms").st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(self.cache / "icms/fingerprints.json").st_mode), 0o600)

    def test_a_file_that_was_changed_is_read_again(self):
        folder = self.model()
        path = folder / "model.safetensors"
        with self.aged():
            made = of_files(str(folder))
            status = os.stat(path)
            with open(path, "r+b") as file:
                file.seek(12345)
                file.write(b"1")
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # size and mtime as before
            before = self.read
            self.assertNotEqual(of_files(str(folder)), made)
            self.assertEqual(self.read - before, 5 << 20)

    def test_a_file_of_this_moment_is_not_remembered(self):
        folder = str(self.model())
        of_files(folder)
        of_files(folder)
        self.assertEqual(self.read, 2 * ((5 << 20) + 2))
        self.assertFalse((self.cache / "icms/fingerprints.json").exists())

    def test_a_time_that_someone_chose_is_not_believed(self):
        folder = self.model()
        real = os.stat_result

        def image(status):  # as of a file of squashfs with -all-time 1
            fields = {name: getattr(status, name) for name in ("st_atime_ns", "st_mtime_ns")}
            return real(tuple(status), {**fields, "st_ctime_ns": OLD * 10 ** 9})

        fstat, named = os.fstat, os.stat
        with self.aged(), unittest.mock.patch.object(os, "fstat", lambda file: image(fstat(file))), \
                unittest.mock.patch.object(
                    os, "stat", lambda path, **more: image(named(path, **more))):
            made = of_files(str(folder))
            path = folder / "model.safetensors"
            status = named(path)
            path.write_bytes(b"1" * (5 << 20))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            self.assertNotEqual(of_files(str(folder)), made)

    def test_what_is_wrong_with_the_cache_costs_time_only(self):
        folder = str(self.model())
        path = self.cache / "icms/fingerprints.json"
        with self.aged():
            made = of_files(folder)
            good = path.read_text()
            for text in ("", "[]", "{", "7", "[" * 100000, good.replace('"', "'"),
                         json.dumps(dict.fromkeys(json.loads(good), 5)),
                         json.dumps(dict.fromkeys(json.loads(good), "zz" * 32)), "\0" * 9):
                path.write_text(text)
                before = self.read
                self.assertEqual(of_files(folder), made)
                self.assertEqual(self.read - before, (5 << 20) + 2, text[:20])
                self.assertEqual(path.read_text(), good)
            os.chmod(path, 0o604)  # others may have read it; only its owner should
            before = self.read
            of_files(folder)
            self.assertEqual(self.read - before, (5 << 20) + 2)

    def test_a_folder_that_others_can_write_to_is_no_cache(self):
        folder = str(self.model())
        (self.cache / "icms").mkdir(parents=True)
        os.chmod(self.cache / "icms", 0o777)
        with self.aged():
            made = of_files(folder)
            self.assertEqual(of_files(folder), made)
        self.assertEqual(self.read, 2 * ((5 << 20) + 2))
        self.assertEqual(os.listdir(self.cache / "icms"), [])

    def test_a_link_in_the_place_of_the_cache_is_not_followed(self):
        folder, elsewhere = str(self.model()), self.folder / "elsewhere"
        with self.aged():
            of_files(folder)
            os.rename(self.cache / "icms/fingerprints.json", elsewhere)
            before = elsewhere.read_bytes()
            (self.cache / "icms/fingerprints.json").symlink_to(elsewhere)
            of_files(folder)
            self.assertEqual(self.read, 2 * ((5 << 20) + 2))
        self.assertEqual(elsewhere.read_bytes(), before)

    def test_the_cache_is_bounded(self):
        with self.aged(), unittest.mock.patch.object(fingerprint, "_CACHE_FILES_MAX", 5):
            folder = self.model(**{f"{i}.json": b"%d" % i for i in range(20)})
            of_files(str(folder))
        self.assertEqual(len(self.entries()), 5)

    def test_ranks_that_start_together_read_once(self):
        folder = str(self.model())
        with self.aged():
            threads = [threading.Thread(target=of_files, args=(folder,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(self.read, (5 << 20) + 2)

    def test_without_a_place_for_a_cache(self):
        folder = str(self.model())
        (self.folder / "file").write_text("")
        with unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.folder / "file")}):
            self.assertEqual(of_files(folder), of_files(folder))


if __name__ == "__main__":
    unittest.main()
