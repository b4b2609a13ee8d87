"""Tasks on a real Slurm cluster of two nodes on this machine: preemption, dead nodes, killed processes, a partition."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from classwise.sweeps.executors import slurm
from classwise.sweeps.executors.base import Finished
from classwise.sweeps.tasks import attempts
from tests.cluster import slurm_cluster
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
from tests.cluster.slurm_cluster import SlurmCluster
from tests.launching import write_programs

pytest.importorskip("submitit", reason='submitit is not installed: pip install "classwise[slurm]"')

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing()),
    pytest.mark.filterwarnings("default"),  # submitit's own warnings
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
        patch.setattr(slurm, "POLL_SECONDS", 0.3)
        with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as cluster:
            yield cluster


def while_running(folders: list[Path], disturb: Callable[[], None]) -> list[Finished]:
    """Run tasks, and disturb them in the meantime."""
    with ThreadPoolExecutor(1) as thread:
        disturbed = thread.submit(disturb)
        ended = sorted(slurm.Slurm(settings={"timeout_min": "60"}).run(folders))
        disturbed.result()
    return ended


def test_preempted_jobs_and_those_of_a_dead_node_are_requeued(
    cluster: SlurmCluster, reference: Path, tmp_path: Path
) -> None:
    folders = [cell(tmp_path / str(number)) for number in range(4)]
    disturbed: list[Path] = []

    def next_process() -> int:
        folder = wait_for_one([folder for folder in folders if folder not in disturbed], in_training)
        disturbed.append(folder)
        return process_of(folder)

    def preempt(process: int) -> None:
        """Signal a job until its attempt has ended: scancel may need more than its second on a busy machine."""
        folder, job = disturbed[-1], cluster.job_of(process)
        for _ in range(10):
            # scancel repeats the signal for as long as Slurm requeues the job, so it gets a second
            cluster.ask("timeout", "1", "scancel", "--signal=USR2", job)
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: len(attempts(folder)) > 1, 30)
                return

    def disturb() -> None:
        preempt(next_process())
        cluster.ask("scontrol", "requeue", cluster.job_of(next_process()))
        node = cluster.node_of(next_process())
        cluster.kill_node(node)
        wait_until(lambda: cluster.state(node).startswith("down"))
        cluster.start_node(node)

    assert while_running(folders, disturb) == [(folder, 0) for folder in folders], "\n".join(map(log_of, folders))
    preempted, requeued, dead = disturbed
    for folder in folders:
        assert starts(folder) >= (2 if folder in disturbed else 1)
        assert_same_bits(folder, reference)
    for folder in (preempted, requeued):
        assert attempts(folder)[1]["status"] == 143
        assert "SIGTERM" in log_of(folder)
    assert attempts(dead)[1]["event"] == "start"  # the first attempt has no end


def test_a_killed_process_fails_and_a_new_job_continues(cluster: SlurmCluster, reference: Path, tmp_path: Path) -> None:
    folder = cell(tmp_path / "cell", audited=False)

    def kill() -> None:
        wait_until(lambda: in_training(folder))
        os.kill(process_of(folder), signal.SIGKILL)

    assert while_running([folder], kill) == [(folder, -signal.SIGKILL)]
    assert starts(folder) == 1
    assert while_running([folder], lambda: None) == [(folder, 0)], log_of(folder)
    assert_same_bits(folder, reference)


def test_stopped_jobs_have_recorded_their_ends(cluster: SlurmCluster, tmp_path: Path) -> None:
    ended, endless, pending = (tmp_path / name for name in ("ended", "endless", "pending"))
    write_programs(ended, "pass")
    for folder in (endless, pending):
        write_programs(folder, "import time; time.sleep(600)")
    running = slurm.Slurm(workers=1).run([ended, endless, pending])
    assert next(running) == (ended, 0), log_of(ended)
    wait_until(lambda: bool(starts(endless)))
    running.close()  # type: ignore[attr-defined]
    assert attempts(endless)[-1]["status"] == -signal.SIGTERM
    assert attempts(pending) == []


def test_a_job_that_outlives_its_node_is_fenced(cluster: SlurmCluster, reference: Path, tmp_path: Path) -> None:
    folder = cell(tmp_path / "cell", audited=False)
    orphans: list[int] = []

    def cut_off() -> None:
        wait_until(lambda: in_training(folder))
        node = cluster.node_of(process_of(folder))
        orphans.extend(cluster.processes(node))
        for process in orphans:
            os.kill(process, signal.SIGSTOP)
        cluster.kill_daemon(node)

    assert while_running([folder], cut_off) == [(folder, 0)], log_of(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "log.txt"}
    assert "taken over from process" in log_of(folder)
    for process in orphans:
        os.kill(process, signal.SIGCONT)
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in orphans))
    assert "is now owned by another process; this process has written nothing since" in log_of(folder)
    after = {path: path.read_bytes() for path in before}
    assert after == before
    assert_same_bits(folder, reference)


def test_closing_cancels_the_jobs(cluster: SlurmCluster, tmp_path: Path) -> None:
    folders = [tmp_path / "short", tmp_path / "endless"]
    for folder, program in zip(folders, ("exit(3)", "import time; time.sleep(600)"), strict=True):
        write_programs(folder, program)
    ended = slurm.Slurm().run(folders)
    assert next(ended) == (folders[0], 3)
    wait_until(lambda: starts(folders[1]))
    ended.close()  # type: ignore[attr-defined]
    wait_until(lambda: len(attempts(folders[1])) == 2)
    assert attempts(folders[1])[-1]["status"] in (-signal.SIGTERM, 143)
