"""Tasks on a real Ray cluster of three nodes on this machine: workers and nodes die, and every cell finishes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from classwise.sweeps.executors import ray as executor
from classwise.sweeps.executors.ray import Ray
from classwise.sweeps.tasks import attempts
from tests.cluster.cells import (
    assert_same_bits,
    cell,
    in_training,
    log_of,
    process_of,
    starts,
    wait_for_one,
    wait_until,
)
from tests.launching import write_programs
from tests.refusals import check_refused

ray = pytest.importorskip("ray", reason='Ray is not installed: pip install ".[ray]", or make test-cluster')
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray's own warnings


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes of one CPU each."""
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


def disturb(cluster: Any, folders: list[Path]) -> tuple[Path, Path]:
    """Kill a worker, and then a node without grace, each while it trains; returns the folders of their tasks."""
    first = wait_for_one(folders, in_training)
    os.kill(process_of(first), signal.SIGKILL)
    second = wait_for_one([folder for folder in folders if folder != first], in_training)
    cluster.remove_node(node_of(cluster, process_of(second)), allow_graceful=False)
    return first, second


def node_of(cluster: Any, process: int) -> Any:
    """The node whose raylet has started a worker."""
    parent = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    raylets = {raylet.process.pid: node for node in cluster.worker_nodes for raylet in node.all_processes["raylet"]}
    return raylets[parent]


def test_killed_workers_and_nodes_lose_nothing(cluster: Any, reference: Path, tmp_path: Path) -> None:
    folders = [cell(tmp_path / str(number)) for number in range(4)]
    with ThreadPoolExecutor(1) as thread:
        disturbed = thread.submit(disturb, cluster, folders)
        ended = list(Ray(address=cluster.address).run(folders))
        killed = disturbed.result()
    assert sorted(ended) == [(folder, 0) for folder in folders], "\n".join(map(log_of, folders))
    assert not ray.is_initialized()
    assert len(set(killed)) == 2
    for folder in folders:
        assert starts(folder) >= (2 if folder in killed else 1)
        assert_same_bits(folder, reference)
    for folder in killed:
        assert attempts(folder)[1]["event"] == "start"  # the first attempt has no end


def test_a_cluster_that_cannot_run_tasks_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    check_refused("cannot connect to Ray at nowhere: ", Ray(address="nowhere").check)
    with socket.socket() as closed:  # bound, and accepts no connection
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        check_refused(f"cannot connect to Ray at {address}: ConnectionRefusedError", Ray(address=address).check)
    check_refused("2 GPUs of each task: Ray has found 0 on this machine", Ray(gpus=2).check)
    assert not ray.is_initialized()
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        Ray(gpus=2, address="auto").check()  # the cluster may add a node
    finally:
        ray.shutdown()
    assert "no node of the cluster has 2 GPUs" in caplog.text


STOPPED = """
import signal, sys, threading, time
from pathlib import Path
from classwise.core.progress.interruption import Terminated, signals
from classwise.sweeps.executors.ray import Ray
from classwise.sweeps.tasks import attempts
def stop():
    while not attempts(folder):
        time.sleep(0.1)
    time.sleep(1)
    signal.raise_signal(signal.SIGTERM)
folder = Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.SIG_IGN)
with signals():
    threading.Thread(target=stop, daemon=True).start()
    try:
        list(Ray().run([folder]))
    except Terminated:
        sys.exit(7)
"""
"""A program that stops its task by SIGTERM; SIGINT is ignored, as of a program that a script starts with ``&``."""


def test_sigterm_stops_the_task(tmp_path: Path) -> None:
    folder = tmp_path / "endless"
    write_programs(folder, "import time; time.sleep(600)")
    done = subprocess.run([sys.executable, "-c", STOPPED, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert attempts(folder)[-1]["status"] == 143


@pytest.mark.parametrize(
    ("answer", "said"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program answers"), (b"", "TimeoutError")]
)
def test_a_port_of_another_program_is_refused(answer: bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would try to connect to it for more than ten minutes."""
    monkeypatch.setattr(executor, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        checked = thread.submit(Ray(address=address).check)
        connection, _ = server.accept()
        with connection:
            connection.sendall(answer)
            check_refused(f"cannot connect to Ray at {address}: {said}", checked.result, 30)


def test_an_existing_connection_is_used_and_left_open(tmp_path: Path) -> None:
    check_refused("cannot connect to Ray at nowhere: ", next, Ray(address="nowhere").run([tmp_path]))
    folder = tmp_path / "task"
    shown = "import os; print(os.environ['OMP_NUM_THREADS'])"
    write_programs(folder, shown, "exit(3)")
    (tmp_path / "missing").mkdir()
    endless = tmp_path / "endless"
    write_programs(endless, "import time; time.sleep(600)")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        running = Ray(workers=2).run([folder, endless, tmp_path / "missing"])
        assert {next(running), next(running)} == {(folder, 3), (tmp_path / "missing", 2)}
        assert log_of(folder) == "2\n"
        wait_until(lambda: starts(endless))
        running.close()  # type: ignore[attr-defined]
        assert attempts(endless)[-1]["status"] == 143
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert "cannot read" in log_of(tmp_path / "missing")
