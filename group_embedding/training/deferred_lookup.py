"""A lookup of a step that is being traced for XLA: put off, and its gradient with it."""

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops

from group_embedding.lookups.flow import go_ahead, look_up
from group_embedding.lookups.routed_ids import from_groups, to_tensors
from group_embedding.ops import batch_sizes
from group_embedding.ops.autodiff import differentiated
from group_embedding.ops.deferred import defer, not_deferring


def defer_lookup(lookups, batches, concat):
    """Returns placeholders for the results of `look_up(lookups, batches, concat)`, which have a
    gradient."""
    lookup = _DeferredLookup(lookups, batches, concat)
    return lookup.results[0] if concat else lookup.results


class _DeferredLookup:
    def __init__(self, lookups, batches, concat):
        self._lookups, self._concat = lookups, concat
        groups = [to_tensors(batch) for batch in batches]
        self._sizes = [len(tensors) for tensors in groups]
        self._weighted = [batch.weighted for batch in batches]
        self._variables = _variables_of(lookups)
        self._num_gradients, self._tape = 0, None
        self._looked_up, self._looked_up_by = None, None  # results, and buffers of trained weights
        names = ", ".join(f"'{name}'" for name in lookups.names[:3])
        self._name = f"the lookup of {names}{', ...' if len(lookups.names) > 3 else ''}"
        tensors = [tensor for group in groups for tensor in group]
        # Where weights lie in those tensors: the first of a group is its buffer.
        starts = [sum(self._sizes[:g]) for g in range(len(groups))]
        self._trains_weights = [
            batch.weighted and record.should_record_backprop([group[0]])
            for batch, group in zip(batches, groups)
        ]
        self._buffers = [start for start, trains in zip(starts, self._trains_weights) if trains]
        self.results = defer(
            self._name,
            self._look_up,
            tensors,
            self._specs(),
            is_lookup=True,
            route=self._route,
            run_routed=self._look_up_routed,
        )
        for variable in self._variables:
            resource_variable_ops.variable_accessed(variable)
        inputs = [variable.handle for variable in self._variables]
        inputs += [tensors[i] for i in self._buffers]
        record.record_operation("DeferredLookup", self.results, inputs, self._defer_gradient)

    def _specs(self):
        tables = self._lookups.tables
        if self._concat:
            width = sum(table.dim for table in tables)
            return [tf.TensorSpec([None, width], tables[0].dtype)]
        return [tf.TensorSpec([None, table.dim], table.dtype) for table in tables]

    def _look_up(self, *tensors):
        return self._look_up_batches(self._batches_of(tensors))

    def _route(self, *tensors):
        """The tensors of each group, routed."""
        with not_deferring():
            batches = go_ahead(self._lookups, self._batches_of(tensors))
        return [to_tensors(batch, batch_sizes.to_string) for batch in batches]

    def _look_up_routed(self, groups):
        given = self._lookups, groups, self._weighted
        return self._look_up_batches(from_groups(*given, batch_sizes.from_string))

    def _batches_of(self, tensors):
        tensors, groups = list(tensors), []
        for size in self._sizes:
            groups.append(tensors[:size])
            del tensors[:size]
        return from_groups(self._lookups, groups, self._weighted)

    def _look_up_batches(self, batches):
        buffers = [
            to_tensors(batch)[0] for batch, trains in zip(batches, self._trains_weights) if trains
        ]
        with not_deferring():
            if not self._num_gradients:
                results = look_up(self._lookups, batches, self._concat)
            else:
                with tf.GradientTape(persistent=self._num_gradients > 1) as self._tape:
                    self._tape.watch(buffers)
                    results = look_up(self._lookups, batches, self._concat)
        self._looked_up, self._looked_up_by = [results] if self._concat else results, buffers
        return self._looked_up

    def _defer_gradient(self, *output_gradients):
        self._num_gradients += 1
        reached = differentiated(output_gradients)
        tables = self._lookups.tables
        tables = tables if self._concat else [tables[i] for i in reached]
        is_reached = {id(_variable_of(table)) for table in tables}
        variables = [v for v in self._variables if id(v) in is_reached]

        def differentiate(*gradients):
            with not_deferring():
                slices, of_weights = self._tape.gradient(
                    [self._looked_up[i] for i in reached],
                    [variables, self._looked_up_by],
                    output_gradients=gradients,
                )
            return [*(t for s in slices for t in (s.values, s.indices)), *of_weights]

        specs = []
        for variable in variables:
            specs.append(tf.TensorSpec([None, variable.shape[1]], variable.dtype))
            specs.append(tf.TensorSpec([None], tf.int64))
        specs += [tf.TensorSpec([None], tf.float32) for _ in self._buffers]
        found = defer(
            f"the gradient of {self._name}",
            differentiate,
            [output_gradients[i] for i in reached],
            specs,
            has_any_rows=True,
        )
        slices = {}
        for i, variable in enumerate(variables):
            shape = tf.constant(variable.shape.as_list(), tf.int64)
            slices[id(variable)] = tf.IndexedSlices(*found[2 * i : 2 * i + 2], shape)
        of_tables = [slices.get(id(variable)) for variable in self._variables]
        return of_tables + found[2 * len(variables) :]


def _variable_of(table):
    return table.of_this_rank().source.object


def _variables_of(lookups):
    """The trainable variables that the tables of a call are, each once."""
    found = {}
    for table in lookups.tables:
        variable = _variable_of(table)
        if not resource_variable_ops.is_resource_variable(variable):
            raise ValueError(
                f"table '{table.name}': expected a variable in a compiled step, got "
                f"{type(variable).__name__}; a table that is computed changes in no update"
            )
        if variable.trainable:
            found[id(variable)] = variable
    return list(found.values())
