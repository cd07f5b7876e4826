# For esp-idf/archive.sh and zephyr/archive.sh: what they have in common. Run in the repository's root; alone they know
# the version and how to compile as boards.sh does, but leave out what no plan depends on, which is sooner.
. examples/packaging/pack.sh
CC=${CC:-cc}
LINKED=${LINKED:-$CC -O0 -I. -DGCKPT_NO_FAST -DGCKPT_NO_RANKS -DGCKPT_NO_FILES -DGCKPT_NO_CHECK -DGCKPT_NO_IMAGES}
version=${version:-$(awk '/define GCKPT_VERSION_/ { v = v s $3; s = "." } END { print v }' gradckpt.h)}
of=examples/packaging
[ -n "$host" ] || { host=$(mktemp -d) && trap 'rm -rf "$host"' EXIT; } || exit 1
mkdir -p "$1" || exit 1

# put FOLDER FILE..: copies of these in it
put()
{
    to=$1
    shift
    mkdir -p "$to" && cp "$@" "$to"
}

# regression FOLDER: the chip's half of the example and its plan, in it; then $weights is the hash that training ends
# with, $learns all that it says, and $without the lines that leave out, by Kconfig, what the plan does not need
regression()
{
    put "$1" $of/regression/regression.h && prints $of/regression/plan.c "$1/regression_plan.h" &&
        $CC -O0 -std=gnu99 -I. -I"$1" $of/regression/host.c -o "$host/regression" || return 1
    learns=$("$host/regression") || return 1
    weights=${learns##* }
    without=$(parts "$1/regression_plan.h" | sed 's/^#define GCKPT_/CONFIG_GRADCKPT_/; s/$/=y/')
}

# filled FROM TO: a copy, in which @VERSION@, @WEIGHTS@, and lines @LEARNS@ and @WITHOUT@ are what they stand for
filled()
{
    mkdir -p "$(dirname "$2")" &&
        learns=$learns without=$without awk -v version="$version" -v weights="$weights" '
            /^@LEARNS@$/ { print ENVIRON["learns"]; next }
            /^@WITHOUT@$/ { print ENVIRON["without"]; next }
            { gsub("@VERSION@", version); gsub("@WEIGHTS@", weights); print }' "$1" > "$2"
}
