"""Tables and batches of ranks with a GPU each, trained over ranks and in one process."""

from types import SimpleNamespace

import numpy as np
from ranks.exchange import gpu_processes
from support.cases.core_runner import core

TRANSPORTS = ("nccl", "peer_buffers")
DIMS, ROWS = [8, 4, 3, 128, 1], [1000, 7, 300, 5000, 40]
TABLE_OF_FEATURE = [0, 1, 2, 3, 3, 4, 0]
COMBINERS = ["sum", "mean", "sqrtn", "sum", "mean", "sum", "sum"]
HOTNESS = [3, 2, 5, 12, 1, 4, 40]


def draw_case(seed, max_norms=(0.0,) * 5, comm_dtype="float32"):
    random = np.random.default_rng(seed)
    tables = [
        random.standard_normal((rows, dim)).astype(np.float32) for rows, dim in zip(ROWS, DIMS)
    ]
    return SimpleNamespace(
        tables=tables,
        table_of_feature=TABLE_OF_FEATURE,
        combiners=COMBINERS,
        description="seven features",
        max_norms=list(max_norms),
        comm_dtype=comm_dtype,
    )


def draw_batch(random, num_samples, weighted):
    lengths = [random.integers(0, 2 * hotness, num_samples) for hotness in HOTNESS]
    ids = [
        (ROWS[table] * random.random(count.sum()) ** 3).astype(np.int64)
        for table, count in zip(TABLE_OF_FEATURE, lengths)
    ]
    # Ids that are pruned, and the hottest of rows
    for of_feature in ids:
        of_feature[::7] = -1
        of_feature[1::5] = 0
    weights = [random.uniform(-0.2, 1, i.size).astype(np.float32) for i in ids]
    return SimpleNamespace(lengths=lengths, ids=ids, weights=weights if weighted else None)


def as_rank(batch):
    """The batch as arrays; a batch of no ids has one sample of one pruned id."""
    return SimpleNamespace(
        ids=np.concatenate(batch.ids),
        row_splits=np.concatenate([[0], np.concatenate(batch.lengths).cumsum()]).astype(np.int64),
        weights=None if batch.weights is None else np.concatenate(batch.weights),
        output_shapes=[
            (len(count), DIMS[table]) for count, table in zip(batch.lengths, TABLE_OF_FEATURE)
        ],
    )


def joined(batches):
    """The batches of all ranks as one."""
    join = lambda parts: [np.concatenate(of_feature) for of_feature in zip(*parts)]  # noqa: E731
    weighted = batches[0].weights is not None
    return SimpleNamespace(
        lengths=join([b.lengths for b in batches]),
        ids=join([b.ids for b in batches]),
        weights=join([b.weights for b in batches]) if weighted else None,
    )


def assert_same_bits(ranks, others):
    """Compares lookups and final rows of ranks with those of other ranks."""
    for (looked_up, shards), (other_looked_up, other_shards) in zip(ranks, others):
        for step, other_step in zip(looked_up, other_looked_up):
            for output, other in zip(step, other_step):
                np.testing.assert_array_equal(output, other)
        for shard, other in zip(shards, other_shards):
            np.testing.assert_array_equal(shard, other)


def train(num_ranks, how, case, batches):
    arrays = [[as_rank(batch) for batch in of_ranks] for of_ranks in batches]
    return gpu_processes.run(num_ranks, how, gpu_processes.train, case, arrays)


def bytes_of_parts(counts, dims):
    """The bytes of parts of float32 rows, each with `counts` rows, rounded up to 64 bytes."""
    return sum(-(-4 * count * dim // 64) * 64 for count, dim in zip(counts, dims))


def one_process(case, batches, rule="rowwise_adagrad"):
    """Looked up in each step, and the tables in the end, by the fused one-rank path on the host."""
    tables = [table.copy() for table in case.tables]
    slots = [[slot] for slot in gpu_processes.first_slots(tables, rule)]
    looked_up = []
    for of_ranks in batches:
        batch = as_rank(joined(of_ranks))
        outputs = [np.full(shape, np.nan, np.float32) for shape in batch.output_shapes]
        group = core.Group(
            tables=tables, outputs=outputs, ids=batch.ids, row_splits=batch.row_splits,
            weights=batch.weights, table_of_feature=TABLE_OF_FEATURE, combiners=COMBINERS,
            max_norms=case.max_norms)  # fmt: skip
        group.lookup()
        looked_up.append([output.copy() for output in outputs])
        hyper = gpu_processes.hyper().numpy()
        core.Update(group, rule=rule, slots=slots, hyper=hyper).run()
    return looked_up, tables


def pairs(ranks, expected, expected_tables):
    """The ranks' lookups and final rows of each table, each beside the value of `one_process`."""
    for step, of_step in enumerate(expected):
        for f, whole in enumerate(of_step):
            yield np.concatenate([looked_up[step][f] for looked_up, _ in ranks]), whole
    for rank, (_, shards) in enumerate(ranks):
        for shard, whole in zip(shards, expected_tables):
            yield shard, whole[rank :: len(ranks)]
