"""Changes the HTML that mkdocs has made of a page, for narrow screens."""

import re

CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
# Names that are longer than this many characters may break between their words.
CODE = re.compile(r"<code>([^<]{16,})</code>")
BREAK = re.compile(r"(?<=[/_])(?=[A-Za-z0-9])|(?<=[a-z])(?=[A-Z])")
CHART = re.compile(r'<img [^>]*src="([^"]+\.png)"[^>]*>')
SENTENCE = 32  # characters; style.css keeps such a cell at a width at which it can be read


def readable(html):
    """The page with readable cells in its tables, and links from charts to their full size."""
    # A result without a name and a type is described without a dash before the description.
    html = re.sub(r'(field-body">)\s*–\s*(<div)', r"\1\2", html)
    html = CHART.sub(r'<a href="\1">\g<0></a>', html)
    return CELL.sub(lambda cell: _cell(cell[1]), html)


def _cell(content):
    words = re.sub(r"<[^>]+>", "", content)
    content = CODE.sub(lambda code: f"<code>{BREAK.sub('<wbr>', code[1])}</code>", content)
    name = ' class="sentence"' if len(words) > SENTENCE else ""
    return f"<td{name}>{content}</td>"
