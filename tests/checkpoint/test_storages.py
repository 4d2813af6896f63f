"""Keyed tables in other storages than DRAM, in checkpoints: the tests of the others, made again."""

import gc

import pytest
from checkpoint import checkpoint_cases as cases
from checkpoint import test_objects
from checkpoint.test_changes import (  # noqa: F401
    test_changes_outlive_the_full_save_that_they_were_added_to,
    test_changes_restore_to_what_a_full_save_restores_to,
)
from checkpoint.test_objects import (  # noqa: F401
    Model,
    test_another_object_is_restored,
    test_damage_is_refused_before_anything_changes,
    test_training_goes_on_bit_for_bit,
)
from checkpoint.test_savers import (  # noqa: F401
    BATCHES,
    save_after,
    test_keys_are_evicted_when_a_checkpoint_is_saved,
    test_what_a_filter_has_counted_is_restored,
)
from support.session.folders import make_folder

import group_embedding as ge

# The memory holds 60 rows with values, two slots and infos: every batch fits, all keys do not.
NUM_ROWS = 60
ROW_BYTES = 4 * cases.DIM * 3 + 40
TYPES = ge.StorageType
FOLDER = make_folder()
STORAGES = [
    pytest.param(
        ge.StorageOption(TYPES.DRAM_SSDHASH, storage_size=[NUM_ROWS * ROW_BYTES]), id="DISK"
    ),
    pytest.param(
        ge.StorageOption(TYPES.DRAM_SSDHASH, FOLDER, storage_size=[NUM_ROWS * ROW_BYTES]),
        id="DISK in a folder",
        marks=pytest.mark.slow,
    ),
    *(
        pytest.param(option, id=option.storage_type.name, marks=pytest.mark.gpu)
        for option in (
            ge.StorageOption(TYPES.HBM),
            ge.StorageOption(TYPES.HBM_DRAM, storage_size=[24 * ROW_BYTES]),
            ge.StorageOption(TYPES.HBM_DRAM_SSDHASH, storage_size=[24 * ROW_BYTES, 36 * ROW_BYTES]),
        )
    ),
]


@pytest.fixture(autouse=True, params=STORAGES)
def storage(request, monkeypatch):
    init = ge.InitializerOption(default_value_dim=2)
    monkeypatch.setattr(cases, "OPTIONS", {"storage_option": request.param, "init_option": init})
    return request.param


@pytest.fixture(autouse=True)
def no_garbage(monkeypatch):
    """Collects garbage after each step. When Keras 2 has XLA compile updates, as on GPUs, gradients
    are left in reference cycles, and with them batches in flight, whose rows stay in memory."""
    train = Model.train

    def train_and_collect(model, steps):
        for keys in steps:
            gc.collect()
            train(model, [keys])

    monkeypatch.setattr(Model, "train", train_and_collect)


@pytest.mark.slow
def test_a_saved_model_serves_all_rows_in_a_fresh_process(tmp_path):
    test_objects.test_a_saved_model_serves_all_rows_in_a_fresh_process(tmp_path)


def test_a_session_goes_on_bit_for_bit(tmp_path):
    expected = cases.content(save_after(BATCHES, tmp_path / "whole"))

    half = save_after(BATCHES[:5], tmp_path / "half")
    whole = save_after(BATCHES[5:], tmp_path / "rest", seed=2, restore=half)

    assert cases.content(whole) == expected
    assert len(expected[0]["user"]) > NUM_ROWS
