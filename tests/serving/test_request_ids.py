"""Ids of a request that lookups read where the request has them, past the graph."""

import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.serving import InferenceSession

SEED = 4711
ROWS, KEYS, DIM = 50, 600, 4


def sparse(*shape):
    return tf.SparseTensorSpec(shape, tf.int64)


class Model(tf.Module):
    """Two keyed tables and two by row number; functions that pass ids in each form."""

    def __init__(self):
        super().__init__()
        random = np.random.default_rng(SEED)

        def draw(*shape):
            return random.normal(size=shape).astype(np.float32)

        self.keyed = [ge.get_embedding_variable(f"ids_{n}", DIM) for n in ("user", "item")]
        for table in self.keyed:
            table.insert(np.arange(KEYS), draw(KEYS, DIM))
        self.plain = [tf.Variable(draw(ROWS, DIM), name=name) for name in ("city", "hour")]

    def _look_up(self, ids, weights=None, combiner="mean"):
        tables = [self.keyed[0], self.plain[0], self.keyed[1], self.plain[1]]
        found = ge.group_embedding_lookup_sparse(tables, ids, combiner, sp_weights=weights)
        return tf.concat(found, 1)

    @tf.function
    def forms(self, user, city, item, hour):
        return {"rows": self._look_up([user, city, item, hour])}

    @tf.function
    def weighted(self, user, city, item, hour, user_weights, city_weights):
        weights = [user_weights, city_weights, None, None]
        return {"rows": self._look_up([user, city, item, hour], weights, "sqrtn")}

    @tf.function
    def also_read(self, user, city, item, hour):
        """The ids are answers, too, and one of them is changed before it is looked up."""
        moved = tf.sparse.map_values(lambda values: values + 1, item)
        return {"rows": self._look_up([user, city, moved, hour]), "user": user.values}

    @tf.function
    def looped(self, user, city, item, hour):
        """Each round looks other ids up."""
        ids, total = hour, tf.zeros([user.dense_shape[0], 4 * DIM])
        for _ in tf.range(3):
            total += self._look_up([user, city, item, ids])
            ids = ids.with_flat_values((ids.flat_values + 1) % ROWS)
        return {"rows": total}

    def signatures(self):
        ragged = [
            tf.RaggedTensorSpec([None, None], tf.int64, row_splits_dtype=tf.int64),
            tf.RaggedTensorSpec([None, None], tf.int32, row_splits_dtype=tf.int32),
        ]
        specs = [sparse(None, None), ragged[0], sparse(None, None), ragged[1]]
        of_weights = [
            tf.SparseTensorSpec([None, None], tf.float32),
            tf.RaggedTensorSpec([None, None], tf.float32, row_splits_dtype=tf.int64),
        ]
        forms = self.forms.get_concrete_function(*specs)
        return {
            "serving_default": forms,
            "twin": forms,  # two signatures, one function
            "weighted": self.weighted.get_concrete_function(*specs, *of_weights),
            "also_read": self.also_read.get_concrete_function(*specs),
            "looped": self.looped.get_concrete_function(*specs),
        }


def draw_lists(random, samples):
    """The ids of each feature, a list for each sample, of which some are empty."""
    high = (KEYS + 100, ROWS, KEYS, ROWS)  # some keys have no row
    return [[random.integers(0, h, random.integers(0, 4)) for _ in range(samples)] for h in high]


def parts_of_sparse(lists):
    rows = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
    columns = np.concatenate([np.arange(len(one)) for one in lists] + [[]])
    indices = np.stack([rows, columns], 1).astype(np.int64)
    return [indices, np.concatenate([*lists, []]).astype(np.int64), np.array([len(lists), 4])]


def parts_of_ragged(lists, dtype):
    splits = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
    return [np.concatenate([*lists, []]).astype(dtype), splits.astype(dtype)]


def inputs_of(lists, weights=None):
    """The inputs of a request, by the names that signatures give them."""
    user, city, item, hour = lists
    made = {"user": parts_of_sparse(user), "city": parts_of_ragged(city, np.int64)}
    made |= {"item": parts_of_sparse(item), "hour": parts_of_ragged(hour, np.int32)}
    if weights is not None:
        (indices, values, shape), (ids, splits) = made["user"], made["city"]
        made["user_weights"] = [indices, weights[0][: len(values)], shape]
        made["city_weights"] = [weights[1][: len(ids)], splits]
    named = {}
    for name, parts in made.items():
        named |= {f"{name}_{i}" if i else name: part for i, part in enumerate(parts)}
    return named


def tensors_of(inputs):
    """The arguments of a function of the model that are these inputs."""
    whole = {}
    for name in dict.fromkeys(re.sub(r"_\d$", "", name) for name in inputs):
        parts = [inputs[n] for n in (name, f"{name}_1", f"{name}_2") if n in inputs]
        if len(parts) == 3:
            whole[name] = tf.SparseTensor(*parts)
        else:
            whole[name] = tf.RaggedTensor.from_row_splits(*parts, validate=False)
    return whole


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("request_ids") / "1"
    tf.saved_model.save(model, str(path), signatures=model.signatures())
    return path


@pytest.fixture(scope="module")
def session(folder):
    with InferenceSession(folder) as opened:
        yield opened


def requests(signature, count=8):
    random = np.random.default_rng(SEED + len(signature))
    for _ in range(count):
        lists = draw_lists(random, random.integers(1, 6))
        weights = random.uniform(0.5, 2, [2, 100]).astype(np.float32)
        yield inputs_of(lists, weights if signature == "weighted" else None)


SIGNATURES = {
    "serving_default": "forms",
    "twin": "forms",
    "weighted": "weighted",
    "also_read": "also_read",
    "looped": "looped",
}


@pytest.mark.parametrize("signature", SIGNATURES)
def test_answers_are_those_of_the_function(model, session, signature):
    # Given requests of several features, tables and forms, some rows empty
    function = getattr(model, SIGNATURES[signature])
    for inputs in requests(signature):
        expected = function(**tensors_of(inputs))

        # When the session answers
        found = session.predict(inputs, signature)

        # Then to the bit
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value.numpy())


def nodes_of(folder, *signatures):
    """The ops that a request of each signature runs, by TensorFlow's own log."""
    script = (
        "import sys; sys.path[:0] = ['tests', 'tests/serving']\n"
        "from test_request_ids import requests\n"
        "from group_embedding.serving import InferenceSession\n"
        f"with InferenceSession({str(folder)!r}) as session:\n"
        f"    for signature in {signatures}:\n"
        "        sys.stderr.write('FROM HERE\\n')\n"
        "        session.predict(next(requests(signature)), signature)\n"
    )
    log = os.environ | {"TF_CPP_VMODULE": "executor=1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=log, capture_output=True, text=True, check=True
    )
    logs = done.stderr.split("FROM HERE")[1:]
    return [re.findall(r"Process node: .* = (\S+?)\[", log) for log in logs]


def test_ids_of_a_request_are_passed_by_no_node(folder):
    # Given signatures whose ids are inputs as they come, and some whose ids are made by the graph
    # When a request of each is computed
    direct, twin, made = nodes_of(folder, "serving_default", "twin", "also_read")

    # Then the first take no argument, and the others are grouped as they were
    for nodes in (direct, twin):
        assert nodes.count("GroupEmbedding>ServedIds") == 1
        assert "GroupEmbedding>GroupIds" not in nodes and "_Arg" not in nodes
    assert made.count("GroupEmbedding>GroupIds") == 1
    assert made.count("_Arg") == 10


def change(inputs, name, change):
    value = np.array(inputs[name])
    return inputs | {name: change(value)}


def swap(indices):
    return indices[::-1].copy()


def put(value, *at):
    def change(array):
        array[at or -1] = value
        return array

    return change


HOSTILE = {
    "indices out of order": ("user", swap),
    "a row behind the last": ("user", put(99, -1, 0)),
    "a negative row": ("item", put(-1, 0, 0)),
    "indices of three columns": ("user", lambda a: np.concatenate([a, a[:, :1]], 1)),
    "fewer indices than ids": ("user", lambda a: a[:-1]),
    "a negative size": ("user_2", put(-1, 0)),
    "a size of 2^62": ("user_2", put(1 << 62, 0)),
    "no sizes": ("user_2", lambda a: a[:0]),
    "splits that fall": ("city_1", lambda a: a[::-1].copy()),
    "splits beyond the ids": ("city_1", put(1 << 40)),
    "no splits": ("hour_1", lambda a: a[:0]),
    "a row number that is too large": ("city", put(ROWS)),
    "ids of another size": ("hour", lambda a: a[:-1]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_inputs_are_refused_as_by_the_function(model, session, case):
    # Given a request of which one part is wrong
    lists = [[[1, 2], [3]], [[4], [5, 6]], [[7], [8, 9]], [[10, 11], [12]]]
    good = inputs_of([[np.array(one) for one in feature] for feature in lists])
    name, wrong = HOSTILE[case]
    inputs = change(good, name, wrong)

    # When it is answered, and by TensorFlow's own passing: in "also_read" the graph makes ids
    with pytest.raises(Exception) as expected:
        session.predict(inputs, "also_read")
    with pytest.raises(Exception) as error:
        session.predict(inputs)

    # Then the error is the same, but for where TensorFlow found it, and the next is answered
    assert type(error.value) is type(expected.value)
    sentence = re.sub(r"signature '\w+'", "signature", str(error.value))
    assert sentence.split("\n")[0] in re.sub(r"signature '\w+'", "signature", str(expected.value))
    np.testing.assert_array_equal(
        session.predict(good)["rows"], model.forms(**tensors_of(good))["rows"]
    )


def test_numbers_may_lie_anywhere(model, session):
    # Given a request whose arrays begin at odd addresses
    inputs = next(requests("weighted"))
    odd = {}
    for name, value in inputs.items():
        memory = np.zeros(value.nbytes + 1, np.uint8)
        odd[name] = np.frombuffer(memory.data, value.dtype, value.size, 1).reshape(value.shape)
        odd[name][...] = value

    # When it is answered
    found = session.predict(odd, "weighted")

    # Then as from other addresses
    np.testing.assert_array_equal(found["rows"], model.weighted(**tensors_of(inputs))["rows"])


def test_an_answer_that_is_an_input_outlives_it(session):
    # Given an answer that has an input of its request
    inputs = next(requests("also_read"))
    expected = inputs["user_1"].copy()
    found = session.predict(inputs, "also_read")

    # When the request's memory gets other content
    inputs["user_1"][...] = -1

    # Then the answer stays
    np.testing.assert_array_equal(found["user"], expected)


def test_requests_side_by_side_read_their_own_ids(model, session):
    # Given requests of several threads, of two signatures
    wrong = []

    def ask(signature):
        function = getattr(model, SIGNATURES[signature])
        for inputs in requests(signature, 20):
            rows = session.predict(inputs, signature)["rows"]
            if not np.array_equal(rows, function(**tensors_of(inputs))["rows"]):
                wrong.append(signature)

    threads = [threading.Thread(target=ask, args=[s]) for s in ("twin", "weighted") * 2]

    # When they are answered at a time
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # Then each is that of its own ids
    assert wrong == []
