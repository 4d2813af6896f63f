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


def assert_close(found, expected):
    for values, of_one in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, of_one, rtol=1e-5, atol=1e-6)
