"""A griffe extension: makes Markdown of the parts of docstrings that Markdown would misread.

* Interactive examples become blocks of code. Griffe does so in sections called "Examples:" alone;
  elsewhere Markdown takes `>>>` for quotes.
* A sentence with a colon below "Returns:" stays a sentence. Griffe takes the words in front of the
  first colon for a type, and shows them as code.
"""

import re

import griffe

# From a line with a prompt to the next empty line, or to the end.
EXAMPLE = re.compile(r"^( *)>>> .*?(?=\n *\n|\Z)", re.DOTALL | re.MULTILINE)
# The first line of the section, up to its colon: several words outside of brackets.
RESULT = re.compile(r"^( *Returns:\n *)(\w[^\n:\[]* [^\n:]*):", re.MULTILINE)


class ReadableDocstrings(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            text = EXAMPLE.sub(_fence, obj.docstring.value)
            obj.docstring.value = RESULT.sub(r"\1\2&#58;", text)


def _fence(example):
    indent = example[1]
    return f"{indent}```pycon\n{example[0]}\n{indent}```"
