"""Opens damaged models and applies damaged deltas. Run as: open_hostile.py TARGET WORK FIRST END.

Case n is drawn from the number n and GROUP_EMBEDDING_TEST_SEED. Prints "case N" before each, so
that whoever started this process knows which case ended it; then "opened" or the error.
"""

import os
import random
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from group_embedding.serving import InferenceSession

SEED = int(os.environ.get("GROUP_EMBEDDING_TEST_SEED", "20240501"))
ERRORS = (ValueError, KeyError, RuntimeError, OSError, tf.errors.OpError)
FORMATS = (None, None, "int8", "fp8", "bfloat16")
INPUTS = {
    "user": np.array([1, 5]),
    "brands": np.array([[0, 1, 2], [3, 4, 99]]),
    "items": np.array([[0, 1], [2, 49]]),
}


def mutate(draw, path):
    """Damages a file: bytes flipped, cut out, repeated, swapped, or the end cut off."""
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 8])):
        at, other = draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)
        size = draw.choice([1, 4, 8, 64])
        change = draw.randrange(6)
        if change == 0:
            data[at : at + 1] = bytes(byte ^ 1 << draw.randrange(8) for byte in data[at : at + 1])
        elif change == 1:
            data[at : at + size] = draw.randbytes(size)
        elif change == 2:
            del data[at : at + size]
        elif change == 3:
            data[at:at] = data[other : other + size]
        elif change == 4:
            data[at : at + size] = draw.choice([b"\xff", b"\0", b"\x7f"]) * size
        else:
            del data[at:]
    path.unlink()  # it is another name of the good file
    path.write_bytes(data)


def mutate_graph(draw, path):
    """Changes ops of this library in a SavedModel: their attributes, and what they read."""
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    graph = saved.meta_graphs[0].graph_def
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    ours = [node for node in nodes if node.op.startswith("GroupEmbedding>")]
    for node in draw.sample(ours, draw.choice([1, 1, 2])):
        name = draw.choice(sorted(node.attr) or [""])
        change = draw.randrange(5)
        if change == 0 and name:
            del node.attr[name]
        elif change == 1 and name:
            set_attr(draw, node.attr[name])
        elif change == 2 and node.input:
            del node.input[draw.randrange(len(node.input))]
        elif change == 3 and node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(
                draw.choice(nodes).input or [""]
            )
        else:
            node.op = draw.choice(ours).op
    path.unlink()
    path.write_bytes(saved.SerializeToString())


def set_attr(draw, attr):
    """Another value of the attribute's kind, or of another kind."""
    number = draw.choice([-1, 0, 1, 2**31 - 1, 2**40, -(2**63)])
    kind = attr.WhichOneof("value")
    if kind == "list" and attr.list.i and draw.random() < 0.7:
        attr.list.i[draw.randrange(len(attr.list.i))] = number
    elif kind == "list" and attr.list.s and draw.random() < 0.7:
        attr.list.s[draw.randrange(len(attr.list.s))] = draw.randbytes(3)
    elif kind == "type":
        attr.type = draw.randrange(30)
    elif kind == "s":
        attr.s = draw.choice([b"", b"/", b"x" * 300, draw.randbytes(5)])
    elif kind == "f":
        attr.f = draw.choice([float("nan"), 1e38, -1.0])
    else:
        attr.i = number


def damage(draw, folder):
    """Damages one file of a folder, sometimes two, or takes one away."""
    if draw.random() < 0.3 and (folder / "saved_model.pb").exists():
        mutate_graph(draw, folder / "saved_model.pb")
        return
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in draw.sample(files, min(len(files), draw.choice([1, 1, 2]))):
        if draw.random() < 0.05:
            path.unlink()
        else:
            mutate(draw, path)


def run(target, work, number):
    draw = random.Random(f"{SEED} {number}")
    model, delta = work / "1", work / f"{2:020}"
    shutil.copytree(target / "1", model, copy_function=os.link)
    shutil.copytree(target / "versions" / delta.name, delta, copy_function=os.link)
    damage(draw, delta if draw.random() < 0.3 else model)
    with InferenceSession(model, quantize=draw.choice(FORMATS), threads=1) as session:
        session.predict(INPUTS)
        session.apply(delta)
        session.predict(INPUTS)


def main():
    target, work = Path(sys.argv[1]), Path(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(int(sys.argv[3]), int(sys.argv[4])):
        print(f"case {number}", end=" ", flush=True)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            run(target, work, number)
            print("opened", flush=True)
        except ERRORS as error:
            print(f"{type(error).__name__}: {error}".splitlines()[0][:300], flush=True)


if __name__ == "__main__":
    main()
