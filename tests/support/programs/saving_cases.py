"""A model of every form, and every way to save it: for tests that load it in another process.

A case makes its model from its own name, so that two processes make the same one. It trains on
batches that are known beforehand, each rank on its part of each.

    train(name, folder) in one process:   3 steps, save, predict, 3 steps more, predict
    resume(name, folder) in another one:  load, predict, 3 steps more, predict

Both return what was predicted, [after 3 steps, after 6]: the same numbers, where the saved model
can be trained on.
"""

import pickle
import sys
import traceback
from pathlib import Path

import tensorflow as tf
from support.programs import saving_forms, saving_keras_forms

NUM_STEPS = 3
FORMS = {
    form.__name__: form
    for module in (saving_forms, saving_keras_forms)
    for form in vars(module).values()
    if hasattr(form, "trains_on") and (form.__name__ != "Estimator" or hasattr(tf, "estimator"))
}
NAMES = [f"{form}_{num_tables}" for form in FORMS for num_tables in (1, 2, 3)]


def make(name, folder):
    form, num_tables = name.split("_")
    tf.keras.utils.set_random_seed(3)
    case = FORMS[form](name.lower(), int(num_tables))
    case.folder = folder
    return case


def train(name, folder):
    """The first process's part; returns what was predicted, [3 steps, 6 steps]."""
    case = make(name, folder)
    for step in range(NUM_STEPS):
        case.train(step)
    case.save(folder)
    return [case.predict(), _train_on(case)]


def resume(name, folder):
    """The second process's part. A model that only serves has no second prediction."""
    form, num_tables = name.split("_")
    if not FORMS[form].trains_on:
        return [FORMS[form].served(folder, int(num_tables)), None]
    case = make(name, folder)
    case.load(folder)
    return [case.predict(), _train_on(case)]


def _train_on(case):
    for step in range(NUM_STEPS, 2 * NUM_STEPS):
        case.train(step)
    return case.predict()


def run_all(part, names, folder):
    """{name: what `part`, train or resume, returned, or the text of its error}."""
    results = {}
    for name in names:
        (Path(folder) / name).mkdir(exist_ok=True)
        try:
            results[name] = part(name, f"{folder}/{name}")
        except Exception:
            results[name] = traceback.format_exc()
    return results


if __name__ == "__main__":  # python saving_cases.py train|resume FOLDER NAME ...
    part, folder, *names = sys.argv[1:]
    results = run_all({"train": train, "resume": resume}[part], names, folder)
    Path(folder, f"{part}.pickle").write_bytes(pickle.dumps(results))
