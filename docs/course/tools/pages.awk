# Extracts the exercises of pages: the text, the answer, its output, and the part that a student writes.
#
#     awk -v to=FOLDER -f docs/course/tools/pages.awk docs/course/[0-9]-*.md PAGE.. > FOLDER/list
#
# Prints the number and the page of each exercise in a line, and writes to FOLDER: NUMBER.c, the answer; NUMBER.text, its
# output; NUMBER.with, values of its macros for a second run ("LAYERS=8 ROWS=3"); NUMBER.words, words that count like
# numbers; starters/exercise-NUMBER.c, the exercise's text and the answer without the lines between /* yours: .. */ and
# /* to here */. A comment before the answer has the values and words:
#
#     <!-- check: LAYERS=8 ROWS=3; words yes no -->
#
# The exercises of lesson 3 are 3.1 and 3.2; on other pages each one has a heading: "## 3. The mean of means".
function fail(what) { print FILENAME ": " what > "/dev/stderr"; bad = 1 }
function begin_exercise(number)
{
    id = number
    asked = with = words = ""
    asking = 1
}
function finish_starter(    file)
{
    if (!yours || writing)
        fail("exercise " id " has no part from /* yours: .. */ to /* to here */")
    file = to "/starters/exercise-" id ".c"
    sub(/\n+$/, "", asked)
    gsub(/\*\//, "* /", asked)
    gsub(/\n/, "\n * ", asked)
    gsub(/ \* \n/, " *\n", asked)
    print "/* Exercise " id " of " FILENAME "\n *\n * " asked "\n *" > file
    print " * Write your part where it says so, then: make exercise-" id > file
    print " * (It tries other values of what is defined below, too.) */" > file
    printf "%s", starter > file
    close(file)
    print with > (to "/" id ".with")
    print words > (to "/" id ".words")
    close(to "/" id ".with")
    close(to "/" id ".words")
    print id, FILENAME
    count++
}
FNR == 1 {
    lesson = FILENAME
    sub(/.*\//, "", lesson)
    lesson = lesson ~ /^[0-9]+-/ ? lesson + 0 : 0
    number = asking = code = 0
    id = ""
}
lesson && /^\*\*(First|Second)\.\*\*/ {
    begin_exercise(lesson "." ++number)
    sub(/^\*\*[A-Za-z]*\.\*\* */, "")
}
!lesson && /^## [0-9]+\. / { begin_exercise($2 + 0); sub(/^## [0-9]+\. /, "") }
/^<details>/ { asking = 0 }
asking { asked = asked $0 "\n" }
/^<!-- check:/ {
    s = $0
    sub(/^<!-- check: */, "", s)
    sub(/ *-->$/, "", s)
    n = split(s, clause, / *; */)
    for (i = 1; i <= n; i++) {
        if (sub(/^words /, "", clause[i]))
            words = clause[i]
        else
            with = clause[i]
    }
}
/^```c$/ && id { code = "c"; starter = ""; yours = writing = 0; next }
/^```text$/ && id && answered == id { code = "text"; next }
/^```/ {
    if (code)
        close(to "/" id "." code)
    if (code == "c") {
        answered = id
        finish_starter()
    } else if (code == "text")
        answered = id = ""
    code = 0
    next
}
code == "c" {
    print > (to "/" id ".c")
    if (/\/\* to here \*\//)
        writing = 0
    if (!writing)
        starter = starter $0 "\n"
    if (/\/\* yours: /) {
        yours++
        comment = 1
        indent = $0
        sub(/[^ ].*/, "", indent)
    }
    if (comment && /\*\//) {
        comment = 0
        writing = 1
        starter = starter indent "puts(\"not written yet\");\n"
    }
}
code == "text" { print > (to "/" id ".text") }
END { exit bad || !count }
