"""A table with a budget as a dict: what it holds after each call, by sorting all keys each time."""

import dataclasses
import math

import numpy as np

_MASK = (1 << 64) - 1


def mix_bits(key):
    """The hash by which a table finds keys: the finalizer of MurmurHash3."""
    x = key & _MASK
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & _MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & _MASK
    return x ^ x >> 33


def owner_of(key, num_owners):
    """The rank, or share, of a key: SplitMix64's finalizer, its upper half scaled."""
    x = (key + 0x9E3779B97F4A7C15) & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    x ^= x >> 31
    return (x >> 32) * num_owners >> 32


@dataclasses.dataclass
class Row:
    count: int
    version: int
    born: int | None  # None: not known
    score: float = 0.0
    values: tuple = ()
    minute: int = 0  # 0: not known


class BudgetedDict:
    """The keys of all ranks.

    Args:
      max_keys, keep, evict, decay_steps, safe_steps, num_shares: as of `core.Budget`.
      start: what a key's values are at first, a function of the key.

    Attributes:
      minute: the time of batches from now on.
      evicted: the keys that went for others. handed_out: all that went, with their rows.
    """

    def __init__(
        self, max_keys, keep=0.9, evict="least_recent", decay_steps=0, safe_steps=0, num_shares=0,
        start=lambda key: (),
    ):  # fmt: skip
        self.max_keys, self.keep, self.evict = max_keys, keep, evict
        self.decay_steps, self.safe_steps, self.num_shares = decay_steps, safe_steps, num_shares
        self.start = start
        self.rows = {}
        self.counts = {}  # where a filter counts keys without a row
        self.evicted, self.handed_out = [], []
        self.minute = 0
        self.without_place = 0
        self.last_step = -1

    def share_of(self, key):
        return owner_of(key, self.num_shares) if self.num_shares else 0

    def max_of_share(self, share):
        if not self.num_shares:
            return self.max_keys
        return self.max_keys // self.num_shares + (share < self.max_keys % self.num_shares)

    def decayed(self, row, step):
        if not self.decay_steps or row.version < 0 or step <= row.version:
            return row.count
        return row.count >> (step // self.decay_steps - row.version // self.decay_steps)

    def order(self, key, step, row=None):
        row = row or self.rows[key]
        score = {
            "least_recent": row.version,
            "least_frequent": row.count,
            "decayed_frequency": self.decayed(row, step),
            "smallest_norm": math.fsum(x * x for x in row.values),
            "score": row.score,
            "earliest": row.minute,
        }[self.evict]
        return (score, row.version, mix_bits(key))

    def train(self, batch, step):
        """Trains keys, which may repeat. Returns the keys that are without a place."""
        self.last_step = max(self.last_step, step)
        new = [key for key in dict.fromkeys(batch) if key not in self.rows]
        for key in dict.fromkeys(batch):
            if key in self.rows:
                row = self.rows[key]
                row.count = self.decayed(row, step) + batch.count(key)
                row.version, row.minute = step, self.minute
        without = set()
        for share in range(self.num_shares or 1):
            self._train_share(share, [k for k in new if self.share_of(k) == share], batch, step,
                              without)  # fmt: skip
        self.without_place += len(without)
        for key in new:
            if key not in without:
                self.rows[key] = Row(
                    batch.count(key), step, step, 0.0, self.start(key), self.minute
                )
        return without

    def is_safe(self, key, step):
        born = self.rows[key].born
        return self.safe_steps > 0 and born is not None and step - born < self.safe_steps

    def insert(self, given):
        """Gives keys rows, {key: Row}. If there are too many, the lowest of these and of the dict
        go."""
        new = {key: row for key, row in given.items() if key not in self.rows}
        for share in range(self.num_shares or 1):
            keys = [key for key in self.rows if self.share_of(key) == share]
            coming = [key for key in new if self.share_of(key) == share]
            most = self.max_of_share(share)
            if len(keys) + len(coming) <= most:
                continue
            going = [k for k in keys if k not in given and not self.is_safe(k, self.last_step)]
            going = sorted(
                going + coming, key=lambda key: self.order(key, self.last_step, new.get(key))
            )
            for key in going[: len(keys) + len(coming) - int(self.keep * most)]:
                if key in new:
                    del new[key]
                    self.without_place += 1
                else:
                    self._evict(key)
        self.rows.update({key: row for key, row in given.items() if key in self.rows or key in new})

    def erase(self, keys):
        for key in keys:
            self.rows.pop(key, None)

    def expire(self, step, steps_to_live=None, minutes_to_live=None, l2_weight=None):
        """Keys go that were not trained for longer, or whose rows are smaller."""

        def goes(row):
            by_steps = steps_to_live is not None and 0 <= row.version < step - steps_to_live
            minutes = minutes_to_live is not None and row.minute > 0
            by_minutes = minutes and self.minute - row.minute > minutes_to_live
            half_squares = math.fsum(x * x for x in row.values) / 2
            return by_steps or by_minutes or (l2_weight is not None and half_squares < l2_weight)

        for key in [key for key, row in self.rows.items() if goes(row)]:
            self.handed_out.append((key, self.rows.pop(key)))

    def _evict(self, key):
        self.handed_out.append((key, self.rows.pop(key)))
        self.evicted.append(key)

    def _train_share(self, share, new, batch, step, without):
        most = self.max_of_share(share)
        keys = [key for key in self.rows if self.share_of(key) == share]
        if len(keys) + len(new) > most:
            kept = min(int(self.keep * most), max(0, most - len(new)))
            going = [
                key for key in keys
                if key not in batch and not self.is_safe(key, step)
            ]  # fmt: skip
            going.sort(key=lambda key: self.order(key, step))
            going = going[: max(0, len(keys) - kept)]
            for key in going:
                self._evict(key)
            places = most - (len(keys) - len(going))
            new = sorted(new, key=mix_bits, reverse=True)
            without.update(new[max(0, places) :])


class FilteredDict(BudgetedDict):
    """The keys of all ranks that a filter admits, which counts exactly. Counts of keys without a
    row are halved where a share has more of them than it may have keys; those of a Bloom filter
    stay.

    Args:
      min_count: how often a key must be trained to get a row.
      probability: of each time that a key is trained, that it is admitted. Draws with it first
        succeed at a number of trials whose distribution is geometric: the key's hash draws one.
      is_bloom: the filter forgets no key.
      budget: as of `BudgetedDict`.

    Attributes:
      counts: {key: how often it was trained} of the keys without a row; of all, in a Bloom filter.
    """

    def __init__(self, min_count=0, probability=1.0, is_bloom=False, **budget):
        super().__init__(**budget)
        self.min_count, self.probability, self.is_bloom = min_count, probability, is_bloom

    def least_count(self, key):
        if self.probability >= 1:
            return self.min_count
        drawn = ((mix_bits(key ^ 0x6A09E667F3BCC909) >> 12) + 0.5) / 2**52
        return max(self.min_count, 1 + int(math.log(drawn) / math.log(1 - self.probability)))

    def is_admitted(self, key):
        return self.counts.get(key, 0) >= self.least_count(key)

    def train(self, batch, step):
        for share in range(0 if self.is_bloom else self.num_shares or 1):
            self._halve_counts(share)
        for key in batch:
            if key not in self.rows:
                self.counts[key] = self.counts.get(key, 0) + 1
        new = {key for key in batch if key not in self.rows and self.is_admitted(key)}
        without = super().train([key for key in batch if key in new or key in self.rows], step)
        for key in new - without:
            self.rows[key].count = self.counts[key]
        self._forget(new - without)
        return without

    def insert(self, given):
        super().insert(given)
        self._forget(key for key in given if key in self.rows)

    def erase(self, keys):
        super().erase(keys)
        self._forget(keys)

    def _forget(self, keys):
        if not self.is_bloom:
            for key in keys:
                self.counts.pop(key, None)

    def _halve_counts(self, share):
        of_share = [key for key in self.counts if self.share_of(key) == share]
        while len(of_share) > self.max_of_share(share):
            for key in of_share:
                self.counts[key] //= 2
                if self.counts[key] == 0:
                    del self.counts[key]
            of_share = [key for key in of_share if key in self.counts]


def content(rows):
    """Returns {key: (count, version)}, which tests compare."""
    return {key: (row.count, row.version) for key, row in rows.items()}


def zipf_batches(seed, num_batches, size, num_keys, exponent=1.05):
    """Batches of keys of Zipf's distribution, the most frequent ones spread over all numbers."""
    random = np.random.default_rng(seed)
    weights = 1 / np.arange(1, num_keys + 1) ** exponent
    keys = random.choice(2**40, size=num_keys, replace=False) - 2**39
    drawn = random.choice(num_keys, size=(num_batches, size), p=weights / weights.sum())
    return keys[drawn]
