"""Steps over the batches of an iterator, each of which is routed while the one before it trains."""

import itertools
import warnings

import tensorflow as tf

_OPTIONS = {"autograph": False, "reduce_retracing": True}


class StepsAhead:
    """Takes steps, each with the next batch in hand.

    What is ahead is a batch, and tensors that its lookups begin with: they change no table. If they
    are dropped, as with an iterator that is left before its end, nothing is lost or done twice but
    the batch, which no step has seen.

    Args:
        compiled: the `CompiledStep`.
        arguments_of: the `(args, kwargs)` of the step, of an element of the iterator.
        after: takes what a step returned, in its function, and returns what is to be returned.
    """

    def __init__(self, compiled, arguments_of, after=lambda outputs: outputs):
        self._compiled, self._arguments_of, self._after = compiled, arguments_of, after
        self._route_first = tf.function(self._route, **_OPTIONS)
        self._train = tf.function(self._train_and_route, **_OPTIONS)
        self._has_warned = False
        self._forget()

    def take(self, iterator, most=1):
        """Takes steps on the next batches of an iterator, as many as there are, in one call: then
        tables' rows do not wait for dense variables of the step before.

        Returns:
            A list of what each step returns, at most so many.

        Raises:
            StopIteration: there is no batch left.
        """
        if iterator is not self._iterator:
            self._forget()
            batch = next(iterator)
            self._routed, self._batch = self._route_first(batch), batch
            self._warn()
        elif self._batch is None:
            raise StopIteration
        batches, routed = [self._batch], self._routed
        self._forget()  # until the steps have ended well
        batches.extend(itertools.islice(iterator, most))
        following = batches.pop() if len(batches) > most else None
        outputs, self._routed = self._train(batches, routed, following)
        self._iterator, self._batch = iterator, following
        return outputs

    def over(self, data, steps_per_call):
        """Yields what each step on the batches of an iterable returns."""
        iterator = iter(data)
        while True:
            try:
                outputs = self.take(iterator, steps_per_call)
            except StopIteration:
                return
            yield from outputs

    def _forget(self):
        self._iterator, self._batch, self._routed = None, None, None

    def _route(self, batch):
        return self._compiled.route(self._arguments_of(batch))

    def _train_and_route(self, batches, routed, following):
        outputs = []
        for batch, after in zip(batches, [*batches[1:], following]):
            after = None if after is None else self._arguments_of(after)
            given = self._arguments_of(batch), routed, after
            of_step, routed = self._compiled.call_routed(*given)
            outputs.append(self._after(of_step))
        return outputs, routed

    def _warn(self):
        reasons = self._compiled.not_ahead
        if reasons and not self._has_warned:
            lookups = "; ".join(f"{lookup} waits for '{op}'" for lookup, op in reasons.items())
            warnings.warn(
                "lookups are made ahead of the step where their ids depend on the batch alone, but "
                f"{lookups}: they are made in the step",
                stacklevel=4,
            )
            self._has_warned = True
