# Functions of esp-idf/archive.sh and zephyr/archive.sh, which run in the repository's root. Without boards.sh they set
# the variables of boards.sh themselves, and compile without parts of the header that do not affect plans, which is faster.
. examples/packaging/pack.sh
CC=${CC:-cc}
LINKED=${LINKED:-$CC -O0 -I. -DGCKPT_NO_FAST -DGCKPT_NO_RANKS -DGCKPT_NO_FILES -DGCKPT_NO_IMAGES}
version=${version:-$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' gradckpt.h)}
of=examples/packaging
[ -n "$host" ] || { host=$(mktemp -d) && trap 'rm -rf "$host"' EXIT; } || exit 1
mkdir -p "$1" || exit 1

# put FOLDER FILE..: copies the files into the folder
put()
{
    to=$1
    shift
    mkdir -p "$to" && cp "$@" "$to"
}

# regression FOLDER: puts regression.h and its plan into the folder. Sets $weights to the hash of the trained weights,
# $learns to the example's output, and $without to the Kconfig lines that omit the parts that the plan does not need.
regression()
{
    put "$1" $of/regression/regression.h && prints $of/regression/plan.c "$1/regression_plan.h" &&
        $CC -O0 -std=gnu99 -I. -I"$1" $of/regression/host.c -o "$host/regression" || return 1
    learns=$("$host/regression") || return 1
    weights=${learns##* }
    without=$(parts "$1/regression_plan.h" | sed 's/^#define GCKPT_/CONFIG_GRADCKPT_/; s/$/=y/')
}

# filled FROM TO: copies a file and replaces @VERSION@, @WEIGHTS@, and the lines @LEARNS@ and @WITHOUT@
filled()
{
    mkdir -p "$(dirname "$2")" &&
        learns=$learns without=$without awk -v version="$version" -v weights="$weights" '
            /^@LEARNS@$/ { print ENVIRON["learns"]; next }
            /^@WITHOUT@$/ { print ENVIRON["without"]; next }
            { gsub("@VERSION@", version); gsub("@WEIGHTS@", weights); print }' "$1" > "$2"
}
