"""Boxes, arrows, arrays and sequence diagrams as SVG, in the colors of the page around them."""

from html import escape

# On the site the theme's colors; where a picture is shown alone, as on GitHub, its own.
STYLE = """
.ge text { font: 14px system-ui, sans-serif; fill: var(--md-default-fg-color, #24292f); }
.ge .small { font-size: 12px; }
.ge .code { font-family: ui-monospace, monospace; font-size: 13px; }
.ge .middle { text-anchor: middle; }
.ge .box { fill: var(--md-code-bg-color, #f3f4f6); stroke: #7c8494; }
.ge .accent { fill: #3f51b522; stroke: #5c6bc0; stroke-width: 1.5; }
.ge .line { fill: none; stroke: #7c8494; stroke-width: 1.5; }
.ge .dashed { fill: none; stroke: #7c8494; stroke-dasharray: 4 4; }
.ge .head { fill: #7c8494; }
@media (prefers-color-scheme: dark) {
  .ge text { fill: var(--md-default-fg-color, #e6edf3); }
  .ge .box { fill: var(--md-code-bg-color, #21262d); }
}
"""


class Picture:
    """One SVG of `width` x `height` units, which the page scales."""

    def __init__(self, width, height):
        self.width, self.height, self.parts = width, height, []

    def text(self, x, y, text, style="middle"):
        self.parts.append(f'<text x="{x}" y="{y}" class="{style}">{escape(text)}</text>')

    def rect(self, x, y, width, height, style="box"):
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" class="{style}"/>'
        )

    def box(self, x, y, width, height, *lines, style="box"):
        """A box with lines of text in its middle; the first line is large."""
        self.rect(x, y, width, height, style)
        first = y + height / 2 + 5 - 8.5 * (len(lines) - 1)
        for i, line in enumerate(lines):
            self.text(x + width / 2, first + 17 * i, line, "middle" if i == 0 else "middle small")

    def cells(self, x, y, values, width=34, style="box"):
        """An array, one cell per value."""
        for i, value in enumerate(values):
            self.rect(x + i * width, y, width, 26, style)
            self.text(x + (i + 0.5) * width, y + 18, str(value), "middle code")

    def arrow(self, x1, y1, x2, y2, style="line"):
        self.parts.append(
            f'<path d="M{x1} {y1}L{x2} {y2}" class="{style}" marker-end="url(#head)"/>'
        )

    def line(self, x1, y1, x2, y2, style="line"):
        self.parts.append(f'<path d="M{x1} {y1}L{x2} {y2}" class="{style}"/>')

    def svg(self):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="ge" '
            f'viewBox="0 0 {self.width} {self.height}" width="{self.width}">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" class="head"/></marker></defs>'
        )
        # Without an empty line: Markdown would take what follows for text.
        return "\n".join([head, f"<style>{STYLE}</style>", marker, *self.parts, "</svg>", ""])


def sequence(participants, steps, width=860):
    """A sequence diagram.

    Args:
        participants: the names at the top, from left to right.
        steps: from top to bottom, each `(sender, receiver, text)` for an arrow, `(participant,
            text)` for what one does by itself, or a string: the title of what follows.
        width: of the picture.
    """
    between = width / len(participants)
    middle = [between * (i + 0.5) for i in range(len(participants))]
    heights = {1: 40, 2: 38, 3: 36}
    height = 70 + sum(heights[1 if isinstance(s, str) else len(s)] for s in steps)
    picture = Picture(width, height)
    for x, name in zip(middle, participants):
        picture.line(x, 50, x, height - 8, "dashed")
        picture.box(x - between * 0.42, 8, between * 0.84, 40, *name.split("\n"), style="accent")
    y = 70
    for step in steps:
        if isinstance(step, str):
            picture.line(8, y + 6, width - 8, y + 6, "dashed")
            picture.text(12, y + 24, step, "small")
            y += heights[1]
        elif len(step) == 2:
            who, text = step
            box_width = min(between * 0.98, 24 + 6.7 * len(text))
            picture.box(middle[who] - box_width / 2, y, box_width, 26, "", style="box")
            picture.text(middle[who], y + 17, text, "middle small")
            y += heights[2]
        else:
            sender, receiver, text = step
            picture.arrow(middle[sender], y + 22, middle[receiver], y + 22)
            picture.text((middle[sender] + middle[receiver]) / 2, y + 15, text, "middle small")
            y += heights[3]
    return picture
