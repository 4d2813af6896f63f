"""Tables whose columns are spread over ranks, beside tables of rows and of sums, against one
process."""

import numpy as np
import pytest
import tensorflow as tf
from ranks.exchange import columns_cases as cases


@pytest.fixture(scope="module")
def one_process():
    return cases.run_all()


@pytest.fixture(scope="module")
def ranks(several_ranks):
    return several_ranks.run(cases.run_on_rank)


def assert_same_tables(found, expected):
    for name, rows in expected.items():
        np.testing.assert_allclose(found[name], rows, rtol=2e-5, atol=2e-6, err_msg=name)


def test_each_rank_has_its_columns_of_all_rows(ranks):
    for rank, of_rank in enumerate(ranks):
        for name in ("user", "item", "day"):
            rows, dim, _ = cases.TABLES[name]
            assert of_rank["held"][name] == (rows, dim // len(ranks))
        assert of_rank["held"]["shop"] == (len(range(rank, 20, len(ranks))), 8)


@pytest.mark.parametrize("way", ["eager", "function", "routed", "session"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_outputs_are_those_of_one_process(ranks, one_process, way, weighted):
    # Given tables by columns, with sums and without, beside others in one lookup
    expected = one_process["outputs"][way, weighted]

    # When ranks have looked a batch up, each its part of it
    found = zip(*(of_rank["outputs"][way, weighted] for of_rank in ranks))

    # Then rows that are combined where they are asked for have the bits of one process, sums others
    for (name, _), parts, whole in zip(cases.FEATURES, found, expected):
        together = np.concatenate(parts)
        if cases.TABLES[name][2] == "columns":
            np.testing.assert_array_equal(together, whole, err_msg=name)
        np.testing.assert_allclose(together, whole, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", list(cases.WEIGHTED))
def test_tables_train_as_in_one_process(ranks, one_process, optimizer):
    for of_rank in ranks:
        assert_same_tables(of_rank["trained"][optimizer], one_process["trained"][optimizer])


@pytest.mark.parametrize("norm", ["clipnorm", "global_clipnorm"])
def test_norms_are_those_of_whole_gradients(ranks, one_process, norm):
    for of_rank in ranks:
        assert_same_tables(of_rank["clipped"][norm], one_process["clipped"][norm])


def test_tables_train_in_a_compiled_step_and_where_rows_go_as_one_tensor(ranks, one_process):
    for of_rank in ranks:
        assert_same_tables(of_rank["compiled"], one_process["compiled"])
        assert_same_tables(of_rank["packed"], one_process["trained"]["adam"])


def test_columns_go_ahead_of_the_step(ranks, one_process):
    for of_rank in ranks:
        for found, expected in zip(of_rank["ahead"], one_process["ahead"]):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("what", ["output", "rows", "weights"])
def test_rows_are_scaled_to_the_norm_of_all_their_columns(ranks, one_process, what):
    for of_rank in ranks:
        found, expected = of_rank["gradients"][what], one_process["gradients"][what]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_dense_lookup_reads_rows_of_any_dtype(ranks):
    whole = cases.whole_tables()["item"]
    half = tf.cast(tf.cast(whole, tf.bfloat16), tf.float32).numpy()
    for rank, of_rank in enumerate(ranks):
        for found, rows in zip(of_rank["dense"], (whole, half)):
            np.testing.assert_array_equal(found, rows[[[3, rank], [3, 3]]])


@pytest.mark.parametrize("word", ["columns", "columns:sums"])
def test_rows_of_samples_without_a_gradient_stay_as_they_are(ranks, word):
    # Adam moves a row whose gradient is zero: the rows of the feature that has none are not moved.
    whole = cases.whole_tables()["user"]
    for of_rank in ranks:
        moved = of_rank["partial"][word] != whole
        assert moved[[1, 2]].all()
        assert not moved[[3, 4, 5]].any()


def test_tables_of_all_placements_cross_together(ranks):
    for of_rank in ranks:
        assert of_rank["crossings"] == 3


def test_skewed_rows_load_all_ranks_alike(ranks):
    # Given ids of rows that rank 0 has, by rows: it sends them to all others
    by_rows = [of_rank["sent"]["distributed"] for of_rank in ranks]
    # When columns are spread
    by_columns = [of_rank["sent"]["columns"] for of_rank in ranks]
    # Then each rank sends as much as the next, and none sends all rows. (Of two ranks, by rows one
    # sends all rows, and the other all gradients.)
    assert max(by_columns) < 1.01 * min(by_columns)
    assert max(by_rows) > 0.9 * len(ranks) / 2 * max(by_columns)


@pytest.mark.parametrize(
    "what, message",
    [
        ("dim", r"expected a dim that \d ranks divide, .* got 7; make it a multiple"),
        ("keys", "table 'keys_by_columns': expected another placement than 'columns:sums'"),
        ("max_norm", "table 'refusing_sums.*expected no max_norm with placement 'columns:sums'"),
        ("owner_of", "owner_of: expected a table whose rows are each on one rank, got table 'ref"),
        ("export", "sok.export: expected a table whose rows are each on one rank"),
        ("publish", "Publisher: expected a table whose rows are each on one rank"),
        ("assign", "sok.assign: expected a table whose rows are each on one rank"),
        ("id", "rank 1: .*feature 'clicks': id 99 of sample 0 is outside the table"),
        ("id of sums", "rank 1: .*feature 'clicks': id 99 of sample 0 is outside the table"),
        *[
            (name, f"got '{name}', whose rule '.*' needs whole rows; place the table by rows")
            for name in cases.ROW_OPTIMIZERS
        ],
    ],
)
def test_what_columns_do_not_have_is_refused_on_each_rank(ranks, what, message):
    for of_rank in ranks:
        with pytest.raises(ValueError, match=message):
            raise ValueError(of_rank["errors"][what])


@pytest.fixture(scope="module")
def saved(several_ranks, tmp_path_factory):
    """Paths of the checkpoints of one process, and of ranks."""
    folders = [str(tmp_path_factory.mktemp(by)) for by in ("one", "ranks")]
    alone = cases.train_and_save(folders[0])
    return alone, several_ranks.run(cases.train_and_save, folders[1])[0]


def test_a_checkpoint_is_that_of_one_process(saved):
    # Given checkpoints of one process and of ranks
    expected, found = map(tf.train.load_checkpoint, saved)
    # When stock TensorFlow reads them, Then tables and slots are whole, and the same
    shapes = expected.get_variable_to_shape_map()
    assert found.get_variable_to_shape_map() == shapes
    assert shapes["user_saved"] == shapes["user_saved/Adam"] == [50, 12]
    for name in shapes:
        value = expected.get_tensor(name)
        np.testing.assert_allclose(found.get_tensor(name), value, rtol=2e-5, atol=2e-6)


def test_a_table_starts_from_a_checkpoint_of_one_process(saved, several_ranks):
    expected = tf.train.load_checkpoint(saved[0]).get_tensor("item_saved")
    for found in several_ranks.run(cases.restore_one, saved[0]):
        np.testing.assert_array_equal(found, expected)


def test_ranks_that_place_a_table_differently_find_out(several_ranks):
    for error in several_ranks.run(cases.disagree):
        assert "the ranks disagree" in error
        assert "columns" in error


def test_tables_on_gpus_are_refused_with_the_way_out(monkeypatch):
    from group_embedding.lookups.groups import _source_of

    table = cases.table_on_a_gpu(monkeypatch)

    with pytest.raises(ValueError, match="by columns with sums, on a GPU.*got 'columns'"):
        _source_of(table, weighted=False)
