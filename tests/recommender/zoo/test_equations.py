"""Each model beside a plain statement of its equations: outputs and gradients."""

import pytest
import tensorflow as tf
from recommender.zoo.model_cases import (
    DENSE,
    assert_same,
    make_features,
    make_inputs,
    plain_dense,
    plain_linear,
    plain_mlp,
    plain_vectors,
    randomise,
)

import group_embedding as ge


@pytest.fixture(scope="module")
def inputs():
    return make_inputs()


def side_by_side(vectors, inputs):
    return tf.concat([*vectors.values(), plain_dense(inputs)], axis=1)


def made(model):
    randomise(model)
    return model


@pytest.mark.parametrize("self_interaction", [False, True])
def test_dlrm(inputs, self_interaction):
    # given
    options = {"bottom": [6], "top": [7], "self_interaction": self_interaction}
    model = made(ge.models.DLRM(make_features(), dense=DENSE, **options))

    # when its equations are written down
    def plain(tables):
        dense = plain_mlp(model.bottom, plain_dense(inputs))
        vectors = [dense, *plain_vectors(tables, inputs).values()]
        pairs = [
            tf.reduce_sum(vectors[i] * vectors[j], axis=1, keepdims=True)
            for i in range(len(vectors))
            for j in range(i + self_interaction)
        ]
        return plain_linear(model.logit, plain_mlp(model.top, tf.concat([dense, *pairs], axis=1)))

    # then
    assert_same(model, plain, inputs)


def test_dlrm_without_dense_inputs(inputs):
    model = made(ge.models.DLRM(make_features(), top=[5]))

    def plain(tables):
        item, seen, user = plain_vectors(tables, inputs).values()
        pairs = [tf.reduce_sum(a * b, 1) for a, b in ((seen, item), (user, item), (user, seen))]
        return plain_linear(model.logit, plain_mlp(model.top, tf.stack(pairs, axis=1)))

    assert_same(model, plain, inputs)


@pytest.mark.parametrize("structure, rank", [("parallel", None), ("stacked", 3)])
def test_dcnv2(inputs, structure, rank):
    options = {"num_layers": 2, "rank": rank, "hidden": [6], "structure": structure}
    model = made(ge.models.DCNv2(make_features(), dense=DENSE, **options))

    def plain(tables):
        first = side_by_side(plain_vectors(tables, inputs), inputs)
        x = first
        for kernels, bias in zip(model.crosses.kernels, model.crosses.biases):
            whole = tf.convert_to_tensor(kernels[0])
            if rank:
                whole = whole @ tf.convert_to_tensor(kernels[1])
            x = first * (x @ whole + bias) + x
        if structure == "stacked":
            return plain_linear(model.logit, plain_mlp(model.deep, x))
        x = tf.concat([x, plain_mlp(model.deep, first)], axis=1)
        return plain_linear(model.logit, x)

    assert_same(model, plain, inputs)


def linear_part(model, tables, inputs, names):
    numbers = plain_vectors(tables, inputs, "_linear")
    total = tf.add_n([numbers[name] for name in names])
    return total + plain_linear(model.linear, plain_dense(inputs))


def test_wide_and_deep(inputs):
    # given a wide part of two features, and a deep one of two
    wide, deep = ["item", "user"], ["seen", "item"]
    options = {"wide": wide, "deep": deep, "hidden": [6]}
    model = made(ge.models.WideAndDeep(make_features(), dense=DENSE, **options))

    def plain(tables):
        vectors = plain_vectors({"users": tables["users_linear"], **tables}, inputs)
        x = tf.concat([vectors["item"], vectors["seen"], plain_dense(inputs)], axis=1)
        part = linear_part(model, tables, inputs, wide)
        return part + plain_linear(model.logit, plain_mlp(model.deep, x))

    # then no vectors of the third are looked up
    assert_same(model, plain, inputs)
    assert sorted(model.embedding.tables) == ["items", "items_linear", "users_linear"]


def test_deepfm(inputs):
    model = made(ge.models.DeepFM(make_features(), dense=DENSE, hidden=[6]))

    def plain(tables):
        vectors = plain_vectors(tables, inputs)
        item, seen, user = vectors.values()
        pairs = tf.reduce_sum(item * seen + item * user + seen * user, 1, keepdims=True)
        deep = plain_mlp(model.deep, side_by_side(vectors, inputs))
        part = linear_part(model, tables, inputs, vectors)
        return part + pairs + plain_linear(model.logit, deep)

    assert_same(model, plain, inputs)


def test_xdeepfm(inputs):
    model = made(ge.models.XDeepFM(make_features(), dense=DENSE, crosses=[3, 2], hidden=[6]))

    def plain(tables):
        vectors = plain_vectors(tables, inputs)
        first = list(vectors.values())
        layer, sums = first, []
        for kernel, size in zip(model.crosses.kernels, [3, 2]):
            weights = tf.reshape(kernel, [len(layer), len(first), size])
            layer = [
                tf.add_n(
                    [
                        weights[i, j, h] * a * b
                        for i, a in enumerate(layer)
                        for j, b in enumerate(first)
                    ]
                )
                for h in range(size)
            ]
            sums += [tf.reduce_sum(vector, axis=1) for vector in layer]
        crossed = tf.stack(sums, axis=1) @ tf.convert_to_tensor(model.of_crosses.kernel)
        deep = plain_mlp(model.deep, side_by_side(vectors, inputs))
        part = linear_part(model, tables, inputs, vectors)
        return part + crossed + plain_linear(model.logit, deep)

    assert_same(model, plain, inputs)


def gated(gate, x, outputs):
    shares = tf.nn.softmax(x @ tf.convert_to_tensor(gate.gate.kernel))
    return tf.add_n([shares[:, i : i + 1] * output for i, output in enumerate(outputs)])


def test_mmoe(inputs):
    options = {"num_experts": 3, "expert": [5], "tower": [4]}
    model = made(ge.models.MMoE(make_features(), tasks=["click", "buy"], dense=DENSE, **options))

    def plain(tables):
        x = side_by_side(plain_vectors(tables, inputs), inputs)
        experts = [plain_mlp(expert, x) for expert in model.experts]
        return {
            task: plain_linear(logit, plain_mlp(tower, gated(gate, x, experts)))
            for task, gate, tower, logit in zip(
                model.tasks, model.gates, model.towers, model.logits
            )
        }

    assert_same(model, plain, inputs)


def test_ple(inputs):
    options = {"task_experts": 1, "shared_experts": 2, "expert": [5], "tower": [4]}
    model = made(ge.models.PLE(make_features(), tasks=["click", "buy"], dense=DENSE, **options))

    def plain(tables):
        x = side_by_side(plain_vectors(tables, inputs), inputs)
        (clicks, buys, shared), (clicks_2, buys_2, shared_2) = model.experts
        click, buy = plain_mlp(clicks[0], x), plain_mlp(buys[0], x)
        both = [plain_mlp(expert, x) for expert in shared]
        of_click = gated(model.gates[0][0], x, [click, *both])
        of_buy = gated(model.gates[0][1], x, [buy, *both])
        of_both = gated(model.gates[0][2], x, [click, buy, *both])
        both = [plain_mlp(expert, of_both) for expert in shared_2]
        click = gated(model.gates[1][0], of_click, [plain_mlp(clicks_2[0], of_click), *both])
        buy = gated(model.gates[1][1], of_buy, [plain_mlp(buys_2[0], of_buy), *both])
        return {
            "click": plain_linear(model.logits[0], plain_mlp(model.towers[0], click)),
            "buy": plain_linear(model.logits[1], plain_mlp(model.towers[1], buy)),
        }

    assert_same(model, plain, inputs)


@pytest.mark.parametrize("name", ["DLRM", "DCNv2", "DeepFM"])
def test_a_model_computes_in_16_bits_with_dropout(inputs, name):
    # given a model with a policy of its own, and the same one in 32 bits
    options = {"dense": DENSE, "dropout": 0.0}
    whole, half = (
        getattr(ge.models, name)(make_features(), dtype=policy, **options)
        for policy in ("float32", "mixed_bfloat16")
    )
    expected = made(whole)(inputs)
    half(inputs)
    half.set_weights(whole.get_weights())

    # when it computes, then its logits are those of 32 bits, rounded
    got = half(inputs, training=True)
    assert got.dtype == tf.float32 or got.dtype == tf.bfloat16
    error = tf.norm(tf.cast(got, tf.float32) - tf.cast(expected, tf.float32))
    assert float(error) < 0.05 * float(tf.norm(tf.cast(expected, tf.float32)))
