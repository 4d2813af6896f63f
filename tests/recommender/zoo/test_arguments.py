"""The arguments of a model: its constructor's signature is the one list of them."""

import inspect
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from recommender.zoo.model_cases import DENSE, make_features, make_inputs
from support.cases import config_cases as cases

import group_embedding as ge
from group_embedding.keras_compat import keras

LAYERS = [
    *(ge.models.ActivationUnit, ge.models.CompressedInteraction, ge.models.CrossNetwork),
    *(ge.models.DotInteraction, ge.models.ExpertGate, ge.models.HSTUBlock, ge.models.MLP),
    *(ge.models.ItemFrequency, ge.models.SelfAttention, ge.models.TransformerBlock),
    ge.models.AttentionGRU,
]


@keras.utils.register_keras_serializable(package="tests")
class Deep(ge.models.Recommender):
    """A model of a user."""

    def __init__(self, features, *, units=(16,), dim=16, **kwargs):
        super().__init__(features, dim=dim, **kwargs)
        self.deep, self.logit = ge.models.MLP(units), keras.layers.Dense(1)

    def predict_logits(self, batch, training=None):
        return self.logit(self.deep(batch.concat(self.features), training=training))


@pytest.mark.parametrize("made", [*ge.models.MODELS.values(), *LAYERS], ids=lambda m: m.__name__)
def test_docstrings_have_the_arguments(made):
    # Given a class, the arguments of its constructor, and those that its docstring explains
    arguments = list(inspect.signature(made).parameters)
    text = inspect.getdoc(made).partition("\nArgs:\n")[2].partition("\n\n")[0]
    lines = re.findall(r"^  (\S[^:]*):", text, re.MULTILINE)

    # Then they are the same
    explained = [name.strip("* ") for line in lines for name in line.split(",")]
    assert sorted(explained) == sorted(arguments)


def test_a_config_has_the_arguments():
    # Given models with arguments of several forms, given and left out
    features, history = make_features(), {"history": {"seen": "item"}, "max_length": 4}
    dlrm = ge.models.DLRM(features, dense=DENSE, top=(6, 4))
    din = ge.models.DIN(features, hidden=[4], **history)
    towers = ge.models.TwoTower(features, query=("user",), item=["item"], item_id="item")

    # Then their configs are plain values by the names of the arguments
    for model in (dlrm, din, towers):
        config = json.loads(json.dumps(model.get_config()))
        names = set(inspect.signature(type(model)).parameters) - {"kwargs"}
        assert set(config) == {*names, "name", "dtype"}
        assert type(model).from_config(config).get_config() == model.get_config()
    assert dlrm.get_config()["top"] == [6, 4] and dlrm.get_config()["bottom"] == [512, 256]
    assert dlrm.get_config()["dense"] == {"age": 1, "prices": 2}
    assert din.get_config()["history"] == {"seen": "item"}
    assert towers.get_config()["query"] == ["user"]


def test_a_model_of_ones_own_is_saved(tmp_path):
    # Given a model of a user's class, with arguments that its base takes
    inputs = {name: tf.constant(values) for name, values in make_inputs().items()}
    model = Deep(make_features(), units=(5,), dense=DENSE)
    expected = model(inputs)

    # When it is saved and loaded
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")

    # Then it has the same arguments and gives the same
    assert loaded.get_config()["units"] == [5] and loaded.dense_widths == DENSE
    np.testing.assert_allclose(loaded(inputs), expected, rtol=1e-5)


def test_a_model_of_ones_own_in_a_config(tmp_path):
    # Given a config whose model.name is a user's own
    cases.write_clicks(tmp_path / "train.parquet", 600)
    values = cases.config_of(tmp_path, data={"validation": None})
    values["model"] = {"name": "deep", "units": [8], "dim": 4}
    path = cases.write_config(tmp_path, values)

    # When its class is given
    model, optimizer = ge.models.from_config(path, models={"deep": Deep})
    losses = [float(model.train_step(batch)) for batch in model.batches(model.make_reader("train"))]

    # Then the model is made with the config's arguments, and trains
    assert isinstance(model.network, Deep) and model.network.get_config()["units"] == [8]
    assert len(losses) == 10 and np.mean(losses[-3:]) < losses[0]

    # And errors name the keys that the class has, and the names of models
    with pytest.raises(ValueError, match="model.unit: expected one of the keys name, units, dim"):
        ge.models.from_config(path, ["model.unit=[4]"], models={"deep": Deep})
    with pytest.raises(ValueError, match="model.name: expected one of .*, got 'deep'"):
        ge.models.from_config(path)
