# Prints keywords.txt of an Arduino library from the public part of gradckpt.h: types, functions, constants and compile
# options, each followed by a tab and its kind.
#
#     awk -f keywords.awk gradckpt.h > keywords.txt
/^ \*    G[A-Z_, ]+ \[[AI]\]/ { take(constants, $0, "G(RAD)?CKPT_[A-Z_]+") } # the manual, 4
{ # code is the line without comments
    code = $0
    if (inside)
        code = sub(/.*\*\//, "", code) ? code : ""
    inside = inside && !/\*\//
    gsub(/\/\*.*\*\//, "", code)
    if (sub(/\/\*.*/, "", code))
        inside = 1
}
code ~ /^GCKPT_API / { take(functions, code, "gckpt_[a-z0-9_]+\\(") }
code ~ /^typedef struct gckpt_/ { take(types, substr(code, 15 + length($3)), "gckpt_[a-z_]+") }
code ~ /^typedef .*\(\*gckpt_/ { take(types, code, "\\*gckpt_[a-z0-9_]+\\)") }
code ~ /^(typedef |})/ { take(types, code, "} gckpt_[a-z0-9_]+;") }
code ~ /^#if.*GCKPT_NO_/ { take(constants, code, "GCKPT_NO_[A-Z0-9_]+") }
code ~ /^#define GCKPT_[A-Z0-9_]+ +[(0-9]/ { constants[$2] }
code ~ /^#define GCKPT_[A-Z]+\(i\)/ { take(functions, code, "GCKPT_[A-Z]+") }
code ~ /^#define GCKPT_RESULTS/ { results = 1 }
results && match(code, / X\([A-Z_]+,/) { constants["GCKPT_" substr(code, RSTART + 3, RLENGTH - 4)] }
code ~ /^(typedef )?enum/ { enumerates = 1 }
enumerates && !/GCKPT_RESULT_ENUM/ { take(constants, code, "GCKPT_[A-Z0-9_]+") }
code ~ /}/ { enumerates = results = 0 }
/^#endif \/\* GRADCKPT_H \*/ { exit }
function take(into, text, what,    name)
{
    for (; match(text, what); text = substr(text, RSTART + RLENGTH)) {
        name = substr(text, RSTART, RLENGTH)
        gsub(/[^A-Za-z0-9_]/, "", name)
        into[name]
    }
}
function tell(title, names, kind,    name)
{
    print title
    fflush()
    for (name in names)
        print name "\t" kind | "LC_ALL=C sort"
    close("LC_ALL=C sort")
}
END {
    tell("# Types", types, "KEYWORD1")
    tell("\n# Functions", functions, "KEYWORD2")
    tell("\n# Constants", constants, "LITERAL1")
}
