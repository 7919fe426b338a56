"""The pictures of docs/adasum.md: ``python docs/site/pictures.py`` writes them to docs/images.

What they show is computed: the arrows by Adasum's formula, the coefficients by its tree. They
follow the reader's light or dark colours.
"""

import math
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "images"
STYLE = """
.ground { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e }
.line { stroke: #59636e; stroke-width: 1.5; fill: none }
.a { stroke: #0b6bcb; fill: #0b6bcb } .b { stroke: #b35900; fill: #b35900 }
.c { stroke: #1a7f37; fill: #1a7f37 } .d { stroke: #8250df; fill: #8250df }
.box { stroke: #59636e; fill: none } .pale { fill-opacity: 0.25 }
.mean { stroke: #59636e; fill: #59636e; stroke-dasharray: 2 3 }
.sum { stroke: #59636e; fill: #59636e; stroke-dasharray: 7 4 }
text { font: 14px sans-serif } text[class] { stroke: none }
.small { font-size: 12px } .strong { font-weight: bold }
.middle { text-anchor: middle }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 }
.line, .box { stroke: #9198a1 } .mean, .sum { stroke: #9198a1; fill: #9198a1 }
.a { stroke: #58a6ff; fill: #58a6ff } .b { stroke: #f0883e; fill: #f0883e }
.c { stroke: #3fb950; fill: #3fb950 } .d { stroke: #bc8cff; fill: #bc8cff } }
"""
COLOURS = "abcd"


def svg(width, height, title, *parts):
    """Return a picture; `title` is what is read to those who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'role="img"><title>{title}</title><style>{STYLE}</style>\n'
        f'<rect class="ground" width="{width}" height="{height}" rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x, y, words, kind="ink middle"):
    """Return a text."""
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{words}</text>'


def arrow(x, y, end_x, end_y, kind, width=2.5):
    """Return an arrow; one without length is a dot."""
    length = math.hypot(end_x - x, end_y - y)
    if length < 1:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{kind}"/>'
    along, across = ((end_x - x) / length, (end_y - y) / length), 4
    neck = (end_x - 9 * along[0], end_y - 9 * along[1])
    left = (neck[0] - across * along[1], neck[1] + across * along[0])
    right = (neck[0] + across * along[1], neck[1] - across * along[0])
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in ((end_x, end_y), left, right))
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{neck[0]:.1f}" y2="{neck[1]:.1f}" '
        f'class="{kind}" stroke-width="{width}"/>'
        f'<polygon points="{points}" class="{kind}" style="stroke: none"/>'
    )


def line(x, y, end_x, end_y):
    """Return a thin line."""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end_x:.1f}" y2="{end_y:.1f}" class="line"/>'


def box(x, y, width, height, kind="box"):
    """Return a rectangle."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="{kind}"/>'
    )


def coefficients(inner, first, second):
    """Return Adasum's coefficients of two vectors, from their inner products."""
    return 1 - inner / (2 * first), 1 - inner / (2 * second)


# What each of four panels says, and the angle between two gradients of one length.
PAIRS = [
    ("the same: the average", 0),
    ("60° apart: between", 60),
    ("orthogonal: the sum", 90),
    ("150° apart: more than the sum", 150),
]


def pair():
    """Draw what becomes of two gradients at four angles."""
    parts, unit = [], 80
    for place, (says, degrees) in enumerate(PAIRS):
        left, top = 200 * (place % 2), 190 * (place // 2)
        x, y = 30 + left, 185 + top
        angles = [math.radians(45 - degrees / 2), math.radians(45 + degrees / 2)]
        gradients = [(unit * math.cos(each), unit * math.sin(each)) for each in angles]
        inner = sum(a * b for a, b in zip(*gradients, strict=True))
        own = coefficients(inner, unit**2, unit**2)
        x += 50 if degrees > 90 else 10

        def combined(first, second, gradients=gradients):
            return [first * a + second * b for a, b in zip(*gradients, strict=True)]

        # Arrows on one line are drawn side by side.
        apart = 18 if degrees == 0 else 0
        for ends, kind, width, aside in (
            (combined(1, 1), "sum", 2, 9),
            (combined(*own), "c", 4, 0),
            (combined(0.5, 0.5), "mean", 2.5, -9),
            (gradients[0], "a", 2.5, -apart),
            (gradients[1], "b", 2.5, apart),
        ):
            across = -aside * math.sin(math.radians(45))
            begin = (x + across, y + across)
            parts.append(arrow(*begin, begin[0] + ends[0], begin[1] - ends[1], kind, width))
        parts.append(text(left + 105, top + 25, says, "ink middle small strong"))
    names = (("a", "gradient a"), ("b", "gradient b"), ("c", "Adasum"), ("sum", "sum"))
    for place, (kind, name) in enumerate((*names, ("mean", "average"))):
        x, y = 20 + 135 * (place % 3), 445 + 24 * (place // 3)
        parts += [arrow(x, y, x + 34, y, kind), text(x + 40, y + 4, name, "ink small")]
    title = "Two gradients of one length, their sum, their average and their Adasum, at four angles"
    return svg(420, 490, title, *parts)


# Four gradients of three weights.
GRADIENTS = ((2, 0, 0), (2, 0, 0), (0, 1, 0), (1, 0, 1))


def gram():
    """Return the inner products of the gradients."""
    return [
        [sum(a * b for a, b in zip(one, other, strict=True)) for other in GRADIENTS]
        for one in GRADIENTS
    ]


def node(products, first, second):
    """Return the coefficient vector of a node of the tree, from those of its two children."""

    def inner(p, q):
        return sum(p[i] * products[i][j] * q[j] for i in range(4) for j in range(4))

    own = coefficients(inner(first, second), inner(first, first), inner(second, second))
    return [own[0] * p + own[1] * q for p, q in zip(first, second, strict=True)]


def tree():
    """Draw the tree over four gradients, evaluated on their Gram matrix."""
    products = gram()
    leaves = [[float(i == j) for j in range(4)] for i in range(4)]
    pairs = [node(products, *leaves[:2]), node(products, *leaves[2:])]
    root = node(products, *pairs)
    parts = [text(125, 30, "G, the inner products", "ink middle strong")]
    for i, row in enumerate(products):
        parts.append(text(32, 80 + 45 * i, f"g{i + 1}", f"{COLOURS[i]} middle"))
        parts.append(text(75 + 45 * i, 55, f"g{i + 1}", f"{COLOURS[i]} middle"))
        for j, number in enumerate(row):
            parts.append(box(53 + 45 * j, 62 + 45 * i, 45, 30 + 15))
            parts.append(text(75 + 45 * j, 89 + 45 * i, str(number)))
    for i in range(4):
        words = f"g{i + 1} = {GRADIENTS[i]}"
        parts.append(text(380, 80 + 45 * i, words, f"{COLOURS[i]} middle"))
    for i, own in enumerate(pairs):
        y = 98 + 90 * i
        parts += [line(430, y - 23, 475, y - 5), line(430, y + 22, 475, y)]
        parts.append(text(530, y, shown(own)))
        parts.append(line(588, y - 4, 622, 143 - 5 + 10 * i))
    parts.append(text(735, 147, shown(root), "ink middle strong"))
    parts.append(text(530, 30, "coefficients of pairs", "ink middle strong"))
    parts.append(text(735, 30, "of all", "ink middle strong"))
    parts.append(text(380, 30, "gradients", "ink middle strong"))
    title = (
        "A tree over four gradients; every node is a vector of coefficients, found on the matrix G"
    )
    return svg(850, 265, title, *parts)


def shown(numbers):
    """Return coefficients as a text."""
    return "(" + ", ".join(f"{number:.3g}" for number in numbers) + ")"


def exchange():
    """Draw who holds what in the exchange of four replicas."""
    parts, size = [], 26
    heads = ["own gradients", "all-to-all", "weighted sum", "all-gather"]
    for step, head in enumerate(heads):
        left, top = 75 + 190 * (step % 2), 225 * (step // 2)
        parts.append(text(left + 52, top + 25, f"{step + 1}. {head}", "ink middle small strong"))
        for replica in range(4):
            y = top + 45 + 45 * replica
            if step % 2 == 0:
                parts.append(text(35, y + 20, f"replica {replica}", "ink middle small"))
            if step == 0:
                parts += shards(left, y, [replica] * 4, range(4), size)
            elif step == 1:
                parts += shards(left, y, range(4), [replica] * 4, size)
            elif step == 2:
                parts += shards(left + 39, y, ["sum"], [replica], size)
            else:
                parts += shards(left, y, ["sum"] * 4, range(4), size)
        if step % 2:
            parts.append(arrow(left - 72, top + 130, left - 12, top + 130, "mean", 2))
    parts.append(
        text(
            205, 465, "Colours: whose gradient. Numbers: which quarter of it.", "faint middle small"
        )
    )
    title = (
        "Four replicas exchange quarters of their gradients, combine one quarter each, and share"
    )
    return svg(410, 480, title, *parts)


def shards(x, y, owners, quarters, size):
    """Return a row of shards, each in its owner's colour and with the number of its quarter."""
    parts = []
    for place, (owner, quarter) in enumerate(zip(owners, quarters, strict=True)):
        kind = "box" if owner == "sum" else f"{COLOURS[owner]} pale"
        parts.append(box(x + size * place, y, size, size + 4, kind))
        words = f"Σ{quarter}" if owner == "sum" else str(quarter)
        parts.append(text(x + size * (place + 0.5), y + 20, words, "ink middle small"))
    return parts


PICTURES = {"adasum-pair.svg": pair, "adasum-tree.svg": tree, "exchange.svg": exchange}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
