"""Tables that a `tf.distribute.MirroredStrategy` mirrors, in a process of several devices."""

import concurrent.futures
import multiprocessing

import numpy as np
import pytest
from layers import mirrored_cases
from ranks.exchange import replica_cases
from support.cases.core_runner import on_gpu


@pytest.fixture(scope="module", params=["CPU", pytest.param("GPU", marks=on_gpu)])
def devices(request):
    """Runs functions of `mirrored_cases`, in a process of their own."""
    spawn = multiprocessing.get_context("spawn")
    kind = (request.param,)
    with concurrent.futures.ProcessPoolExecutor(
        1, spawn, replica_cases.start_devices, kind
    ) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(timeout=300)


def test_two_replicas_read_write_and_train_in_the_order_of_one_process(devices):
    # Given a step that reads, writes, looks up and trains plain tables, one of them frozen
    expected, expected_tables = devices(mirrored_cases.results, 0)

    # When two replicas take it on halves of each batch
    found, tables = devices(mirrored_cases.results, 2)

    # Then each replica reads what one process does, and finds vectors for its half
    for (before, after, vectors), of_replicas in zip(expected, found, strict=True):
        for of_replica in zip(*of_replicas, strict=True):
            assert_close(of_replica[:2], [*before, *after])
        assert_close([np.concatenate(of_replicas[2])], vectors)

    # And the copies of a table are equal
    for one, copies in zip(expected_tables, tables, strict=True):
        assert_close(copies, one * 2)


def test_copies_of_small_slots_are_rounded_alike(devices):
    # Given two tables in two replicas, of which one has slots of 16 bits, when they are trained
    tables, slots = devices(mirrored_cases.trained_with_small_slots, ["bfloat16", "float32"])
    wide, wide_slots = devices(mirrored_cases.trained_with_small_slots, ["float32", "float32"])

    # Then slots have their types, and copies the same bits
    types = [name for name, _ in slots]
    assert types[0] == "bfloat16" and sorted(types) == ["bfloat16"] * 2 + ["float32"] * 2
    for one, other in [*tables, *(copies for _, copies in slots)]:
        np.testing.assert_array_equal(one, other)

    # And tables are near those with wide slots, the other one equal
    np.testing.assert_allclose(tables[0], wide[0], atol=0.05)
    assert not np.array_equal(slots[0][1], wide_slots[0][1])
    np.testing.assert_array_equal(tables[1], wide[1])


def assert_close(found, expected):
    for values, of_one in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, of_one, rtol=1e-5, atol=1e-6)
