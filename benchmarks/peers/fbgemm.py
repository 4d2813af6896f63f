"""FBGEMM's table-batched embedding, where fbgemm_gpu is installed, for benchmarks beside it."""

import importlib.util

OPTIMIZERS = {
    "sgd": "EXACT_SGD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adagrad": "EXACT_ADAGRAD",
    "adam": "ADAM",
}


def is_installed():
    return importlib.util.find_spec("fbgemm_gpu") is not None


def make_tables(shapes, rule, where, pooling="SUM", precision="FP32", eps=1e-6, **options):
    """Tables in one module of PyTorch, whose backward pass updates them.

    Args:
        shapes: (rows, dim) of each table.
        rule: One of OPTIMIZERS.
        where: "HOST", whose tables a CPU looks up; or "DEVICE", "MANAGED" or "MANAGED_CACHING".
        pooling: "SUM", "MEAN" or "NONE".
        precision: "FP32" or "FP16", of rows and outputs.
        eps: The epsilon of the rule.
        **options: More of FBGEMM's own arguments.
    """
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    on_cpu = where == "HOST"
    location = getattr(EmbeddingLocation, where)
    device = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    dtype = getattr(SparseType, precision)
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, location, device) for rows, dim in shapes],
        optimizer=getattr(EmbOptimType, OPTIMIZERS[rule]),
        learning_rate=0.01,
        eps=eps,
        weights_precision=dtype,
        output_dtype=dtype,
        pooling_mode=getattr(PoolingMode, pooling),
        device=torch.device("cpu" if on_cpu else "cuda"),
        **options,
    )
