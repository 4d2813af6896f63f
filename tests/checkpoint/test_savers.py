"""Keyed tables in checkpoints of tf.compat.v1.train.Saver."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from checkpoint import checkpoint_cases as cases

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

v1 = tf.compat.v1
BATCHES = cases.batches()
SAVERS = {
    "default": lambda: v1.train.Saver(),
    "sharded": lambda: v1.train.Saver(sharded=True),
    "list": lambda: v1.train.Saver(v1.global_variables()),
    "ours": lambda: ge.Saver(),
    "named": lambda: v1.train.Saver(name="other"),
}


def save_after(steps, folder, seed=1, saver=SAVERS["default"], restore=None, **options):
    """Trains from the start or from a checkpoint; the checkpoint that it saves."""
    Path(folder).mkdir(exist_ok=True)
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(seed)
        model = cases.build(**options)
        saver = saver()
        if restore:
            saver.restore(session, restore)
        else:
            session.run(v1.global_variables_initializer())
        cases.train(session, model, steps)
        return saver.save(session, f"{folder}/model", global_step=model.global_step)


def continue_in_another_process(path, folder):
    print(save_after(BATCHES[5:], folder, seed=2, restore=path))


@pytest.mark.parametrize("saver", SAVERS.values(), ids=SAVERS)
def test_training_goes_on_bit_for_bit(saver, tmp_path):
    expected = cases.content(save_after(BATCHES, tmp_path / "whole"))

    half = save_after(BATCHES[:5], tmp_path / "half", saver=saver)
    whole = save_after(BATCHES[5:], tmp_path / "rest", seed=2, saver=saver, restore=half)

    assert cases.content(whole) == expected


@pytest.mark.slow
def test_training_goes_on_bit_for_bit_in_another_process(tmp_path):
    expected = cases.content(save_after(BATCHES, tmp_path / "whole"))
    half = save_after(BATCHES[:5], tmp_path / "half")

    run = subprocess.run(
        [sys.executable, __file__, half, tmp_path / "rest"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert cases.content(run.stdout.split()[-1]) == expected


@pytest.mark.parametrize(
    "option",
    [ge.CounterFilter(4), ge.CBFFilter(4, 1000, 0.01, tf.uint8)],
    ids=["counter", "bloom"],
)
def test_what_a_filter_has_counted_is_restored(option, tmp_path):
    whole = save_after(BATCHES, tmp_path / "whole", filter_option=option)
    expected = cases.content(whole)

    half = save_after(BATCHES[:5], tmp_path / "half", filter_option=option)
    whole = save_after(BATCHES[5:], tmp_path / "rest", restore=half, filter_option=option)

    assert cases.content(whole) == expected
    assert 0 < len(expected[0]["user"]) < len(np.unique(BATCHES))


def test_old_files_go_with_their_checkpoint(tmp_path):
    stranger = tmp_path / "model-10.data-rabcd-of-00000"
    stranger.write_text("of another checkpoint")
    (tmp_path / "model-10.index").write_text("")

    with tf.Graph().as_default(), v1.Session() as session:
        model = cases.build()
        saver = v1.train.Saver(max_to_keep=2)
        session.run(v1.global_variables_initializer())
        for keys in BATCHES[:4]:
            cases.train(session, model, [keys])
            saver.save(session, f"{tmp_path}/model", global_step=model.global_step)

    found = {path.name.split(".")[0] for path in tmp_path.glob("model-*")} - {"model-10"}
    assert found == {"model-3", "model-4"}
    assert stranger.exists()


def test_keys_are_evicted_when_a_checkpoint_is_saved(tmp_path):
    options = {"evict_option": ge.GlobalStepEvict(steps_to_live=3)}

    path = save_after(BATCHES, tmp_path, **options)

    recent = set(np.unique(BATCHES[-4:]).tolist())
    last = {key: kept[1] for key, kept in cases.content(path)[0]["user"].items()}
    assert all(10 - version <= 3 for version in last.values())
    assert set(last) < set(np.unique(BATCHES).tolist())
    assert set(last) <= recent


def test_small_rows_are_evicted_when_a_checkpoint_is_saved(tmp_path):
    options = {"evict_option": ge.L2WeightEvict(1.0)}

    kept = cases.content(save_after(BATCHES, tmp_path / "kept", **options))[0]["user"]
    everything = cases.content(save_after(BATCHES, tmp_path / "all"))[0]["user"]

    large = {
        key
        for key, row in everything.items()
        if (np.frombuffer(row[2], np.float32) ** 2).sum() / 2 >= 1.0
    }
    assert set(kept) == large and 0 < len(large) < len(everything)


def test_monitored_sessions_go_on_where_they_ended(tmp_path):
    expected = cases.content(save_after(BATCHES, tmp_path / "whole"))

    for last in (4, 10):
        with tf.Graph().as_default():
            v1.set_random_seed(1)
            model = cases.build()
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path / "monitored"), save_checkpoint_steps=3
            ) as session:
                for step in range(session.run(model.global_step), last):
                    session.run(model.train, {model.keys: BATCHES[step]})

    assert cases.content(tf.train.latest_checkpoint(tmp_path / "monitored")) == expected


def test_a_save_that_fails_leaves_the_checkpoint_before(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        model = cases.build()
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        cases.train(session, model, BATCHES[:2])
        path = saver.save(session, f"{tmp_path}/model")
        before = cases.content(path)
        (tmp_path / "a_file").write_text("")

        cases.train(session, model, BATCHES[2:4])
        with pytest.raises((tf.errors.OpError, ValueError)):
            saver.save(session, f"{tmp_path}/a_file/model")

    assert cases.content(path) == before


def test_one_name_may_be_saved_again_and_again(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        model = cases.build()
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        for keys in BATCHES[:3]:
            cases.train(session, model, [keys])
            path = saver.save(session, f"{tmp_path}/model")
        named = {file["path"] for table in files.tables(path) for file in table["files"]}

        files.remove_unnamed(path)
        before = cases.content(path)
        saver.restore(session, path)

        assert set(files.present(path)) == named
        assert cases.content(saver.save(session, f"{tmp_path}/again")) == before


if __name__ == "__main__":
    continue_in_another_process(*sys.argv[1:])
