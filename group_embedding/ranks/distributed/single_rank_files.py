"""Files of TensorFlow 1 that would have one rank's rows of a table alone are refused: what a stock
Saver writes of tables by row number, and SavedModels, whose lookups would ask the other ranks."""

import functools

import tensorflow as tf
from tensorflow.python.saved_model import builder_impl
from tensorflow.python.training import saver as tf_saver

from group_embedding.placement import no_saved_model
from group_embedding.ranks.sharding.sharded_table import exchange_of, sharded_table


@functools.cache  # once
def refuse_files_of_one_rank():
    """From now on, in graphs with tables that are spread over ranks."""
    saver, builder = tf_saver.Saver, builder_impl.SavedModelBuilder
    saver._build = _refusing_shards(saver._build)
    for kind in (builder, builder_impl._SavedModelBuilder):
        if "_maybe_create_saver" in vars(kind):
            kind._maybe_create_saver = _refusing_tables(kind._maybe_create_saver)


def _refusing_shards(build):
    @functools.wraps(build)
    def build_whole(saver, *args, **kwargs):
        # `ge.Saver` has put others in the place of shards by now.
        for variable in _saved_by(saver):
            shard = sharded_table(variable)
            if shard is not None:
                raise ValueError(
                    f"table '{shard.name}': expected ge.Saver, which writes the rows of all "
                    f"{shard.exchange.num_ranks} ranks, got a tf.compat.v1.train.Saver, which "
                    "writes those of one"
                )
        return build(saver, *args, **kwargs)

    return build_whole


def _saved_by(saver):
    given = saver._var_list
    if given is None and saver.saver_def is None and not tf.executing_eagerly():
        given = tf_saver.variables._all_saveable_objects()
    return given.values() if isinstance(given, dict) else given or ()


def _refusing_tables(maybe_create_saver):
    @functools.wraps(maybe_create_saver)
    def create_saver(builder, *args, **kwargs):
        for variable in tf.compat.v1.global_variables():
            exchange = exchange_of(variable)
            if exchange is not None:
                raise no_saved_model(variable.name.partition(":")[0], exchange.num_ranks)
        return maybe_create_saver(builder, *args, **kwargs)

    return create_saver
