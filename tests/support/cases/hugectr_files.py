"""Small HugeCTR files with the structure of its samples, in the two forms that HugeCTR writes."""

import json

NUM_SLOTS, DENSE, DIM = 3, 4, 5
SIZES = [7, 11, 13]


def data(slots=NUM_SLOTS, dense=DENSE, labels=("label",), sizes=None, sparse=None):
    """The Data layer; `sparse`: {name: number of slots} in place of one input "data1"."""
    sparse = sparse or {"data1": slots}
    many = len(labels) > 1
    layer = {
        "name": "data",
        "type": "Data",
        "format": "Parquet",
        "source": "./train/_file_list.txt",
        "eval_source": "./val/_file_list.txt",
        "check": "None",
        "label": {
            "top": list(labels) if many else labels[0],
            "label_dim": [1] * len(labels) if many else 1,
        },
        "dense": {"top": "dense", "dense_dim": dense},
        "sparse": [
            {"top": name, "nnz_per_slot": 1, "is_fixed_length": True, "slot_num": number}
            for name, number in sparse.items()
        ],
    }
    return layer if sizes is None else {**layer, "slot_size_array": sizes}


def embedding(top="sparse1", bottom="data1", dim=DIM, combiner="sum", **hparam):
    hparam = {"workspace_size_per_gpu_in_mb": 24, **hparam}
    return {
        "type": "DistributedSlotSparseEmbeddingHash",
        "bottom": bottom,
        "top": top,
        "sparse_embedding_hparam": {"embedding_vec_size": dim, "combiner": combiner, **hparam},
    }


def layer(kind, bottom, top, **keys):
    return {"type": kind, "bottom": bottom, "top": top, **keys}


def product(bottom, top, units):
    return layer("InnerProduct", bottom, top, fc_param={"num_output": units})


def loss(logit, label="label", **keys):
    return layer("BinaryCrossEntropyLoss", [logit, label], f"loss_{label}", **keys)


def dcn():
    width = NUM_SLOTS * DIM + DENSE
    return [
        data(sizes=SIZES),
        embedding(),
        layer("Reshape", "sparse1", "flat", leading_dim=NUM_SLOTS * DIM),
        layer("Concat", ["flat", "dense"], "all"),
        layer("Slice", "all", ["left", "right"], ranges=[[0, width], [0, width]]),
        layer("MultiCross", "left", "cross", mc_param={"num_layers": 2}),
        product("right", "fc1", 6),
        layer("ReLU", "fc1", "relu1"),
        layer("Dropout", "relu1", "drop1", rate=0.5),
        layer("Concat", ["drop1", "cross"], "both"),
        product("both", "fc2", 1),
        loss("fc2"),
    ]


def deepfm():
    wide = DIM - 1
    return [
        data(sizes=SIZES),
        embedding(),
        layer("Reshape", "sparse1", "rows", leading_dim=DIM),
        layer("Slice", "rows", ["deep_rows", "wide_rows"], ranges=[[0, wide], [wide, DIM]]),
        layer("Reshape", "deep_rows", "deep", leading_dim=NUM_SLOTS * wide),
        layer("Reshape", "wide_rows", "wide", leading_dim=NUM_SLOTS),
        layer("WeightMultiply", "dense", "weighted", weight_dims=[DENSE, wide]),
        layer("WeightMultiply", "dense", "weighted1", weight_dims=[DENSE, 1]),
        layer("Concat", ["deep", "weighted"], "vectors"),
        product("vectors", "fc1", 1),
        layer("FmOrder2", "vectors", "pairs", out_dim=wide),
        layer("ReduceSum", "pairs", "second", axis=1),
        layer("Concat", ["wide", "weighted1"], "linear"),
        layer("ReduceSum", "linear", "first", axis=1),
        layer("Add", ["fc1", "second", "first"], "sum"),
        loss("sum"),
    ]


def dlrm():
    return [
        data(sizes=SIZES),
        embedding(slot_size_array=SIZES),
        layer("MLP", "dense", "mlp1", mlp_param={"num_outputs": [8, DIM], "num_output": 0}),
        layer("Interaction", ["mlp1", "sparse1"], "dots"),
        layer(
            "MLP",
            "dots",
            "mlp2",
            mlp_param={"num_outputs": [6, 1], "activations": ["Relu", "None"], "use_bias": True},
        ),
        loss("mlp2"),
    ]


def wdl():
    return [
        data(sparse={"wide": 1, "deep": NUM_SLOTS}),
        embedding("wide_rows", "wide", 1, 0),
        embedding("deep_rows", "deep", DIM, 1),
        layer("Reshape", "deep_rows", "flat", leading_dim=NUM_SLOTS * DIM),
        layer("Reshape", "wide_rows", "wide_sum", leading_dim=1),
        layer("Concat", ["flat", "dense"], "all"),
        product("all", "fc1", 1),
        layer("Add", ["fc1", "wide_sum"], "add1"),
        loss("add1", regularizer="L2", **{"lambda": 0.5}),
    ]


def din():
    steps, width = 2, 2 * DIM  # a history of two items, and the candidate
    return [
        data(dense=0, sparse={"user": 1, "good": steps + 1, "cate": steps + 1}, sizes=DIN_SIZES),
        embedding("users", "user"),
        embedding("goods", "good"),
        embedding("cates", "cate"),
        layer("FusedReshapeConcat", ["goods", "cates"], ["history", "item"]),
        layer("Scale", "item", "items", scale_param={"axis": 1, "factor": steps}),
        layer("Sub", ["items", "history"], "sub"),
        layer("ElementwiseMultiply", ["items", "history"], "times"),
        layer("Concat", ["items", "history", "sub", "times"], "pair"),
        product("pair", "score", 1),
        layer("Reshape", "score", "scores", leading_dim=steps),
        layer("Softmax", "scores", "shares", factor=1.0),
        layer("Scale", "shares", "wide", scale_param={"axis": 0, "factor": width}),
        layer("Reshape", "history", "flat_history", leading_dim=steps * width),
        layer("ElementwiseMultiply", ["wide", "flat_history"], "weighted"),
        layer("ReduceSum", "weighted", "interest", axis=1),
        layer("Reshape", "history", "sequence", leading_dim=width, time_step=steps),
        layer("ReduceMean", "sequence", "mean", axis=1),
        layer("Reshape", "mean", "flat_mean", leading_dim=width),
        layer("Reshape", "users", "flat_user", leading_dim=DIM),
        layer("Concat", ["flat_user", "flat_mean", "interest", "item"], "all"),
        product("all", "fc1", 4),
        layer("PReLU_Dice", "fc1", "dice", prelu_dice_param={"alpha": 0.2, "eps": 1e-8}),
        product("dice", "fc2", 1),
        loss("fc2"),
    ]


# Slots of size 0 share the keys of the slot behind them.
DIN_SIZES = [9, 0, 0, 12, 0, 0, 6]


def mmoe():
    gates = [
        piece
        for task in "AB"
        for piece in (
            product("flat", f"gate{task}", 2),
            layer("Softmax", f"gate{task}", f"share{task}"),
            layer("Slice", f"share{task}", [f"{task}0", f"{task}1"], ranges=[[0, 1], [1, 2]]),
            *(
                piece
                for expert in "01"
                for piece in (
                    layer(
                        *("Scale", f"{task}{expert}", f"wide{task}{expert}"),
                        scale_param={"axis": 0, "factor": 6},
                    ),
                    layer(
                        *("ElementwiseMultiply", [f"relu{expert}", f"wide{task}{expert}"]),
                        f"gated{task}{expert}",
                    ),
                )
            ),
            layer("Add", [f"gated{task}0", f"gated{task}1"], f"tower{task}"),
            product(f"tower{task}", f"logit{task}", 1),
            loss(f"logit{task}", f"label{task}"),
        )
    ]
    experts = [
        piece
        for expert in "01"
        for piece in (
            product("flat", f"fc{expert}", 6),
            layer("ReLU", f"fc{expert}", f"relu{expert}"),
        )
    ]
    return [
        data(dense=0, labels=("labelA", "labelB"), sizes=SIZES),
        embedding(),
        layer("Reshape", "sparse1", "flat", leading_dim=NUM_SLOTS * DIM),
        *experts,
        *gates,
    ]


SAMPLES = {f.__name__: f for f in (dcn, deepfm, dlrm, wdl, din, mmoe)}


def write(path, layers, **sections):
    path.write_text(json.dumps({**sections, "layers": layers}))
    return path
