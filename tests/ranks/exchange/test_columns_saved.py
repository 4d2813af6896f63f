"""Checkpoints of tables whose columns are spread, written by some ranks and restored by others."""

import numpy as np
import pytest
from ranks.exchange import columns_cases as cases

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def saved(two_ranks, tmp_path_factory):
    """{number of ranks that saved: the path}"""
    folders = [str(tmp_path_factory.mktemp(f"by_{n}")) for n in (1, 2)]
    paths = [cases.train_and_save(folders[0]), two_ranks.run(cases.train_and_save, folders[1])[0]]
    return dict(zip((1, 2), paths))


@pytest.mark.parametrize("saved_by, restored_by", [(2, 1), (2, 3), (1, 2), (1, 3), (2, 2)])
def test_any_number_of_ranks_restores_it_and_goes_on(saved, request, saved_by, restored_by):
    # Given a checkpoint, and what one process restores of it
    before, after = cases.restore_and_train(saved[saved_by])
    # When other ranks restore it, and train a step more
    fixture = {2: "two_ranks", 3: "three_ranks"}.get(restored_by)
    results = [cases.restore_and_train(saved[saved_by])]
    if fixture:
        results = request.getfixturevalue(fixture).run(cases.restore_and_train, saved[saved_by])
    # Then they have its bits, and then the tables of one process
    for restored, stepped in results:
        for name, value in before.items():
            np.testing.assert_array_equal(restored[name], value, err_msg=name)
            np.testing.assert_allclose(stepped[name], after[name], rtol=2e-5, atol=2e-6)


def test_object_checkpoints_have_the_whole_table_and_its_slots(
    two_ranks, three_ranks, tmp_path_factory
):
    # Given objects that two ranks saved
    (path, whole), _ = two_ranks.run(cases.save_objects, str(tmp_path_factory.mktemp("objects")))
    # When one process and three ranks restore them, and train a step more
    alone = cases.restore_objects(path)
    np.testing.assert_array_equal(alone[0], whole)
    for restored, stepped in three_ranks.run(cases.restore_objects, path):
        # Then they have the same tables
        np.testing.assert_array_equal(restored, whole)
        np.testing.assert_allclose(stepped, alone[1], rtol=2e-5, atol=2e-6)
