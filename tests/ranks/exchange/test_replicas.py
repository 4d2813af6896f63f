"""Training over the replicas of a `tf.distribute.MirroredStrategy`, in a process of its own."""

import concurrent.futures
import multiprocessing

import numpy as np
import pytest
from ranks.exchange import replica_cases as cases
from ranks.exchange import replica_refusals
from support.cases.core_runner import on_gpu

pytestmark = pytest.mark.budget(100)


@pytest.fixture(scope="module", params=["CPU", pytest.param("GPU", marks=on_gpu)])
def devices(request):
    """Runs functions of `replica_cases`, in a process of their own."""
    spawn = multiprocessing.get_context("spawn")
    kind = (request.param,)
    with concurrent.futures.ProcessPoolExecutor(1, spawn, cases.start_devices, kind) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(timeout=300)


def assert_equal(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_replicas_conform(devices):
    ranks = devices(cases.conform, 3)

    assert ranks == [("ReplicaExchange", rank, 3) for rank in range(3)]


@pytest.mark.parametrize("in_function", [False, True])
def test_slices_reach_their_replica_and_gradients_come_back(devices, in_function):
    # Given three replicas, which send 1, 2 and 3 numbers to the first, second and third

    received, splits, gradients = devices(cases.sent_around, 3, in_function)

    assert received == [
        [0, 10, 20],
        [1, 2, 11, 12, 21, 22],
        [3, 4, 5, 13, 14, 15, 23, 24, 25],
    ]
    assert splits == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]
    assert gradients == [[1, 2, 2, 3, 3, 3]] * 3


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["rows", "keys"])
@pytest.mark.parametrize("num_replicas, rule", [(2, "sgd"), (3, "adagrad"), (4, "adam")])
def test_replicas_train_as_one_process(devices, num_replicas, rule, kind):
    expected = devices(cases.values_after_training, 0, rule, kind, 30)

    trained = devices(cases.values_after_training, num_replicas, rule, kind, 30)

    assert_equal(trained, expected)


@pytest.mark.parametrize("kind", ["rows", "keys"])
def test_a_single_replica_trains_as_one_process(devices, kind):
    expected = devices(cases.values_after_training, 0, "adagrad", kind, 5)

    trained = devices(cases.values_after_training, 1, "adagrad", kind, 5)

    assert_equal(trained, expected)


@pytest.mark.parametrize("kind", ["rows", "keys"])
def test_ids_that_were_routed_before_find_the_same(devices, kind):
    found, found_of_routed = devices(cases.look_up_routed, 2, kind)

    for one, other in zip(found_of_routed, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sum(np.count_nonzero(values) for values in found) > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["rows", "keys"])
@pytest.mark.parametrize("saved_by, restored_by", [(3, 0), (3, 2), (0, 3)])
def test_any_number_of_replicas_restores(devices, tmp_path, saved_by, restored_by, kind):
    prefix = str(tmp_path / "model")
    expected = devices(cases.train_and_save, saved_by, kind, prefix)

    trained = devices(cases.restore_and_train, restored_by, kind, prefix)

    assert_equal(trained, expected)


def test_a_key_starts_alike_whoever_owns_it(devices):
    # Given keys that start as rows of a matrix drawn at random, four as each

    values = devices(cases.first_values, 3, 7)

    np.testing.assert_array_equal(values, np.tile(values[:7], [4, 1]))
    assert len(np.unique(values[:7])) == values[:7].size


@pytest.mark.slow
def test_the_loop_that_sok_documents(devices):
    expected = devices(cases.documented_loop, 1)

    losses = devices(cases.documented_loop, 3)

    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert losses[-1] < losses[0] / 2


def test_all_replicas_skip_a_step_whose_gradients_overflow_on_one(devices):
    (before, after, later), factor = devices(cases.overflow, 3)

    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(later, before - 0.5)
    assert factor == 0.5


def test_gradients_and_updates_are_one_op(devices):
    updates = devices(cases.updates_of_step, 2)

    assert updates == ["GroupEmbedding>GroupUpdate"] * 2 * len(cases.COMBINERS)


@pytest.mark.parametrize(
    "case, kind, message",
    [
        ("stock", "TypeError", "expected an optimizer that keeps the gradients of replicas apart"),
        ("clipnorm", "ValueError", "expected no global_clipnorm"),
        ("v1", "TypeError", "expected an optimizer of tf.keras.optimizers"),
        ("made_in_run", "ValueError", "to be made in the scope"),
        ("made_outside", "ValueError", "to be made in the scope"),
        ("localized", "ValueError", "to be 'distributed', got 'localized:1'"),
        ("dynamic", "ValueError", "call group_embedding.sok.Init() in its scope"),
        ("looked_up_outside", "RuntimeError", "expected to be called in strategy.run"),
        ("keys_looked_up_outside", "RuntimeError", "expected to be looked up in strategy.run"),
        ("counted_outside", "AttributeError", "expected insert or export outside"),
        ("exported", "ValueError", "expected no SavedModel"),
        ("one_device", "ValueError", "expected a tf.distribute.MirroredStrategy"),
    ],
)
def test_what_replicas_cannot_do_is_refused(devices, case, kind, message):
    found_kind, found = devices(replica_refusals.message_of, case)

    assert found_kind == kind, found
    assert message in found
