"""The reference of TensorFlow ops in Markdown, from the registrations in `cc/tf/ops`."""

import re

REGISTRATION = re.compile(r'REGISTER_OP\("([^"]+)"\)(.*?\.Doc\()(.*?)\);\n', re.DOTALL)
DOC = re.compile(r'R"doc\((.*?)\)doc"', re.DOTALL)
STRING = r'"((?:[^"\\]|\\.)*)"'


def as_markdown(folder):
    """One section per file of registrations, one subsection per op."""
    macros = _macros(folder)
    sections = []
    for path in sorted(folder.glob("*.cc")):
        source = path.read_text()
        ops = REGISTRATION.findall(source)
        if ops:
            title = path.stem.replace("_", " ").capitalize()
            shared = dict(re.findall(r'(\w+)\[\] = R"doc\((.*?)\)doc"', source, re.DOTALL))
            text = "\n".join(
                _op(name, _expand(body, macros), _doc(doc, shared)) for name, body, doc in ops
            )
            sections.append(f"## {title}\n\n`cc/tf/ops/{path.name}`\n\n{text}")
    return "\n".join(sections)


def _macros(folder):
    """The macros that stand for lists of attributes or of inputs, by name."""
    found = {}
    for path in sorted(folder.glob("*")):
        text = path.read_text().replace("\\\n", " ")
        found.update(re.findall(r"^#define ([A-Z_]+)\s+(\w.*)$", text, re.MULTILINE))
    return found


def _expand(body, macros):
    for _ in range(3):  # macros stand in macros
        body = re.sub(r"\.([A-Z_]+)\b", lambda m: "." + macros.get(m[1], m[1]), body)
    return body


def _doc(text, shared):
    """The documentation of an op: a literal, or the name of one that several ops share."""
    literal = DOC.search(text)
    return literal[1].strip() if literal else shared[text.strip()].strip()


def _op(name, registration, doc):
    summary, described = _split(doc)
    lines = [f"### {name}", "", summary, ""]
    for kind in ("Input", "Output", "Attr"):
        declared = re.findall(rf"\.{kind}\(\s*((?:{STRING}\s*)+)\)", registration)
        if not declared:
            continue
        lines += [f"| {kind.replace('Attr', 'Attribute')} | type | meaning |", "|---|---|---|"]
        for group in declared:
            text = "".join(re.findall(STRING, group[0]))
            argument, _, kind_of = text.partition(":")
            about = described.get(argument.strip(), "")
            lines.append(f"| `{argument.strip()}` | `{_cell(kind_of)}` | {_cell(about)} |")
        lines.append("")
    return "\n".join(lines)


def _split(doc):
    """The summary of an op, and the text about each of its arguments."""
    summary, described, current = [], {}, None
    for line in doc.split("\n"):
        start = re.match(r"(\w+(?:, \w+)*): +(.*)", line)
        if start and not line.startswith(" "):
            current = start[1].split(", ")[0]
            described[current] = start[2]
        elif current is None:
            summary.append(line)
        else:
            described[current] += " " + line.strip()
    return "\n".join(summary).strip(), described


def _cell(text):
    return text.strip().replace("|", "\\|")
