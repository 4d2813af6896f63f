"""Keys that a table's key type does not have are refused, not wrapped."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

ONES = np.ones([2, 2], np.float32)
CALLS = {
    "insert": lambda table, keys: table.insert(keys, ONES),
    "erase": lambda table, keys: table.erase(keys),
    "set_scores": lambda table, keys: table.set_scores(keys, [1.0, 2.0]),
    "get_frequency": lambda table, keys: table.get_frequency(keys),
    "get_version": lambda table, keys: table.get_version(keys),
    "lookup_tier": lambda table, keys: table.lookup_tier(keys),
}


def make(name, key_dtype):
    """A table that evicts by scores, with the keys 0 and 3 and the largest of its type."""
    table = ge.keyed_table(
        name, 2, key_dtype=key_dtype, max_keys=9, budget_of="rank", evict="score"
    )
    table.insert(np.array([0, 3, key_dtype.max], key_dtype.as_numpy_dtype), np.ones([3, 2]))
    return table


@pytest.mark.parametrize(
    "key_dtype, keys, first",
    [
        (tf.int32, [3, 2**40], 2**40),
        (tf.int32, np.array([2**40, -(2**40)]), 2**40),
        (tf.int32, [np.int64(3), np.int64(-(2**31) - 1)], -(2**31) - 1),
        (tf.uint32, [-1, 3], -1),
        (tf.uint32, np.array([3, -1], np.int8), -1),
        (tf.int64, [3, 2**63], 2**63),
        (tf.int64, [-1, 2**63], 2**63),
        (tf.int64, np.array([2**63, 3], np.uint64), 2**63),
        (tf.int64, np.array([3, 1.5]), 1.5),
        (tf.int64, np.array([3, np.nan], np.float32), "nan"),
        (tf.uint64, [-1, 3], -1),
        (tf.uint64, (3, 2**64), 2**64),
        (tf.uint64, np.array([3, -1]), -1),
    ],
    ids=str,
)
def test_a_key_that_the_type_does_not_have(key_dtype, keys, first):
    # Given two tables with keys, among them those that wrapped ones would be
    users, items = make("users", key_dtype), make("shop/items", key_dtype)
    before = [table.export().keys.numpy().tolist() for table in (users, items)]

    # When they are called with a key that is none of their type, eagerly and in a function
    def in_function(table, keys):
        tf.function(lambda: table.get_frequency(keys), autograph=False)()

    for table, name in ((users, "users"), (items, "shop/items")):
        message = (
            f"table '{name}': expected keys of {key_dtype.name}, {key_dtype.min} to "
            f"{key_dtype.max}, got {first}; "
        )
        for call in (*CALLS.values(), in_function):
            # Then that is an error which names it
            with pytest.raises(ValueError) as raised:
                call(table, keys)
            assert str(raised.value).startswith(message)
    # And the tables have the keys that they had
    assert [table.export().keys.numpy().tolist() for table in (users, items)] == before


@pytest.mark.parametrize("key_dtype", [tf.int32, tf.int64, tf.uint32, tf.uint64], ids=str)
def test_the_last_keys_of_a_type_in_every_form(key_dtype):
    # Given a table, and the lowest and the highest of its keys
    table = ge.keyed_table("users", 2, key_dtype=key_dtype)
    lowest, highest = key_dtype.min, key_dtype.max
    keys = np.array([lowest, highest], key_dtype.as_numpy_dtype)
    # When they are inserted as a list, a tuple, NumPy's, and tensors in a list
    forms = [[lowest, highest], (lowest, highest), keys, list(keys), tf.constant(keys)]
    forms += [[tf.constant(key, key_dtype) for key in keys]]
    for number, form in enumerate(forms):
        table.insert(form, ONES, freqs=[number, number])
        # Then they are the table's, and no others, and those calls find them
        assert table.export().keys.numpy().tolist() == [lowest, highest]
        assert table.get_frequency(form).numpy().tolist() == [number, number]
    # And a single key, none, and an array in a list are keys too
    assert int(table.get_frequency(highest)) == number
    assert table.get_frequency([]).shape == table.get_frequency(np.zeros([0])).shape == (0,)
    assert table.get_frequency([keys, keys]).shape == (2, 2)


def test_tensors_are_taken_or_refused_by_their_type():
    # Given tables of narrow and of wide keys, with the key 3
    narrow, wide = make("narrow", tf.int32), make("wide", tf.int64)
    # When a function asks for a list with a tensor of narrow keys
    ask = tf.function(lambda key: [t.get_version([key, 3, 4]) for t in (narrow, wide)])
    narrow.insert([3], ONES[:1], versions=[7])
    wide.insert([3], ONES[:1], versions=[8])
    # Then both find it, and a tensor of wide keys is refused by the narrow table, whatever it has
    assert [found.numpy().tolist() for found in ask(tf.constant(3))] == [[7, 7, -1], [8, 8, -1]]
    assert wide.get_version(tf.constant([3], tf.int32)).numpy() == [8]
    with pytest.raises(ValueError, match="table 'narrow': expected keys of int32.*tensor of int64"):
        narrow.get_version(tf.constant([3], tf.int64))
