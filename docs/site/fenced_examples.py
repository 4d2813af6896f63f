"""A griffe extension: the interactive examples of docstrings become blocks of code.

Griffe does so in sections called "Examples:" alone; elsewhere Markdown takes `>>>` for quotes.
"""

import re

import griffe

# From a line with a prompt to the next empty line, or to the end.
EXAMPLE = re.compile(r"^( *)>>> .*?(?=\n *\n|\Z)", re.DOTALL | re.MULTILINE)


class FencedExamples(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fence, obj.docstring.value)


def _fence(example):
    indent = example[1]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"
