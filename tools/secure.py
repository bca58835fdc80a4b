# SPDX-License-Identifier: Apache-2.0
"""A pod with everything turned on, for the demo and for tests: DH-HMAC-CHAP both ways and TLS between
servers and enclosures, and a volume that its clients encrypt."""
import json
import os
import subprocess
import time

import pod


class Keys:
    """Files of keys in a folder; each is made when it is asked for first."""

    def __init__(self, build, folder):
        self.build, self.folder = build, folder

    def file(self, name, kind):
        """kind is one of `icms key gen --type`."""
        path = self.folder / f"{name}.{kind}"
        if not path.exists():
            subprocess.run([str(self.build / "cmd/icms"), "key", "gen", "--type", kind, str(path)],
                           check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        return path

    def target(self, servers):
        """What an enclosure asks of each server, in its configuration."""
        hosts = [f"{{nqn: {host_nqn(name)}, secrets: [{self.file(name, 'dhchap')}], "
                 f"controller_secret: {self.file('enclosures', 'dhchap')}, "
                 f"psks: [{self.file(name, 'tls')}]}}" for name in servers]
        return {"require": "chap+tls", "hosts": f"[{', '.join(hosts)}]"}

    def agent(self, server):
        """How the agent of a server proves itself, and what it asks of enclosures, in its configuration."""
        return {"host_nqn": host_nqn(server), "require": "chap+tls", "psk": self.file(server, "tls"),
                "secret": self.file(server, "dhchap"),
                "controller_secret": self.file("enclosures", "dhchap")}

    def volume(self, name):
        """Gives the clients of this process and of its children the key of a volume; the daemons do not get it."""
        path = self.folder / "keys.yaml"
        path.write_text(f"volumes: [{{name: {name}, keys: [{{id: 1, file: {self.file(name, 'volume')}}}]}}]\n")
        os.environ["ICMS_KEYS"] = str(path)


def host_nqn(server):
    return f"nqn.2026-01.io.icms.test:{server}"


def wait_proven(agent, seconds=60):
    """Waits until each enclosure of a daemon and the daemon proved themselves, over TLS."""
    deadline = time.monotonic() + seconds
    while True:
        status, text = agent.get("/status")
        found = [(e["auth"], e["tls"] != "none") for e in json.loads(text)["enclosures"]] if status == 200 else []
        if found and all(one == ("chap-mutual", True) for one in found):
            return
        if time.monotonic() > deadline:
            raise pod.PodError(f"{agent.name} reaches enclosures without proofs or TLS: {found}\n{agent.log_tail()}")
        time.sleep(0.05)
