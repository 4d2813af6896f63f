"""`RoutedIds`: ids between the step that routes them and the step that looks them up."""

from collections.abc import Iterable

import tensorflow as tf

from group_embedding.ops import batch_sizes
from group_embedding.ops.group_ids import Batch
from group_embedding.ops.route_ids import Requests
from group_embedding.ranks.sharding.sharded_lookup import RoutedBatch
from group_embedding.ranks.sharding.two_levels import ROWS_BY_PROXIES, BatchByProxies


class RoutedIds(tf.experimental.ExtensionType):
    """The ids of one batch, made by `route_ids`, which `group_embedding_lookup_sparse` (of dense
    ids, `group_embedding_lookup`) takes in the place of the ids.

    It goes where tensors go: through a `tf.function`, which is not traced anew for a batch of
    another size, in and out; through `tf.nest.flatten(..., expand_composites=True)` for a queue or
    `Session.run`. There is nothing to read in it.
    """

    __name__ = "group_embedding.RoutedIds"  # in a SavedModel

    # The tensors of each group, see `to_tensors`. Sizes are strings, which stay in host memory.
    batches: tuple[tuple[tf.Tensor, ...], ...]
    weighted: tuple[bool, ...]  # of each group
    # Shapes of samples that have not one axis, and their features. Nothing here has an element for
    # each feature: a call of a `tf.function` costs the host microseconds for each element.
    sample_shapes: tuple[tf.Tensor, ...]
    shaped_features: tuple[int, ...]
    lookups: str  # what the ids were routed for, see `groups.Lookups.describe`
    # Row splits of each sequence of a layer, which knows its features and their lengths.
    sequences: tuple[tf.Tensor, ...] = ()

    def __tf_tracing_type__(self, context):
        """The sizes of batches are no part of it."""
        spec = self._type_spec.__tf_tracing_type__(context)
        return RoutedIds.Spec(
            batches=tf.nest.map_structure(_of_any_size, spec.batches),
            weighted=spec.weighted,
            sample_shapes=spec.sample_shapes,
            shaped_features=spec.shaped_features,
            lookups=spec.lookups,
            sequences=tf.nest.map_structure(_of_any_size, spec.sequences),
        )

    def with_sequences(self, sequences: Iterable[tf.Tensor]) -> "RoutedIds":
        """These ids with the row splits of their sequences, a tuple of int64 [samples + 1]."""
        return RoutedIds(
            batches=self.batches,
            weighted=self.weighted,
            sample_shapes=self.sample_shapes,
            shaped_features=self.shaped_features,
            lookups=self.lookups,
            sequences=tuple(sequences),
        )


def _refuse_batching(spec, batch_size):
    raise ValueError(
        "RoutedIds: expected a dataset that is batched before its ids are packed, got batch() of "
        "packed ids; call batch() first, then map(layer.route) or a map() with ge.route_ids"
    )


# `Dataset.batch` asks a structure for its batches. Iterators of TensorFlow 1 ask for types, shapes
# and classes, and use only the class of a structure like this. The names are TensorFlow's,
# and the body of the class may not define them.
RoutedIds.Spec._batch = _refuse_batching
RoutedIds.Spec._to_legacy_output_types = lambda spec: tf.variant
RoutedIds.Spec._to_legacy_output_shapes = lambda spec: tf.TensorShape(None)
RoutedIds.Spec._to_legacy_output_classes = lambda spec: spec


@tf.experimental.dispatch_for_api(tf.shape, {"input": RoutedIds})
def _shape_of_routed_ids(input, out_type=None, name=None):  # noqa: A002, TensorFlow's names
    """[samples] of the first feature: Keras 3 asks its first input how many samples there are."""
    if input.sequences:
        # The lookup of a sequence may have more samples than the batch.
        return tf.shape(input.sequences[0][1:], out_type or tf.int32, name=name)
    sizes = batch_sizes.from_string(input.batches[0][1])
    return tf.cast(sizes[0, :1], out_type or tf.int32, name=name)


def to_routed_ids(lookups, batches, sample_shapes):
    """Packs the batches of a call, and the shapes of samples, into one value for TensorFlow.

    Args:
        lookups: the `groups.Lookups` of the call.
        batches: what `flow.pack_ids` or `go_ahead` returned.
        sample_shapes: for each feature None, or int64 [axes] if its samples have more or fewer than
            one axis.
    """
    shaped = {f: shape for f, shape in enumerate(sample_shapes) if shape is not None}
    return RoutedIds(
        batches=tuple(to_tensors(batch, batch_sizes.to_string) for batch in batches),
        weighted=tuple(batch.weighted for batch in batches),
        sample_shapes=tuple(shaped.values()),
        shaped_features=tuple(shaped),
        lookups=lookups.describe(),
    )


def from_routed_ids(lookups, routed_ids):
    """Returns the batches and the shapes of which `to_routed_ids` made this for the same call.

    Raises:
        ValueError: the ids were routed for another call.
    """
    expected, got = routed_ids.lookups.split("\n"), lookups.describe().split("\n")
    if len(expected) != len(got):
        raise ValueError(
            f"routed ids: expected the {len(expected) - 2} lookups that they were routed for, got "
            f"{len(got) - 2}"
        )
    for was, now in zip(expected, got):
        if was != now:
            raise ValueError(
                f"routed ids: expected what they were routed for, {was}; got {now}; give "
                "route_ids and the lookup the same arguments"
            )
    batches = from_groups(lookups, routed_ids.batches, routed_ids.weighted, batch_sizes.from_string)
    shaped = dict(zip(routed_ids.shaped_features, routed_ids.sample_shapes))
    return batches, [shaped.get(f) for f in range(len(lookups.names))]


def _as_they_are(sizes):
    return sizes


def _with_sizes(group, convert):
    """A packed or routed group with all sizes converted."""
    if isinstance(group, Batch):
        return group._replace(sizes=convert(group.sizes))
    if isinstance(group, BatchByProxies):
        return group._replace(
            batch=_with_sizes(group.batch, convert), of_host=_with_sizes(group.of_host, convert)
        )
    batches = [_with_sizes(batch, convert) for batch in group.requests.batches]
    return group._replace(
        batch=_with_sizes(group.batch, convert), requests=group.requests._replace(batches=batches)
    )


def to_tensors(group, convert=_as_they_are):
    """The tensors of a packed or routed group, its sizes converted."""
    return _to_tensors(_with_sizes(group, convert))


def _to_tensors(group):
    if isinstance(group, Batch):
        return (group.buffer, group.sizes)
    if isinstance(group, BatchByProxies):
        batch, counts, asked, of_host = group
        return (*_to_tensors(batch), counts, asked, *_to_tensors(of_host))
    batch, counts, requests, ahead = group
    of_requests = [t for part in zip(requests.batches, requests.times) for t in _flat(*part)]
    return (batch.buffer, batch.sizes, counts, requests.counts, *of_requests, *ahead)


def _flat(batch, times):
    return (batch.buffer, batch.sizes, times)


def from_groups(lookups, groups, weighted, convert=_as_they_are):
    """The batches of a call, of whose groups `to_tensors` made these tensors.

    Args:
        lookups: the `groups.Lookups` of the call.
        groups: the tensors of each group.
        weighted: whether the batch of each group has weights.
        convert: of sizes, back.
    """
    served = lookups.groups_of(any(weighted))
    batches = [
        _from_tensors(tensors, has_weights, by_proxies=one.source is ROWS_BY_PROXIES)
        for one, tensors, has_weights in zip(served, groups, weighted)
    ]
    return [_with_sizes(batch, convert) for batch in batches]


def _from_tensors(tensors, weighted, by_proxies):
    buffer, sizes, *exchanged = tensors
    batch = Batch(buffer, sizes, weighted)
    if not exchanged:
        return batch
    counts, asked, *of_requests = exchanged
    if by_proxies:
        of_host = _from_tensors(of_requests, weighted=False, by_proxies=False)
        return BatchByProxies(batch, counts, asked, of_host)
    num_ahead = len(of_requests) % 3  # each lookup on the owner has three tensors, rows ahead two
    ahead = tuple(of_requests[len(of_requests) - num_ahead :])
    of_requests = of_requests[: len(of_requests) - num_ahead]
    batches = [Batch(*pair, weighted=False) for pair in zip(of_requests[::3], of_requests[1::3])]
    return RoutedBatch(batch, counts, Requests(batches, of_requests[2::3], asked), ahead)


def _of_any_size(spec):
    return tf.TensorSpec([None], spec.dtype) if spec.shape.rank == 1 else spec
