"""The tests that mirror changed files, for `make test CHANGED=1`.

    python tests/support/session/changed.py [REF]

prints them, one a line, and always those of the architecture. Changed: what git finds different
from REF; without one, what the branch's upstream does not have, or else what is not committed.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ALWAYS = [f"tests/test_{name}.py" for name in ("architecture", "maps", "native_architecture")]
BUILD = [f"tests/test_{name}.py" for name in ("build", "built_libraries", "packaging", "wheel")]
# Folders whose tests have other names: the longest path that a file begins with counts.
MIRRORS = {
    "Makefile": BUILD,
    "setup.py": BUILD,
    "pyproject.toml": BUILD,
    "buildtools/": BUILD,
    "requirements/": BUILD,
    "docs/": ["tests/test_docs.py"],
    "README.md": ["tests/test_docs.py"],
    "CHANGELOG.md": ["tests/test_docs.py"],
    "benchmarks/": ["tests/test_benchmarks.py"],
    "examples/": ["tests/examples"],
    "cc/": ["tests/cc"],
    "cc/core/": ["tests/cc", "tests/fused"],
    "cc/grouping/": ["tests/grouping", "tests/lookups"],
    "cc/fused/": ["tests/cc", "tests/fused", "tests/lookups"],
    "cc/optimizer/": ["tests/fused", "tests/optimizers"],
    "cc/table/": ["tests/cc", "tests/table"],
    "cc/exchange/": ["tests/cc", "tests/ranks/exchange"],
    "cc/serving/": ["tests/cc", "tests/serving"],
    "cc/serving/server/": ["tests/serving/server"],
    "cc/serving/c_api/": ["tests/serving/test_inference_session.py"],
    "cc/bindings/": ["tests/table", "tests/checkpoint", "tests/serving"],
    "cc/tf/": ["tests/test_op_inputs.py", "tests/test_op_inputs_of_tables.py", "tests/lookups"],
    "cc/tf/serving/": ["tests/serving"],
    "group_embedding/ranks/exchange/": ["tests/ranks/exchange"],
    "group_embedding/ranks/sharding/": ["tests/ranks/sharding", "tests/ranks/exchange"],
    "group_embedding/compat/deeprec/": ["tests/compat/deeprec"],
    "group_embedding/keras_compat/": ["tests/layers"],
    "group_embedding/ops/": ["tests/lookups", "tests/test_op_inputs.py"],
}


def changed_files(ref=None):
    """Paths below the checkout that differ from a commit, and those that git does not know."""
    if ref is None:
        upstream = _git("rev-parse", "--abbrev-ref", "@{upstream}", check=False).strip()
        ref = _git("merge-base", "HEAD", upstream).strip() if upstream else "HEAD"
    different = _git("diff", "--name-only", ref)
    unknown = _git("ls-files", "--others", "--exclude-standard")
    return sorted({*different.splitlines(), *unknown.splitlines()})


def tests_of(paths, root=ROOT):
    """Test files and folders that mirror these paths, without those inside of others."""
    found = set(ALWAYS)
    for path in paths:
        found.update(_mirrors(path, root))
    found = {path for path in found if (root / path).exists()}
    return sorted(path for path in found if not any(path.startswith(f"{o}/") for o in found))


def _mirrors(path, root):
    parts = Path(path).parts
    if parts[0] == "tests":
        return _of_test_file(path, root)
    if parts[0] == "group_embedding":
        mirror = _of_module(Path(*parts[1:]), root)
        if mirror:
            return mirror
    known = [start for start in MIRRORS if path.startswith(start)]
    return MIRRORS[max(known, key=len)] if known else []


def _of_module(path, root):
    """The test file of a module's own name; else the nearest folder of its folders' names."""
    file = Path("tests") / path.parent / f"test_{path.stem}.py"
    if (root / file).exists():
        return [str(file)]
    folders = [Path("tests") / folder for folder in list(path.parents)[:-1]]
    return [str(folder) for folder in folders if (root / folder).is_dir()][:1]


def _of_test_file(path, root):
    """A test file; the folder of a conftest.py; the test files that import a helper."""
    file = Path(path)
    if file.name.startswith("test_"):
        return [path]
    if file.name == "conftest.py" and len(file.parts) > 2:
        return [str(file.parent)]
    if file.suffix != ".py":
        return [str(file.parent)] if len(file.parts) > 2 else []
    package = ".".join(file.parts[1:-1])
    uses = rf"from {package}\.{file.stem} import|from {package} import .*\b{file.stem}\b"
    uses = re.compile(uses if package else rf"import {file.stem}\b|from {file.stem} import")
    users = [f for f in (root / "tests").rglob("*.py") if uses.search(f.read_text())]
    found = set()
    for user in users:
        name = str(user.relative_to(root))
        if name != path:
            found.update(_of_test_file(name, root))
    return sorted(found)


def _git(*arguments, check=True):
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check).stdout


if __name__ == "__main__":
    print("\n".join(tests_of(changed_files(*sys.argv[1:]))))
