"""HugeCTR files as Keras models, beside the equations of their layers in NumPy."""

import json

import numpy as np
import pytest
import tensorflow as tf
from support.cases import hugectr_files as files
from support.cases.hugectr_files import DIM, NUM_SLOTS, SAMPLES

import group_embedding as ge

BATCH = 6


def made(tmp_path, layers):
    return ge.hugectr.Network(files.write(tmp_path / "graph.json", layers))


def inputs_of(network, seed=0):
    """Ids of every slot and dense numbers; ids of a slot without a size are any keys."""
    random = np.random.default_rng(seed)
    features = {}
    for embedding in network.graph.embeddings:
        slots = next(s.slots for s in network.graph.sparse if s.name == embedding.bottom)
        sizes = list(embedding.slot_sizes) or [2**40] * len(slots)
        for slot, size in zip(slots, sizes):
            features[slot] = random.integers(0, size or sum(sizes), BATCH)
    name, width = network.graph.dense
    if width:
        features[name] = random.normal(size=(BATCH, width)).astype(np.float32)
    return features


def rows_of(network, features):
    """{name of an embedding: its rows for each slot, [B, slots, dim]}."""
    tables = network.embeddings.tables
    found = {}
    for one in network.graph.embeddings:
        slots = next(s.slots for s in network.graph.sparse if s.name == one.bottom)
        offsets = network.slot_offsets(one.name)
        table = tf.convert_to_tensor(tables[one.name]).numpy() if one.slot_sizes else None
        rows = []
        for slot, offset in zip(slots, offsets):
            if table is None:
                rows.append(tables[one.name].sparse_read(features[slot]).numpy())
            else:
                rows.append(table[features[slot] + offset])
        found[one.name] = np.stack(rows, 1)
    return found


def relu(x):
    return np.maximum(x, 0)


def softmax(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def dcn(rows, dense, w):
    x = first = np.concatenate([rows["sparse1"].reshape(BATCH, -1), dense], 1)
    for kernel, bias in (w[0:2], w[2:4]):
        x = first * (x @ kernel) + bias + x
    deep = relu(first @ w[4] + w[5])
    return np.concatenate([deep, x], 1) @ w[6] + w[7]


def deepfm(rows, dense, w):
    vectors, wide = rows["sparse1"][..., :-1], rows["sparse1"][..., -1]
    vectors = np.concatenate([vectors, dense[..., None] * w[0]], 1)
    count = vectors.shape[1]
    pairs = sum(
        (vectors[:, i] * vectors[:, j]).sum(-1) for i in range(count) for j in range(i + 1, count)
    )
    first = wide.sum(1) + (dense * w[1][:, 0]).sum(1)
    return vectors.reshape(BATCH, -1) @ w[2] + w[3] + (pairs + first)[:, None]


def dlrm(rows, dense, w):
    vector = relu(relu(dense @ w[0] + w[1]) @ w[2] + w[3])
    vectors = np.concatenate([vector[:, None], rows["sparse1"]], 1)
    dots = [(vectors[:, i] * vectors[:, j]).sum(-1) for i in range(NUM_SLOTS + 1) for j in range(i)]
    top = np.concatenate([vector, np.stack(dots, 1), np.zeros([BATCH, 1])], 1)
    return relu(top @ w[4] + w[5]) @ w[6] + w[7]


def wdl(rows, dense, w):
    deep = np.concatenate([rows["deep_rows"].reshape(BATCH, -1), dense], 1)
    return deep @ w[0] + w[1] + rows["wide_rows"][:, :, 0]


def din(rows, dense, w):
    items = np.concatenate([rows["goods"], rows["cates"]], 2)
    history, item = items[:, :-1], items[:, -1]
    candidate = np.repeat(item[:, None], history.shape[1], 1)
    pair = np.concatenate([candidate, history, candidate - history, candidate * history], 2)
    # The shares are of positions; HugeCTR sums all numbers of the weighted history up.
    shares = softmax((pair @ w[0] + w[1])[..., 0])
    interest = (shares[..., None] * history).sum((1, 2))[:, None]
    x = np.concatenate([rows["users"][:, 0], history.mean(1), interest, item], 1) @ w[2] + w[3]
    share = 1 / (1 + np.exp(-(x - x.mean(0)) / np.sqrt(x.var(0) + 1e-8)))
    return (share * x + (1 - share) * 0.2 * x) @ w[4] + w[5]


def mmoe(rows, dense, w):
    flat = rows["sparse1"].reshape(BATCH, -1)
    experts = [relu(flat @ w[i] + w[i + 1]) for i in (0, 2)]
    logits = {}
    for task, at in (("A", 4), ("B", 8)):
        shares = softmax(flat @ w[at] + w[at + 1])
        tower = sum(shares[:, e : e + 1] * expert for e, expert in enumerate(experts))
        logits[f"label{task}"] = tower @ w[at + 2] + w[at + 3]
    return logits


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_its_equations(tmp_path, name):
    # Given the network of a sample, and a batch
    network = made(tmp_path, SAMPLES[name]())
    features = inputs_of(network)

    # When it is called
    logits = network(features)

    # Then its logits are those of the sample's equations
    weights = [tf.convert_to_tensor(v).numpy() for v in network.dense_variables]
    expected = globals()[name](rows_of(network, features), features.get("dense"), weights)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), logits, expected
    )


@pytest.mark.parametrize("name", ["mmoe"])
def test_sample_learns(tmp_path, name):
    # Given a network, and labels of a batch
    network = made(tmp_path, SAMPLES[name]())
    features = inputs_of(network)
    network(features)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.3))
    labels = tf.constant([[1.0], [0.0]] * (BATCH // 2))

    # When it is trained on it
    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = tf.nest.flatten(network(features, training=True))
            loss = tf.add_n(
                [tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, x)) for x in logits]
            )
        variables = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    losses = [float(step()) for _ in range(20)]

    # Then its loss falls
    assert losses[-1] < 0.5 * losses[0]


def test_projected_crosses_are_those_of_dcnv2(tmp_path):
    # Given cross layers with a projection, with a bias that is not 0
    layers = [
        files.data(dense=4, sizes=files.SIZES),
        files.embedding(),
        files.layer(
            *("MultiCross", "dense", "cross"),
            mc_param={"num_layers": 2, "projection_dim": 3, "bias_init": "Uniform"},
        ),
        files.product("cross", "fc", 1),
        files.loss("fc"),
    ]
    network = made(tmp_path, layers)
    features = inputs_of(network)

    # When it is called
    logits = network(features)

    # Then each layer is x0 * (x U V + b) + x
    w = [tf.convert_to_tensor(v).numpy() for v in network.dense_variables]
    x = first = features["dense"]
    for u, v, b in (w[0:3], w[3:6]):
        x = first * (x @ u @ v + b) + x
    np.testing.assert_allclose(logits, x @ w[6] + w[7], rtol=1e-4, atol=1e-5)


def test_other_layers(tmp_path):
    # Given a file of layers that no sample has
    layers = [
        files.data(dense=4, sizes=files.SIZES),
        files.embedding(),
        files.layer("ELU", "dense", "elu", elu_param={"alpha": 0.7}),
        files.layer("LayerNorm", "elu", "ln", ln_param={"eps": 1e-3}),
        files.layer("BatchNorm", "ln", "bn", bn_param={"factor": 0.9, "eps": 1e-3}),
        files.layer("Sigmoid", "bn", "sigmoid"),
        files.layer("Cast", "sigmoid", "cast"),
        files.layer("Reshape", "sparse1", "picked", selected=[2, 0]),
        files.layer("FusedReshapeConcatGeneral", ["sparse1", "sparse1"], "pairs"),
        files.layer("Reshape", "pairs", "pair_rows", leading_dim=NUM_SLOTS * 2 * DIM),
        files.layer("Gather", "cast", "gathered", indices=list(range(BATCH))[::-1]),
        files.layer("Reshape", "sparse1", "turned", leading_dim=NUM_SLOTS, time_step=DIM),
        files.layer("MatrixMultiply", ["sparse1", "turned"], "product"),
        files.layer("Reshape", "product", "products", leading_dim=NUM_SLOTS**2),
        files.layer("Concat", ["gathered", "picked", "pair_rows", "products"], "all"),
        files.product("all", "fc", 1),
        files.loss("fc"),
    ]
    network = made(tmp_path, layers)
    features = inputs_of(network)

    # When it is called
    logits = network(features)

    # Then it is their equations; a batch norm's averages are 0 and 1 yet
    x = features["dense"]
    x = np.where(x < 0, 0.7 * (np.exp(np.minimum(x, 0)) - 1), x)
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    x = 1 / (1 + np.exp(-x / np.sqrt(1 + 1e-3)))
    rows = rows_of(network, features)["sparse1"]
    pairs = np.concatenate([rows, rows], 2).reshape(BATCH, -1)
    products = (rows @ rows.reshape(BATCH, DIM, NUM_SLOTS)).reshape(BATCH, -1)
    x = np.concatenate([x[::-1], rows[:, [2, 0]].reshape(BATCH, -1), pairs, products], 1)
    kernel, bias = [tf.convert_to_tensor(v).numpy() for v in network.dense_variables[-2:]]
    np.testing.assert_allclose(logits, x @ kernel + bias, rtol=1e-4, atol=1e-5)


def test_ragged_ids_and_ids_of_none(tmp_path):
    # Given slots of several ids, of none, and -1, of a table of mean
    layers = files.dlrm()
    layers[1]["sparse_embedding_hparam"]["combiner"] = "mean"
    network = made(tmp_path, layers)
    ragged = tf.ragged.constant([[1, 2], [], [3]] * 2, dtype=tf.int64)
    features = {**inputs_of(network), "data1_1": ragged, "data1_2": np.array([5, -1, 5] * 2)}

    # When they are looked up
    network(features)
    vectors = network._look_up(features)["sparse1"].numpy()

    # Then rows are those of the slots' own ranges, and zeros where there is no id
    table = tf.convert_to_tensor(network.embeddings.tables["sparse1"]).numpy()
    np.testing.assert_allclose(vectors[0, 1], (table[7 + 1] + table[7 + 2]) / 2, rtol=1e-6)
    np.testing.assert_allclose(vectors[1, 1:], 0)
    np.testing.assert_allclose(vectors[0, 2], table[7 + 11 + 5], rtol=1e-6)


def test_regularizer(tmp_path):
    # Given a file with an L2 regularizer of factor 0.5
    network = made(tmp_path, files.wdl())
    network(inputs_of(network))

    # When its term is asked for, Then it is lambda / B times half of the sum of squares
    squares = sum(float(tf.reduce_sum(tf.square(v))) for v in network.dense_variables)
    np.testing.assert_allclose(float(network.regularization(8)), 0.5 / 8 * squares / 2, rtol=1e-5)


@pytest.mark.parametrize(
    "number, change, message",
    [
        (6, {"type": "GRU"}, r"layer 'fc1': expected a type of .*InnerProduct.*, got 'GRU'"),
        (6, {"type": "InerProduct"}, "got 'InerProduct'; did you mean InnerProduct"),
        (6, {"bottom": "rihgt"}, "expected bottoms that the layers before have, got 'rihgt'"),
        (6, {"fc_param": {}}, "expected the key 'num_output'"),
        (6, {"fc_param": {"num_output": "6"}}, "expected int for 'num_output', got '6'"),
        (8, {"rates": 0.5}, "expected the keys rate, got 'rates'; did you mean 'rate'"),
        (1, {"bottom": "data2"}, "expected a bottom of data1, got 'data2'"),
        (0, {"slot_size_array": [1, 2]}, "expected 3 numbers in slot_size_array.*, got 2"),
        (11, {"bottom": ["fc2", "click"]}, "expected bottoms that the layers before have"),
        (11, {"bottom": ["fc2", "dense"]}, "expected the bottoms of a logit and a label"),
        (5, {"mc_param": {"num_layers": 1, "weight_init": "X"}}, "expected weight_init one of"),
    ],
)
def test_wrong_files_are_refused(tmp_path, number, change, message):
    layers = files.dcn()
    layers[number] = {**layers[number], **change}

    with pytest.raises(ValueError, match=message):
        made(tmp_path, layers)


def test_wrong_shapes_are_refused(tmp_path):
    layers = files.dcn()
    layers[4]["ranges"] = [[0, 5], [0, 500]]
    network = made(tmp_path, layers)

    with pytest.raises(Exception, match="layer 'left' .Slice.: expected ranges within 0 to 19"):
        network(inputs_of(network))


def test_what_is_no_hugectr_file_is_refused(tmp_path):
    path = tmp_path / "other.json"
    for text, message in (("{", "expected JSON"), (json.dumps({"layers": []}), "expected layers")):
        path.write_text(text)

        with pytest.raises(ValueError, match=message):
            ge.hugectr.read_graph(path)
