"""Slots in float32 and in bfloat16 on MovieLens-100K: the AUC of a DLRM of tables of keys, and
the bytes of these.

The same model, batches and initial values are trained for an epoch with slots of both types, for
each optimizer and each seed. The seed s is that of the initial values, of the order of the samples
and of the rounding.

    python benchmarks/bench_table.py slots [--optimizers adagrad adam rowwiseadam] [--seeds 10]
                                           [--steps N] [--data FOLDER OR FILE]
"""

import sys
from pathlib import Path

import numpy as np
from report import machine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLOT_DTYPES = ("float32", "bfloat16")
BATCH = 512


def add_options(parser):
    parser.add_argument(
        "--optimizers", nargs="+", default=["adagrad", "adam", "rowwiseadam"], metavar="NAME"
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many: 0, 1, ...")
    parser.add_argument("--steps", type=int, help="of a training (default: one epoch)")
    parser.add_argument("--data", help="as of examples/train_movielens.py")


def run(options):
    sys.path.insert(0, str(EXAMPLES))
    from dlrm import options as example

    schema, train, test = example.load(options.data)
    steps = options.steps or len(train) // BATCH
    rows = [compare(name, options.seeds, steps, schema, train, test) for name in options.optimizers]
    return {"benchmark": "bench_table slots", **vars(options), **machine()}, rows


def compare(name, num_seeds, steps, schema, train, test):
    """A row of the table: means over the seeds."""
    aucs, sizes = {}, {}
    for seed in range(num_seeds):
        for slot_dtype in SLOT_DTYPES:  # by turns
            model = Model(schema, optimizer_of(name, seed), slot_dtype, seed)
            auc, sizes[slot_dtype] = model.fit(train, test, steps, seed)
            aucs.setdefault(slot_dtype, []).append(auc)
    wide, small = (np.array(aucs[slot_dtype]) for slot_dtype in SLOT_DTYPES)
    difference = small - wide
    return {
        "optimizer": name,
        "AUC, float32": round(float(wide.mean()), 5),
        "AUC, bfloat16": round(float(small.mean()), 5),
        "difference": round(float(difference.mean()), 5),
        "its standard error": round(float(difference.std() / max(1, num_seeds - 1) ** 0.5), 5),
        "between seeds": round(float(wide.std()), 5),
        "bytes of tables, float32": sizes["float32"],
        "bfloat16": sizes["bfloat16"],
    }


def optimizer_of(name, seed):
    import tensorflow as tf

    import group_embedding as ge

    rounding = {"stochastic_rounding_seed": seed}
    keras = tf.keras.optimizers
    return {
        "adagrad": lambda: ge.optimizers.wrap(keras.Adagrad(0.03, 1e-7), **rounding),
        "adam": lambda: ge.optimizers.wrap(keras.Adam(0.002), **rounding),
        "rowwiseadam": lambda: ge.optimizers.RowwiseAdam(0.002, **rounding),
    }[name]()


class Model:
    """The example's DLRM, with a table of keys for each feature."""

    def __init__(self, schema, optimizer, slot_dtype, seed):
        import tensorflow as tf

        import group_embedding as ge
        from dlrm import ids, model

        tf.keras.utils.set_random_seed(seed)
        self.tf, self.ge, self.dlrm = tf, ge, model
        self.encode, self.to_sparse = ids.encoder(schema), ids.without_padding
        self.tables = [
            ge.keyed_table(
                feature.name,
                model.DIM,
                initializer=tf.keras.initializers.TruncatedNormal(
                    stddev=model.INITIAL_STDDEV, seed=model.seed_of(feature.name, seed)
                ),
                slot_dtype=slot_dtype,
            )
            for feature in schema.categorical
        ]
        dense = tf.keras.layers.Dense
        self.bottom, self.top = (
            tf.keras.Sequential([*(dense(n, "relu") for n in units[:-1]), dense(units[-1])])
            for units in (model.BOTTOM, model.TOP)
        )
        self.optimizer = optimizer

    def logits(self, batch):
        tf = self.tf
        encoded = self.encode(batch)
        keys = [self.to_sparse(encoded[table._table_name]) for table in self.tables]
        vectors = self.ge.lookup_sparse(self.tables, keys, "mean")
        bottom = self.bottom(encoded["numbers"])
        stacked = tf.stack([bottom, *vectors], axis=1)
        dots = self.dlrm.pairwise_dots(stacked)
        return tf.squeeze(self.top(tf.concat([bottom, dots], axis=1)), axis=1)

    def step(self, features, labels):
        tf = self.tf
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, self.logits(features))
            loss = tf.reduce_mean(losses)
        weights = [*self.bottom.trainable_variables, *self.top.trainable_variables]
        variables = [*self.tables, *weights]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def fit(self, train, test, steps, seed):
        """The AUC of `test` after the steps, and the bytes of the tables with their slots."""
        from dlrm.examples import evaluation_batches, training_batches

        self.logits(next(iter(evaluation_batches(train, batch_size=1)))[0])  # makes the weights
        step, logits = self.tf.function(self.step), self.tf.function(self.logits)
        for features, labels in training_batches(train, min(BATCH, len(train)), steps, seed):
            step(features, labels)
        scores = [logits(features).numpy() for features, _ in evaluation_batches(test)]
        num_bytes = sum(int(table.memory_bytes()) for table in self.tables)
        return auc_of(np.concatenate(scores), test.labels), num_bytes


def auc_of(scores, labels):
    """The share of pairs of a positive and a negative sample in which the first scores higher."""
    order = np.argsort(scores, kind="stable")
    _, first, count = np.unique(scores[order], return_index=True, return_counts=True)
    ranks = np.empty(len(scores))
    ranks[order] = np.repeat(first + (count + 1) / 2, count)
    positives = labels > 0.5
    num_positive = int(positives.sum())
    num_negative = len(labels) - num_positive
    pairs = max(1, num_positive * num_negative)
    return (ranks[positives].sum() - num_positive * (num_positive + 1) / 2) / pairs
