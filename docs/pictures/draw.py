"""Draws the pictures of the documentation: `python docs/pictures/draw.py` writes them beside it.

A test compares the committed files with what this script draws.
"""

from pathlib import Path

from model_shapes import SHAPES, draw_shape
from svg import Picture, sequence

FOLDER = Path(__file__).resolve().parent


def many_ops():
    """Three features: the ops of TensorFlow beside the op of this library."""
    p = Picture(860, 250)
    p.text(205, 24, "TensorFlow: ops for each feature, and again backward")
    for row in range(3):
        y = 40 + row * 56
        for column, name in enumerate(("unique", "gather", "segment", "reshape")):
            p.box(82 + column * 86, y, 72, 36, name)
            p.arrow(68 + column * 86, y + 18, 82 + column * 86, y + 18)
        p.text(34, y + 23, f"feature {row}", "middle small")
    p.text(205, 226, "... for hundreds of features: thousands of small ops")
    p.line(450, 20, 450, 230, "dashed")
    p.text(660, 24, "group_embedding: one op for all features")
    for row in range(3):
        p.text(490, 63 + row * 56, f"feature {row}", "middle small")
        p.arrow(524, 58 + row * 56, 570, 58 + row * 56)
        p.arrow(760, 58 + row * 56, 806, 58 + row * 56)
        p.text(830, 63 + row * 56, "vectors", "middle small")
    p.box(572, 40, 186, 148, "GroupLookup", "lookup and combine", "of every table", style="accent")
    p.text(660, 226, "backward: one op, from gradients to updated rows")
    return p


def one_batch():
    """One batch, forward and backward."""
    p = Picture(860, 430)
    p.text(430, 22, "ids of each feature: SparseTensor, RaggedTensor or dense")
    steps = [
        ("group", "ids, row splits and weights of all features become one batch", "GroupIds"),
        ("locate", "keyed tables: keys become row numbers; training adds rows", "LocateRows"),
        ("exchange", "several ranks: unique ids go to the owners, rows come back", ""),
        ("look up and combine", "all tables and features in one launch", "GroupLookup"),
    ]
    for i, (name, about, op) in enumerate(steps):
        y = 40 + i * 62
        p.arrow(160, y - 16, 160, y)
        p.box(60, y, 200, 44, name, style="accent" if op else "box")
        p.text(280, y + 27, about, "small")
        p.text(700, y + 27, op, "code")
    p.arrow(160, 270, 160, 300)
    p.text(430, 318, "one [batch, dim] tensor per feature, or one concatenated tensor")
    p.line(8, 336, 852, 336, "dashed")
    p.box(60, 350, 200, 64, "backward", "sort ids once, add gradients", "of each row, in order")
    p.arrow(260, 368, 330, 368)
    p.text(340, 373, "stock optimizer: unique rows and their gradients", "small")
    p.text(700, 373, "GroupLookupGrad", "code")
    p.arrow(260, 400, 330, 400)
    p.text(340, 405, "wrapped optimizer: rows are updated in the same op", "small")
    p.text(700, 405, "GroupUpdate", "code")
    return p


def lookup():
    """From the ids of two samples to one vector each."""
    p = Picture(860, 250)
    p.text(110, 24, "feature 'clicks', two samples")
    p.text(40, 66, "sample 0", "middle small")
    p.cells(80, 48, ["2", "0"])
    p.text(40, 110, "sample 1", "middle small")
    p.text(80, 110, "no ids", "small")
    p.text(110, 160, "in the batch")
    p.text(30, 189, "ids", "middle small")
    p.cells(80, 172, ["2", "0"])
    p.text(38, 223, "row splits", "middle small")
    p.cells(80, 206, ["0", "2", "2"])
    p.arrow(200, 185, 330, 110)
    p.text(430, 24, "table 'item', 3 rows of dim 3")
    for row, values in enumerate((("1", "2", "3"), ("4", "5", "6"), ("7", "8", "9"))):
        style = "box" if row == 1 else "accent"
        p.text(350, 66 + row * 34, f"row {row}", "middle small")
        p.cells(380, 48 + row * 34, values, style=style)
    p.arrow(500, 100, 610, 100)
    p.text(555, 90, "mean", "middle small")
    p.text(720, 24, "result [2, 3]")
    p.cells(640, 66, ["4", "5", "6"], 44, "accent")
    p.text(640, 112, "(row 2 + row 0) / 2", "small")
    p.cells(640, 140, ["0", "0", "0"], 44)
    p.text(640, 186, "a sample without ids: zeros", "small")
    return p


def keyed_table():
    """The path of a key, in training and elsewhere."""
    p = Picture(860, 230)
    p.box(10, 90, 130, 50, "key", "any 64-bit integer")
    p.arrow(140, 115, 190, 115)
    p.box(192, 90, 120, 50, "has a row?")
    p.arrow(312, 100, 380, 60)
    p.text(338, 70, "yes", "middle small")
    p.arrow(312, 130, 380, 170)
    p.text(336, 166, "no", "middle small")
    p.box(382, 30, 150, 50, "row", "read and trained", style="accent")
    p.box(382, 150, 150, 50, "default row", "read, not trained")
    p.arrow(532, 175, 610, 175)
    p.text(571, 165, "trained", "middle small")
    p.box(612, 150, 110, 50, "filter", "admits it?")
    p.arrow(667, 150, 667, 82)
    p.text(690, 120, "yes", "middle small")
    p.box(612, 30, 110, 50, "new row", "initial value", style="accent")
    p.arrow(612, 55, 534, 55)
    p.arrow(722, 175, 770, 175)
    p.text(745, 165, "no", "middle small")
    p.box(772, 150, 82, 50, "counted")
    p.text(430, 222, "lookups without a gradient stop at the second column", "middle small")
    return p


def two_ranks():
    """Rows of a table over two ranks, and the exchange of one lookup."""
    p = Picture(860, 270)
    for rank, (rows, ids, x) in enumerate(
        ((("0", "2", "4"), "2, 3, 3", 20), (("1", "3", "5"), "4, 3", 560))
    ):
        p.box(x, 10, 280, 250, "", style="box")
        p.text(x + 140, 32, f"rank {rank}")
        p.text(x + 20, 66, f"its ids: {ids}", "small")
        p.text(x + 20, 96, f"its unique ids: {', '.join(sorted(set(ids.split(', '))))}", "small")
        p.text(x + 20, 136, f"its rows (r % 2 = {rank}):", "small")
        p.cells(x + 160, 118, rows, style="accent")
        p.text(x + 20, 190, "looks up own and received rows,", "small")
        p.text(x + 20, 210, "combines them, sends gradients back,", "small")
        p.text(x + 20, 230, "updates its own rows", "small")
    p.arrow(302, 80, 556, 80)
    p.text(430, 72, "ids: 3", "middle small")
    p.arrow(556, 112, 302, 112)
    p.text(430, 104, "ids: 4;  row 3", "middle small")
    p.arrow(302, 144, 556, 144)
    p.text(430, 136, "row 4", "middle small")
    p.arrow(302, 196, 556, 196)
    p.arrow(556, 228, 302, 228)
    p.text(430, 188, "gradient of row 3", "middle small")
    p.text(430, 220, "gradient of row 4", "middle small")
    return p


def sequence_one_rank():
    return sequence(
        ["Python\ntf.function, Keras", "grouping", "table", "lookup", "update"],
        [
            (0, 1, "ids of all features"),
            (1, "one batch, checked"),
            (1, 2, "keys"),
            (2, "keys to row numbers"),
            (2, 3, "row numbers"),
            (3, "read rows, combine"),
            (3, 0, "vectors of all features"),
            (0, "dense layers, loss"),
            "backward",
            (0, 4, "gradients of the vectors"),
            (4, "sort ids, add gradients"),
            (4, "apply the rule"),
            (4, 2, "updated rows, in their memory"),
        ],
    )


def sequence_host():
    return sequence(
        ["rank 0", "shared memory\nof the host", "rank 1"],
        [
            (0, "route: unique ids, by owner"),
            (2, "route: unique ids, by owner"),
            (0, 1, "ids asked of rank 1, counts, digest"),
            (2, 1, "ids asked of rank 0, counts, digest"),
            (1, 0, "what rank 1 asks for"),
            (1, 2, "what rank 0 asks for"),
            (0, 1, "rows, written from the table"),
            (2, 1, "rows, written from the table"),
            (1, 0, "rows of rank 1"),
            (1, 2, "rows of rank 0"),
            (0, "look up, combine"),
            (2, "look up, combine"),
            "backward",
            (0, 1, "gradients of rows of rank 1"),
            (2, 1, "gradients of rows of rank 0"),
            (1, 0, "gradients of own rows"),
            (1, 2, "gradients of own rows"),
            (0, "add them, update own rows"),
            (2, "add them, update own rows"),
        ],
    )


def sequence_gpus():
    return sequence(
        ["GPU of rank 0", "peer buffer\non rank 0", "peer buffer\non rank 1", "GPU of rank 1"],
        [
            (0, "sort ids, owner first"),
            (3, "sort ids, owner first"),
            (0, 3, "NCCL: counts, ids, description of the lookup"),
            (3, 0, "NCCL: counts, ids, description of the lookup"),
            (0, 2, "rows, chunk by chunk"),
            (3, 1, "rows, chunk by chunk"),
            (1, 0, "a chunk is complete"),
            (2, 3, "a chunk is complete"),
            (0, "look up each chunk"),
            (3, "look up each chunk"),
            "backward",
            (0, 2, "sums of gradients of rows of rank 1"),
            (3, 1, "sums of gradients of rows of rank 0"),
            (0, "update own rows"),
            (3, "update own rows"),
        ],
    )


PICTURES = [
    many_ops,
    one_batch,
    lookup,
    keyed_table,
    two_ranks,
    sequence_one_rank,
    sequence_host,
    sequence_gpus,
]


def draw():
    """The text of every picture, by file name."""
    drawn = {f"{picture.__name__}.svg": picture().svg() for picture in PICTURES}
    return drawn | {f"model_{name}.svg": draw_shape(name).svg() for name in SHAPES}


if __name__ == "__main__":
    for name, text in draw().items():
        (FOLDER / name).write_text(text)
