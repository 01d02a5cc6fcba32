"""A Flink cluster on this machine, for trials and tests: python docker/flink/flink_cluster.py

One job manager and some task managers of one slot each are processes of the jar that is also
Beam's job server (pom.xml). Memory: 0.4 GB, and about 1 GB for each task manager with its worker.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from flink_jar import Missing, job_server_jar

HOST = "127.0.0.1"
START_S = 300  # a busy machine; an idle one takes 6 to 18
STOP_S = 5
PORTS = range(20_000, 32_000)  # below those that Linux gives to connections

# What Java 17 keeps from Flink 1.19 unless it is told.
OPENED = (
    *("java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect"),
    *("java.text", "java.time", "java.util", "java.util.concurrent"),
    *("java.util.concurrent.atomic", "java.util.concurrent.locks"),
)
JAVA = (
    # Minutes at most: the second compiler would take more time than it saves.
    *("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("--add-exports=java.base/sun.net.util=ALL-UNNAMED",),
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
)
JOB_MANAGER = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
TASK_MANAGER = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
JOB_MEMORY = ("-Xmx512m",)
TASK_MEMORY = ("-Xmx640m", "-XX:MaxDirectMemorySize=768m")
JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"


def configuration(
    folder: Path,
    rpc_port: int,
    rest_port: int,
    parallelism: int,
    *,
    job_manager: str = HOST,
    own: str = HOST,
    bind: str = HOST,
) -> dict[str, str]:
    """Flink's settings. All sizes of memory are needed, as no script of Flink's computes them.

    ``job_manager`` is its host, ``own`` the one under which others reach a task manager, ``bind``
    the address to listen at. Each task that a kill fails takes an attempt, so that a few kills
    take dozens.
    """
    return {
        "jobmanager.rpc.address": job_manager,
        "jobmanager.rpc.port": str(rpc_port),
        "jobmanager.bind-host": bind,
        "jobmanager.memory.heap.size": "512m",
        "rest.address": job_manager,
        "rest.bind-address": bind,
        "rest.port": str(rest_port),
        "taskmanager.host": own,
        "taskmanager.bind-host": bind,
        "taskmanager.numberOfTaskSlots": "1",
        "taskmanager.cpu.cores": "1.0",
        "taskmanager.memory.task.heap.size": "512m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.network.min": "512m",
        "taskmanager.memory.network.max": "512m",
        "taskmanager.memory.managed.size": "256m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "128m",
        "taskmanager.memory.jvm-overhead.max": "128m",
        "parallelism.default": str(parallelism),
        "io.tmp.dirs": str(folder / "tmp"),
        # Its own jar is the jobs': child-first, each job would load 163 MB of classes again.
        "classloader.resolve-order": "parent-first",
        # A dead process is known by its closed connections; only one that is alive and silent by
        # these, and a busy machine has silent ones. So has a start: ten seconds are Flink's own.
        "heartbeat.interval": "2000",
        "heartbeat.timeout": "120000",
        "pekko.ask.timeout": "120 s",
        "pekko.tcp.timeout": "60 s",
        "pekko.startup-timeout": "300 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "60",
        "restart-strategy.fixed-delay.delay": "2 s",
    }


def java_command(jar: Path, memory: Sequence[str], main: str, words: Sequence[str]) -> list[str]:
    """What runs a process of Flink from the jar: its ``main`` class, with arguments."""
    return [*JAVA, *memory, "-cp", str(jar), main, *words]


def write_configuration(folder: Path, settings: dict[str, str]) -> None:
    """Writes settings where ``--configDir`` looks for them, and makes the scratch folder."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    lines = [f"{key}: {value}\n" for key, value in settings.items()]
    (folder / "flink-conf.yaml").write_text("".join(lines))


class Cluster:
    """A running cluster, whose files lie in ``folder``; ``stop`` ends every process of it."""

    def __init__(self, jar: Path, folder: Path, *, port: int = 0) -> None:
        self.jar, self.folder = jar, folder
        rpc_port, self.port = free_ports(2)
        self.port = port or self.port
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._settings = configuration(folder, rpc_port, self.port, parallelism=2)

    @property
    def address(self) -> str:
        """The value for ``--flink_master``."""
        return f"{HOST}:{self.port}"

    @property
    def logs(self) -> Path:
        """Where each process says what it does."""
        return self.folder / "logs"

    def start(self, task_managers: int) -> None:
        """Starts all processes, and waits for them. Raises OSError if they do not come."""
        if _listens(self.port):  # another cluster would answer for this one
            raise OSError(f"{self.address} is taken; give another --port")
        self.logs.mkdir(parents=True)
        write_configuration(self.folder, self._settings)
        self._run("jobmanager", JOB_MEMORY, JOB_MANAGER, ["--configDir", str(self.folder)])
        for number in range(task_managers):
            self.start_task_manager(f"tm{number + 1}")
        self.await_task_managers(task_managers)

    def start_task_manager(self, name: str) -> None:
        """Starts one more; one that takes a dead one's place needs a name of its own."""
        words = ["--configDir", str(self.folder), "-D", f"taskmanager.resource-id={name}"]
        self._run(name, TASK_MEMORY, TASK_MANAGER, words)

    def start_job_server(self) -> str:
        """Starts a job server for many jobs; returns what ``--job_endpoint`` takes.

        Without it each job starts its own, which takes seconds.
        """
        port, artifacts, expansion = free_ports(3)
        words = [f"--flink-master={self.address}", f"--job-host={HOST}", f"--job-port={port}"]
        words += [f"--artifact-port={artifacts}", f"--expansion-port={expansion}"]
        words += [f"--artifacts-dir={self.folder / 'tmp'}"]
        self._run("jobserver", JOB_MEMORY, JOB_SERVER, words)
        self._await(lambda: _listens(port), "the job server")
        return f"{HOST}:{port}"

    def await_task_managers(self, number: int) -> None:
        """Waits until so many have registered. Raises OSError if they do not."""
        self._await(lambda: self._registered() == number, f"{number} task managers")

    def ask(self, path: str) -> Any:
        """What the job manager's REST interface answers."""
        with urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.load(answer)

    def kill(self, name: str) -> None:
        """Kills a process as a crash would."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Ends all processes: first asked, then killed."""
        for process in self.processes.values():
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()
            _signal(process, signal.SIGKILL)  # and what it has left: its Python workers
        self.processes.clear()

    def _registered(self) -> int:
        try:
            return int(self.ask("/overview")["taskmanagers"])
        except OSError:  # it does not listen yet
            return -1

    def _run(self, name: str, memory: Sequence[str], main: str, words: Sequence[str]) -> None:
        command = java_command(self.jar, memory, main, words)
        environment = {**os.environ, "TMPDIR": str(self.folder / "tmp")}
        with (self.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=environment
            )

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            dead = [name for name, p in self.processes.items() if p.poll() is not None]
            if dead:
                raise OSError(f"{what} did not come: {dead[0]} has ended: {self._last(dead[0])}")
            if time.monotonic() > deadline:
                raise OSError(f"{what} did not come: {START_S} s were not enough")
            time.sleep(0.2)

    def _last(self, name: str) -> str:
        """What a process said last of an error; its log goes with the cluster."""
        lines = (self.logs / f"{name}.log").read_text("utf-8", "replace").splitlines()
        errors = [line for line in lines if "Exception" in line or "Error" in line]
        return (errors or lines or ["it has said nothing"])[-1].strip()


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nobody listens at.

    They are none that the system gives to a connection that is opened: a busy machine takes a
    minute to start what will listen, and the port would be gone.
    """
    ports: list[int] = []
    while len(ports) < number:
        port = random.choice(PORTS)
        with socket.socket() as each:
            try:
                each.bind((HOST, port))
            except OSError:  # somebody listens there
                continue
        if port not in ports:
            ports.append(port)
    return ports


def _listens(port: int) -> bool:
    with socket.socket() as each:
        return each.connect_ex((HOST, port)) == 0


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Signals the process's whole session, which it leads."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


@contextmanager
def running(jar: Path, *, task_managers: int = 2, port: int = 0) -> Iterator[Cluster]:
    """Gives a cluster in a temporary folder; at the end of the block both are gone."""
    folder = Path(tempfile.mkdtemp(prefix="vlmill-flink-"))
    cluster = Cluster(jar, folder, port=port)
    try:
        cluster.start(task_managers)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def flags(cluster: Cluster, slots: int) -> str:
    """What a job takes to run here, with workers of this Python's environment."""
    worker = json.dumps({"command": str(Path(sys.executable).with_name("vlmill-flink-worker"))})
    return (
        f"--runner=FlinkRunner --flink_master={cluster.address} "
        f"--flink_job_server_jar={cluster.jar} "
        f"--parallelism={slots} --environment_type=PROCESS --environment_config='{worker}'"
    )


def main() -> int:
    """Runs a cluster until it is interrupted; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--task-managers",
        type=int,
        default=2,
        metavar="N",
        help="number of task managers (default: 2)",
    )
    parser.add_argument(
        "--port", type=int, default=8081, help="port of --flink_master (default: 8081)"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        jar = job_server_jar()
        with running(jar, task_managers=args.task_managers, port=args.port) as cluster:
            print(f"flags of a job: {flags(cluster, args.task_managers)}")
            print(
                f"pages: http://{cluster.address}; logs: {cluster.logs}; Ctrl-C ends it", flush=True
            )
            signal.pause()
    except (Missing, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
