#!/usr/bin/env python3
"""Draws what blind readers read: comments, paragraphs of pages and error texts, by the hash of a commit.

    python3 tests/layout/sample.py [READER] [COMMIT]

Prints 30 comments with the three lines before and the six after each, 10 paragraphs and 10 error texts. READER (1, 2, 3) selects one of several
disjoint samples; COMMIT is HEAD unless given. A reader who knows C and machine learning, and has seen nothing else of the
project but docs/glossary.md, explains each; another reader grades the answers against the code. docs/testing.md has the goal.
"""
import hashlib
import pathlib
import re
import subprocess
import sys

READERS = 3
COUNTS = {"comment": 30, "paragraph": 10, "error text": 10}
SOURCES = ("src", "examples", "tests")
SKIPPED = re.compile(r"golden|corpus|regressions|shakespeare|digits\.h|CHANGELOG|benchmarks\.md|words\.txt|explained\.txt")


def files(commit):
    names = subprocess.run(["git", "ls-tree", "-r", "--name-only", commit], capture_output=True, text=True, check=True).stdout
    return [name for name in names.splitlines() if not SKIPPED.search(name)]


def words(text):
    return re.findall(r"[A-Za-z][a-z]+", text)


def comments(name, text):
    """Blocks /* .. */ of at least eight words, and runs of // or # lines, each with the code that follows."""
    pattern = r"/\*.*?\*/|(?:^[ \t]*//[^\n]*\n)+" if re.search(r"\.(c|h|cu|cuh|cpp)$", name) else r"(?:^[ \t]*#[^!\n][^\n]*\n)+"
    lines = text.split("\n")
    for match in re.finditer(pattern, text, re.DOTALL | re.MULTILINE):
        if len(words(match.group())) >= 8:
            first = text.count("\n", 0, match.start())
            last = text.count("\n", 0, match.end() - 1)
            shown = [f"   {line}" for line in lines[max(0, first - 3):first]]
            shown += [f" > {line}" for line in lines[first:last + 1]]
            shown += [f"   {line}" for line in lines[last + 1:last + 7]]
            yield first + 1, "\n".join(shown)


def paragraphs(text):
    """Paragraphs and list items of a page, without tables, headings and blocks of code."""
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    line = 1
    for block in text.split("\n\n"):
        first = block.lstrip("\n")
        if len(words(block)) >= 12 and not re.match(r"[|#<]|    |- \[[^]]*\]\(#", first):
            yield line + block.count("\n", 0, len(block) - len(first)), first.rstrip()
        line += block.count("\n") + 2


def errors(text):
    """Texts of failures: adjacent string literals with at least four words, in a call or return that reports a failure."""
    literal = r'"(?:[^"\\\n]|\\.)*"'
    for match in re.finditer(r"\b(?:gckpti_fail\w*|fail\w*|refuse\w*|gckpti_error\w*)\([^;]*?((?:%s\s*)+)" % literal, text):
        said = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', match.group(1)))
        if len(words(said)) >= 4:
            yield text.count("\n", 0, match.start(1)) + 1, said


def main():
    reader = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    commit = subprocess.run(["git", "rev-parse", sys.argv[2] if len(sys.argv) > 2 else "HEAD"],
                            capture_output=True, text=True, check=True).stdout.strip()
    found = {kind: [] for kind in COUNTS}
    for name in files(commit):
        path = pathlib.Path(name)
        if not path.is_file():
            continue
        if name.startswith(SOURCES) and re.search(r"\.(c|h|cu|cuh|cpp|sh|py|awk)$", name):
            text = path.read_text(errors="replace")
            found["comment"] += [(name, *each) for each in comments(name, text)]
            if not name.startswith("tests"):
                found["error text"] += [(name, *each) for each in errors(text)]
        elif name.endswith(".md") or name == "src/manual.txt":
            found["paragraph"] += [(name, *each) for each in paragraphs(path.read_text())]
    for kind, count in COUNTS.items():
        order = sorted(found[kind], key=lambda each: hashlib.sha256(f"{commit} {each[0]} {each[2]}".encode()).digest())
        print(f"===== {len(found[kind])} of kind: {kind}")
        for i, (name, line, text) in enumerate(order[(reader - 1) * count:reader * count]):
            print(f"\n--- {kind} {i + 1}: {name}:{line}\n{text}")


main()
