"""A Ray cluster of several nodes on this machine: 127.0.0.2, 127.0.0.3, and so on. It ends with its ``with`` block."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
# A token of its own, so that no file in the home folder is needed.
SETTINGS = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16), "RAY_USAGE_STATS_ENABLED": "0"}


class LoopbackCluster:
    """Nodes with one CPU each. The first is the head, on which drivers run."""

    def __init__(self, nodes: int = 2, network: str = "127.0.0") -> None:
        self.nodes: list[subprocess.Popen[bytes]] = []
        # Tasks may be defined in a module beside this one.
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {**os.environ, **SETTINGS, "PYTHONPATH": path}
        self._count, self._network = nodes, network
        self._files = contextlib.ExitStack()

    def __enter__(self) -> LoopbackCluster:
        # Ray's sockets need a short path.
        folder = self._files.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
        self._log = Path(folder) / "nodes.log"
        with socket.socket() as probe:
            probe.bind((f"{self._network}.2", 0))
            self.address = f"{self._network}.2:{probe.getsockname()[1]}"
        try:
            port = self.address.split(":")[1]
            self._start("--head", "--port", port, "--include-dashboard", "false", "--temp-dir", folder)
            for _ in range(self._count - 1):
                self.add()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for node in range(len(self.nodes)):
            self.kill(node)
        self._files.close()

    def add(self) -> None:
        """Starts another node."""
        self._start("--address", self.address)

    def kill(self, node: int) -> None:
        """Kills all processes of a node with SIGKILL."""
        for process in self.processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.nodes[node].wait()

    def processes(self, node: int) -> list[int]:
        """All processes of a node. It is a session of its own."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(ValueError, OSError):  # no process, or none any more
                if os.getsid(int(entry.name)) == self.nodes[node].pid:
                    found.append(int(entry.name))
        return found

    def _start(self, *options: str) -> None:
        command = [
            *RAY,
            "start",
            *options,
            "--node-ip-address",
            f"{self._network}.{2 + len(self.nodes)}",
            "--num-cpus",
            "1",
        ]
        command += ["--object-store-memory", str(100 << 20), "--disable-usage-stats", "--block"]
        with self._log.open("ab") as log:
            started = self._log.stat().st_size
            node = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        self.nodes.append(node)
        while b"Ray runtime started" not in self._log.read_bytes()[started:]:
            if node.poll() is not None:
                raise RuntimeError(f"a Ray node did not start:\n{self._log.read_text()}")
            time.sleep(0.05)
