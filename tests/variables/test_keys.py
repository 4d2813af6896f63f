"""Keys come, are counted, admitted, exported, inserted, erased and evicted."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.lookups import feature_ids
from group_embedding.lookups.lookup_table import make_table as make_lookup_table
from group_embedding.ops.group_ids import group_ids
from group_embedding.ops.locate_rows import locate_rows


def test_export(make_table, train):
    # Given a table trained on some keys
    table = make_table()
    table.step = 5
    train(table, [9, -2, 9])
    table.step = 6
    train(table, [4])
    # When it is exported
    keys, values, versions, freqs = table.export()
    # Then keys ascend, and each has its own
    np.testing.assert_array_equal(keys, [-2, 4, 9])
    np.testing.assert_array_equal(values, [[0, 0], [0, 0], [-1, -1]])
    np.testing.assert_array_equal(versions, [5, 6, 5])
    np.testing.assert_array_equal(freqs, [1, 1, 2])


def test_what_is_kept_of_keys(make_table, train):
    # Given a table trained on two keys, in a step of none
    table = make_table()
    train(table, [1, 2, 2])
    # When they are asked for, and one that is not there
    ids = tf.constant([[2, 1, 3]], tf.int64)
    # Then counts, versions and tiers are known
    np.testing.assert_array_equal(table.get_frequency(ids), [[2, 1, 0]])
    np.testing.assert_array_equal(table.get_version(ids), [[-1, -1, -1]])
    np.testing.assert_array_equal(table.lookup_tier(ids), [[0, 0, -1]])
    assert int(table.total_count()) == 2
    assert int(table.memory_bytes()) > 0 and 0 < float(table.load_factor()) <= 1


def test_insert_and_erase(make_table, train, read):
    # Given a table with a trained key
    table = make_table()
    train(table, [1])
    # When keys are inserted, that one too, and one is erased that is there and one that is not
    table.insert([1, 2, 3, 3], [[5, 5], [6, 6], [7, 7], [8, 8]])
    erased = table.erase([2, 40])
    # Then rows are what was inserted last
    assert int(erased) == 1
    np.testing.assert_array_equal(read(table, [1, 2, 3]), [[5, 5], [1, 1], [8, 8]])
    np.testing.assert_array_equal(table.get_frequency([1, 3]), [1, 0])


def test_insert_of_a_negative_frequency(make_table):
    # Given a table with a key
    table = make_table()
    table.insert([5], [[1.0, 2]])
    # When keys are inserted of which one has a negative frequency, Then the error names it
    with pytest.raises(tf.errors.InvalidArgumentError, match="'user', key -7: .*0 or more, got -1"):
        table.insert([6, -7], np.ones([2, 2]), versions=[1, 1], freqs=[3, -1])
    # And nothing is inserted
    np.testing.assert_array_equal(table.export().keys, [5])


def test_the_largest_frequency_is_kept(make_table, train):
    # Given a key with as large a frequency as there is
    table = make_table()
    table.insert([1, 2], np.ones([2, 2]), versions=[0, 0], freqs=[2**63 - 1, 5])
    # When it is trained
    train(table, [1, 1, 2])
    # Then it is still there, at the largest frequency that a table counts to
    np.testing.assert_array_equal(table.export().keys, [1, 2])
    counts = np.asarray(table.get_frequency([1, 2]))
    assert counts[0] >= 2**62 and counts[1] == 6


def test_insert_of_another_dim(make_table):
    with pytest.raises(tf.errors.InvalidArgumentError, match="'user': expected.*values \\[n, 2\\]"):
        make_table().insert([1], [[1.0, 2, 3]])


@pytest.mark.parametrize(
    "option",
    [
        ge.CounterFilter(3),
        ge.CBFFilter(3, max_element_size=100, false_positive_probability=0.01),
        ge.CBFFilter(3, max_element_size=9, false_positive_probability=0.5, counter_type=tf.uint8),
    ],
    ids=["counter", "bloom", "small bloom"],
)
def test_filters(make_table, train, read, option):
    # Given a table that admits keys seen three times, and reads 7 for others
    table = make_table(
        filter_option=option,
        init_option=ge.InitializerOption(default_value_dim=4, default_value_no_permission=7.0),
    )
    # When a key is trained twice, and once more
    train(table, [1, 1])
    before = read(table, [1])
    counted = [int(asked([1])[0]) for asked in (table.get_frequency, table.get_version)]
    train(table, [1])
    # Then it has a row from then on, which starts as rows do, and a count before
    np.testing.assert_array_equal(before, [[7, 7]])
    assert counted == [2, -1]
    np.testing.assert_array_equal(read(table, [1, 2]), [[0, 0], [7, 7]])
    assert int(table.total_count()) == 1
    assert int(table.get_frequency([1])[0]) == 3


FILTERS_OF_3 = {
    "counter": ge.CounterFilter(3),
    "bloom": ge.CBFFilter(3, max_element_size=100, false_positive_probability=0.01),
}


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("option", FILTERS_OF_3.values(), ids=FILTERS_OF_3)
def test_a_step_reads_what_the_steps_before_it_admitted(make_table, option, in_function):
    # Given a table that admits keys seen three times, reads 7 for others and starts rows as 1
    table = make_table(
        filter_option=option,
        init_option=ge.InitializerOption(default_value_dim=4, default_value_no_permission=7.0),
    )
    other = make_table(3, name="all keys")
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))

    def step(keys, weights):
        ids = tf.RaggedTensor.from_tensor(keys[:, None])
        weights = tf.RaggedTensor.from_tensor(weights[:, None])
        with tf.GradientTape() as tape:
            tape.watch(weights.values)
            lookups = [table, other], [ids, ids], "sum"
            rows = ge.group_embedding_lookup_sparse(*lookups, sp_weights=[weights, weights])
            loss = tf.add_n([tf.reduce_sum(of_table) for of_table in rows])
        variables = [table, other, weights.values]
        *gradients, of_weights = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return rows[0], rows[1], of_weights

    step = tf.function(step) if in_function else step
    # When key 1 comes once a step, and key 2 three times in the first
    reads = []
    for keys in ([1, 2, 2, 2], [1, 2], [1, 2], [1, 2]):
        found = step(tf.constant(keys, tf.int64), tf.ones([len(keys)]))
        reads.append([part.numpy() for part in found])
    # Then the step that admits a key reads the 7, and trains the row for the next one
    read = [of_table[:, 0].tolist() for of_table, _, _ in reads]
    assert read == [[7, 7, 7, 7], [7, -2], [7, -3], [0, -4]]
    # And the other table's rows are read as they are, and weights have the gradient of what is read
    assert [of_other[:, 0].tolist() for _, of_other, _ in reads[:2]] == [[1, 1, 1, 1], [0, -2]]
    for of_table, of_other, of_weights in reads:
        np.testing.assert_array_equal(of_weights, of_table.sum(axis=1) + of_other.sum(axis=1))


@pytest.mark.parametrize("constant", [0.0, 3.0], ids=["zeros", "a constant"])
@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "slices"])
def test_a_step_clips_gradients_by_the_rows_that_it_reads(make_table, constant, is_fused):
    # Given tables of four keys, which a filter admits in the second step, and what keys read
    dims, start, max_norm = {"user": 4, "item": 2}, 1.25, 1.5
    option = ge.InitializerOption(default_value_dim=1, default_value_no_permission=constant)
    tables = [
        make_table(
            dim,
            tf.constant_initializer(start),
            name,
            filter_option=ge.CounterFilter(2),
            init_option=option,
        )
        for name, dim in dims.items()
    ]
    reads = [tf.Variable(tf.fill([4, dim], constant)) for dim in dims.values()]
    batches = [
        [[[0, 1], [2]], [[3], []]],
        [[[1], [0, 2]], [[3, 0], [1, 2]]],
        [[[0], [1, 2, 3]]] * 2,
    ]
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
    # When they are trained for three steps, with rows longer than max_norm scaled down to it
    counts = np.zeros([2, 4], int)
    for batch in batches:
        ids = [tf.ragged.constant(rows, dtype=tf.int64) for rows in batch]
        weights = [tf.reshape(tf.range(2.0 * dim), [2, dim]) - 1.5 for dim in dims.values()]
        with tf.GradientTape(persistent=True) as tape:
            outputs = ge.group_embedding_lookup_sparse(tables, ids, "sum", max_norm=max_norm)
            expected = [
                tf.nn.safe_embedding_lookup_sparse(
                    table, of_table.to_sparse(), combiner="sum", max_norm=max_norm
                )
                for table, of_table in zip(reads, ids)
            ]
            losses = [
                tf.add_n([tf.reduce_sum(out * weight) for out, weight in zip(outs, weights)])
                for outs in (outputs, expected)
            ]
        gradients = tape.gradient(losses[0], tables)
        if not is_fused:  # somebody has looked at them
            gradients = [tf.IndexedSlices(g.values * 1.0, g.indices) for g in gradients]
        optimizer.apply_gradients(zip(gradients, tables))
        for t, grad in enumerate(tape.gradient(losses[1], reads)):
            was_admitted = counts[t] >= 2
            counts[t] += np.bincount(ids[t].values, minlength=4)
            rows = np.where(was_admitted[:, None], reads[t].numpy(), start)
            rows = rows - tf.convert_to_tensor(grad).numpy()
            reads[t].assign(np.where((counts[t] >= 2)[:, None], rows, constant))
        # Then they read what rows of TensorFlow's variables would be, had they started as the keys
        for out, rows in zip(outputs, expected):
            np.testing.assert_allclose(out, rows, rtol=1e-5)
    for table, rows, count in zip(tables, reads, counts):
        exported = table.export()
        assert exported.keys.numpy().tolist() == np.flatnonzero(count >= 2).tolist()
        np.testing.assert_allclose(exported.values, rows.numpy()[count >= 2], rtol=1e-5)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("option", [ge.CounterFilter, lambda n: ge.CBFFilter(n, 99, 0.01)])
def test_a_session_reads_what_the_steps_before_it_admitted(make_table, option, times):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        # Given a graph that trains a table which admits keys seen so often
        table = make_table(filter_option=option(times))
        (rows,) = ge.group_embedding_lookup([table], [tf.constant([1], tf.int64)])
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        train = optimizer.minimize(tf.reduce_sum((rows - 3) ** 2) / 2)
        session.run(tf.compat.v1.global_variables_initializer())
        # When it runs
        reads = [session.run([rows, train])[0][0, 0] for _ in range(times + 2)]
    # Then it reads 0 as long as keys are not admitted, and then what was trained
    assert reads == [0] * times + [2.5, 2.75]


def test_what_keys_start_as_is_not_trained(make_table, read):
    # Given a table whose filter admits nobody yet, and a step in one fused op
    table = make_table(filter_option=ge.CounterFilter(100))
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            keys = tf.constant([1, 2, 2], tf.int64)
            loss = tf.reduce_sum(ge.group_embedding_lookup([table], [keys])[0])
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    # When it is taken
    step()
    # Then the row that all keys read has not moved
    np.testing.assert_array_equal(read(table, [1, 9]), np.zeros([2, 2]))


def test_evict_by_step(make_table, train):
    # Given keys trained in steps 1 and 10
    table = make_table(evict_option=ge.GlobalStepEvict(steps_to_live=5))
    for table.step, key in ((1, 100), (10, 200)):
        train(table, [key])
    # When keys are evicted at step 6, and at step 7
    at_6, at_7 = int(table.evict(step=6)), int(table.evict(step=7))
    # Then those go that lived for more than 5 steps
    assert (at_6, at_7) == (0, 1)
    np.testing.assert_array_equal(table.export().keys, [200])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda t: t.evict(step=1.7), "step to be integers, got values of float32"),
        (lambda t: t.evict(step=-3), "step to be 0 or more, got -3"),
        (lambda t: t.insert([5], [[3.0, 3.0]], versions=[1.5]), "versions to be integers, got"),
        (lambda t: t.insert([5], [[3.0, 3.0]], freqs=np.ones(1)), "freqs to be .* of float64"),
    ],
)
def test_steps_and_counts_that_are_no_integers(call, message, make_table):
    # Given a table that evicts by steps, with a key
    table = make_table(evict_option=ge.GlobalStepEvict(steps_to_live=5))
    table.insert([5], [[1.0, 2.0]], versions=[-1], freqs=[2])
    # When it is called with a step or a count that is none, Then the error names the argument
    with pytest.raises(ValueError, match=f"table 'user': expected {message}"):
        call(table)
    # And nothing has changed
    np.testing.assert_array_equal(table.export().values, [[1.0, 2.0]])
    table.insert([], np.zeros([0, 2]), versions=[], freqs=[])
    assert table.total_count() == 1


def test_evict_by_weight(make_table):
    # Given rows of which half the sum of squares is 1 and 4
    table = make_table(evict_option=ge.L2WeightEvict(l2_weight_threshold=2.0))
    table.insert([1, 2], [[1.0, 1.0], [2.0, 2.0]])
    # When light rows are evicted
    evicted = table.evict()
    # Then the lighter one goes
    assert int(evicted) == 1
    np.testing.assert_array_equal(table.export().keys, [2])


def test_evict_without_a_step(make_table):
    # Given a graph of TensorFlow 1 without a global step
    with tf.Graph().as_default():
        table = make_table(evict_option=ge.GlobalStepEvict(5))
        # Then an eviction raises, and a save warns that nothing is evicted
        with pytest.raises(ValueError, match="table 'user': GlobalStepEvict needs the step"):
            table.evict()
        with pytest.warns(UserWarning, match="table 'user': GlobalStepEvict evicts nothing"):
            tf.compat.v1.train.Saver([table])


def test_versions_are_global_steps_in_a_session(make_table):
    # Given a graph of TensorFlow 1 with a global step
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        global_step = tf.compat.v1.train.get_or_create_global_step()
        table = make_table()
        place = tf.compat.v1.placeholder(tf.int64, [None])
        loss = tf.reduce_sum(ge.group_embedding_lookup([table], [place])[0])
        optimizer = ge.optimizers.wrap(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        train = optimizer.minimize(loss, global_step=global_step)
        session.run(tf.compat.v1.global_variables_initializer())
        # When keys are trained in three steps
        for keys in ([1], [2], [1, 3]):
            session.run(train, {place: keys})
        # Then their versions are the last of these
        np.testing.assert_array_equal(session.run(table.export()).versions, [2, 1, 2])


def test_versions_of_a_keras_optimizer(make_table):
    # Given a table whose step is that of a Keras optimizer
    table = make_table()
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))
    table.step = optimizer.iterations

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.group_embedding_lookup([table], [keys])[0])
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    # When two steps are taken
    step(tf.constant([1, 2], tf.int64))
    step(tf.constant([2, 3], tf.int64))
    # Then versions are its iterations
    np.testing.assert_array_equal(table.get_version([1, 2, 3]), [0, 1, 1])


def test_a_table_that_evicts_by_steps_counts_those_of_its_optimizer(make_table):
    # Given a table whose step nobody sets
    table = make_table(evict_option=ge.GlobalStepEvict(steps_to_live=1))
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ge.group_embedding_lookup([table], [keys])[0])
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    # When three steps are taken
    for keys in ([1, 2], [2, 3], [3, 4]):
        step(tf.constant(keys, tf.int64))
    # Then versions are the steps, and old keys go
    np.testing.assert_array_equal(table.get_version([1, 2, 3, 4]), [0, 1, 2, 2])
    assert int(table.evict()) == 2
    np.testing.assert_array_equal(np.sort(table.export().keys), [3, 4])


@pytest.mark.parametrize(
    "filter_option",
    [
        None,
        ge.CounterFilter(filter_freq=5),
        ge.CBFFilter(filter_freq=5, max_element_size=100, false_positive_probability=0.01),
    ],
    ids=["all", "counter", "bloom"],
)
def test_keys_that_others_have_counted(make_table, train, filter_option):
    # Given a table, in which one key was trained
    table = make_table(filter_option=filter_option)
    train(table, [1] * 5)
    # When others train keys, and say how often each came: twice 1 and 7 among them
    keys = tf.constant([1, 7, 8, 9, 1, 7], tf.int64)
    batch = group_ids([feature_ids.from_dense("ids", keys)], [0])
    with tf.GradientTape() as tape:
        tape.watch(table.handle)
        locate_rows(
            [make_lookup_table(table, None, 0)],
            batch,
            [0],
            times=tf.constant([3, 4, 5, 1, 2, 2], tf.int64),
        )
    # Then each is counted, and admitted, as often as it came
    counts = {1: 10, 7: 6, 8: 5, 9: 1}
    admitted = {key: c for key, c in counts.items() if filter_option is None or c >= 5}
    found = table.export()
    assert dict(zip(found.keys.numpy(), found.freqs.numpy())) == admitted


def test_growth(make_table, train, read):
    # Given a table of no keys
    table = make_table()
    # When it is trained on many, step after step
    for first in range(0, 60_000, 20_000):
        train(table, np.arange(first, first + 30_000))
    # Then all are there
    assert int(table.total_count()) == 70_000
    counts = np.asarray(table.export().freqs)
    assert counts.sum() == 90_000 and counts.max() == 2
    np.testing.assert_array_equal(read(table, [15, 25_000]), [[0, 0], [-1, -1]])


def test_full_table(make_table, storage, train, read):
    # Given a table that may take 64 KB of each tier
    sizes = [1 << 16] * (2 if storage.storage_size else 1)
    table = make_table(storage_option=dataclasses.replace(storage, storage_size=sizes))
    train(table, [1])
    # When it is trained on more keys than fit, Then the error names it, its size and the options
    with pytest.raises(tf.errors.ResourceExhaustedError, match="table 'user'.*StorageOption"):
        train(table, np.arange(10_000))
    # And it stays usable
    train(table, [1])
    np.testing.assert_array_equal(read(table, [1]), [[-1, -1]])
