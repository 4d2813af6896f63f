"""Calls that tables over replicas refuse, for test_replicas.py: runs in the process of
replica_cases."""

import tensorflow as tf
from ranks.exchange import replica_cases as cases

import group_embedding as ge
from group_embedding import sok
from group_embedding.lookups.lookup_table import tf_variable


def message_of(case):
    """The error of REFUSED[case]."""
    try:
        REFUSED[case]()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"{case}: expected an error")


def _stock_optimizer(way):
    strategy, model = cases.make(2, "adagrad", "rows")
    with strategy.scope():
        optimizer = way()
        table = model.tables[0]

    def step(keys):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model.look_up(keys)[0])
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    strategy.run(tf.function(step), (cases.to_sparse(cases.batch_of(0)[0]),))


def _in_scope(make_something):
    strategy = cases.strategy_of(2)
    with strategy.scope():
        sok.Init()
        return make_something(strategy)


def _made_in_run(strategy):
    strategy.run(lambda: sok.Variable([[1.0]]))


def _looked_up_outside(kind):
    _, model = cases.make(2, "sgd", kind)
    model.look_up(cases.to_sparse(cases.batch_of(0)[0]))


def _made_outside():
    _in_scope(lambda _: None)
    sok.Variable([[1.0]])


def _counted_outside():
    _, model = cases.make(2, "sgd", "keys")
    tf_variable(model.tables[0]).total_count()


def _exported():
    module = tf.Module()
    module.table = _in_scope(lambda _: sok.Variable([[1.0], [2.0]]))
    tf.saved_model.save(module, "/tmp/never_written")


def _one_device():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        sok.Init()


REFUSED = {
    "stock": lambda: _stock_optimizer(lambda: tf.keras.optimizers.SGD(0.1)),
    "clipnorm": lambda: _stock_optimizer(
        lambda: sok.OptimizerWrapper(tf.keras.optimizers.SGD(0.1, global_clipnorm=1.0))
    ),
    "v1": lambda: _in_scope(
        lambda _: ge.DistributedOptimizer(tf.compat.v1.train.AdagradOptimizer(0.1))
    ),
    "made_in_run": lambda: _in_scope(_made_in_run),
    "made_outside": _made_outside,
    "localized": lambda: _in_scope(lambda _: sok.Variable([[1.0]], mode="localized:1")),
    "dynamic": lambda: _in_scope(lambda _: sok.DynamicVariable(2)),
    "looked_up_outside": lambda: _looked_up_outside("rows"),
    "keys_looked_up_outside": lambda: _looked_up_outside("keys"),
    "counted_outside": _counted_outside,
    "exported": _exported,
    "one_device": _one_device,
}
