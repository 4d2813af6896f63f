"""Lookups of tables on GPUs whose owners send sums, through one op and NCCL."""

import numpy as np
import pytest
import tensorflow as tf
from ranks.exchange import sums_gpu_cases as cases
from ranks.exchange.gpu_processes import on_gpus
from support.cases.core_runner import core, on_gpu

import group_embedding as ge
from group_embedding.ops._nccl import name_nccl
from group_embedding.ops.sharded_group_lookup import NcclRanks
from group_embedding.ops.sums_group_lookup import BY_COLUMNS, BY_ROWS


@pytest.fixture(scope="module")
def one_rank():
    name_nccl()
    return NcclRanks(core.nccl_id(), 0, 1, 30.0)


def needs_a_gpu(test):
    for mark in (pytest.mark.gpu, *on_gpu):
        test = mark(test)
    return test


def loss_and_gradients(look_up, variables, weighted):
    ids = [cases.whole_ids(name) for name in cases.SHAPES]
    weights = [cases.weights_of(of) for of in ids]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        given = [i.with_flat_values(w) for i, w in zip(ids, weights)] if weighted else None
        outputs = look_up(variables, ids, cases.COMBINERS, sp_weights=given)
        loss = tf.add_n([tf.reduce_sum(tf.cast(output, tf.float32) ** 3) for output in outputs])
    gradients = tape.gradient(loss, [*variables, *(weights if weighted else [])])
    return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


@needs_a_gpu
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("owner", [0, BY_COLUMNS, BY_ROWS], ids=["whole", "columns", "rows"])
def test_one_rank_looks_up_as_without_ranks(one_rank, owner, dtype, in_function, weighted):
    # Given tables on a GPU
    variables = [tf.Variable(tf.cast(cases.value_of(name), dtype)) for name in cases.SHAPES]
    run = tf.function(loss_and_gradients) if in_function else loss_and_gradients
    # When they are looked up by one rank of NCCL
    loss, gradients = run(cases.SumsOf(one_rank, owner), variables, weighted)
    # Then loss and gradients are those of the local lookup
    expected, expected_gradients = run(ge.group_embedding_lookup_sparse, variables, weighted)
    np.testing.assert_array_equal(loss, expected)
    for gradient, of_local in zip(gradients, expected_gradients):
        np.testing.assert_array_equal(gradient, of_local)


@needs_a_gpu
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_one_rank_trains_as_without_ranks(one_rank, optimizer):
    # Given tables of each kind of owner, and a wrapped optimizer
    def train(look_up):
        variables = [tf.Variable(cases.value_of(name)) for name in cases.SHAPES]
        wrapped = ge.optimizers.wrap(getattr(tf.keras.optimizers, optimizer)(0.1))

        @tf.function
        def step():
            ids = [cases.whole_ids(name) for name in cases.SHAPES]
            with tf.GradientTape() as tape:
                outputs = look_up(variables, ids, cases.COMBINERS)
                loss = tf.add_n([tf.reduce_sum(output**2) for output in outputs])
            wrapped.apply_gradients(zip(tape.gradient(loss, variables), variables))

        for _ in range(3):
            step()
        types = [op.type for op in step.get_concrete_function().graph.get_operations()]
        return [variable.numpy() for variable in variables], types

    # When they are trained by one rank of NCCL
    found, types = train(cases.SumsOf(one_rank, [0, BY_ROWS]))
    # Then rows are those of training without ranks, by one op for each way and one update
    expected, _ = train(ge.group_embedding_lookup_sparse)
    for rows, of_local in zip(found, expected):
        np.testing.assert_array_equal(rows, of_local)
    for op in ("SumsGroupLookup", "SendSumsGradients", "GroupUpdate"):
        assert types.count(f"GroupEmbedding>{op}") == 1


@needs_a_gpu
def test_a_bad_id_is_named(one_rank):
    # Given a table of seven rows
    variables = [tf.Variable(cases.value_of(name)) for name in cases.SHAPES]
    ids = [cases.whole_ids("user"), tf.ragged.constant([[1], [7], [], []], dtype=tf.int64)]
    # When its eighth is looked up
    look_up = cases.SumsOf(one_rank, BY_ROWS)
    # Then the error names rank, table, feature and id
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 0.*ids.1.*id 7 of sample 1"):
        look_up(variables, ids, cases.COMBINERS)


with_two_gpus = pytest.mark.parametrize(
    "ranks", [pytest.param("two_ranks", marks=[pytest.mark.gpu, *on_gpus(2)])]
)


@with_two_gpus
@pytest.mark.parametrize("way", ["eager", "function", "compiled"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_two_ranks_train_as_one_process(ranks, way, weighted, request):
    # Given tables of all placements with sums, and one whose rows are sent
    losses, tables = cases.train_in_one_process(weighted)
    # When two ranks train on a half of each batch
    found = request.getfixturevalue(ranks).run(cases.train_on_rank, way, weighted)
    # Then losses, rows and gradients of weights are those of one process
    mean = np.mean([of_rank["losses"] for of_rank in found], axis=0)
    np.testing.assert_allclose(mean, losses, rtol=1e-5)
    for of_rank in found:
        assert "GroupEmbedding>SumsGroupLookup" in of_rank["ops"] or way == "eager"
        for name, rows in tables.items():
            np.testing.assert_allclose(of_rank["tables"][name], rows, rtol=2e-5, atol=2e-6)


@with_two_gpus
def test_two_ranks_have_the_gradients_of_their_weights(ranks, request):
    # Given weights of each rank's ids
    expected = cases.weight_gradients_in_one_process()
    # When ranks take their gradients
    found = request.getfixturevalue(ranks).run(cases.weight_gradients_on_rank)
    # Then each has those of its own ids
    for rank, of_rank in enumerate(found):
        for gradient, whole in zip(of_rank, expected[rank]):
            np.testing.assert_allclose(gradient, whole, rtol=1e-5, atol=1e-5)
