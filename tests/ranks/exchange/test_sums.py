"""Tables whose owners send sums of rows, beside one that sends rows, against one process."""

import numpy as np
import pytest
from ranks.exchange import sums_cases as cases

UNIT = 2.0**-24  # the largest relative error of rounding to float32


@pytest.fixture(scope="module")
def one_process():
    return cases.run_all()


@pytest.fixture(scope="module")
def ranks(several_ranks):
    return several_ranks.run(cases.run_on_rank)


def joined(ranks, *names):
    """The outputs of all ranks, feature by feature."""
    found = ranks
    for name in names:
        found = [of_rank[name] for of_rank in found]
    return [np.concatenate(parts) for parts in zip(*found)]


@pytest.mark.parametrize("way", ["eager", "function", "routed", "ahead", "session"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_outputs_are_within_rounding_of_exact_sums(ranks, weighted, way):
    # Given the sums of each sample in float64
    batch = cases.whole_batch(weighted)
    outputs = joined(ranks, "outputs", way, weighted)
    for feature, ids, weights, output in zip(cases.FEATURES, *batch, outputs):
        exact, sizes = cases.exact_sums(feature, ids, weights)

        # When ranks have looked the batch up, each its part of it
        errors = np.abs(output.astype(np.float64) - exact)

        # Then each number is within the bound that the guide states
        counts = np.array([len(of_sample) for of_sample in ids])[:, None]
        assert (errors <= (2 * counts + len(ranks) + 4) * UNIT * sizes).all(), feature


def assert_same_rows(found, expected):
    for name, rows in expected["rows"].items():
        np.testing.assert_allclose(found["rows"][name], rows, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("optimizer", list(cases.WEIGHTED))
def test_tables_train_as_in_one_process(ranks, one_process, optimizer):
    for of_rank in ranks:
        assert_same_rows(of_rank["trained"][optimizer], one_process["trained"][optimizer])


@pytest.mark.parametrize("optimizer", list(cases.WEIGHTED))
def test_tables_train_in_a_compiled_step_as_in_one_process(ranks, one_process, optimizer):
    for of_rank in ranks:
        assert_same_rows(of_rank["compiled"][optimizer], one_process["trained"][optimizer])


def test_tables_train_where_sums_go_as_one_tensor(ranks, one_process):
    for of_rank in ranks:
        assert_same_rows(of_rank["packed"], one_process["trained"]["adam"])


@pytest.mark.parametrize("optimizer", list(cases.WEIGHTED))
def test_keys_train_and_are_counted_as_in_one_process(ranks, one_process, optimizer):
    # Given the keys of one process, some of which only come with weights that leave them out
    expected = one_process["trained"][optimizer]["keys"]

    # When each rank exports its own
    found = [of_rank["trained"][optimizer]["keys"] for of_rank in ranks]

    # Then each key is on one rank, with its rows, its step and its count
    together = {key: content for of_rank in found for key, content in of_rank.items()}
    assert sum(map(len, found)) == len(together)
    assert together.keys() == expected.keys()
    for key, (row, *counts) in expected.items():
        assert together[key][1:] == tuple(counts), key
        np.testing.assert_allclose(together[key][0], row, rtol=2e-5, atol=2e-6)


def test_rows_are_scaled_to_max_norm_by_their_owners(ranks, one_process):
    for name in ("output", "gradient"):
        expected = one_process["max_norm"][name]
        for of_rank in ranks:
            np.testing.assert_allclose(of_rank["max_norm"][name], expected, rtol=1e-5, atol=1e-6)


def test_ids_outside_a_table_read_zeros_or_are_an_error_on_each_rank(ranks):
    for rank, of_rank in enumerate(ranks):
        # The mean of row `rank` and of a row of zeros
        expected = cases.whole_tables()["user"][rank] / 2
        np.testing.assert_allclose(of_rank["ignored"][0], expected, rtol=1e-6)
        assert "rank 1: " in of_rank["error"]
        assert "feature 'clicks': id 99 of sample 0 is outside the table" in of_rank["error"]


def test_a_dense_lookup_reads_rows(ranks):
    for rank, of_rank in enumerate(ranks):
        expected = cases.whole_tables()["user"][[[3, rank], [3, 3]]]
        np.testing.assert_array_equal(of_rank["dense"], expected)


def test_half_rows_are_within_their_own_rounding(ranks):
    # An owner's sum, and the sum of these, are rounded to bfloat16, whose unit is 2^-8 / 2.
    for of_rank in ranks:
        exact, sizes = of_rank["half"]["exact"], of_rank["half"]["sizes"]
        assert (np.abs(of_rank["half"]["output"] - exact) <= 3 * 2.0**-9 * sizes).all()


def test_a_step_crosses_as_often_as_one_of_rows_and_with_fewer_bytes(ranks):
    for of_rank in ranks:
        crossings = of_rank["crossings"]
        assert crossings["sums"] == crossings["rows"] == 3
        assert of_rank["bytes"]["sums"] < 0.5 * of_rank["bytes"]["rows"]


def test_a_gradient_of_weights_is_refused_with_the_way_out(ranks):
    for of_rank in ranks:
        assert "expected no gradient" in of_rank["weight_gradient"]
        assert "tf.stop_gradient" in of_rank["weight_gradient"]


def test_rows_of_samples_without_a_gradient_stay_as_they_are(ranks):
    # Adam moves a row whose gradient is zero: the rows of the feature that has none are not moved.
    whole = cases.whole_tables()["user"]
    for of_rank in ranks:
        moved = (of_rank["partial"] != whole).any(axis=1)
        assert moved[[1, 2]].all()
        assert not moved[[3, 4, 5]].any()


def test_ranks_that_place_a_table_differently_find_out(two_ranks):
    for error in two_ranks.run(cases.disagree):
        assert "the ranks disagree" in error
        assert "distributed:sums" in error


@pytest.mark.parametrize("how", ["sums", "two_levels"])
def test_tables_on_gpus_are_refused_with_the_way_out(monkeypatch, how):
    from group_embedding.lookups.groups import _source_of

    table = cases.table_on_a_gpu(monkeypatch, **{how: True})

    with pytest.raises(ValueError, match=f"expected a placement without ':{how}' on a GPU.*got"):
        _source_of(table, weighted=False)
