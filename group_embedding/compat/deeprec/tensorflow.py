"""DeepRec's `tensorflow`: TensorFlow 1's names and behaviour, and DeepRec's own names.

A script for DeepRec runs on stock TensorFlow with one line changed:

```python
import group_embedding.deeprec as tf  # was: import tensorflow as tf
```

Importing it turns off the behaviour of TensorFlow 2 in this process
(`tf.compat.v1.disable_v2_behavior`): code builds graphs. A name is DeepRec's if DeepRec has it
(`deeprec_names/table.py` lists them), else that of `tf.compat.v1`. The optimizers of `tf.train`
update EmbeddingVariables without `group_embedding.optimizers.wrap`. DeepRec's modules, such as
`tensorflow.python.distribute.group_embedding_collective_strategy` and
`tensorflow.core.framework.embedding.config_pb2`, can be imported under their names, also parts of
`tensorflow.contrib`.

Example:

```python
import group_embedding.deeprec as tf

table = tf.get_embedding_variable("user", 8)
ids = tf.placeholder(tf.int64)
loss = tf.reduce_sum(tf.nn.embedding_lookup(table, ids) ** 2)
train = tf.train.AdagradOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(train, {ids: [3, 2**40]})
```
"""

import tensorflow

from group_embedding.compat.deeprec import table as _names
from group_embedding.compat.deeprec.overlay import Overlay as _Overlay
from group_embedding.compat.deeprec.refused import GONE as _GONE

tensorflow.compat.v1.disable_v2_behavior()
_names.add_modules()
_root = _Overlay(
    __name__, tensorflow.compat.v1, {**_names.of_tensorflow_1(), **_names.of_deeprec()}
)


def __getattr__(name):
    try:
        return getattr(_root, name)
    except AttributeError:
        if name in _GONE:
            raise AttributeError(f"tf.{name}: {_GONE[name]}") from None
        raise


def __dir__():
    return dir(_root)
