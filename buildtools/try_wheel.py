"""Installs wheels into fresh environments, one for each Python and TensorFlow, and runs programs.

    python -m buildtools.try_wheel [--pythons 3.11 3.12] [--tensorflows 2.15.1 2.21.0] [--table]

An environment is made for each pair that TensorFlow has a wheel for, and removed afterwards. It has
tensorflow-cpu and the wheel of folder `dist` for that Python, and nothing of this folder. README's
first program runs there, and a model is served by `libge_serving` and, if the wheel has it, by
`ge-serve`. `--table` writes the results and their day into docs/install.md, beside those of other
pairs.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from buildtools.ninja_file import ROOT
from buildtools.report import fail, say
from buildtools.versions import TENSORFLOWS, why_not
from buildtools.wheel import find_python

PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- tried wheels: begin -->", "<!-- tried wheels: end -->"

# The words for pairs without a result.
NOT_TRIED, NONE = "not tried", "no such TensorFlow"

# Not compiled to bytecode: the environment serves one run.
INSTALL = ["-m", "pip", "install", "--quiet", "--no-compile"]

# The package is the wheel's with its module, and the README's first program prints what it says.
PROGRAM = """
import importlib.metadata, sys
import group_embedding as ge
from group_embedding import _native

assert ge.__file__.startswith(sys.prefix), ge.__file__
assert ge.__version__ == importlib.metadata.version("group_embedding")
"""

# A row is read from a saved model: in this process, and by the server over REST.
SERVING = """
import json, tempfile, urllib.request
from group_embedding.serving import InferenceSession, server

class Model(tf.Module):
    def __init__(self):
        self.items = tf.Variable(tf.reshape(tf.range(8.0), [4, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="item")])
    def serve(self, item):
        return {"row": ge.group_embedding_lookup([self.items], [item])[0]}

model, folder = Model(), tempfile.mkdtemp() + "/1"
tf.saved_model.save(model, folder, signatures=model.serve)
with InferenceSession(folder) as session:
    row = session.predict({"item": [3]})["row"].tolist()
    assert row == [[6.0, 7.0]], row
if server.PROGRAM.exists():
    with server.ServerProcess({"items": folder}) as process:
        url = f"http://127.0.0.1:{process.rest_port}/v1/models/items:predict"
        with urllib.request.urlopen(url, b'{"instances": [3]}') as answer:
            answered = json.load(answer)
        assert answered == {"predictions": [[6.0, 7.0]]}, answered
    print("ge-serve answers")
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the wheels' folder")
    parser.add_argument("--pythons", nargs="+", default=["3.11", "3.12", "3.13"])
    newest = [version for version, _ in TENSORFLOWS.values()]
    parser.add_argument("--tensorflows", nargs="+", default=newest)
    parser.add_argument("--table", action="store_true", help="write docs/install.md")
    chosen = parser.parse_args()
    results = {}
    for tensorflow in chosen.tensorflows:
        for python in chosen.pythons:
            if why_not(tensorflow, python) is None:
                error = try_wheel(wheel_for(python, chosen.dist), python, tensorflow)
                results[tensorflow, python] = error
                say(f"TensorFlow {tensorflow}, Python {python}: {error or 'works'}")
    if chosen.table:
        page = PAGE.read_text()
        found = words(results, datetime.date.today().isoformat())
        PAGE.write_text(with_table(page, table({**recorded(page), **found})))
    return any(results.values())


def wheel_for(python, dist):
    """The newest wheel for a Python such as "3.12" in the folder `dist`."""
    tag = f"cp{python.replace('.', '')}"
    found = sorted(Path(dist).glob(f"group_embedding-*-{tag}-{tag}-*.whl"), key=os.path.getmtime)
    return found[-1] if found else fail(f"{dist} has no wheel for Python {python}: `make wheel`")


def try_wheel(wheel, python, tensorflow):
    """None, or in a line what failed first: an installation, an import or the program."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        subprocess.run([find_python(python), "-m", "venv", environment], check=True)
        run = environment / "bin" / "python"
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM + first_program() + SERVING)
        steps = [
            [run, *INSTALL, f"tensorflow-cpu=={tensorflow}"],
            [run, *INSTALL, wheel],
            [run, program],
        ]
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        for step in steps:
            done = subprocess.run(step, cwd=folder, env=clean, capture_output=True, text=True)
            if done.returncode != 0:
                return (done.stderr.strip() or "no message").splitlines()[-1]
        expected = expected_lines() + ["ge-serve answers"] * has_server(wheel)
        wrong = [line for line in expected if line not in done.stdout]
        return f"printed {done.stdout!r}, without {wrong}" if wrong else None


def has_server(wheel):
    """True if a wheel has the server, which `make wheel` leaves out where nghttp2 is missing."""
    with zipfile.ZipFile(wheel) as archive:
        return "group_embedding/ge-serve" in archive.namelist()


def first_program():
    """The program that README begins with."""
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)


def expected_lines():
    """The lines that README's first program prints, by the comments behind its prints."""
    return re.findall(r"print\(.*\)\s+# ([(\[].*[)\]])", first_program())


def words(results, today):
    """Puts results {(TensorFlow, Python): None, or what failed} into the words of the page."""
    return {
        pair: f"works ({today})" if error is None else f"fails ({today}): {error.replace('|', '/')}"
        for pair, error in results.items()
    }


def recorded(page):
    """Reads {(TensorFlow, Python): words} of earlier tries from the page."""
    block = page.split(BEGIN)[1].split(END)[0]
    rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")]
    pythons = [cell.removeprefix("Python ") for cell in rows[0][1:]] if rows else []
    cells = {(row[0], p): cell for row in rows[1:] for p, cell in zip(pythons, row[1:])}
    return {pair: cell for pair, cell in cells.items() if cell not in (NOT_TRIED, NONE)}


def table(results):
    """A table in Markdown of {(TensorFlow, Python): words}: rows are versions of TensorFlow."""
    newest = {version for version, _ in TENSORFLOWS.values()}
    versions, pythons = (
        sorted(found, key=lambda version: [int(number) for number in version.split(".")])
        for found in (newest | {v for v, _ in results}, {p for _, p in results})
    )
    lines = [
        "Tried in a fresh environment with `tensorflow-cpu`, on the day in brackets:",
        "",
        "| TensorFlow | " + " | ".join(f"Python {python}" for python in pythons) + " |",
        "|---" * (len(pythons) + 1) + "|",
    ]
    for version in versions:
        cells = [
            NONE if why_not(version, python) else results.get((version, python), NOT_TRIED)
            for python in pythons
        ]
        lines.append(f"| {version} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_table(page, new):
    """The page with the part between its two marks replaced."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{new}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    sys.exit(main())
