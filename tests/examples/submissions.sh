#!/bin/sh
# Makes a folder of students' submissions, with which make grade is tested: one student of each kind, each with three
# exercises of docs/course.
#
#     sh tests/examples/submissions.sh FOLDER [CLASS]     CLASS is the folder that course.sh prepare made (build/class)
class=${2:-build/class}
student()               # student NAME [FOLDER]: begins the submission of a student
{
    at=$to/$1
    mkdir -p "$at"
}
answer() { cp "$class/$1.c" "$at/exercise-$1.c"; }
starter() { cp "$class/starters/exercise-$1.c" "$at/exercise-$1.c"; }
# part NUMBER: writes the starter of an exercise, with standard input in place of the part that students must write
part()
{
    PART=$(cat) awk '/not written yet/ { print ENVIRON["PART"]; next } { print }' \
        "$class/starters/exercise-$1.c" > "$at/exercise-$1.c"
}
to=$1
mkdir -p "$to"

student Ada             # the page's answers
answer 3.1
answer 4.1
answer 4.2

student 'Ben B. '       # a name with spaces; lines end in \r\n; a sum that was not required; a syntax error
sed 's/$/\r/' "$class/4.1.c" > "$at/exercise-4.1.c"
part 4.2 << 'END'
    goes_on = apart = once;
END
part 3.1 << 'END'
    gckpt_frontier *f = gckpt_frontier_new(g, &loss, 1, NULL)
END

student 'Cy, "C" | jr'  # prints the page's numbers as constants; crashes; leaves the starter unchanged
part 4.1 << 'END'
    puts("1.30 and 2.50");
END
part 4.2 << 'END'
    int *volatile nowhere = NULL;
    *nowhere = 1;
END
starter 3.1

student Dora            # does not end; prints without end; prints nothing
part 4.1 << 'END'
    for (volatile int i = 0;; i = 0)
        continue;
END
part 4.2 << 'END'
    for (;;)
        puts("on and on");
END
echo 'int main(void) { return 0; }' > "$at/exercise-3.1.c"

student Emil            # additional files, one in a folder of its own; other texts and other ways to the right answer
echo 'sorry' > "$at/notes.txt"
printf '#!/bin/sh\nexit 1\n' > "$at/Makefile"
mkdir "$at/home work"
at="$at/home work"
part 4.2 << 'END'
    float part[3] = { 0 };
    for (int i = 0; i < 6; i++)
        goes_on += term[i], part[i / 2] += term[i];
    apart = part[0] + part[1] + part[2];
END
part 3.1 << 'END'
    gckpt_frontier *f = gckpt_frontier_new(g, &loss, 1, NULL);
    gckpt_point p = { 0 };
    const int n = gckpt_frontier_describe(f).points;
    for (int i = 0; i < n; i++) {
        gckpt_frontier_get(f, i, &p);
        printf("point %d of %d: %zu B, +%.2f%%\n", i + 1, n, p.bytes, p.overhead * 100);
    }
    size_t most = 0;
    for (int i = 0; i < n; i++)
        if (gckpt_frontier_get(f, i, &p) == GCKPT_OK && p.bytes <= BUDGET)
            most = p.bytes;
    printf("the budget's: %zu\n", most);
    gckpt_frontier_free(f);
END

student Fay             # an empty folder
