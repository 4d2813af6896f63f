"""What the documents show runs: the README's programs, and the examples of public docstrings."""

import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

README = Path(__file__).resolve().parents[1] / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
PUBLIC = {name: getattr(ge, name) for name in ge.__all__ if not inspect.ismodule(getattr(ge, name))}
PUBLIC |= {f"optimizers.{name}": getattr(ge.optimizers, name) for name in ge.optimizers.__all__}
PUBLIC |= {
    f"sok.{name}": getattr(ge.sok, name)
    for name in ge.sok.__all__
    if callable(getattr(ge.sok, name))
}
PUBLIC["sok.optimizers.Adam"] = ge.sok.optimizers.Adam


@pytest.fixture(autouse=True)
def same_optimizers():
    """`tf.keras.optimizers`, for which `sok.init` puts the legacy ones."""
    kept = tf.keras.optimizers, tf.optimizers
    yield
    tf.keras.optimizers, tf.optimizers = kept


@pytest.mark.parametrize(
    "program",
    PROGRAMS,
    ids=[
        "lookups",
        "feature_columns",
        "keras",
        "keys",
        "optimizers",
        "ahead",
        "sok_2",
        "sok_1",
    ],
)
def test_readme_program(program, capsys):
    if "feature_column" in program and not hasattr(tf, "feature_column"):
        pytest.skip("this TensorFlow has no feature columns")

    exec(compile(program, str(README), "exec"), {"__name__": "readme"})

    # A comment behind a print begins with what is printed.
    printed = capsys.readouterr().out
    for expected in re.findall(r"print\(.*\)\s+# ([(\[].*[)\]])", program):
        assert expected in printed


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name):
    thing = PUBLIC[name]
    assert inspect.getdoc(thing), f"ge.{name} has no docstring"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(recurse=False).find(
        thing, name, globs=vars(ge) | {"ge": ge, "tf": tf, "np": np}
    ):
        runner.run(test)
    assert runner.failures == 0
