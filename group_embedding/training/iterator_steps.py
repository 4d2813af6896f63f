"""Steps on the next batches of an iterator of a dataset, in as few calls as they need.

A function takes the iterator's handle, one tensor. An iterator as an argument costs the host
microseconds for each feature in each call, as its structure is compared with those of calls before.
"""

import tensorflow as tf

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
            batches, found = functions.next_batches(handle, asked)
            outputs += self._take(functions, batches[: int(found)], asked)
            if int(found) < asked:
                break
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
        batches = tuple(tf.nest.flatten(optionals, expand_composites=True))
        outputs = []
        for taken in range(0, len(batches), _MOST_STEPS_A_CALL):
            asked = min(most - taken, _MOST_STEPS_A_CALL)
            outputs += self._take(functions, batches[taken : taken + asked], asked)
        return self._combine(outputs)

    def _take(self, functions, batches, asked):
        """Returns a list of what calls of steps on handles of batches return. All batches are in
        one call if they are as many as asked for: a function of fewer would hardly be called again.
        """
        calls = [batches] if len(batches) == asked else [(batch,) for batch in batches]
        return [functions.steps(call) for call in calls]

    def _functions_on(self, spec):
        if spec is not self._spec:  # to compare hundreds of features takes a while
            found = next((f for known, f in self._functions if known == spec), None)
            if found is None:
                found = _Functions(self._step, self._combine, spec)
                self._functions.append((spec, found))
            self._spec, self._on_spec = spec, found
        return self._on_spec


class _Functions:
    """The functions of steps on batches of one structure. A batch between two of them is the
    handle of an optional, one tensor."""

    def __init__(self, step, combine, spec):
        self._step, self._combine = step, combine
        self._iterator_spec, self._batch_spec = tf.data.IteratorSpec(spec), tf.OptionalSpec(spec)
        self.next_step = tf.function(self._next_step, **_OPTIONS)
        self.next_batches = tf.function(self._next_batches, **_OPTIONS)
        self.steps = tf.function(self._steps, **_OPTIONS)

    def _next_step(self, handle):
        return self._step(next(_from_handle(self._iterator_spec, handle)))

    def _next_batches(self, handle, count):
        """Returns the handles of so many optional batches, and how many have a value."""
        iterator = _from_handle(self._iterator_spec, handle)
        batches = [iterator.get_next_as_optional() for _ in range(count)]
        found = tf.add_n([tf.cast(batch.has_value(), tf.int32) for batch in batches])
        return tuple(tf.nest.flatten(batches, expand_composites=True)), found

    def _steps(self, batches):
        """Takes a step on each batch, one after the other."""
        outputs = []
        for batch in batches:
            with tf.device("/CPU:0"):
                batch = _from_handle(self._batch_spec, batch).get_value()
            outputs.append(self._step(batch))
        return self._combine(outputs)


def _from_handle(spec, handle):
    return tf.nest.pack_sequence_as(spec, [handle], expand_composites=True)
