#!/usr/bin/env python3
"""Draws questions about a C file, by a seed, so that readers can be asked what no author chose.

    python3 tests/examples/questions.py docs/course/scratch/plan.c 1

Prints 30 questions of five fixed forms, about functions, lines, changed operators, numbers and comments. The same file and
seed give the same questions.

How the answers are graded. A reader who knows C, and has only the file and the questions, answers each in one to three
sentences, without compiling anything. A second reader grades, who may run and change the file:
    2   right: the answer would let a colleague change this place
    1   right in part: it says what happens, but not why, or misses a consequence
    0   wrong, or "I cannot tell"
For a removed line and a changed operator, the grader makes the change, compiles, and runs the file's test: the answer has to
name what is seen (does not compile, crashes, another result and which, nothing). The file is readable if the answers reach 54
of 60 points and no function has 0. For every 0, rewrite the file at that place, not the question; then draw with a new seed.
"""
import hashlib
import pathlib
import re
import sys

# how many of each kind are drawn; if there are fewer, lines replace them
COUNTS = {"function": 7, "line": 11, "operator": 5, "number": 3, "comment": 4}
FORMS = {
    "function": "What are the arguments and the result of {what}? What does it change, and what must hold before a call?",
    "line": "What does line {line} do, and what would break if it were removed?",
    "operator": "Why is this expression in line {line} so? What would happen with `{new}` instead of `{old}` ({what})?",
    "number": "Why is {what} in line {line} this number? What would happen with a smaller or a larger one?",
    "comment": "Say the comment that begins in line {line} in your own words, with an example. Which lines of code make it true?",
}
CHANGES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "&&": "||", "||": "&&", "+": "-", "-": "+", "++": "--"}


def without_comments(text):
    """Returns the text with comments and literals replaced by spaces, so that lines and columns stay."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.DOTALL)


def places(text):
    """Yields (kind, line, values of the form) for each place of the file that a question may be about."""
    code = without_comments(text).split("\n")
    inside = False
    for line, now in enumerate(code, 1):
        head = re.match(r"(?:[A-Za-z_][\w \t*]*[ \t*])(\w+)\([^;]*\)?[^;]*$", now)
        one_line = re.match(r"(?:[A-Za-z_][\w \t*]*[ \t*])(\w+)\(.*\)\s*\{.*\}", now)
        if (head or one_line) and "typedef" not in now:
            yield "function", line, {"what": (one_line or head).group(1)}
        if re.match(r"\s+\S.*;\s*$", now) and inside or re.match(r"\s+(if|else if|for|while) ?\(", now):
            yield "line", line, {}
        for found in re.finditer(r" (<=?|>=?|==|&&|\|\||[-+]) | ?(\+\+)", now):
            old = found.group(1) or found.group(2)
            spot = f"column {found.start(1 if found.group(1) else 2) + 1}"
            if inside:
                yield "operator", line, {"old": old, "new": CHANGES[old], "what": spot}
        for found in re.finditer(r"(?<![\w.])(\d+(?:\.\d+)?)[uUlLfF]*(?![\w.])", now):
            if float(found.group(1)) > 2 and "#" not in now:
                yield "number", line, {"what": found.group()}
        inside = (inside or now.startswith("{")) and not now.startswith("}")
    for found in re.finditer(r"/\*.*?\*/", text, re.DOTALL):
        if len(re.findall(r"[A-Za-z]{2,}", found.group())) >= 8:
            yield "comment", text.count("\n", 0, found.start()) + 1, {}


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python3 tests/examples/questions.py FILE.c [SEED]")
    text = pathlib.Path(sys.argv[1]).read_text()
    seed = sys.argv[2] if len(sys.argv) > 2 else "1"
    found = sorted(places(text), key=lambda p: hashlib.sha256(f"{seed} {p}".encode()).digest())
    drawn = [p for kind, count in COUNTS.items() for p in [q for q in found if q[0] == kind][:count]]
    drawn += [p for p in found if p[0] == "line" and p not in drawn][:sum(COUNTS.values()) - len(drawn)]
    lines = text.split("\n")
    print(f"{len(drawn)} questions about {sys.argv[1]}, seed {seed}")
    for number, (kind, line, values) in enumerate(sorted(drawn, key=lambda p: p[1]), 1):
        print(f"\n{number}. {FORMS[kind].format(line=line, **values)}\n    {line}: {lines[line - 1].strip()}")


main()
