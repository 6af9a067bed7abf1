"""Shared memory of the dead is removed, that of the living stays."""

from __future__ import annotations

import fcntl
from pathlib import Path

from driveRT_ros.nodes.shared_memory import remove_dead

PORT = ("fastdds_port17411", "fastdds_port17411_el", "sem.fastdds_port17411_mutex")
SEGMENT = ("fastdds_01d2e278ed60ed95", "fastdds_01d2e278ed60ed95_el")
OTHER = ("sem.of_somebody", "lttng-ust-wait-6")


def made(folder: Path, *names: str) -> set[str]:
    for name in names:
        (folder / name).write_text("")
    return set(names)


def left(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_ports_and_segments_of_the_dead_go_and_nothing_else(tmp_path):
    made(tmp_path, *PORT, *SEGMENT)
    others = made(tmp_path, *OTHER)
    assert remove_dead(tmp_path, 0.0) == 2
    assert left(tmp_path) == others


def test_what_a_living_process_locks_stays(tmp_path):
    living = made(tmp_path, *PORT)
    made(tmp_path, *SEGMENT)
    with (tmp_path / PORT[1]).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remove_dead(tmp_path, 0.0) == 1
        assert left(tmp_path) == living
    assert remove_dead(tmp_path, 0.0) == 1


def test_a_port_that_many_read_is_held_by_its_second_lock(tmp_path):
    shared = made(tmp_path, *PORT, "fastdds_port17411_sl")
    with (tmp_path / "fastdds_port17411_sl").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert remove_dead(tmp_path, 0.0) == 0
    assert left(tmp_path) == shared


def test_a_semaphore_without_port_goes(tmp_path):
    made(tmp_path, PORT[2])
    assert remove_dead(tmp_path, 0.0) == 1
    assert left(tmp_path) == set()


def test_files_that_may_be_in_the_making_stay(tmp_path):
    young = made(tmp_path, *PORT)
    assert remove_dead(tmp_path) == 0
    assert left(tmp_path) == young
