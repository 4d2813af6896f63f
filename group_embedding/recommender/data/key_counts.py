"""How often each key occurs, in bounded memory."""

from __future__ import annotations

import collections
import zlib

import numpy as np

_HASHES = 2**32


class KeyCounts:
    """Counts of integers or byte strings.

    At most `limit` keys are kept. Where there are more, with `keep` "sample" only keys whose hash
    is below a threshold are counted: a sample of the keys, each of which has its exact count. With
    "frequent" the half of them that occurred most often so far stays, so that the count of a key
    that was dropped and came again is too low.

    Args:
        limit: how many keys are kept.
        keep: "sample" or "frequent".
    """

    def __init__(self, limit=1_000_000, keep="sample"):
        self._keep, self._dropped = keep, False
        self._limit, self._threshold, self._waiting = limit, _HASHES, []
        self._keys, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._texts = None
        self.total = 0

    def add(self, values):
        """Counts the values of an array."""
        self.total += len(values)
        if values.dtype == object:
            self._texts = self._texts if self._texts is not None else collections.Counter()
            self._texts.update(values.tolist())
            self._shrink_texts()
            return
        keys, counts = np.unique(values, return_counts=True)
        self._waiting.append((keys.astype(np.int64), counts))
        if sum(len(keys) for keys, _ in self._waiting) > self._limit:
            self._merge()

    def remove(self, key, count):
        """Takes a number of occurrences of a key out."""
        self.total -= count
        if self._texts is not None:
            if key in self._texts:
                self._texts[key] -= count
            return
        self._merge()
        self._counts[self._keys == key] -= count

    def sampled(self):
        """(keys, counts) that were counted: bytes as an object array, or int64."""
        if self._texts is not None:
            kept = {key: count for key, count in self._texts.items() if count > 0}
            return np.array(list(kept), object), np.fromiter(kept.values(), np.int64, len(kept))
        self._merge()
        good = self._counts > 0
        return self._keys[good], self._counts[good]

    @property
    def exact(self):
        """True if all keys were counted."""
        return self._threshold == _HASHES and not self._dropped

    @property
    def num_distinct(self):
        """How many keys there are: an estimate where not all were counted."""
        return round(len(self.sampled()[0]) * _HASHES / self._threshold)

    def share_of_top(self, share=0.01):
        """The share of all occurrences that the most frequent keys have, from 0 to 1."""
        counts = np.sort(self.sampled()[1])[::-1]
        top = counts[: max(1, round(len(counts) * share))]
        return float(top.sum() / counts.sum()) if len(counts) else 0.0

    def _merge(self):
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._waiting)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._waiting)])
        self._waiting = []
        self._keys, inverse = np.unique(keys, return_inverse=True)
        self._counts = np.bincount(inverse, counts, len(self._keys)).astype(np.int64)
        if self._keep == "frequent":
            if len(self._keys) > self._limit:
                kept = np.sort(np.argsort(-self._counts, kind="stable")[: max(self._limit // 2, 1)])
                self._keys, self._counts, self._dropped = self._keys[kept], self._counts[kept], True
            return
        while True:
            kept = _hash(self._keys) < self._threshold
            self._keys, self._counts = self._keys[kept], self._counts[kept]
            if len(self._keys) <= self._limit:
                return
            self._threshold //= 2

    def _shrink_texts(self):
        if self._keep == "frequent":
            if len(self._texts) > self._limit:
                kept = self._texts.most_common(max(self._limit // 2, 1))
                self._texts, self._dropped = collections.Counter(dict(kept)), True
            return
        if self._threshold < _HASHES or len(self._texts) > self._limit:
            while True:
                for key in [k for k in self._texts if zlib.crc32(k) >= self._threshold]:
                    del self._texts[key]
                if len(self._texts) <= self._limit:
                    return
                self._threshold //= 2


def _hash(keys):
    mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return (mixed * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(32)
