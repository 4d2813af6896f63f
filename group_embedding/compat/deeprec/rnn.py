"""`_Linear`: what recurrent cells of `tensorflow.contrib.rnn` are made of."""

import tensorflow as tf

v1 = tf.compat.v1


class _Linear:
    """Multiplies tensors, side by side, by one matrix: `concat(args, 1) @ kernel + bias`.

    Args:
        args: a tensor [batch, width] or a list of them; their widths must be known.
        output_size: the width of the result.
        build_bias: whether there is a bias.
        bias_initializer, kernel_initializer: of the variables "bias" and "kernel", which are made
            in the variable scope that is open; None: zeros, and the scope's.
    """

    def __init__(
        self, args, output_size, build_bias, bias_initializer=None, kernel_initializer=None
    ):
        args = self._as_list(args)
        width = sum(arg.shape[1] for arg in args)
        dtype = args[0].dtype
        self._weights = v1.get_variable("kernel", [width, output_size], dtype, kernel_initializer)
        self._biases = None
        if build_bias:
            start = bias_initializer or v1.zeros_initializer()
            self._biases = v1.get_variable("bias", [output_size], dtype, start)

    def __call__(self, args):
        result = tf.linalg.matmul(tf.concat(self._as_list(args), 1), self._weights)
        return result if self._biases is None else tf.nn.bias_add(result, self._biases)

    @staticmethod
    def _as_list(args):
        args = list(args) if isinstance(args, (list, tuple)) else [args]
        for arg in args:
            if arg.shape.rank != 2 or arg.shape[1] is None:
                raise ValueError(
                    "_Linear: expected tensors [batch, width] of known width, got shape "
                    f"{arg.shape}"
                )
        return args
