"""Ids that a `tf.data.Dataset` packs: elements like any tensor, looked up as the ids themselves."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops import batch_sizes

v1 = tf.compat.v1
COMBINERS = ["sum", "mean", "sqrtn"]
NUM_BATCHES, BATCH = 5, 4


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(7)
    rows = [tf.Variable(rng.normal(size=shape).astype("float32")) for shape in [(20, 2), (9, 3)]]
    keyed = ge.get_embedding_variable("packed", 4, initializer=tf.keras.initializers.Constant(0.5))
    keyed.insert(tf.range(20, dtype=tf.int64), tf.random.stateless_normal([20, 4], [1, 2]))
    return [*rows, keyed]


def batches():
    """(ids of three features, weights of the first), the last batch a smaller one."""
    rng = np.random.default_rng(3)
    for number in range(NUM_BATCHES):
        samples = BATCH if number + 1 < NUM_BATCHES else 1
        ragged = [rng.integers(0, 9, rng.integers(0, 4)) for _ in range(samples)]
        clicks = tf.ragged.constant([list(r) for r in ragged], tf.int64, ragged_rank=1)
        dense = rng.integers(0, 9, (samples, 2))
        weights = clicks.with_values(tf.cast(clicks.values % 3, tf.float32) + 0.5)
        yield clicks, tf.sparse.from_dense(dense + 1), tf.constant(dense), weights


def dataset():
    ragged = tf.RaggedTensorSpec([None, None], tf.int64, row_splits_dtype=tf.int64)
    weights = tf.RaggedTensorSpec([None, None], tf.float32, row_splits_dtype=tf.int64)
    signature = ragged, tf.SparseTensorSpec([None, 2], tf.int64), tf.TensorSpec([None, 2], tf.int64)
    return tf.data.Dataset.from_generator(batches, output_signature=(*signature, weights))


def arguments_of(clicks, sparse, dense, weights, weighted):
    ids = [clicks, tf.SparseTensor(sparse.indices, sparse.values - 1, sparse.dense_shape)]
    ids.append(tf.RaggedTensor.from_tensor(dense))
    return ids, [weights, None, None] if weighted else None


def pack(tables, weighted):
    def packed(*batch):
        ids, weights = arguments_of(*batch, weighted)
        return ge.route_ids(tables, ids, COMBINERS, sp_weights=weights)

    return packed


def look_up(tables, packed):
    return ge.group_embedding_lookup_sparse(tables, packed, COMBINERS)


def expected_of(tables, weighted):
    results = []
    for batch in batches():
        ids, weights = arguments_of(*batch, weighted)
        found = ge.group_embedding_lookup_sparse(tables, ids, COMBINERS, sp_weights=weights)
        results.append([vectors.numpy() for vectors in found])
    return results


def through_files(packed, folder):
    packed.save(str(folder / "saved"))
    return tf.data.Dataset.load(str(folder / "saved"))


ROUTES = {
    "as it is": lambda packed, _: packed,
    "prefetched": lambda packed, _: packed.prefetch(2),
    "cached": lambda packed, _: packed.cache(),
    "saved": through_files,
    "snapshot": lambda packed, folder: packed.snapshot(str(folder / "snapshot")),
    "interleaved": lambda packed, _: tf.data.Dataset.range(1).interleave(lambda _: packed),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("route", ROUTES)
def test_packed_ids_are_looked_up_as_the_ids(tables, route, weighted, tmp_path):
    # Given a dataset that packs the ids of several features in several threads
    packed = dataset().map(pack(tables, weighted), num_parallel_calls=3)
    packed = ROUTES[route](packed, tmp_path)

    # When its elements are looked up in a function
    function = tf.function(lambda batch: look_up(tables, batch))
    results = [[vectors.numpy() for vectors in function(batch)] for batch in packed]

    # Then the results are those of the ids, and batches of other sizes did not trace it anew
    for got, expected in zip(results, expected_of(tables, weighted), strict=True):
        for vectors, same in zip(got, expected, strict=True):
            np.testing.assert_array_equal(vectors, same)
    assert function.experimental_get_tracing_count() == 1


def test_a_packed_batch_is_one_buffer_and_its_sizes(tables):
    spec = dataset().map(pack(tables[:2] + tables[:1], False)).element_spec

    assert [leaf.dtype for leaf in tf.nest.flatten(spec, expand_composites=True)] == [
        tf.float32,
        tf.string,
    ]


@tf.function
def from_optional(iterator):
    return iterator.get_next_as_optional().get_value()


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("through", ["prefetch_to_device", "optional"])
def test_sizes_stay_in_host_memory_where_ids_go_to_a_gpu(through, weighted):
    # Given packed batches, tables on a GPU, and what looks the ids up from the CPU
    with tf.device("GPU:0"):
        on_gpu = [tf.Variable(tf.random.normal([20, dim])) for dim in (2, 3, 2)]
    packed = dataset().map(pack(on_gpu, weighted))
    expected = [[v.numpy() for v in look_up(on_gpu, batch)] for batch in packed]

    # When iterators give them to the GPU
    if through == "prefetch_to_device":
        there = list(packed.apply(tf.data.experimental.prefetch_to_device("/GPU:0")))
    else:
        iterator = iter(packed)
        with tf.device("GPU:0"):
            there = [from_optional(iterator) for _ in range(NUM_BATCHES)]

    # Then ids are there and sizes are not, and lookups are the same
    for batch, values in zip(there, expected, strict=True):
        for buffer, sizes in batch.batches:
            assert "GPU" in buffer.device
            assert "GPU" not in sizes.backing_device
        for vectors, same in zip(look_up(on_gpu, batch), values, strict=True):
            np.testing.assert_array_equal(vectors, same)


def test_a_text_that_is_no_sizes_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="16 bytes for each feature, got 3"):
        batch_sizes.from_string("abc")
    with pytest.raises(tf.errors.InvalidArgumentError, match="scalar of BatchSizesToString"):
        batch_sizes.from_string(["a", "b"])


@pytest.mark.parametrize(
    "make_iterator", [v1.data.make_one_shot_iterator, v1.data.make_initializable_iterator]
)
def test_a_session_runs_packed_ids(make_iterator):
    # Given a graph of TensorFlow 1, whose dataset packs ids
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("rows", initializer=np.arange(8, dtype="float32").reshape(4, 2))
        ids = tf.data.Dataset.from_tensor_slices([[0, 1], [3, 3]]).batch(2)
        packed = ids.map(
            lambda rows: ge.route_ids([table], [tf.RaggedTensor.from_tensor(rows)], "sum")
        )
        iterator = make_iterator(packed)
        (rows,) = ge.group_embedding_lookup_sparse([table], iterator.get_next(), "sum")

        # When the session runs the lookup, Then it finds the rows
        session.run(v1.global_variables_initializer())
        if make_iterator is v1.data.make_initializable_iterator:
            session.run(iterator.initializer)
        np.testing.assert_array_equal(session.run(rows), [[2, 4], [12, 14]])


def test_a_layer_packs_what_fit_trains_on():
    # Given two models that start alike
    def model():
        keras = tf.keras
        config = ge.TableConfig("rows", 9, 4, initializer=keras.initializers.Constant(0.1))
        features = [ge.FeatureConfig(name, config) for name in ("clicks", "views")]
        layer = ge.layers.GroupEmbedding(features)

        class Pooled(ge.training.Model):  # Keras 3 lets its own models have tensors alone
            def __init__(self):
                super().__init__()
                self.embeddings = layer
                self.head = keras.layers.Dense(1, kernel_initializer="ones")

            def call(self, inputs):
                vectors = self.embeddings(inputs)
                return self.head(tf.concat([vectors["clicks"], vectors["views"]], axis=-1))

        model = Pooled()
        model.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.5)), "mse")
        return model, layer

    def labelled(clicks, sparse, dense, weights):
        return {"clicks": clicks, "views": dense}, tf.cast(dense[:, :1], tf.float32)

    # When one is trained on packed ids
    losses = []
    for packs in (False, True):
        trained, layer = model()
        data = dataset().map(labelled)
        if packs:
            data = data.map(lambda inputs, labels, layer=layer: (layer.route(inputs), labels))
        losses.append(trained.fit(data, epochs=3, verbose=0).history["loss"])

    # Then both learned the same
    np.testing.assert_array_equal(losses[0], losses[1])
    assert losses[0][-1] < losses[0][0]


def test_a_layer_routes_what_a_dataset_packed():
    # Given ids that a layer packed in a dataset
    config = ge.TableConfig("twice", 9, 4)
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig("clicks", config)])
    ids = tf.ragged.constant([[1, 2], [], [8]], dtype=tf.int64)
    (packed,) = tf.data.Dataset.from_tensors({"clicks": ids}).map(layer.route)

    # When a step routes them before it looks them up, Then it finds the rows of the ids
    found = layer(layer.route(packed))["clicks"]
    np.testing.assert_array_equal(found, layer({"clicks": ids})["clicks"])
    with pytest.raises(ValueError, match="expected no weights with routed ids"):
        layer.route(packed, weights={"clicks": ids})


def test_packed_ids_cannot_be_batched(tables):
    packed = dataset().map(pack(tables, False))

    with pytest.raises(ValueError, match="expected a dataset that is batched before its ids"):
        packed.batch(2)


def test_a_bad_id_is_named_where_it_is_looked_up():
    with tf.device("/CPU:0"):  # a GPU reports it later: tests/test_gpu.py
        table = tf.Variable(tf.ones([20, 2]))
        packed = tf.data.Dataset.from_tensors([[3, 99]]).map(
            lambda ids: ge.route_ids([table], [tf.RaggedTensor.from_tensor(ids)], "sum")
        )

        with pytest.raises(tf.errors.InvalidArgumentError, match="id 99 of sample 0 is outside"):
            ge.group_embedding_lookup_sparse([table], next(iter(packed)), "sum")


def test_packed_ids_have_no_element_for_each_feature():
    """A call of a `tf.function` costs the host microseconds for each element of its arguments."""
    # Given ids of many features, of which one has samples of two axes
    tables = [tf.Variable(tf.ones([10, 2])) for _ in range(40)]
    ids = [tf.constant([1, 2]) for _ in tables]
    ids[7] = tf.constant([[1, 2], [3, 4]])

    # When they are packed
    packed = ge.route_ids(tables, ids)

    # Then only that one's shape is beside the batch, and its rows get their axes back
    parts = packed.batches, packed.weighted, packed.sample_shapes, packed.shaped_features
    assert sum(len(tf.nest.flatten(part)) for part in parts) < 10
    outputs = tf.function(ge.group_embedding_lookup)(tables, packed)
    assert [output.shape.rank for output in outputs] == [3 if f == 7 else 2 for f in range(40)]
