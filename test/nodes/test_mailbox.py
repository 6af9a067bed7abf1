"""Which cloud the worker gets: the newest (live), or every one in order (replay)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from driveRT_ros.nodes import mailbox as module
from driveRT_ros.nodes.mailbox import Batch, Mailbox


def names(batch: Batch) -> tuple[list[str], str]:
    return [work.item for work in batch.passed_over], batch.work.item


def test_newest_wins_and_the_ones_passed_over_still_enter_the_history() -> None:
    mailbox = Mailbox(keep_all=False, history=9)
    assert [mailbox.put(name, 0.0) for name in "abc"] == [[], [], []]
    assert names(mailbox.take()) == (["a", "b"], "c")


def test_no_more_clouds_are_held_than_the_history_can_use() -> None:
    mailbox = Mailbox(keep_all=False, history=2)
    gone = [work.item for name in "abcdef" for work in mailbox.put(name, 0.0)]
    assert gone == ["a", "b", "c"]
    assert names(mailbox.take()) == (["d", "e"], "f")


def test_without_history_there_is_one_slot() -> None:
    mailbox = Mailbox(keep_all=False, history=0)
    assert [[w.item for w in mailbox.put(name, 0.0)] for name in "ab"] == [[], ["a"]]
    assert names(mailbox.take()) == ([], "b")


def test_back_pressure_loses_nothing_and_keeps_the_order() -> None:
    mailbox = Mailbox(keep_all=True, history=0)
    sent = [str(i) for i in range(500)]
    assert [mailbox.put(name, 0.0) for name in sent] == [[]] * 500
    assert [names(mailbox.take()) for _ in sent] == [([], name) for name in sent]


def test_after_a_jump_of_time_the_next_cloud_starts_a_new_history() -> None:
    live = Mailbox(keep_all=False, history=9)
    live.put("old", 0.0)
    assert [work.item for work in live.time_jumped()] == ["old"]
    live.put("new", 0.0)
    batch = live.take()
    assert names(batch) == ([], "new")
    assert batch.work.after_jump
    replay = Mailbox(keep_all=True, history=9)
    replay.put("old", 0.0)
    assert replay.time_jumped() == []
    replay.put("new", 0.0)
    assert [replay.take().work.after_jump for _ in range(2)] == [False, True]


def test_the_mark_of_a_jump_survives_the_loss_of_the_cloud_that_carried_it() -> None:
    mailbox = Mailbox(keep_all=False, history=1)
    mailbox.time_jumped()
    for name in "abc":
        mailbox.put(name, 0.0)
    batch = mailbox.take()
    assert names(batch) == (["b"], "c")
    assert [batch.passed_over[0].after_jump, batch.work.after_jump] == [True, False]


def test_closing_sends_a_waiting_worker_home() -> None:
    mailbox = Mailbox(keep_all=False, history=0)
    taken: list[Batch | None] = []
    worker = threading.Thread(target=lambda: taken.append(mailbox.take()))
    worker.start()
    mailbox.close()
    worker.join(90.0)
    assert taken == [None]


def test_what_waits_at_the_end_is_handed_back_to_be_counted() -> None:
    mailbox = Mailbox(keep_all=False, history=3)
    for name in "abc":
        mailbox.put(name, 0.0)
    mailbox.claim()
    assert [work.item for work in mailbox.close()] == ["a", "b", "c"]
    assert mailbox.close() == [] and mailbox.take() is None


def test_idle_means_nothing_waits_and_nothing_is_in_work() -> None:
    mailbox = Mailbox(keep_all=True, history=0)
    assert mailbox.wait_idle(0.0)
    mailbox.put("a", 0.0)
    mailbox.take()
    assert not mailbox.wait_idle(0.01)
    worker = threading.Thread(target=mailbox.take)  # it comes back for more: "a" is done
    worker.start()
    assert mailbox.wait_idle(90.0)
    mailbox.close()
    worker.join(90.0)


def test_a_claimed_cloud_stays_the_first_whatever_comes_after_it() -> None:
    mailbox = Mailbox(keep_all=False, history=1)
    assert mailbox.claim() is None
    mailbox.put("a", 0.0)
    assert (mailbox.claim(), mailbox.claim()) == ("a", "a")
    assert not mailbox.wait_idle(0.0)
    gone = [work.item for name in "bcd" for work in mailbox.put(name, 0.0)]
    assert gone == ["b"]
    assert names(mailbox.take()) == (["a", "c"], "d")
    replay = Mailbox(keep_all=True, history=1)
    for name in "abc":
        replay.put(name, 0.0)
    assert replay.claim() == "a"
    assert [names(replay.take()) for _ in "abc"] == [([], name) for name in "abc"]


def test_a_claimed_cloud_goes_with_the_others_when_time_goes_back() -> None:
    mailbox = Mailbox(keep_all=False, history=9)
    for name in "ab":
        mailbox.put(name, 0.0)
    mailbox.claim()
    assert [work.item for work in mailbox.time_jumped()] == ["a", "b"]
    mailbox.put("c", 0.0)
    assert mailbox.claim() is None, "its history ends before it, so nothing can be sent ahead"
    batch = mailbox.take()
    assert names(batch) == ([], "c") and batch.work.after_jump


def lend(mailbox: Mailbox, work: Callable[[], None]) -> None:
    """Put a frame for a worker that waits for one."""
    worker = threading.Thread(target=work)
    worker.start()
    while not mailbox._waits:
        time.sleep(0.001)
    assert mailbox.put("a", 0.0) == []


@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize("look", ["claim", "take", "close"])
def test_the_sender_holds_still_until_a_woken_worker_looks_for_what_comes_next(
    look: str, keep_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEND_S", 60.0)
    mailbox, done = Mailbox(keep_all=keep_all, history=0), []

    def work() -> None:
        done.append(names(mailbox.take()))
        time.sleep(0.05)  # a sender that does not hold still would be back by now
        done.append("at the device")
        getattr(mailbox, look)()

    lend(mailbox, work)
    assert done == [([], "a"), "at the device"]
    mailbox.close()


def test_the_sender_waits_for_nobody_who_has_something_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LEND_S", 60.0)
    mailbox, go_on = Mailbox(keep_all=False, history=0), threading.Event()

    def work() -> None:
        mailbox.take()
        mailbox.claim()
        assert go_on.wait(60.0)

    lend(mailbox, work)
    assert mailbox.put("b", 0.0) == []  # not held: the worker, at work on "a", is not woken
    assert [gone.item for gone in mailbox.put("c", 0.0)] == ["b"]
    go_on.set()


def test_a_worker_that_has_no_device_gets_a_moment_and_no_more() -> None:
    mailbox, go_on = Mailbox(keep_all=False, history=0), threading.Event()

    def work() -> None:
        mailbox.take()
        assert go_on.wait(60.0)

    lend(mailbox, work)  # comes back though the frame is in work
    assert not mailbox.wait_idle(0.0)
    go_on.set()


def test_a_worker_that_is_slow_to_wake_up_finds_no_more_than_the_history_can_use() -> None:
    mailbox = Mailbox(keep_all=False, history=0)
    mailbox._waits = True  # as it is until the thread in take() runs again
    assert [[work.item for work in mailbox.put(name, 0.0)] for name in "abc"] == [[], ["a"], ["b"]]
    assert names(mailbox.take()) == ([], "c")
