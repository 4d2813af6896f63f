"""What one rank writes for all."""

import tensorflow as tf

from group_embedding.exchange import gather_strings, unsharded


def export_by_first_rank(exchange, export):
    """Calls `export()` on the first rank alone, where tables are made whole; returns the path that
    it returns, a string, on all ranks when it has ended.

    Raises:
        RuntimeError: on the other ranks, if it raised on the first.
    """
    path, error = "", None
    if exchange.rank == 0:
        try:
            with unsharded():
                path = export()
        except Exception as raised:  # after the others know
            error = raised
    path = _of_first_rank(exchange, path)
    if error is not None:
        raise error
    if not path:
        raise RuntimeError("rank 0 could not export the model; its own error says why")
    return path


def _of_first_rank(exchange, text):
    if exchange.num_ranks == 1:
        return text
    # In a graph of its own: it works whether or not TensorFlow runs eagerly.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        texts = gather_strings(exchange, tf.constant([text]), "exported")
        return session.run(texts)[0, 0].decode()
