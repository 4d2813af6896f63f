"""Pages that say where something is: it is there, and every native file is on a page."""

import re

import pytest
from support.cases.source_files import NATIVE, PACKAGE, ROOT, native_files

PROSE = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(
        f
        for folder in ("cc", "group_embedding", "benchmarks")
        for f in (ROOT / folder).rglob("*.md")
    ),
]

FILE = re.compile(r"`((?:cc|group_embedding|tests|docs|benchmarks|examples|buildtools)/[\w./-]+)`")


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page):
    named = FILE.findall(page.read_text())

    assert [name for name in named if not (ROOT / name).exists()] == []


# "`Owners` in `cc/core/owner.h`"
NAME_IN_FILE = re.compile(r"`([A-Za-z_][\w:]*)`\s+in\s+`([\w/.]+\.(?:py|cc|cu|h|cuh))`")


def test_a_name_is_in_the_file_that_a_page_says_it_is_in():
    # Given the names that pages give a file to
    named = [(page, *found) for page in PROSE for found in NAME_IN_FILE.findall(page.read_text())]
    assert len(named) > 20
    folders = [ROOT / f for f in ("group_embedding", "tests", "benchmarks", "buildtools")]
    sources = [*native_files(), *(f for folder in folders for f in folder.rglob("*.py"))]

    # When each is looked for in its file
    missing = []
    for page, name, path in named:
        files = [f for f in sources if f"/{f.relative_to(ROOT)}".endswith(f"/{path}")]
        word = re.compile(rf"\b{name.split('::')[-1]}\b")
        if not any(word.search(f.read_text()) for f in files):
            missing.append(f"{page.relative_to(ROOT)}: {name} in {path}")

    # Then it is there
    assert missing == []


def test_every_stem_of_the_native_library_is_on_a_map():
    """A stem is named by the README of its folder, or by one above it."""
    missing = []
    for folder in sorted({f.parent for f in native_files()}):
        above = [folder, *folder.parents]
        maps = [f / "README.md" for f in above[: above.index(NATIVE) + 1]]
        text = "".join(page.read_text() for page in maps if page.exists())
        named = set(re.findall(r"\w+", text))
        stems = {f.stem for f in native_files(folder.relative_to(NATIVE)) if f.parent == folder}
        missing += [f"{folder.relative_to(ROOT)}/{stem}" for stem in sorted(stems - named)]
    assert missing == []


def test_every_module_of_the_package_is_on_a_map():
    """A module is named by the README of its folder, or by one above it; a README is short."""
    missing, long = [], []
    for folder in sorted({f.parent for f in PACKAGE.rglob("*.py")} - {PACKAGE}):
        above = [folder, *folder.parents]
        maps = [f / "README.md" for f in above[: above.index(PACKAGE) + 1]]
        named = set(re.findall(r"\w+", "".join(m.read_text() for m in maps if m.exists())))
        modules = {f.stem for f in folder.glob("*.py")} - {"__init__", "__main__"}
        missing += [f"{folder.relative_to(ROOT)}/{name}" for name in sorted(modules - named)]
        page = folder / "README.md"
        if page.exists() and folder.name != "checkpoint" and len(page.read_text().split("\n")) > 26:
            long.append(str(page))
    assert missing == []
    assert long == []


def test_every_folder_of_the_native_library_has_a_short_readme():
    folders = {f.parent for f in native_files()} - {NATIVE / "tf"}
    assert len(folders) > 12
    for folder in sorted(folders):
        lines = (folder / "README.md").read_text().splitlines()
        assert len(lines) <= 25, folder
        assert lines[0].startswith(f"# {folder.relative_to(NATIVE)}/"), folder
