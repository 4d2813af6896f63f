"""Changes the HTML that mkdocs has made of a page: names that break well, no repeated headings."""

import re

CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
CODE = re.compile(r"(?<!</span>)<code>([^<]+)</code>")
SHORT = 16  # characters of code that stay on one line
NAME = 40  # characters of a name that stays on one line of a table, where the screen is wide
# Longer code of a table may break between the words of a name.
BREAK = re.compile(r"(?<=[/_])(?=[A-Za-z0-9])|(?<=[a-z])(?=[A-Z])")
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
DATE = re.compile(r"\d{4}-\d\d-\d\d(?![^<]*>)")  # not in the address of a link
CHART = re.compile(r'<img [^>]*src="([^"]+\.png)"[^>]*>')
SENTENCE = 32  # characters; style.css keeps such a cell at a width at which it can be read
# The signature of a property is its name, which the heading has said.
PROPERTY = re.compile(
    r'<div class="(?:language-python )?doc-signature highlight"><pre><span></span><code>'
    r'(?:<span class="\w+">)?\w+(?:</span>)?\n?</code></pre></div>'
)
# A picture in front of an entry of the reference belongs below the heading of the entry.
ENTRY = re.compile(
    r'(<div class="picture">(?:(?!</div>).)*</div>)\s*(<div class="doc doc-object[^>]*>.*?</h3>)',
    re.DOTALL,
)


def readable(html):
    """The page with readable cells in its tables, and links from charts to their full size."""
    # A result without a name and a type is described without a dash before the description.
    html = re.sub(r'(field-body">)\s*–\s*(<div)', r"\1\2", html)
    html = CHART.sub(r'<a href="\1">\g<0></a>', html)
    html = ENTRY.sub(r"\2\1", PROPERTY.sub("", html))
    html = CELL.sub(lambda cell: _cell(cell[1]), html)
    return CODE.sub(lambda code: _code(code[1]), html)


def _cell(content):
    words = re.sub(r"<[^>]+>", "", content)
    name = ' class="sentence"' if len(words) > SENTENCE else ""
    content = CODE.sub(lambda code: _code_in_cell(code[1]), content)
    content = DATE.sub(r'<span class="whole">\g<0></span>', content)
    return f"<td{name}>{content}</td>"


def _code_in_cell(text):
    if len(text) <= SHORT:
        return f'<code class="whole">{text}</code>'
    words = [BREAK.sub("<wbr>", word) if len(word) > SHORT else word for word in text.split(" ")]
    name = ' class="name"' if len(words) == 1 and len(text) <= NAME else ""
    return f"<code{name}>{OPTION.sub(_whole, ' '.join(words))}</code>"


def _code(text):
    """Code outside of tables: words that begin with hyphens do not break behind them."""
    if len(text) <= SHORT:
        return f'<code class="whole">{text}</code>'
    return f"<code>{OPTION.sub(_whole, text)}</code>"


def _whole(match):
    return f'<span class="whole">{match[0]}</span>'
