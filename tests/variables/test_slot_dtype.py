"""Slots of tables of keys in bfloat16: their bytes, bits and checkpoints."""

import numpy as np
import pytest
import tensorflow as tf
from checkpoint.checkpoint_cases import content

import group_embedding as ge
from group_embedding.checkpoint import checkpoint_files as files

DIM, SEED = 16, 5
KERAS = tf.keras.optimizers
OPTIMIZERS = {  # {name: (what makes it, numbers of its slots for a row)}
    "adam": (lambda: ge.optimizers.wrap(KERAS.Adam(0.01)), 2 * DIM),
    "lazy_adam": (lambda: ge.optimizers.LazyAdam(0.01), 2 * DIM),
    "adagrad": (lambda: ge.optimizers.wrap(KERAS.Adagrad(0.1)), DIM),
    "rowwise_adam": (lambda: ge.optimizers.RowwiseAdam(0.01), DIM + 1),
    "rowwise_adagrad": (lambda: ge.optimizers.RowwiseAdagrad(0.1), 1),
}
TIERS = [("dram",), ("dram", "disk")]


def batches(num_steps=8, samples=64):
    """[steps, samples] keys of which many come again."""
    rng = np.random.default_rng(SEED)
    known = rng.integers(-(2**63), 2**63 - 1, 300)
    return [rng.choice(known, samples) for _ in range(num_steps)]


class Trained(tf.Module):
    """A table, and the optimizer that trains it."""

    def __init__(self, optimizer="adam", slot_dtype="bfloat16", name="user", **options):
        super().__init__()
        self.table = ge.keyed_table(
            name, DIM, initializer=tf.keras.initializers.RandomNormal(seed=SEED),
            num_initial_rows=None, slot_dtype=slot_dtype, **options,
        )  # fmt: skip
        self.optimizer = OPTIMIZERS[optimizer][0]() if isinstance(optimizer, str) else optimizer
        self.targets = tf.random.stateless_normal([DIM], seed=[SEED, SEED])

    def train(self, steps):
        for keys in steps:
            with tf.GradientTape() as tape:
                (rows,) = ge.lookup([self.table], [tf.constant(keys, tf.int64)])
                loss = tf.reduce_sum((tf.cast(rows, tf.float32) - self.targets) ** 2)
            gradient = tape.gradient(loss, self.table)
            self.optimizer.apply_gradients([(gradient, self.table)])
        return self

    def write(self, path):
        return tf.train.Checkpoint(model=self).write(str(path))

    def read(self, path):
        tf.train.Checkpoint(model=self).read(path).expect_partial()
        return self


def slots_of(path, name="user"):
    """{key: {slot: its numbers, in float32}} of a checkpoint."""
    (saved,) = [table for table in files.tables(path) if table["table"] == name]
    headers = [files.table_file(file["path"]).header["slots"] for file in saved["files"]]
    dtypes = {slot["name"]: slot["dtype"] for slots in headers for slot in slots}
    found = {}
    for key, (_, _, _, slots) in content(path)[0][name].items():
        found[key] = {
            slot: np.asarray(
                tf.cast(tf.io.decode_raw(bits, dtypes[slot]), tf.float32)
                if dtypes[slot] != "bfloat16"
                else tf.cast(tf.bitcast(tf.io.decode_raw(bits, tf.uint16), tf.bfloat16), tf.float32)
            )
            for slot, bits in slots.items()
        }
    return found


def rounded(values):
    """To bfloat16, to nearest."""
    return tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_take_half_the_bytes(name):
    # Given tables of as many keys, without slots, with slots as stock has them, and in bfloat16
    keys = [np.arange(50_000)]
    bare = Trained(ge.optimizers.wrap(KERAS.SGD(0.1)), None, "bare").train(keys)
    stock = Trained(name, None, "stock").train(keys)
    halved = Trained(name, "bfloat16", "halved").train(keys)
    # When their bytes are measured
    bare, stock, halved = (int(one.table.memory_bytes()) for one in (bare, stock, halved))
    # Then those of slots are 4, and 2, for each number (a table has 4097 rows that are no key's)
    for size, number in ((stock, 4), (halved, 2)):
        assert size - bare == pytest.approx(number * OPTIMIZERS[name][1] * 50_000, rel=0.1)
    assert (halved - bare) * 2 == stock - bare


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("tiers", TIERS, ids="+".join)
def test_training_goes_on_from_a_checkpoint_to_the_same_bits(name, tiers, tmp_path):
    # Given keys of which some were erased, so that rows of a restored table have other numbers
    options = {"tiers": tiers}
    if "disk" in tiers:
        options["tier_bytes"] = [200 * 300]
    steps = batches()
    model = Trained(name, **options).train(steps[:4])
    model.table.erase(steps[0][:20])
    half = model.write(tmp_path / "half")
    whole = model.train(steps[4:]).write(tmp_path / "whole")
    # When another model goes on from the checkpoint
    other = Trained(name, **options).read(half)
    again = other.train(steps[4:]).write(tmp_path / "again")
    # Then rows, slots and counts are those of the training that went on
    assert content(again)[0] == content(whole)[0]
    assert any(np.any(slot) for slots in slots_of(again).values() for slot in slots.values())


def test_rows_of_16_bits_go_on_to_the_same_bits_too(tmp_path):
    # Given rows that are rounded at random, and keys of which some were erased
    def make():
        adagrad = ge.optimizers.wrap(KERAS.Adagrad(0.01), stochastic_rounding_seed=SEED)
        return Trained(adagrad, None, dtype=tf.bfloat16)

    steps = batches()
    model = make().train(steps[:4])
    model.table.erase(steps[0][:20])
    half = model.write(tmp_path / "half")
    whole = model.train(steps[4:]).write(tmp_path / "whole")
    # When another model goes on from their checkpoint, then it has the same bits
    again = make().read(half).train(steps[4:]).write(tmp_path / "again")
    assert content(again)[0] == content(whole)[0]


def test_a_seed_repeats_and_another_one_draws_otherwise(tmp_path):
    def train(name, seed):
        adam = ge.optimizers.wrap(KERAS.Adam(0.01), stochastic_rounding_seed=seed)
        return Trained(adam).train(batches()).write(tmp_path / name)

    # Given the seeds 0, 0, none and 1, when tables are trained
    saved = [content(train(f"{i}", seed))[0] for i, seed in enumerate([0, 0, None, 1])]
    # Then the first three have the same bits
    assert saved[0] == saved[1] == saved[2]
    assert saved[0] != saved[3]


@pytest.mark.parametrize("name", ["adam", "rowwise_adam"])
def test_rounded_slots_stay_near_those_of_float32(name, tmp_path):
    # Given the same training with slots of both types
    wide, narrow = (
        slots_of(Trained(name, slots).train(batches(30)).write(tmp_path / slots))
        for slots in ("float32", "bfloat16")
    )
    # Then moments differ by the noise of some roundings of 2^-8, and on average by less
    assert wide.keys() == narrow.keys()
    for slot in wide[next(iter(wide))]:
        of_wide, of_narrow = (np.stack([of[slot] for of in one.values()]) for one in (wide, narrow))
        scale = np.abs(of_wide).mean()
        assert np.abs(of_narrow - of_wide).max() < 0.2 * np.abs(of_wide).max()
        assert abs((of_narrow - of_wide).mean()) < 0.005 * scale
        np.testing.assert_array_equal(of_narrow, rounded(of_narrow))


@pytest.mark.parametrize("before, after", [("float32", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("has_slots", [False, True], ids=["no slots", "slots"])
@pytest.mark.parametrize("tiers", TIERS, ids="+".join)
def test_a_checkpoint_with_slots_of_the_other_type(before, after, has_slots, tiers, tmp_path):
    # Given a checkpoint of slots of one type, and a table of the other, trained or not
    options = {"tiers": tiers}
    if "disk" in tiers:
        options["tier_bytes"] = [200 * 300]
    saved = Trained("adam", before, **options).train(batches()).write(tmp_path / "saved")
    model = Trained("adam", after, **options)
    if has_slots:
        model.train(batches()[:2])
    # When it is restored, then rows are equal, and slots rounded to nearest
    restored = model.read(saved).write(tmp_path / "restored")
    rows, others = content(saved)[0]["user"], content(restored)[0]["user"]
    assert {k: row[:3] for k, row in rows.items()} == {k: row[:3] for k, row in others.items()}
    found, expected = slots_of(restored), slots_of(saved)
    for key, slots in expected.items():
        for slot, values in slots.items():
            values = rounded(values) if after == "bfloat16" else values
            np.testing.assert_array_equal(found[key][slot], values)
    # And it is trained on
    model.train(batches())
    assert int(model.table.total_count()) == len(rows)


@pytest.mark.parametrize("before, after", [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_what_a_table_keeps_of_its_keys_stays_in_its_type(before, after, tmp_path):
    # Given a table that keeps scores, minutes and the steps in which keys were new
    options = {
        "max_keys": 1000, "budget_of": "rank", "evict": "score", "safe_steps": 3,
        "evict_after_minutes": 60,
    }  # fmt: skip
    model, other = (Trained("adam", slots, **options) for slots in (before, after))
    for one in (model, other):
        one.table.set_time(12345678 * 60)
    model.train(batches())
    keys = np.unique(batches())
    model.table.set_scores(keys, np.linspace(0, 1, len(keys), dtype=np.float32) / 3)
    saved = model.write(tmp_path / "saved")
    # When a table with slots of the other type restores it
    restored = other.read(saved).write(tmp_path / "restored")
    # Then those have all their bits
    rows, others = content(saved)[0]["user"], content(restored)[0]["user"]
    own = ("budget/score", "key/minute", "budget/born")
    for key, row in rows.items():
        assert all(row[3][slot] == others[key][3][slot] for slot in own)
    assert len({row[3]["budget/score"] for row in rows.values()}) == len(keys)


def test_changes_in_bfloat16_after_a_full_save_in_float32(tmp_path):
    # Given a session whose table goes on in bfloat16 from a full save in float32
    v1 = tf.compat.v1

    def run(slot_dtype, restore, steps, save):
        with tf.Graph().as_default(), v1.Session() as session:
            table = ge.keyed_table("user", DIM, slot_dtype=slot_dtype)
            keys = v1.placeholder(tf.int64, [None])
            (rows,) = ge.lookup([table], [keys])
            global_step = v1.train.get_or_create_global_step()
            adam = ge.optimizers.wrap(v1.train.AdamOptimizer(0.01))
            step = adam.minimize(tf.reduce_sum(rows**2), global_step)
            saver = v1.train.Saver()
            session.run(v1.global_variables_initializer())
            if restore:
                saver.restore(session, restore)
            for of_step in steps:
                session.run(step, {keys: of_step})
            return save(saver, session)

    def save_all(saver, session):
        return saver.save(session, f"{tmp_path}/model", 3)

    first = run("float32", None, batches()[:3], save_all)

    def save_both(saver, session):
        changes = ge.checkpoint.save_changes(saver, session, f"{tmp_path}/model", global_step=5)
        return changes, saver.save(session, f"{tmp_path}/full")

    def save_again(saver, session):
        return saver.save(session, f"{tmp_path}/again")

    # When changes are saved beside all, and both are restored in either type
    changes, full = run("bfloat16", first, batches()[3:5], save_both)
    for slot_dtype in ("bfloat16", "float32"):
        # Then they are equal to the last bit
        from_changes = content(run(slot_dtype, changes, [], save_again))[0]
        assert from_changes == content(run(slot_dtype, full, [], save_again))[0]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: ge.optimizers.wrap(KERAS.Adam(0.1, amsgrad=True)), "amsgrad"),
        (lambda: ge.optimizers.wrap(KERAS.Ftrl(0.1)), "rule 'ftrl'"),
        (lambda: ge.optimizers.wrap(KERAS.RMSprop(0.1)), "rule 'rmsprop'"),
        (lambda: ge.optimizers.wrap(KERAS.SGD(0.1, momentum=0.9)), "rule 'keras_momentum'"),
        (lambda: ge.optimizers.Lamb(0.1), "rule 'lamb'"),
        (lambda: ge.optimizers.AdamWOptimizer(0.1), "Keras's AdamW.*'AdamW' of rule 'adamw'"),
        (
            lambda: ge.optimizers.AdamAsyncOptimizer(0.1, apply_sparse_rmsprop=True),
            "AdamAsyncOptimizer without apply_sparse_rmsprop.*rule 'rmsprop'",
        ),
    ],
)
def test_other_optimizers_are_refused_by_name(make, words):
    # Given a table with slots in bfloat16, when another optimizer trains it
    model = Trained(make())
    # Then the error names table, optimizer and what to do, and the table is as before
    with pytest.raises(ValueError, match=f"table 'user': .*{words}.*slot_dtype='float32'"):
        model.train([np.arange(3)])
    assert int(model.table.total_count()) == 3  # as looked up
    Trained(make(), "float32", "wide").train([np.arange(3)])


@pytest.mark.parametrize("slot_dtype", ["float16", tf.float16, "half"])
def test_other_types_are_refused(slot_dtype):
    with pytest.raises(ValueError, match="slot_dtype to be one of 'float32', 'bfloat16'"):
        ge.keyed_table("user", DIM, slot_dtype=slot_dtype)


@pytest.mark.parametrize("slot_dtype", ["bfloat16", tf.bfloat16])
def test_a_type_is_taken_as_its_name(slot_dtype):
    # Given options of a type of slots, or of its name
    options = ge.KeyedOptions(slot_dtype=slot_dtype)

    # When tables are made of it
    table = ge.keyed_table("user", DIM, slot_dtype=slot_dtype)
    other = ge.get_embedding_variable("item", DIM, ev_option=options)

    # Then both have it
    assert options.slot_dtype == "bfloat16"
    assert [table.slot_dtype, other.slot_dtype] == [tf.bfloat16] * 2


def test_an_optimizer_without_slots_trains_such_a_table():
    model = Trained(ge.optimizers.wrap(KERAS.SGD(0.1))).train(batches())
    assert int(model.table.total_count()) == len(np.unique(batches()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ge.optimizers.wrap(KERAS.AdamW(0.1)),
        lambda: ge.optimizers.AdamAsyncOptimizer(0.1),
    ],
    ids=["AdamW", "AdamAsync"],
)
def test_others_of_adams_rule_train_such_a_table(make):
    # Given a table with slots in bfloat16, and one with slots in the rows' type
    keys = [np.arange(1000)]

    # When one of these optimizers trains both
    halved, stock = (Trained(make(), dtype).train(keys) for dtype in ("bfloat16", "float32"))

    # Then the first has the fewer bytes, of two slots, and its rows have moved alike
    saved = int(stock.table.memory_bytes()) - int(halved.table.memory_bytes())
    assert saved >= 2 * 2 * DIM * 1000
    rows = [ge.lookup([one.table], [tf.range(1000)])[0] for one in (halved, stock)]
    np.testing.assert_allclose(*rows, atol=0.01)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("slot_dtype", ["float32", "bfloat16"])
def test_rows_of_16_bits(dtype, slot_dtype, tmp_path):
    # Given rows of 16 bits, with slots of either type, when they are trained
    saved = Trained("adam", slot_dtype, dtype=dtype).train(batches()).write(tmp_path / "saved")
    # Then slots have their own type
    (table,) = files.tables(saved)
    (file,) = table["files"]
    slots = files.table_file(file["path"]).header["slots"]
    assert [slot["dtype"] for slot in slots] == [slot_dtype] * 2


def test_tables_of_both_types_in_one_lookup_and_moving_averages(tmp_path):
    # Given two tables of a lookup, of which one has small slots, and an optimizer with averages
    tables = [
        ge.keyed_table(name, DIM, initializer=tf.ones_initializer(), slot_dtype=slots)
        for name, slots in (("small", "bfloat16"), ("wide", None))
    ]
    adam = ge.optimizers.wrap(KERAS.Adam(0.01, use_ema=True))

    @tf.function
    def step(keys):
        with tf.GradientTape() as tape:
            rows = ge.lookup(tables, [keys, keys])
            loss = tf.add_n([tf.reduce_sum((of - 3.0) ** 2) for of in rows])
        adam.apply_gradients(zip(tape.gradient(loss, tables), tables))

    # When both are trained, and saved
    for keys in batches():
        step(tf.constant(keys))
    saved = tf.train.Checkpoint(tables=tables).write(str(tmp_path / "saved"))
    # Then moments have the table's type, and averages are in float32
    dtypes = {}
    for table in files.tables(saved):
        (file,) = table["files"]
        header = files.table_file(file["path"]).header
        dtypes[table["table"]] = {s["name"].split("/")[-1]: s["dtype"] for s in header["slots"]}
    averages = {"average": "float32", "average_step": "float32"}
    assert dtypes["wide"] == {"momentums": "float32", "velocities": "float32", **averages}
    assert dtypes["small"] == {"momentums": "bfloat16", "velocities": "bfloat16", **averages}
    # And a table of small slots restores them with all their bits
    other = ge.keyed_table("small", DIM, slot_dtype="bfloat16")
    tf.train.Checkpoint(tables=[other]).read(saved).expect_partial()
    again = tf.train.Checkpoint(tables=[other]).write(str(tmp_path / "again"))
    assert content(again)[0]["small"] == content(saved)[0]["small"]
