# SPDX-License-Identifier: Apache-2.0
"""MinIO with one drive, over HTTP on loopback: an object a PUT or GET of its S3 door.

The bucket is open to all, so that requests need no signature: that only favours MinIO. A batch is as many
keep-alive connections with a request each. With one drive MinIO reads and writes through the page cache.
"""
import hashlib
import hmac
import os
import shutil
import subprocess
import time
import urllib.request

import pod
from peers import side

MODULE = "github.com/minio/minio"
USER, PASSWORD = "benchpeers", "benchpeers-secret"
BUCKET = "blocks"  # at least three characters
POLICY = ('{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":["*"]},'
          '"Action":["s3:GetObject","s3:PutObject"],"Resource":["arn:aws:s3:::blocks/*"]}]}')
START_SECONDS = 30
IDLE = "24h"  # a side that waits for its turn keeps its connections; by default they last 30 s


def install(folder):
    """Go's own proxy brings the sources; compiling takes minutes."""
    if shutil.which("go") is None:
        raise side.SideError("there is no Go compiler")
    subprocess.run(["go", "install", f"{MODULE}@latest"], check=True, capture_output=True, text=True,
                   env={**os.environ, "GOBIN": str(folder / "bin"), "GOFLAGS": "-buildvcs=false"})


def signed(method, host, path, query, body):
    """A request with a signature of AWS version 4."""
    now, hashed = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), hashlib.sha256(body).hexdigest()
    headers = f"host:{host}\nx-amz-content-sha256:{hashed}\nx-amz-date:{now}\n"
    names = "host;x-amz-content-sha256;x-amz-date"
    request = "\n".join([method, path, query, headers, names, hashed])
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = b"AWS4" + PASSWORD.encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return urllib.request.Request(
        f"http://{host}{path}" + (f"?{query}" if query else ""), data=body or None, method=method,
        headers={"x-amz-date": now, "x-amz-content-sha256": hashed, "Authorization":
                 f"AWS4-HMAC-SHA256 Credential={USER}/{scope}, SignedHeaders={names}, "
                 f"Signature={signature}"})


class Peer(side.Side):
    INSTALL = install
    TITLE = "MinIO, one drive, HTTP over loopback without signatures, reads through the page cache"
    CLASS = "networked SSD"
    AGAINST = ("pod", "unix")
    CHECKS = "HighwayHash of what comes from the drive"
    ACKNOWLEDGED = "in a file"
    PAGE_CACHE = True

    def start(self, pool):
        port = pod.free_port()
        self.host = f"127.0.0.1:{port}"
        self.server = side.Server(
            [self.setting.installed / "bin/minio", "server", "--quiet", "--address", self.host,
             "--console-address", f"127.0.0.1:{pod.free_port()}", self.folder / "drive"],
            self.folder / "minio.log",
            {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD, "MINIO_BROWSER": "off",
             "MINIO_UPDATE": "off", "MINIO_IDLE_TIMEOUT": IDLE, "MINIO_READ_HEADER_TIMEOUT": IDLE,
             "HOME": str(self.folder)})
        self.server.wait_port(port)
        self._bucket()
        self.lines = [side.Lines(port, ahead=4096) for _ in range(self.setting.depth_max)]

    def _bucket(self):
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(signed("PUT", self.host, f"/{BUCKET}", "", b""), timeout=10)
                break
            except OSError as error:  # it listens before it serves
                if time.monotonic() > until:
                    raise side.SideError(f"MinIO makes no bucket: {error}; {self.server.tail()}")
                time.sleep(0.2)
        urllib.request.urlopen(signed("PUT", self.host, f"/{BUCKET}", "policy=", POLICY.encode()),
                               timeout=10)

    def _request(self, method, key, more=""):
        return (f"{method} /{BUCKET}/{key.hex()} HTTP/1.1\r\nHost: {self.host}\r\n"
                f"{more}\r\n").encode()

    @staticmethod
    def _answer(line):
        """(status, bytes of the body) of an answer whose head is read."""
        status, nbytes = int(line.line().split(b" ")[1]), 0
        while header := line.line():
            name, _, value = header.partition(b":")
            if name.lower() == b"content-length":
                nbytes = int(value)
        return status, nbytes

    def put(self, keys, memory):
        for line, key, view in zip(self.lines, keys, memory):
            line.send([self._request("PUT", key, f"Content-Length: {self.size}\r\n"), view])
        return [self._put_answer(line) for line, _ in zip(self.lines, keys)]

    def _put_answer(self, line):
        status, nbytes = self._answer(line)
        line.payload(memoryview(bytearray(nbytes)), end=0)
        return side.OK if status == 200 else f"HTTP {status}"

    def get(self, keys, memory):
        for line, key in zip(self.lines, keys):
            line.send([self._request("GET", key)])
        return [self._get_answer(line, view) for line, view in zip(self.lines, memory)]

    def _get_answer(self, line, view):
        status, nbytes = self._answer(line)
        if status == 200 and nbytes == view.nbytes:
            line.payload(view, end=0)
            return side.OK
        line.payload(memoryview(bytearray(nbytes)), end=0)
        return side.MISS if status == 404 else f"HTTP {status} with {nbytes} bytes"

    def stop(self):
        for line in self.lines:
            line.close()
        self.server.stop()

    @staticmethod
    def versions(installed):
        said = subprocess.run(["go", "version", "-m", installed / "bin/minio"], check=True,
                              capture_output=True, text=True).stdout
        return {"minio": next(words[2] for words in map(str.split, said.splitlines())
                              if words[:2] == ["mod", MODULE])}
