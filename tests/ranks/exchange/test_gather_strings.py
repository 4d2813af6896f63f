"""Strings that ranks gather."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.exchange.gather_strings import gather_strings, gather_text


class RanksInTurn:
    """An exchange of ranks that come one after the other, and find what those before them sent."""

    def __init__(self):
        self._sent = []

    @property
    def num_ranks(self):
        return len(self._sent)

    def allgather(self, tensors, name):
        self._sent.append([tensor.numpy() for tensor in tensors])
        return [tf.constant(np.concatenate(of_ranks)) for of_ranks in zip(*self._sent)]


STRINGS = [
    [[b"one", b"", b"\xff\x00 three"], [b"", b"", b""], [b"a longer one", b"\xc3\xa4", b"z"]],
    [[b""], [b""]],
    [[b"x"], [b""]],
]


@pytest.mark.parametrize("of_ranks", STRINGS, ids=["three", "none", "one"])
def test_each_rank_gets_the_strings_of_all(of_ranks):
    # Given ranks with as many strings each, of any bytes, when they gather them
    ranks = RanksInTurn()
    for strings in of_ranks:
        found = gather_strings(ranks, tf.constant(strings), "strings")
    # Then they are there, rank after rank
    assert found.numpy().tolist() == of_ranks


def tell(texts):
    ge.enable_distributed_strategy()
    return gather_text(exchange.current(), texts[exchange.current().rank], "texts")


def test_ranks_tell_each_other_texts(three_ranks):
    texts = ["", "ä and 漢", "x" * 1000]
    assert three_ranks.run(tell, texts) == [texts] * 3
