"""Hooks by which the build of the documentation site extends mkdocs.

* Files of the repository that a page links to become part of the site: Markdown as pages, pictures
  and JSON files as they are, other files as text. So one link works on the site and in a checkout.
* An SVG of `docs/pictures` is set into its page, so that it follows its light or dark colors.
* `<!-- ops -->` becomes the reference of all TensorFlow ops, read from `cc/tf/ops`.
* `page_html.py` makes tables readable on a phone, and pictures links to themselves.
* Pages that docstrings name, as docs/guides/serving.md, become links.
"""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
import op_reference  # noqa: E402
import page_html  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
# A link or an image of Markdown: its text, its target and the rest of the target.
LINK = re.compile(r"(\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r"^!\[([^\]]*)\]\(\S*pictures/(\w+)\.svg\)$", re.MULTILINE)
# A page that a docstring names, outside of the address of a link.
DOCUMENT = re.compile(r"\bdocs/([\w/]+\.md)\b(?![^<]*>)")
AS_THEY_ARE = {".md", ".png", ".svg", ".json"}


def on_files(files, config):
    for page in [file for file in files if file.src_uri.endswith(".md")]:
        _add_linked_files(page, files, config)
    return files


def on_page_markdown(markdown, page, config, files):
    if "<!-- ops -->" in markdown:
        markdown = markdown.replace("<!-- ops -->", op_reference.as_markdown(ROOT / "cc/tf/ops"))
    markdown = PICTURE.sub(_inline_picture, markdown)
    return LINK.sub(lambda link: _link_on_site(link, page.file, files), markdown)


def on_page_content(html, page, config, files):
    html = page_html.readable(html)
    return DOCUMENT.sub(lambda named: _link_to_page(named, page.file, files), html)


def _add_linked_files(page, files, config):
    """Adds the files that a page links to outside of `docs`, and those that these link to."""
    text = Path(page.abs_src_path).read_text()
    for _, target, _ in LINK.findall(_without_programs(text)):
        path = _linked_file(page, target)
        if path is None or files.get_file_from_path(_uri(path)):
            continue
        added = File.generated(config, _uri(path), abs_src_path=str(ROOT / path))
        files.append(added)
        if path.endswith(".md"):
            _add_linked_files(added, files, config)


def _linked_file(page, target):
    """The path, from the repository's root, of a linked file outside of `docs`; else None."""
    if "://" in target or target.startswith("mailto:"):
        return None
    source = Path(page.abs_src_path).relative_to(ROOT).as_posix()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if (ROOT / path).is_dir():
        path = posixpath.join(path, "README.md")
    inside = path.startswith("docs/") or not (ROOT / path).is_file()
    return None if inside else path


def _uri(path):
    """The path on the site of a file of the repository."""
    return path if Path(path).suffix in AS_THEY_ARE else f"source/{path}.txt"


def _link_on_site(link, page, files):
    text, target, anchor = link.groups()
    path = _linked_file(page, target)
    if path is None and not page.src_uri.startswith(("http", "/")):
        source = Path(page.abs_src_path).relative_to(ROOT).as_posix()
        resolved = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        uri = resolved[len("docs/") :] if resolved.startswith("docs/") else None
    else:
        uri = _uri(path)
    if uri is None or "://" in target or not files.get_file_from_path(uri):
        return link.group(0)
    relative = posixpath.relpath(uri, posixpath.dirname(page.src_uri) or ".")
    return f"{text}({relative}{anchor or ''})"


def _link_to_page(named, page, files):
    file = files.get_file_from_path(named[1])
    return f'<a href="{file.url_relative_to(page)}">{named[0]}</a>' if file else named[0]


def _without_programs(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def _inline_picture(image):
    caption, name = image.groups()
    drawing = (ROOT / "docs/pictures" / f"{name}.svg").read_text().strip()
    drawing = drawing.replace("<svg ", f'<svg role="img" aria-label="{caption}" ', 1)
    return f'<div class="picture">{drawing}</div>'
