"""Statistics of a graph's tables in event files, by a session's hook."""

import pytest
import tensorflow as tf
from variables.event_files import read_events

import group_embedding as ge

v1 = tf.compat.v1


def train_graph(hook, folder, num_steps, ids_of):
    """Trains a table named "user" in a graph and session of its own. The checkpoints of `folder`
    have the steps of former calls."""
    with tf.Graph().as_default():
        table = ge.get_embedding_variable("user", 4)
        step = v1.train.get_or_create_global_step()
        output = ge.group_embedding_lookup([table], [ids_of(step)])[0]
        optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum(output), global_step=step)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder, hooks=[hook], save_summaries_steps=None
        ) as session:
            for _ in range(num_steps):
                session.run(train)


def test_hook_writes_every_few_steps(tmp_path):
    hook = ge.EmbeddingVariableStatisticsHook(str(tmp_path), every_n_steps=2)

    train_graph(hook, None, 5, lambda step: tf.stack([[step, step + 100]]))

    events = read_events(tmp_path)
    assert events["user/keys"] == {1: 2, 3: 6, 5: 10}
    assert all(0 < load < 1 for load in events["user/load_factor"].values())
    assert all(size > 10 * 4 * 4 for size in events["user/memory_bytes"].values())
    assert events["user/admitted"] == {1: 2, 3: 6, 5: 10}
    assert set(events["user/hit_rate/dram"]) == {1, 3, 5}


def test_a_hook_of_several_trainings(tmp_path):
    # Given a hook that has seen steps 1 to 5, of which most ids had a row
    logs, steps = tmp_path / "logs", str(tmp_path / "steps")
    hook = ge.EmbeddingVariableStatisticsHook(str(logs), every_n_steps=4)
    train_graph(hook, steps, 5, lambda step: tf.constant([[1, 2, 3, 4]], tf.int64))

    # When it sees a training that goes on, with more ids, which are all new
    train_graph(hook, steps, 5, lambda step: tf.range(100, dtype=tf.int64)[None] + 1000 * step)

    # Then the first step of each is written, and rates are those of its own session
    rates = read_events(logs)["user/hit_rate/dram"]
    assert rates == {1: 0, 5: 1, 6: 0, 10: 0}

    # And a training that starts anew is written, too
    train_graph(hook, None, 1, lambda step: tf.constant([[1, 2, 3]], tf.int64))
    assert read_events(logs)["user/looked_up"][1] == 3


@pytest.mark.parametrize("every", [0, "3"])
def test_a_number_of_steps_that_is_none_is_refused(every):
    with pytest.raises(ValueError, match="expected every_n_steps to be an int of at least 1, got"):
        ge.EmbeddingVariableStatisticsHook("logs", every)
