# SPDX-License-Identifier: Apache-2.0
"""A pod on loopback, for the demo and for tests: icms-target and icms-agent as real processes.

    with pod.Pod(build, folder) as p:
        targets = [p.add_target(f"enclosure{i}", drives=2, ...) for i in range(2)]
        agent = p.add_agent("server-a", ...)

A daemon's configuration, drives and log lie in the folder, under its name. Leaving the block
kills all daemons that are left.
"""
import ctypes
import fcntl
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class PodError(Exception):
    """Something of the pod did not work; the text says what, and what the daemon's log ends with."""


PORT_LOCKS = {}  # of the ports that this process took


def port_is_ours(port):
    """Whether no other process that asks here has it; it is this one's as long as it lives."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"icms-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = open(folder / str(port), "wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    PORT_LOCKS[port] = lock
    return True


def free_port():
    """Returns a port of 127.0.0.1 that is free, and that no other process gets here.

    It is below the range from which the kernel takes ports for outgoing connections: those of
    another test must not take it before the daemon listens.
    """
    while True:
        port = random.randrange(12000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in PORT_LOCKS and port_is_ours(port):
            return port


def die_with_parent():
    """In the child: a daemon must not outlive a demo or test that was killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Daemon:
    """One process with one configuration, which can be started more than once."""

    def __init__(self, program, name, folder, config, http_port, faults=None):
        """faults arm fault points (src/base/fault_arm.h); only programs for tests have them."""
        self.program = f"{program}-faults" if faults else program
        self.environment = {**os.environ, **({"ICMS_FAULT": faults} if faults else {})}
        self.name = name
        self.http_port = http_port
        self.config_path = folder / f"{name}.yaml"
        self.log_path = folder / f"{name}.log"
        self.config_path.write_text(config)
        self.process = None

    @property
    def pid(self):
        return self.process.pid

    def log_tail(self):
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-10:])

    def start(self):
        """Starts the daemon; does not wait until it is ready."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [str(self.program), "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment,
                preexec_fn=die_with_parent)

    def get(self, path):
        """Returns (status, text) of an HTTP request to the daemon; (0, reason) when none came."""
        return self.request(path)

    def post(self, path, body):
        """The same of a POST of an object as JSON."""
        return self.request(path, json.dumps(body).encode())

    def request(self, path, body=None):
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}{path}", body,
                                             {"Content-Type": "application/json"} if body else {})
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError as error:
            return 0, str(error)

    def wait_ready(self, seconds=60):
        """Waits until /readyz says yes: a second, far more only where other work delays it."""
        deadline = time.monotonic() + seconds
        said = ""
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise PodError(f"{self.name} ended with status {self.process.returncode}:\n"
                               f"{self.log_tail()}")
            status, said = self.get("/readyz")
            if status == 200:
                return
            time.sleep(0.05)
        raise PodError(f"{self.name} was not ready within {seconds} s ({said.strip()}):\n"
                       f"{self.log_tail()}")

    def wait_until(self, what, truth, seconds=60):
        """Waits until it is so; else says what was not, and what the log ends with."""
        deadline = time.monotonic() + seconds
        while not truth():
            if time.monotonic() > deadline:
                raise PodError(f"{self.name}: not within {seconds} s: {what}:\n{self.log_tail()}")
            time.sleep(0.05)

    def wait_log(self, words, count=1):
        """Waits until the log has the words so often."""
        self.wait_until(f"'{words}' in the log, {count} times",
                        lambda: self.log_path.read_text(errors="replace").count(words) >= count)

    def metrics(self):
        """Returns {name with labels: value} of /metrics."""
        status, text = self.get("/metrics")
        if status != 200:
            raise PodError(f"{self.name} gives no metrics: {status} {text}")
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def signal(self, number):
        self.process.send_signal(number)

    def stand_still(self):
        """SIGSTOP, and waits until all of its threads stand still: they run on for a moment."""
        self.signal(signal.SIGSTOP)
        give_up = time.monotonic() + 10
        tasks = pathlib.Path(f"/proc/{self.pid}/task")
        while any((task / "stat").read_text().rpartition(")")[2].split()[0] != "T"
                  for task in tasks.iterdir()):
            assert time.monotonic() < give_up, f"{self.name} does not stop"
            time.sleep(0.001)

    def kill(self):
        """SIGKILL, and waits until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self, seconds=10):
        """SIGTERM, and waits for its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=seconds)


def volume_lines(volume):
    return "\n".join([f"  - name: {volume['name']}"] +
                     [f"    {key}: {value}" for key, value in volume.items() if key != "name"])


def http_lines(address, port, keys):
    return ["http:", f"  listen: {address}:{port}",
            *(f"  {key}: {value}" for key, value in (keys or {}).items())]


class Target(Daemon):
    """An enclosure."""

    def __init__(self, build, folder, name, drives, drive_size, volumes, advertise_host, extra,
                 faults=None, http_address="127.0.0.1", http=None):
        self.port = free_port()
        self.nqn = f"nqn.2026-01.io.icms:{name}"
        http_port = free_port()
        self.drives = [folder / f"{name}-drive{i}" for i in range(drives)]
        keys = {"listen": f"127.0.0.1:{self.port}", "advertise": f"{advertise_host}:{self.port}", **extra}
        config = [f"name: {name}", f"nqn: {self.nqn}", *http_lines(http_address, http_port, http)]
        config += [f"{key}: {value}" for key, value in keys.items()]
        config += ["drives:"]
        config += [f"  - path: {path}\n    size: {drive_size}\n    format_empty: true" for path in self.drives]
        config += ["volumes:"] if volumes else []  # without: those of the map that `pod` names
        config += [volume_lines(volume) for volume in volumes]
        super().__init__(build / "cmd/icms-target", name, folder, "\n".join(config) + "\n",
                         http_port, faults)


class Agent(Daemon):
    """What runs on a GPU server."""

    def __init__(self, build, folder, name, targets, volumes, extra, faults=None,
                 http_address="127.0.0.1", http=None):
        http_port = free_port()
        self.socket = folder / f"{name}.sock"
        config = [f"name: {name}", f"socket: {self.socket}",
                  *http_lines(http_address, http_port, http)]
        config += [f"{key}: {value}" for key, value in extra.items()]
        config += ["enclosures:"] if targets else []
        config += [f"  - name: {target.name}\n    nqn: {target.nqn}\n"
                   f"    address: 127.0.0.1:{target.port}" for target in targets]
        config += ["volumes:"] + [volume_lines(volume) for volume in volumes]
        super().__init__(build / "cmd/icms-agent", name, folder, "\n".join(config) + "\n",
                         http_port, faults)


class Pod:
    """All daemons of one pod; a context manager that kills them at its end."""

    def __init__(self, build, folder):
        self.build = pathlib.Path(build).resolve()
        self.folder = pathlib.Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.daemons = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for daemon in self.daemons:
            daemon.kill()

    def make_target(self, name, drives, drive_size, volumes, advertise_host="127.0.0.1", faults=None,
                    http_address="127.0.0.1", http=None, **extra):
        """An enclosure, not started; http and extra are further keys of its configuration."""
        target = Target(self.build, self.folder, name, drives, drive_size, volumes,
                        advertise_host, extra, faults, http_address, http)
        self.daemons.append(target)
        return target

    def add_target(self, *arguments, **keys):
        """make_target, and starts it."""
        target = self.make_target(*arguments, **keys)
        target.start()
        return target

    def make_agent(self, name, targets, volumes, faults=None, http_address="127.0.0.1", http=None,
                   **extra):
        """An agent that knows these enclosures, not started."""
        agent = Agent(self.build, self.folder, name, targets, volumes, extra, faults, http_address, http)
        self.daemons.append(agent)
        return agent

    def add_agent(self, *arguments, **keys):
        """make_agent, and starts it."""
        agent = self.make_agent(*arguments, **keys)
        agent.start()
        return agent
