"""Preprocessing against NumPy and Python: fitted in one pass, saved, in map and in a SavedModel."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

WORDS = ["b", "a", "c", "a", "b", "b", "d", "", "ä", "d"]


def make_batches():
    """Batches of features with missing values, and all of their values as one."""
    rng = np.random.default_rng(3)
    batches = []
    for size in (40, 7, 60):
        price = rng.gamma(1.0, 50.0, size).astype(np.float32) - 1
        price[rng.random(size) < 0.2] = np.nan
        seen = [rng.integers(0, 30, n).tolist() for n in rng.integers(0, 5, size)]
        batches.append(
            {
                "price": tf.constant(price),
                "item": tf.constant(rng.zipf(1.3, size) % 50 - 1),
                "word": tf.constant([WORDS[i] for i in rng.integers(0, len(WORDS), size)]),
                "seen": tf.ragged.constant(seen, tf.int64),
            }
        )
    return batches


def values_of(batches, name):
    parts = [batch[name] for batch in batches]
    parts = [p.flat_values if isinstance(p, tf.RaggedTensor) else p for p in parts]
    return np.concatenate([part.numpy() for part in parts])


def make_pipeline():
    return ge.data.Pipeline(
        [
            ge.data.Bucketize("price", [0, 10.5, 100], output="price_bucket"),
            ge.data.Log("price"),
            ge.data.Standardize("price"),
            ge.data.Clip("price", -2, 2),
            ge.data.FillMissing("price", 0.25),
            ge.data.Cross(["item", "word"], 1000, "item_word"),
            ge.data.Categorify("item", min_count=2, max_size=12, missing=-1),
            ge.data.Categorify("word", missing=""),
            ge.data.Hash("seen", 13),
        ]
    )


def ids_by_frequency(values, min_count=1, max_size=None, missing=None):
    counts = collections.Counter(value for value in values if value != missing)
    order = sorted(counts, key=lambda value: (-counts[value], value))
    kept = [value for value in order if counts[value] >= min_count][:max_size]
    return {value: number for number, value in enumerate(kept, 1)}


def splitmix(values, seed=0):
    """The finalizer of splitmix64, of Python's integers."""
    results = []
    for value in values:
        x = (int(value) + 0x9E3779B97F4A7C15 * (seed + 1)) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        results.append((x ^ (x >> 31)) & (2**63 - 1))
    return results


def check(outputs, batch, batches):
    """Compares the outputs of a batch with NumPy's, fitted to all batches."""
    price, every = batch["price"].numpy(), values_of(batches, "price")
    log = np.log1p(np.maximum(every.astype(np.float64), 0))
    expected = (np.log1p(np.maximum(price, 0)) - np.nanmean(log)) / np.nanstd(log)
    expected = np.where(np.isnan(price), 0.25, np.clip(expected, -2, 2))
    np.testing.assert_allclose(outputs["price"], expected, rtol=1e-5, atol=1e-6)
    buckets = np.where(np.isnan(price), 0, np.digitize(price, [0, 10.5, 100]))
    np.testing.assert_array_equal(outputs["price_bucket"], buckets)
    items = ids_by_frequency(values_of(batches, "item").tolist(), 2, 12, -1)
    assert outputs["item"].numpy().tolist() == [items.get(i, 0) for i in batch["item"].numpy()]
    words = ids_by_frequency(values_of(batches, "word").tolist(), missing=b"")
    assert outputs["word"].numpy().tolist() == [words.get(w, 0) for w in batch["word"].numpy()]
    hashed = [x % 13 for x in splitmix(batch["seen"].flat_values.numpy())]
    assert outputs["seen"].flat_values.numpy().tolist() == hashed
    np.testing.assert_array_equal(outputs["seen"].row_splits, batch["seen"].row_splits)


def test_fitted_and_applied():
    # Given batches of any sizes
    batches = make_batches()

    # When a pipeline is fitted in one pass, which an iterator allows
    pipeline = make_pipeline().fit(iter(batches))

    # Then its outputs are NumPy's, eagerly and in map
    for batch in batches:
        check(pipeline(batch), batch, batches)
    for batch in batches:
        dataset = tf.data.Dataset.from_tensors((batch, tf.zeros([1]))).map(pipeline)
        ((outputs, _),) = dataset
        check(outputs, batch, batches)
    # Then the sizes of tables are known
    assert pipeline.num_ids == {
        **{"price_bucket": 4, "item_word": 1000, "item": 13, "word": 6, "seen": 13}
    }
    assert max(int(tf.reduce_max(pipeline(batch)["item"])) for batch in batches) == 12


def test_saved_and_loaded(tmp_path):
    # Given a pipeline that is saved
    batches = make_batches()
    pipeline = make_pipeline().fit(batches)
    pipeline.save(tmp_path / "etl")

    # When it is loaded
    loaded = ge.data.Pipeline.load(tmp_path / "etl")

    # Then it does as before, and can be fitted anew
    for batch in batches:
        check(loaded(batch), batch, batches)
    assert loaded.num_ids == pipeline.num_ids
    loaded.fit(batches[:1])
    check(loaded(batches[0]), batches[0], batches[:1])


def test_in_a_saved_model(tmp_path):
    # Given a model whose signature takes raw features
    batches = make_batches()
    pipeline = make_pipeline().fit(batches)

    class Served(tf.Module):
        def __init__(self):
            super().__init__()
            self.pipeline = pipeline

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.float32, "price"),
                tf.TensorSpec([None], tf.int64, "item"),
                tf.TensorSpec([None], tf.string, "word"),
                tf.RaggedTensorSpec([None, None], tf.int64, 1, tf.int64),
            ]
        )
        def serve(self, price, item, word, seen):
            return self.pipeline({"price": price, "item": item, "word": word, "seen": seen})

    # When it is exported and loaded where there is no pipeline
    tf.saved_model.save(Served(), str(tmp_path / "model"))
    served = tf.saved_model.load(str(tmp_path / "model"))

    # Then it does as in training
    for batch in batches:
        names = ("price", "item", "word", "seen")
        outputs = served.serve(*[batch[name] for name in names])
        check(outputs, batch, batches)


def test_fitted_to_a_reader(tmp_path):
    # Given a file whose keys are more than are counted at a time
    pytest.importorskip("pyarrow")
    rows = [i % 10 if i % 2 else 1000 + i for i in range(2000)]
    (tmp_path / "a.csv").write_text("item\n" + "".join(f"{row}\n" for row in rows))
    reader = ge.data.Reader(tmp_path / "a.csv", 64)

    # When frequent keys are wanted
    step = ge.data.Categorify("item", min_count=100, max_counted=100)
    pipeline = ge.data.Pipeline([step]).fit(reader)

    # Then they are found
    assert sorted(step.vocabulary) == [1, 3, 5, 7, 9]
    first = next(iter(reader.map(pipeline)))["item"].numpy()
    expected = {key: number for number, key in enumerate(step.vocabulary, 1)}
    assert first.tolist() == [expected.get(row, 0) for row in rows[:64]]


def test_shared_vocabulary_and_hashes_of_strings():
    # Given two features that share a vocabulary, and strings
    data = {
        "a": tf.constant([7, 8, 7]),
        "b": tf.constant([9, 7, 9]),
        "c": tf.constant(["x", "y", "x"]),
    }
    step = ge.data.Categorify(["a", "b"])

    # When they are converted
    outputs = ge.data.Pipeline([step, ge.data.Hash("c", 1000, seed=2)]).fit([data])(data)

    # Then equal values have equal ids
    assert step.vocabulary == [7, 9, 8]
    assert outputs["a"].numpy().tolist() == [1, 3, 1]
    assert outputs["b"].numpy().tolist() == [2, 1, 2]
    numbers = tf.strings.to_hash_bucket_fast(data["c"], 2**63 - 1).numpy()
    assert outputs["c"].numpy().tolist() == [x % 1000 for x in splitmix(numbers, seed=2)]


def test_hashes_of_integers_at_the_ends():
    # Given integers at the ends of int64, and keys that a vocabulary does not have
    ends = tf.constant([-(2**63), -1, 0, 2**63 - 1], tf.int64)
    step = ge.data.Categorify("a")
    pipeline = ge.data.Pipeline([step]).fit([{"a": ends[1:3]}])

    # Then they hash as Python's, and only known keys have ids
    hashed = ge.data.Hash("a", 97)({"a": ends})["a"].numpy().tolist()
    assert hashed == [x % 97 for x in splitmix(ends.numpy())]
    assert pipeline({"a": ends})["a"].numpy().tolist() == [0, 1, 2, 0]


def test_standard_deviation_of_large_numbers():
    # Given numbers whose squares lose the digits that count
    data = [
        {"a": tf.constant([1e9 + 1, 1e9 + 2], tf.float64)},
        {"a": tf.constant([1e9 + 6], tf.float64)},
    ]
    step = ge.data.Standardize("a")

    # When they are fitted
    ge.data.Pipeline([step]).fit(data)

    # Then mean and deviation are exact
    np.testing.assert_allclose(step.values["a"], [1e9 + 3, np.std([1, 2, 6])])


@pytest.mark.parametrize(
    "steps, words",
    [
        (lambda: [ge.data.Standardize("a"), ge.data.Standardize("a")], "fitted in one pass"),
        (
            lambda: [ge.data.Standardize("a"), ge.data.Log("a", "b"), ge.data.Standardize("b")],
            "Standardize of b: .*depends on Standardize",
        ),
        (lambda: [ge.data.Clip("a", 2, 1)], "least <= most"),
        (lambda: [ge.data.Bucketize("a", [1, 1])], "ascending boundaries"),
        (lambda: [ge.data.Hash("a", 0)], "Hash: expected a size"),
        (lambda: [ge.data.Cross(["a"], 5, "b")], "Cross: expected two features"),
        (lambda: [ge.data.Log(["a", "b"], "c")], "expected output of one feature"),
        (lambda: [ge.data.Categorify("a", min_count=0)], "min_count"),
    ],
)
def test_steps_that_do_not_fit(steps, words):
    with pytest.raises(ValueError, match=words):
        ge.data.Pipeline(steps())


def test_features_that_do_not_fit():
    floats, words = {"a": tf.constant([1.5])}, {"a": tf.constant(["x"])}
    with pytest.raises(ValueError, match="Categorify of feature 'a': expected integers or strings"):
        ge.data.Pipeline([ge.data.Categorify("a")]).fit([floats])
    with pytest.raises(ValueError, match="Standardize of feature 'a': expected numbers"):
        ge.data.Pipeline([ge.data.Standardize("a")]).fit([words])
    with pytest.raises(ValueError, match="Hash of feature 'a': expected integers or strings"):
        ge.data.Pipeline([ge.data.Hash("a", 4)])(floats)
    with pytest.raises(ValueError, match="expected a feature 'b', got a"):
        ge.data.Pipeline([ge.data.Log("b")])(floats)
    with pytest.raises(ValueError, match=r"expected fit\(\) before"):
        ge.data.Pipeline([ge.data.Standardize("a")])(floats)
    fitted = ge.data.Pipeline([ge.data.Categorify("a")]).fit([words])
    with pytest.raises(ValueError, match="expected strings, got int32"):
        fitted({"a": tf.constant([1])})
