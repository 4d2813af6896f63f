"""Steps on the next batches of an iterator of a dataset, in as few calls as they need.

A function takes the iterator's handle, one tensor. An iterator as an argument costs the host
microseconds for each feature in each call, as its structure is compared with those of calls before.
"""

import tensorflow as tf

from group_embedding.training.one_thread import OnOneThread

_OPTIONS = {"autograph": False, "reduce_retracing": True}
# Steps of one function: more make its graph longer, and no step faster.
_MOST_STEPS_A_CALL = 16


class IteratorSteps:
    """Takes steps on batches of iterators in host memory.

    Args:
        step: a function of a batch, traced once for each structure of batches.
        combine: of what several steps return, a list, makes what a call of them returns.

    Attributes:
        function: the `tf.function` that took the last steps.
    """

    def __init__(self, step, combine=lambda outputs: outputs[-1]):
        self._step, self._combine, self.function = step, combine, None
        self._functions = []  # (structure of a batch, _Functions)
        self._spec, self._on_spec = None, None  # of the last call

    def take(self, iterator, most=1):
        """Takes steps on the next batches of an iterator, as many as there are.

        Args:
            iterator: a `tf.data.Iterator`.
            most: how many steps are taken at most.

        Returns:
            What `combine` makes of what they return.

        Raises:
            tf.errors.OutOfRangeError: there is no batch left.
        """
        functions = self._functions_on(iterator.element_spec)
        (handle,) = tf.nest.flatten(iterator, expand_composites=True)
        if most == 1:
            self.function = functions.next_step
            return functions.next_step(handle)
        self.function = functions.steps
        outputs = []
        for taken in range(0, most, _MOST_STEPS_A_CALL):
            asked = min(most - taken, _MOST_STEPS_A_CALL)
            batches, are_all = functions.next_batches(handle, asked)
            if not are_all:
                outputs += functions.step_by_step(batches)
                break
            outputs.append(functions.steps(batches, asked))
        if not outputs:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        return self._combine(outputs)

    def take_batches(self, optionals, most):
        """Takes steps on batches that came out of an iterator.

        Args:
            optionals: a list of at most `most` batches, each a `tf.experimental.Optional` in host
                memory.
            most: how many steps other calls take.

        Returns:
            What `combine` makes of what the steps return.
        """
        functions = self._functions_on(optionals[0].element_spec)
        self.function = functions.steps
        outputs = []
        for taken in range(0, len(optionals), _MOST_STEPS_A_CALL):
            asked = min(most - taken, _MOST_STEPS_A_CALL)
            part = optionals[taken : taken + asked]
            with tf.device("/CPU:0"):
                batches = tf.stack(tf.nest.flatten(part, expand_composites=True))
            if len(part) < asked:
                outputs += functions.step_by_step(batches)
            else:
                outputs.append(functions.steps(batches, asked))
        return self._combine(outputs)

    def _functions_on(self, spec):
        if spec is not self._spec:  # to compare hundreds of features takes a while
            found = next((f for known, f in self._functions if known == spec), None)
            if found is None:
                found = _Functions(self._step, self._combine, spec)
                self._functions.append((spec, found))
            self._spec, self._on_spec = spec, found
        return self._on_spec


class _Functions:
    """The functions of steps on batches of one structure.

    Batches between two of them are optionals, whose handles are the elements of one tensor: each
    further tensor would cost the host microseconds in each call."""

    def __init__(self, step, combine, spec):
        self._step, self._combine = step, combine
        self._iterator_spec, self._batch_spec = tf.data.IteratorSpec(spec), tf.OptionalSpec(spec)
        self.next_step = tf.function(self._next_step, **_OPTIONS)
        # A pool's thread would be woken for each batch.
        self.next_batches = OnOneThread(tf.function(self._next_batches, **_OPTIONS), "CPU")
        self.steps = tf.function(self._steps, **_OPTIONS)

    def step_by_step(self, batches):
        """Takes a step on each of a tensor of optional batches that has a value, one a call: a
        function of so few steps would hardly be called again.

        Returns a list of what the steps return."""
        with tf.device("/CPU:0"):
            handles = tf.split(batches, batches.shape[0])
            has_value = [_from_handle(self._batch_spec, of[0]).has_value() for of in handles]
        return [self.steps(of, 1) for of, is_there in zip(handles, has_value) if is_there]

    def _next_step(self, handle):
        return self._step(next(_from_handle(self._iterator_spec, handle)))

    def _next_batches(self, handle, count):
        """Returns a tensor of so many optional batches, and whether all of them have a value."""
        with tf.device("/CPU:0"):
            iterator = _from_handle(self._iterator_spec, handle)
            batches = [iterator.get_next_as_optional() for _ in range(count)]
            handles = tf.nest.flatten(batches, expand_composites=True)
            return tf.stack(handles), batches[-1].has_value()

    def _steps(self, batches, count):
        """Takes a step on each of so many batches, one after the other."""
        with tf.device("/CPU:0"):
            handles = tf.unstack(batches, count)
        outputs = []
        for handle in handles:
            with tf.device("/CPU:0"):
                batch = _from_handle(self._batch_spec, handle).get_value()
            outputs.append(self._step(batch))
        return self._combine(outputs)


def _from_handle(spec, handle):
    return tf.nest.pack_sequence_as(spec, [handle], expand_composites=True)
