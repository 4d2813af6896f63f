"""The models of bench_serving.py, and requests for them."""

import struct

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

import group_embedding as ge

KINDS = ("grouped", "stock gathers", "stock sparse")
HIDDEN = 64
CHUNK = 1 << 18  # rows drawn at a time


class Features(tf.Module):
    """Features with a table each, pooled by their mean, and two dense layers.

    Args:
        features: How many features.
        ids: How many a sample has of a feature.
        rows, dim: The size of each table.
        keyed: The tables are found by key; else variables, by row number.
        sparse: Inputs are SparseTensors; else dense ids.
    """

    def __init__(self, features, ids, rows, dim, keyed, sparse=False):
        super().__init__()
        self.names = [f"f{number:03}" for number in range(features)]
        self.ids, self.rows, self.dim, self.keyed = ids, rows, dim, keyed
        self.sparse = sparse
        random = np.random.default_rng(1)
        tables = [ge.TableConfig(f"served_{n}", None if keyed else rows, dim) for n in self.names]
        pairs = zip(self.names, tables)
        self.layer = ge.layers.GroupEmbedding(
            [ge.FeatureConfig(name, table, "mean") for name, table in pairs], concat=True
        )
        self.layer.build_from_config(None)
        self.tables = list(self.layer.tables.values())
        for table in self.tables:
            self._fill(table, random)
        self.hidden = tf.Variable(_draw(random, features * dim, HIDDEN), name="hidden")
        self.last = tf.Variable(_draw(random, HIDDEN, 1), name="last")

    def _fill(self, table, random):
        if not self.keyed:
            table.assign(_draw(random, self.rows, self.dim))
            return
        for begin in range(0, self.rows, CHUNK):
            keys = np.arange(begin, min(begin + CHUNK, self.rows))
            table.insert(keys, _draw(random, len(keys), self.dim))

    def _pooled(self, inputs, way):
        if way == "grouped":
            return self.layer(inputs)
        # Stock lookups take no variables of Keras 3.
        stock = [t if isinstance(t, tf.Variable) else t.value for t in self.tables]
        pairs = [(table, inputs[name]) for table, name in zip(stock, self.names)]
        if way == "stock gathers":
            found = [_gathered(table, ids) for table, ids in pairs]
        else:
            if not self.sparse:
                pairs = [(table, tf.RaggedTensor.from_tensor(ids)) for table, ids in pairs]
            look_up = tf.nn.safe_embedding_lookup_sparse
            found = [look_up(table, ids, combiner="mean") for table, ids in pairs]
        return tf.concat(found, 1)

    def signature(self, way):
        """The function that is served; `way` is one of KINDS."""
        specs = {n: tf.TensorSpec([None, self.ids], tf.int64, name=n) for n in self.names}
        if self.sparse:
            specs = {n: tf.SparseTensorSpec([None, None], tf.int64) for n in self.names}

        @tf.function
        def serve(**inputs):
            hidden = tf.nn.relu(self._pooled(inputs, way) @ self.hidden)
            return {"score": tf.nn.sigmoid(hidden @ self.last)[:, 0]}

        return serve.get_concrete_function(**specs)

    def export(self, folder, way="grouped"):
        """Writes the SavedModel, by one of KINDS."""
        tf.saved_model.save(self, str(folder), signatures=self.signature(way))

    def requests(self, model, batch, count):
        """Serialized PredictRequests to a served model, with ids drawn uniformly."""
        random = np.random.default_rng(2)
        made = []
        for _ in range(count):
            request = predict_pb2.PredictRequest()
            request.model_spec.name = model
            for name in self.names:
                ids = random.integers(0, self.rows, [batch, self.ids])
                for key, part in self._parts(name, ids).items():
                    request.inputs[key].CopyFrom(tf.make_tensor_proto(part))
            made.append(request.SerializeToString())
        return made

    def _parts(self, name, ids):
        """The inputs of a feature, by the names that a signature gives them."""
        if not self.sparse:
            return {name: ids}
        indices = np.stack(np.indices(ids.shape), -1).reshape(-1, 2)
        return {name: indices, f"{name}_1": ids.ravel(), f"{name}_2": np.array(ids.shape)}


def _gathered(table, ids):
    """The mean of each sample's rows, by the fewest of TensorFlow's ops."""
    if isinstance(ids, tf.SparseTensor):
        samples = ids.indices[:, 0]
        return tf.sparse.segment_mean(table, ids.values, samples, ids.dense_shape[0])
    return tf.reduce_mean(tf.nn.embedding_lookup(table, ids), 1)


def _draw(random, *shape):
    return 0.1 * random.standard_normal(shape, np.float32)


def write_requests(path, requests):
    """Writes requests in the form that serving_load.cc reads."""
    with open(path, "wb") as file:
        for request in requests:
            file.write(struct.pack("<I", len(request)) + request)
