"""Every message that the package raises or warns with, from its sources.

A message is a template: "…" stands where a name or number comes in.
"""

import ast
import dataclasses
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tf_adasum"
CAUSES = ROOT / "docs" / "troubleshooting.md"
ANY = "…"
FEWEST_WORDS = 2
ON_ALL_WORKERS = "ValueError on all workers"  # they have compared what they have
# Files that put messages together which another one raises.
SAID_BY = {
    "cluster/coordinator.py": "ValueError",
    "cluster/joining.py": "TimeoutError",
    "cluster/rendezvous.py": "TimeoutError",
    "cluster/rendezvous_round.py": "WorkerLostError",
    "cluster/start_round.py": "ValueError",
    "cluster/start_timeout.py": "the end of the process",
    "launch/failures.py": "the launcher",
    "replicas/equal_variables.py": "ReplicasDifferError",
    "replicas/nonfinite_gradients.py": "FloatingPointError",
    "health/diagnosis.py": "WorkerLostError",
    "workers/settings_mismatch.py": ON_ALL_WORKERS,
}
EXPLAINED = re.compile(r'^<a id="tfa-\d+"></a>(TFA-\d+): `(.+)`$', re.MULTILINE)
CODE = re.compile(r"TFA-\d+")
END = "(tf-adasum-doctor --explain {})"  # what `tf_adasum.errors.see` returns


@dataclasses.dataclass(frozen=True)
class Message:
    """A message, and what raises it.

    Attributes:
        text: the template.
        kind: the exception, or "warning".
        path: the file, in tf_adasum/.
    """

    text: str
    kind: str
    path: str

    @property
    def code(self):
        """The code that the message ends with; "" without one."""
        found = CODE.findall(self.text)
        return found[-1] if found and self.text.endswith(END.format(found[-1])) else ""


@functools.cache
def messages():
    """Return every message of the package, in the order of files and lines."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        name = str(path.relative_to(PACKAGE))
        for kind, node in _sayings(tree, SAID_BY.get(name)):
            text = " ".join((_template(node, _constants(path)) or "").split())
            if code := getattr(node, "code", None):
                text += f" Received: {ANY} {END.format(code)}"
            if len(re.findall(r"[A-Za-z]{2,}", text)) >= FEWEST_WORDS:
                found.setdefault(text, Message(text, kind, name))
    return list(found.values())


def _sayings(tree, kind_of_texts):
    """Yield `(kind, node of the text)` of all that is raised, warned or put together."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            kind = re.findall(r"\w+", ast.unparse(node.exc.func))[-1]
            for argument in node.exc.args:  # OSError(errno, text) has its text behind
                yield kind, argument
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).split(".")[-1]
            if called == "warn" and node.args:
                yield "warning", node.args[0]
            elif called == "check_same" and node.args:
                for argument in node.keywords:
                    if argument.arg == "code":
                        node.args[0].code = ast.literal_eval(argument.value)
                yield ON_ALL_WORKERS, node.args[0]
            elif called in ("ImportError", "OSError", "ValueError"):
                for argument in node.args:
                    yield called, argument
        elif kind_of_texts and isinstance(node, ast.JoinedStr):
            yield kind_of_texts, node


def _template(node, constants):
    """Return the text of an expression, None where it has none of its own."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(each, constants) or "" for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return (_template(node.value, constants) or ANY) if is_name_or_call(node.value) else ANY
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (_template(node.left, constants) or ANY) + (_template(node.right, constants) or ANY)
    if isinstance(node, ast.Name):
        return constants.get(node.id, ANY)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "see":
        return END.format(ast.literal_eval(node.args[0]))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "join" and isinstance(node.args[0], ast.List):
            return " ".join(_template(each, constants) or ANY for each in node.args[0].elts)
        if node.func.attr == "format":
            return re.sub(r"\{.*?\}", ANY, _template(node.func.value, constants) or ANY)
    return None


def is_name_or_call(node):
    """Whether what stands in an f-string may be a constant, or the end of a message."""
    return isinstance(node, ast.Name) or (
        isinstance(node, ast.Call) and ast.unparse(node.func) == "see"
    )


@functools.cache
def _constants(path):
    """Return the texts that a file's names stand for: its own, and those that it imports."""
    found, tree = {}, ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tf_adasum"):
            source = (ROOT / node.module.replace(".", "/")).with_suffix(".py")
            if source.exists() and source != path:
                own = _constants(source)
                found |= {each.name: own[each.name] for each in node.names if each.name in own}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _template(node.value, found)
            if text and text != ANY:
                found[node.targets[0].id] = text
    return found


def is_in(fragment, text):
    """Whether a message contains a fragment, in which "…" stands for anything."""
    pattern = ".*".join(re.escape(part.strip()) for part in fragment.split(ANY))
    return re.search(pattern, text) is not None


def explained():
    """Return the fragments that the page of causes explains, by their codes."""
    return dict(EXPLAINED.findall(CAUSES.read_text()))
