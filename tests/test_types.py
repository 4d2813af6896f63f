"""The public API has type hints, and a checker finds a user's mistakes by them."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import group_embedding as ge

ROOT = Path(__file__).resolve().parents[1]
# The package, and each module that it offers.
MODULES = [
    ge,
    *(getattr(ge, name) for name in ge.__all__ if inspect.ismodule(getattr(ge, name))),
    *(ge.convert, ge.data, ge.exchange, ge.hugectr, ge.models, ge.parquet, ge.serving),
    *(ge.sok, ge.sok.optimizers),
]


def functions_of(public):
    """A public function, or the public methods that a public class defines, with __init__."""
    if not inspect.isclass(public):
        return [inspect.unwrap(public)] if callable(public) else []
    found = []
    for name, member in vars(public).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            found.append(function)
    return [f for f in found if f.__module__.startswith("group_embedding")]


def unannotated(function):
    """The parameters of a function without an annotation, and its result if it has none."""
    signature = inspect.signature(function)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.annotation is parameter.empty and name not in ("self", "cls")
    ]
    return missing + ["return"] * (signature.return_annotation is signature.empty)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_function_has_type_hints(module):
    # Given all that a module offers
    public = {name: getattr(module, name) for name in module.__all__}

    # When its signatures are read
    missing = {
        f"{name}: {function.__qualname__}": unannotated(function)
        for name, value in public.items()
        for function in functions_of(value)
        if unannotated(function)
    }

    # Then every argument and every result has a type
    assert not missing


# A line of a program that uses the package, and what a type checker says of it; None: nothing.
PROGRAM = {
    'ge.TableConfig("user", num_rows=10, dim=8, combiner="mean")': None,
    "ge.lookup_sparse([table], [ids], 'sum')": None,
    "ge.lookup_sparse([table], [ids], 7)": "arg-type",
    "ge.CounterFilter(filter_freq='three')": "arg-type",
    'ge.TableConfig("user", num_rows=10, dimension=8)': "call-arg",
    'ge.TableConfig("user", num_rows=10, dim="8")': "arg-type",
    'ge.TableConfig("user", num_rows=10, dim=8, combiner="average")': "arg-type",
    'ge.FeatureConfig("user", "table of users")': "arg-type",
    "ge.group_embedding_lookup_sparse([table], [ids], 'sum', max_norm=2.0)": None,
    "ge.group_embedding_lookup_sparse([table], [ids], 'sum', maxnorm=2.0)": "call-arg",
    "ge.group_embedding_lookup_sparse([table], [ids], 'total')": "arg-type",
    "ge.group_embedding_lookup_sparse([table], [ids], 'sum', invalid_ids='skip')": "arg-type",
    "ge.group_embedding_lookup([table], [ids], feature_names=['user'])": None,
    "ge.group_embedding_lookup([table], [ids], feature_names=7)": "arg-type",
    "ge.get_embedding_variable('user', embedding_dim=8, steps_to_live=100)": None,
    "ge.get_embedding_variable('user', embedding_dimension=8)": "call-arg",
    "ge.get_embedding_variable('user', 8, ev_option={'filter': 3})": "arg-type",
    "ge.EmbeddingVariableOption(filter_option=ge.CounterFilter(filter_freq=3))": None,
    "ge.EmbeddingVariableOption(filter_option=ge.GlobalStepEvict(3))": "arg-type",
    "ge.StorageOption(storage_type='DRAM')": "arg-type",
    "ge.StorageOption(storage_type=ge.StorageType.HMB)": "attr-defined",
    "ge.layers.GroupEmbedding([feature], concat=True)": None,
    "ge.layers.GroupEmbedding(feature)": "arg-type",
    "ge.optimizers.wrap(optimizer, skip_nonfinite=True)": None,
    "ge.optimizers.wrap(optimizer, skip_non_finite=True)": "call-arg",
    "ge.enable_distributed_strategy(timeout_seconds='long')": "arg-type",
    "ge.checkpoint.CheckpointSaverHook('runs', save_steps='ten')": "arg-type",
    "ge.sok.lookup_sparse(table, ids, combiners='sum')": None,
    "ge.sok.lookup_sparse(table, ids, combiner='sum')": "call-arg",
    "ge.sok.Variable(shape=[2, 2], initializer='ones', mode=7)": "arg-type",
    "ge.group_embeding_lookup([table], [ids])": "attr-defined",
    "ge.data.Reader('day_0.csv', 256, shuffle_rows=100)": None,
    "ge.data.Reader('day_0.csv', batch=256)": "call-arg",
    "ge.data.Reader('day_0.csv', '256')": "arg-type",
    "ge.data.Column('C1', 'int64', base='hexadecimal')": "arg-type",
    "ge.models.DLRM([feature], bottom=[8], dropout=0.1)": None,
    "ge.models.DLRM([feature], bottom='8')": "arg-type",
    "ge.models.TwoTower([feature], query=['user'])": "call-arg",
    "ge.models.MLP([8], 'relu', last_activation=3)": "arg-type",
    "ge.training.make_step(print)": None,
    "ge.training.make_step(print, jit_compile=True)": "call-arg",
}


def test_checker_finds_mistakes_in_a_program(tmp_path):
    pytest.importorskip("mypy", reason="mypy, of requirements/dev.txt, is not installed")
    # Given a program with right lines and wrong ones
    program = tmp_path / "program.py"
    header = [
        "from typing import Any",
        "import group_embedding as ge",
        "table: Any = None",
        "ids: Any = None",
        "optimizer: Any = None",
        'feature = ge.FeatureConfig("user", ge.TableConfig("user", 10, 8))',
    ]
    program.write_text("\n".join([*header, *PROGRAM]) + "\n")

    # When it is checked as an installed package's user checks it
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
        + ["--follow-imports", "silent", "--cache-dir", str(tmp_path), str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    # Then each wrong line has its error, and no right one has any
    found = dict.fromkeys(PROGRAM)
    lines = list(PROGRAM)
    for line in checked.stdout.splitlines():
        if line.startswith(str(program)) and ": error:" in line:
            number = int(line.split(":")[1]) - len(header) - 1
            found[lines[number]] = line.rpartition("[")[2].rstrip("]")
    assert found == PROGRAM, checked.stdout + checked.stderr


def test_package_tells_checkers_that_it_has_hints():
    assert (ROOT / "group_embedding" / "py.typed").exists()
    assert "py.typed" in (ROOT / "setup.py").read_text()
