"""`StreamedMetrics`: loss and AUC of batches, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from group_embedding.ranks import exchange

# Logits are counted in bins of 1/1024 from -16 to 16: an AUC of whole bins counts pairs of one bin
# half, which moves it by less than 1e-4 where probabilities are spread at all.
_BINS, _RANGE = 32_768, 16.0


class StreamedMetrics:
    """The mean loss, and the AUC of each label, of batches that are added.

    Batches stay on their device until a result is asked for, or `keep` of them have come: a step
    waits for nothing.

    Args:
        labels: the names of labels that are 0 or 1; none: there is no AUC.
        keep: how many batches are kept.
    """

    def __init__(self, labels: tuple[str, ...], keep: int = 64) -> None:
        self._labels, self._keep = labels, keep
        self.reset()

    def reset(self) -> None:
        """Forgets all batches."""
        self._waiting: list[Any] = []
        self._counts = np.zeros([len(self._labels), 2, _BINS])
        self._loss = np.zeros(2)  # the sum over samples, and their number

    def add(self, loss: Any, logits: Mapping[str, Any], labels: Mapping[str, Any]) -> None:
        """Adds a batch: its mean loss, and the logits and labels [B] of each name."""
        self._waiting.append((loss, logits, labels))
        if len(self._waiting) >= self._keep:
            self._take()

    def result(self) -> dict[str, float]:
        """The metrics of the samples of all ranks: "loss", "auc", the mean over labels, and with
        several labels "auc/<label>". A label of which all samples are alike has an AUC of NaN.

        All ranks call it together.
        """
        self._take()
        counts, loss = _sum_over_ranks(self._counts, self._loss)
        found = {"loss": float(loss[0] / loss[1]) if loss[1] else float("nan")}
        if self._labels:
            areas = {name: area_of(*both) for name, both in zip(self._labels, counts)}
            found["auc"] = float(np.mean(list(areas.values())))
            if len(areas) > 1:
                found.update({f"auc/{name}": area for name, area in areas.items()})
        return found

    @property
    def num_samples(self) -> int:
        """How many samples of this rank were added."""
        self._take()
        return int(self._loss[1])

    def _take(self):
        if not self._waiting:
            return
        losses, logits, labels = zip(*self._waiting)
        sizes = [len(next(iter(one.values()))) for one in logits]
        self._loss += [np.dot([float(loss) for loss in losses], sizes), sum(sizes)]
        for counts, name in zip(self._counts, self._labels):
            one, other = ([np.ravel(batch[name]) for batch in x] for x in (logits, labels))
            count_logits(counts, np.concatenate(one), np.concatenate(other))
        self._waiting = []


def count_logits(counts: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> None:
    """Adds logits to the counts of their bins.

    Args:
        counts: float64 [2, bins]: of the samples whose label is 0, and of those whose label is 1.
        logits, labels: [B]; a label above one half is 1.
    """
    scaled = (np.clip(logits, -_RANGE, _RANGE) + _RANGE) * ((_BINS - 1) / (2 * _RANGE))
    bins = np.nan_to_num(scaled).astype(np.int64)
    is_one = labels > 0.5
    for number, chosen in enumerate((~is_one, is_one)):
        counts[number] += np.bincount(bins[chosen], minlength=_BINS)


def area_of(zeros: np.ndarray, ones: np.ndarray) -> float:
    """The area under the ROC curve: the share of pairs of a 0 and a 1 of which the 1 has the larger
    logit, pairs of one bin counting half."""
    below = np.concatenate([[0.0], np.cumsum(zeros)[:-1]])
    pairs = zeros.sum() * ones.sum()
    return float((ones * (below + 0.5 * zeros)).sum() / pairs) if pairs else float("nan")


def _sum_over_ranks(*arrays):
    ranks = exchange.current()
    if ranks.num_ranks == 1:
        return arrays
    # A name of its own for each call would grow a table of names: ranks call it in one order.
    means = ranks.average([tf.constant(array) for array in arrays], "streamed_metrics")
    return [np.round(mean.numpy() * ranks.num_ranks, 6) for mean in means]
