"""The shapes of the models of `ge.models`: boxes in columns, joined by arrows."""

from svg import Picture

BOX, COLUMN, ROW = (150, 46), 172, 66

# For each model: its boxes by name, (column, row, lines of text), and the arrows between them.
# The unit of columns and rows is the distance of two boxes.
_LOOKUP = "one lookup"
SHAPES = {
    "dlrm": (
        {
            "i": (0, 0, "ids", _LOOKUP),
            "d": (0, 1, "dense inputs", "bottom MLP"),
            "p": (1.5, 0, "dot products", "of all pairs"),
            "t": (3, 0.5, "top MLP"),
            "o": (4, 0.5, "logit"),
        },
        "ip dp dt pt to",
    ),
    "dcnv2": (
        {
            "x": (0, 0.5, "vectors, dense", "side by side"),
            "c": (1.5, 0, "crosses", "x0 * (x W + b) + x"),
            "m": (1.5, 1, "MLP"),
            "s": (3, 0.5, "side by side"),
            "o": (4, 0.5, "logit"),
        },
        "xc xm cs ms so",
    ),
    "wide_and_deep": (
        {
            "w": (0, 0, "ids", "a number for each"),
            "v": (0, 1, "vectors, dense", "side by side"),
            "l": (1.5, 0, "sum"),
            "m": (1.5, 1, "MLP"),
            "s": (3, 0.5, "sum"),
            "o": (4, 0.5, "logit"),
        },
        "wl vm ls ms so",
    ),
    "deepfm": (
        {
            "w": (0, 0, "ids", "a number for each"),
            "v": (0, 1, "vectors", _LOOKUP),
            "d": (0, 2, "dense inputs"),
            "l": (1.5, 0, "sum, linear"),
            "f": (1.5, 1, "dot products", "of pairs, summed"),
            "m": (1.5, 2, "MLP", "all side by side"),
            "s": (3, 1, "sum"),
            "o": (4, 1, "logit"),
        },
        "wl vf vm dm dl ls fs ms so",
    ),
    "xdeepfm": (
        {
            "w": (0, 0, "ids", "a number for each"),
            "v": (0, 1, "vectors", _LOOKUP),
            "d": (0, 2, "dense inputs"),
            "l": (1.5, 0, "sum, linear"),
            "f": (1.5, 1, "products of vectors", "layer by layer"),
            "m": (1.5, 2, "MLP", "all side by side"),
            "s": (3, 1, "sum"),
            "o": (4, 1, "logit"),
        },
        "wl vf vm dm dl ls fs ms so",
    ),
    "din": (
        {
            "h": (0, 0, "history", "[batch, length, dim]"),
            "t": (0, 1, "target", "[batch, dim]"),
            "u": (0, 2, "others, dense"),
            "a": (1.3, 0.2, "activation unit", "a weight for each id"),
            "s": (2.3, 0.2, "weighted sum"),
            "m": (3.3, 1, "MLP", "all side by side"),
            "o": (4.3, 1, "logit"),
        },
        "ha ta as sm tm um mo",
    ),
    "dien": (
        {
            "h": (0, 0, "history", "[batch, length, dim]"),
            "t": (0, 1, "target", "[batch, dim]"),
            "u": (0, 2, "others, dense"),
            "g": (1.15, 0, "GRU", "interests"),
            "a": (2.3, 0.25, "attention, GRU", "evolution"),
            "m": (3.3, 1, "MLP", "last state, others"),
            "o": (4.3, 1, "logit"),
            "x": (2.3, -0.6, "auxiliary loss", "the next id"),
        },
        "hg gx ga ta am tm um mo",
    ),
    "bst": (
        {
            "h": (0, 0, "history, target", "+ positions"),
            "u": (0, 1, "others, dense"),
            "b": (1.5, 0, "transformer blocks", "all positions"),
            "m": (3, 0.5, "MLP", "all side by side"),
            "o": (4, 0.5, "logit"),
        },
        "hb bm um mo",
    ),
    "sasrec": (
        {
            "h": (0, 0, "history", "+ positions"),
            "c": (0, 1, "candidates", "the same table"),
            "b": (1.5, 0, "transformer blocks", "causal, softmax"),
            "p": (3, 0.5, "dot products"),
            "o": (4, 0.5, "logits"),
        },
        "hb bp cp po",
    ),
    "hstu": (
        {
            "h": (0, 0, "history", "+ positions"),
            "c": (0, 1, "candidates", "the same table"),
            "b": (1.5, 0, "HSTU blocks", "causal, SiLU, gated"),
            "p": (3, 0.5, "dot products"),
            "o": (4, 0.5, "logits"),
        },
        "hb bp cp po",
    ),
    "two_tower": (
        {
            "q": (0, 0, "query's features", _LOOKUP),
            "i": (0, 1, "item's features", "the same lookup"),
            "a": (1.15, 0, "MLP, norm 1"),
            "b": (1.15, 1, "MLP, norm 1"),
            "p": (2.3, 0.5, "dot products", "/ temperature"),
            "s": (3.6, 0, "softmax", "of the batch's items"),
            "o": (3.6, 1, "logit", "of each pair"),
        },
        "qa ib ap bp ps po",
    ),
    "mmoe": (
        {
            "x": (0, 0.5, "vectors, dense", "side by side"),
            "e": (1.15, 0, "experts", "of all tasks"),
            "g": (1.15, 1, "a gate a task", "softmax"),
            "s": (2.3, 0.5, "weighted sum", "for each task"),
            "t": (3.3, 0.5, "a tower a task"),
            "o": (4.3, 0.5, "a logit a task"),
        },
        "xe xg es gs st to",
    ),
    "ple": (
        {
            "x": (0, 0.5, "vectors, dense", "side by side"),
            "s": (1.15, 0, "shared experts", "level by level"),
            "e": (1.15, 1, "a task's experts", "level by level"),
            "g": (2.3, 0.5, "a gate a task", "own and shared"),
            "t": (3.3, 0.5, "a tower a task"),
            "o": (4.3, 0.5, "a logit a task"),
        },
        "xs xe sg eg gt to",
    ),
}


def draw_shape(name):
    """The picture of a model, as wide as its columns."""
    boxes, arrows = SHAPES[name]
    width, height = BOX
    top = min(box[1] for box in boxes.values())
    corners = {
        key: (10 + column * COLUMN, 10 + (row - top) * ROW)
        for key, (column, row, *_) in boxes.items()
    }
    right, bottom = (max(corner[axis] for corner in corners.values()) for axis in (0, 1))
    picture = Picture(round(right) + width + 10, round(bottom) + height + 10)
    for key, (_, _, *lines) in boxes.items():
        x, y = corners[key]
        style = "accent" if lines[1:] == [_LOOKUP] or key == list(boxes)[0] else "box"
        picture.box(round(x, 1), round(y, 1), width, height, *lines, style=style)
    for begin, end in arrows.split():
        (x1, y1), (x2, y2) = corners[begin], corners[end]
        picture.arrow(
            round(x1 + width, 1),
            round(y1 + height / 2, 1),
            round(x2, 1),
            round(y2 + height / 2, 1),
        )
    return picture
