"""Keys that tables evict for their budgets, handed to functions and into files."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

v1 = tf.compat.v1
BUDGET = {"max_keys": 16, "budget_of": "rank", "keep_share": 1.0}


def make(name, hand_out="rows", key_dtype=tf.int64, dtype=tf.float32, **changes):
    options = ge.KeyedOptions(hand_out=hand_out, **{**BUDGET, **changes})
    return ge.get_embedding_variable(
        name, 4, key_dtype, dtype, tf.ones_initializer(), ev_option=options
    )


def insert(table, first, step):
    """Eight keys from `first` on, whose rows are their numbers."""
    keys = np.arange(first, first + 8)
    table.insert(keys, np.repeat(keys[:, None], 4, 1), versions=[step] * 8, freqs=[step + 1] * 8)


class Taken:
    """A function that remembers what it was called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, table, evicted):
        self.calls.append((table, evicted))

    def keys_of(self, name):
        return sorted(int(key) for table, e in self.calls if table == name for key in e.keys)


def test_a_function_gets_the_keys_of_each_table_once():
    users, items, all_keys = make("users"), make("items", "keys"), make("all", "nothing")
    taken = Taken()
    for step in range(3):
        for table in (users, items, all_keys):
            insert(table, 8 * step, step)

    handed = [ge.hand_out_evicted([users, items, all_keys], taken) for _ in range(2)]

    assert handed == [16, 0]
    (_, of_users), (_, of_items) = taken.calls
    assert taken.keys_of("users") == taken.keys_of("items") == list(range(8))
    np.testing.assert_array_equal(of_users.values, np.repeat(of_users.keys[:, None], 4, 1))
    assert of_items.values.shape == (0, 4)
    assert set(of_users.versions) == {0} and set(of_users.freqs) == {1}


@pytest.mark.parametrize("how", ["save", "changes", "evict"])
@pytest.mark.parametrize("tiers", ["dram", "dram+disk"])
def test_keys_wait_on_where_nothing_else_goes(tiers, how, tmp_path):
    # Given two tables, most of whose keys a save has evicted
    options = {"max_keys": 64, "evict_after_steps": 2, "tiers": tiers.split("+")}
    if "disk" in tiers:
        options |= {"tier_bytes": [1 << 20], "disk_folder": str(tmp_path / "disk")}
    tables = [make(name, **options) for name in ("users", "items")]
    saved = tf.train.Checkpoint(tables=tables)
    for step in range(5):
        for table in tables:
            table.step = step + 1
            insert(table, 8 * step, step)
    saved.save(str(tmp_path / "first"))

    # When another save, or the tables themselves, find none that goes
    if how == "save":
        saved.save(str(tmp_path / "second"))
    elif how == "changes":
        ge.checkpoint.save_changes(saved, str(tmp_path / "changes"))
    else:
        assert [int(table.evict()) for table in tables] == [0, 0]

    # Then all are handed out, and none was missed
    taken = Taken()
    ge.hand_out_evicted(tables, taken)
    for name, table in zip(("users", "items"), tables):
        assert taken.keys_of(name) == list(range(24)) and int(table.total_count()) == 16
        assert int(table.budget_counts().missed) == 0


def test_a_restore_counts_keys_that_wait_as_missed(tmp_path):
    # Given two tables, keys that went with a save and wait, and others that went after it
    tables = [make(name, max_keys=256, evict_after_steps=2) for name in ("users", "items")]
    saved = tf.train.Checkpoint(tables=tables)
    for step in range(5):
        for table in tables:
            table.step = step + 1
            insert(table, 8 * step, step)
    path = saved.save(str(tmp_path / "saved"))
    for table in tables:
        table.step = 6
        assert int(table.evict()) == 8

    # When that save is restored
    saved.restore(path)

    # Then the tables are those that were saved, and none waits
    for table in tables:
        assert sorted(table.export().keys.numpy()) == list(range(24, 40))
        assert int(table.budget_counts().missed) == 32
    assert ge.hand_out_evicted(tables, Taken()) == 0


@pytest.mark.parametrize(
    "key_dtype, dtype, written",
    [
        (tf.int64, tf.float32, np.float32),
        (tf.uint64, tf.bfloat16, np.float32),
        (tf.int32, tf.float16, np.float16),
    ],
)
def test_files_of_a_folder(key_dtype, dtype, written, tmp_path):
    table = make("shop/users", key_dtype=key_dtype, dtype=dtype)
    for process in range(2):  # which has no memory of the first one's files
        hand_over = ge.variables.hand_over_to(tmp_path)
        for step in range(4):
            insert(table, 8 * (4 * process + step), 4 * process + step)
            ge.hand_out_evicted([table], hand_over)

    paths = sorted((tmp_path / "shop" / "users").iterdir())
    assert [path.name for path in paths] == [f"rank0-{n:09d}.npz" for n in range(1, 7)]
    for number, path in enumerate(paths):
        with np.load(path) as file:
            assert file["keys"].dtype == key_dtype.as_numpy_dtype
            assert file["values"].dtype == written
            assert sorted(file["keys"]) == list(range(8 * number, 8 * number + 8))
            np.testing.assert_array_equal(file["values"], np.repeat(file["keys"][:, None], 4, 1))
            assert set(file["versions"]) == {number} and set(file["freqs"]) == {number + 1}


def test_each_name_has_a_folder_of_its_own_within_the_folder(tmp_path):
    # Given tables whose names are parts of paths, or look like what others become
    names = [
        "up",
        "../up",
        "/up",
        "a//up",
        "./up",
        "up/.",
        "..",
        "a/../up",
        "%2E%2E/up",
        "50%",
        "é x",
    ]
    tables = [make(name) for name in names]
    # When each evicts keys of its own, which go into files
    for number, table in enumerate(tables):
        for step in range(3):
            insert(table, 100 * number + 8 * step, step)
    folder = tmp_path / "inner" / "evicted"
    ge.hand_out_evicted(tables, folder)
    # Then all files are in that folder, one of each table, and names without such parts are kept
    paths = sorted(tmp_path.rglob("*.npz"))
    assert all(folder in path.parents for path in paths)
    firsts = [int(np.load(path)["keys"].min()) for path in paths]
    assert sorted(firsts) == [100 * number for number in range(len(names))]
    folders = [str(path.parent.relative_to(folder)) for path in paths]
    assert {"up", "%2E%2E/up", "%252E%252E/up", "50%25", "é x"} < set(folders)


def test_two_tables_of_one_name_share_no_folder(tmp_path):
    # Given two tables of one name and a third, which have evicted keys
    users, others, items = make("users"), make("users"), make("items")
    for step in range(3):
        for number, table in enumerate((users, others, items)):
            insert(table, 100 * number + 8 * step, step)
    # When all are to be handed out into one folder
    with pytest.raises(ValueError, match="expected tables of different names.*got two 'users'"):
        ge.hand_out_evicted([users, items, others], tmp_path)
    # Then no keys were taken: each has a folder by a call of its own, and a function gets them all
    assert ge.hand_out_evicted([users, users], tmp_path / "a") == 8
    taken = Taken()
    assert ge.hand_out_evicted([others, items], tmp_path / "b") == 16
    insert(users, 300, 9)
    insert(others, 400, 9)
    assert ge.hand_out_evicted([users, others], taken) == 16
    assert taken.keys_of("users") == [*range(8, 16), *range(108, 116)]


def test_a_file_that_fails_leaves_none_behind(tmp_path):
    table = make("users")
    for step in range(3):
        insert(table, 8 * step, step)
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(tf.errors.OpError):
        ge.hand_out_evicted([table], tmp_path / "file")

    assert int(table.total_count()) == 16  # and trains on


def test_a_hook_hands_out_every_few_steps_and_at_the_end():
    # Given a hook for two trainings, one after the other
    taken = Taken()
    hook = ge.EvictedKeysHook(taken, every_n_steps=3)

    for _ in range(2):
        # When a table trains eight new keys in each step
        taken.calls.clear()
        with tf.Graph().as_default():
            table = make("user")
            step = v1.train.get_or_create_global_step()
            ids = 8 * step + tf.range(8, dtype=tf.int64)
            (rows,) = ge.group_embedding_lookup([table], [ids])
            optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1))
            train = optimizer.minimize(tf.reduce_sum(rows), global_step=step)
            with v1.train.MonitoredSession(hooks=[hook]) as session:
                calls = []
                for _ in range(8):
                    session.run(train)
                    calls.append(len(taken.calls))

        # Then keys go after the first step, and after each three; 24 keys then exceed the budget. A
        # table keeps no more than an eighth of its budget and what one eviction takes: the last.
        assert calls == [0, 0, 0, 1, 1, 1, 2, 2] and len(taken.calls) == 3
        assert {name for name, _ in taken.calls} == {"user"}
        assert taken.keys_of("user") == [*range(8, 16), *range(32, 48)]


@pytest.mark.parametrize("is_saved_first", [True, False])
@pytest.mark.parametrize(
    "saver_hook", [v1.train.CheckpointSaverHook, ge.checkpoint.CheckpointSaverHook]
)
def test_a_hook_hands_out_what_the_last_save_evicts(saver_hook, is_saved_first, tmp_path):
    # Given a hook in front of one that saves, or behind it
    taken = Taken()
    hooks = [
        saver_hook(str(tmp_path), save_steps=4),
        ge.EvictedKeysHook(taken, every_n_steps=3),
    ]

    # When a table trains eight new keys in each of ten steps, and those of three last ones live
    with tf.Graph().as_default():
        table = make("user", evict_after_steps=3, max_keys=1000)
        step = v1.train.get_or_create_global_step()
        (rows,) = ge.lookup([table], [8 * step + tf.range(8, dtype=tf.int64)])
        optimizer = ge.optimizers.wrap(v1.train.GradientDescentOptimizer(0.1))
        train = optimizer.minimize(tf.reduce_sum(rows), global_step=step)
        hooks = hooks if is_saved_first else hooks[::-1]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            for _ in range(10):
                session.run(train)

        # Then each key was handed out once or is in the last checkpoint
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            v1.train.Saver([table]).restore(session, tf.train.latest_checkpoint(tmp_path))
            saved = session.run(table.export()).keys
    assert sorted([*taken.keys_of("user"), *saved]) == list(range(80))
    assert 0 < len(saved) < 40


def test_a_callback_hands_out_every_few_batches():
    model, _ = make_model(**BUDGET)
    taken = Taken()
    callback = ge.layers.EvictedKeys(taken, every_n_batches=1)

    ids = {"user": np.arange(48).reshape(24, 2)}
    model.fit(
        ids, np.zeros(24), batch_size=4, epochs=1, verbose=0, shuffle=False, callbacks=[callback]
    )

    (name,) = {name for name, _ in taken.calls}
    assert name.endswith("user")
    assert taken.keys_of(name) == list(range(32))


@pytest.mark.parametrize("is_saved_first", [True, False])
@pytest.mark.parametrize("every", [2, 3, 100])
def test_a_callback_hands_out_what_saves_after_epochs_evict(every, is_saved_first, tmp_path):
    # Given a model whose keys expire, saved after epochs, in front of the callback or behind it
    model, layer = make_model(max_keys=1000, budget_of="rank", evict_after_steps=2)
    taken = Taken()
    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: save(model, tmp_path)),
        ge.layers.EvictedKeys(taken, every_n_batches=every),
    ]

    # When it trains two epochs of three batches, whose keys are the same
    model.fit(
        {"user": np.arange(48).reshape(24, 2)}, np.zeros(24), batch_size=8, epochs=2, verbose=0,
        shuffle=False, callbacks=callbacks if is_saved_first else callbacks[::-1],
    )  # fmt: skip

    # Then the first batch's keys went after each epoch, and the table keeps none
    (table,) = layer.keyed_tables.values()
    assert [sorted(evicted.keys) for _, evicted in taken.calls] == [list(range(16))] * 2
    assert len(table.take_evicted().keys) == 0


def make_model(**budget):
    """A model of a table of pairs of keys, and the layer that has it."""
    options = ge.KeyedOptions(hand_out="keys", **budget)
    table = ge.TableConfig("user", None, 4, ev_option=options)
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig("user", table)], concat=True)
    inputs = {"user": keras.Input((2,), dtype="int64", name="user")}
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(ge.optimizers.wrap(keras.optimizers.SGD(0.1)), "mse")
    return model, layer


def make_that_expires(name, tiers, folder, hand_out="rows"):
    """A table of 200 keys at most, of which 20 are in the first of two tiers, beside the initial
    rows on a GPU."""
    lower = {}
    if len(tiers) == 3:
        lower = {"tier_bytes": [(4097 + 20) * 56, 20 * 56], "disk_folder": str(folder)}
    elif "disk" in tiers:
        lower = {"tier_bytes": [20 * 96], "disk_folder": str(folder)}
    elif len(tiers) == 2:
        lower = {"tier_bytes": [(4097 + 20) * 56]}
    return ge.keyed_table(
        name, 4, initializer=tf.ones_initializer(), tiers=tiers, max_keys=200, budget_of="rank",
        hand_out=hand_out, evict_after_steps=2, evict_below_norm=1.0, **lower,
    )  # fmt: skip


def save(tables, folder):
    tf.train.Checkpoint(tables=tables).save(str(folder / "save"))


def evict(tables, folder):
    for table in tables:
        table.evict()


@pytest.mark.parametrize("expel", [save, evict])
@pytest.mark.parametrize(
    "tiers",
    [
        pytest.param(("dram",), id="dram"),
        pytest.param(("dram", "disk"), id="dram+disk"),
        pytest.param(("hbm",), id="hbm", marks=pytest.mark.gpu),
        pytest.param(("hbm", "dram"), id="hbm+dram", marks=pytest.mark.gpu),
        pytest.param(("hbm", "dram", "disk"), id="hbm+dram+disk", marks=pytest.mark.gpu),
    ],
)
def test_keys_that_expire_are_handed_out_once(tiers, expel, tmp_path):
    # Given two tables with 40 keys of each of four steps, every tenth of them with a small row
    users, items = (
        make_that_expires(name, tiers, tmp_path / name, what)
        for name, what in (("users", "rows"), ("items", "keys"))
    )
    keys = np.arange(160)
    rows = np.where(keys % 10 == 3, 1 / 512, keys)[:, None] * np.ones(4, np.float32)
    for step in range(4):
        now = slice(40 * step, 40 * step + 40)
        for table in (users, items):
            table.step = step
            table.insert(keys[now], rows[now], versions=[step] * 40, freqs=[step + 1] * 40)

    # When they are saved or asked to evict, twice
    taken = Taken()
    for _ in range(2):
        expel([users, items], tmp_path)
        ge.hand_out_evicted([users, items], taken)

    # Then a function has got those of the first steps and the small ones, once, with their rows
    expected = keys[(keys < 40) | (keys % 10 == 3)]
    assert taken.keys_of("users") == taken.keys_of("items") == expected.tolist()
    (of_users,) = (evicted for name, evicted in taken.calls if name == "users")
    order = np.argsort(of_users.keys)
    np.testing.assert_array_equal(np.asarray(of_users.values)[order], rows[expected])
    np.testing.assert_array_equal(np.asarray(of_users.versions)[order], expected // 40)
    np.testing.assert_array_equal(np.asarray(of_users.freqs)[order], expected // 40 + 1)
    # And they are gone, without having counted as evicted for new keys
    assert sorted(users.export().keys.numpy()) == sorted(set(keys) - set(expected))
    assert [int(t.budget_counts().evicted) for t in (users, items)] == [0, 0]
    assert [int(t.budget_counts().missed) for t in (users, items)] == [0, 0]


def test_keys_that_expire_stay_within_a_budget_of_bytes():
    # Given a table whose budget is of bytes, and full
    table = ge.keyed_table(
        "users", 64, max_bytes=48 << 20, budget_of="rank", hand_out="rows", evict_after_steps=1,
        num_initial_rows=1,
    )  # fmt: skip
    most = int(table.budget_counts().max_keys)
    keys = np.arange(most)
    table.step = 0
    table.insert(keys, np.zeros((most, 64), np.float32), versions=[0] * most)

    # When all of its keys expire
    table.step = 9
    assert int(table.evict()) == most

    # Then as many are handed out as the budget has bytes for, and the others are counted
    counts = table.budget_counts()
    handed = len(table.take_evicted().keys)
    assert handed == most // 8 + most - int(0.9 * most)
    assert int(counts.missed) == most - handed


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ge.hand_out_evicted([make("all", "nothing")], print), r"hand_out=.*\['all'\]"),
        (lambda: ge.hand_out_evicted([], print), "got no keyed table"),
        (lambda: ge.EvictedKeysHook(print, 0), "every_n_steps to be an int of at least 1, got 0"),
        (
            lambda: ge.layers.EvictedKeys(print, 0),
            "every_n_batches to be an int of at least 1, got 0",
        ),
    ],
)
def test_what_can_hand_out_nothing_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
