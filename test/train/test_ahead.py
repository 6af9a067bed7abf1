"""A batch prepared while another is learned from is learned from like any other."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
import torch

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.train.ahead import ahead
from driveRT_ros.train.augment import draw_motion
from driveRT_ros.train.data import collate
from driveRT_ros.train.loop import Trainer
from driveRT_ros.train.state import newest_state, read_state
from test.support.training import small_config, small_sample

CPU = torch.device("cpu")


def test_the_next_batch_is_prepared_while_this_one_is_held():
    here, done = threading.get_ident(), {n: threading.Event() for n in range(4)}
    threads, taken = [], []

    def batches():
        for number in itertools.count():
            taken.append(number)
            yield number

    def prepare(number):
        threads.append(threading.get_ident())
        done[number].set()
        return number * 10

    ready = ahead(batches(), prepare, CPU, 4)
    for number in range(4):
        assert next(ready) == number * 10
        if number < 3:
            assert done[number + 1].wait(90), "the next one needs nothing from the caller"
    with pytest.raises(StopIteration):
        next(ready)
    assert taken == [0, 1, 2, 3], "no batch is taken that nobody learns from"
    assert len(set(threads)) == 1 and here not in threads


def test_batches_that_run_out_end_it_and_none_at_all_is_no_error():
    assert list(ahead(iter([1, 2]), str, CPU, 5)) == ["1", "2"]
    assert list(ahead(iter([]), str, CPU, 5)) == []


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_asked_for():
    def prepare(number):
        if number == 1:
            raise InvalidFrame("no.", "xyz", "1", "2")
        return number

    ready = ahead(itertools.count(), prepare, CPU, 9)
    assert next(ready) == 0
    with pytest.raises(InvalidFrame):
        next(ready)


def trained(config, folder, device, *, early, by_table):
    """Return the bytes of everything after some steps."""
    trainer = Trainer(config, folder, device)
    trainer.ahead, trainer.module.by_table = early, by_table
    rng = np.random.default_rng(0)
    batches = [
        collate([(small_sample(s, ground=g), draw_motion(config.augment, rng)) for s in seeds])
        for g, *seeds in ((300, 1, 2), (900, 3, 4), (500, 5, 6), (700, 1, 4))
    ]
    assert trainer.run(itertools.cycle(batches))
    return {k: v.numpy().tobytes() for k, v in read_state(newest_state(folder))[1].items()}


@pytest.mark.parametrize("by_table", [False, True], ids=["taps", "table"])
def test_a_run_that_prepares_ahead_learns_the_same_bits(tmp_path, by_table):
    config = small_config(optimizer={"steps": 3, "average": 0.9})
    plain, early = (
        trained(config, tmp_path / str(e), CPU, early=e, by_table=by_table) for e in (False, True)
    )
    assert plain == early


@pytest.mark.gpu
def test_a_run_that_prepares_ahead_on_a_gpu_learns_the_same_bits(tmp_path):
    """Memory of one stream that is used again while another still reads it changes the weights."""
    config = small_config(optimizer={"steps": 40, "average": 0.9})
    cuda = torch.device("cuda", 0)
    plain, early, again = (
        trained(config, tmp_path / name, cuda, early=name != "plain", by_table=True)
        for name in ("plain", "early", "again")
    )
    assert plain == early == again
