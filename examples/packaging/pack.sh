# For examples/packaging/*/archive.sh (boards.sh): what they have in common.

# pack ARCHIVE FOLDER: the folder as ARCHIVE (.zip, .tar.gz), the same bytes whenever and wherever it is packed.
pack()
{
    archive=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
    (
        cd "$(dirname "$2")" && export TZ=UTC || exit 1
        what=$(basename "$2")
        rm -f "$archive"
        find "$what" -type d -exec chmod 755 {} + && find "$what" -type f -exec chmod 644 {} + &&
            find "$what" -exec touch -t 198001020000 {} + || exit 1
        case $archive in
        *.zip) find "$what" | LC_ALL=C sort | zip -q -X "$archive" -@ ;;
        *.tar.gz)
            tar -cf - --format=ustar --sort=name --owner=0 --group=0 --numeric-owner "$what" | gzip -9n > "$archive" ;;
        esac
    )
}

# prints SOURCE OUTPUT option..: a program of this machine, compiled with PLAN, prints a plan (or weights) as C
prints()
{
    source=$1 output=$2
    shift 2
    $LINKED -std=gnu99 -DPLAN "$@" "$source" -lm -o "${host:?}/program" &&
        "$host/program" > "$output" 2> "$host/said" || { cat "$host/said" >&2 && return 1; }
}

# parts FILE: lines that define away what of the header none of the plans in it needs, as their comments list it
parts()
{
    plans=$(grep -c '^#define [A-Za-z0-9_]*_exec_bytes ' "$1")
    sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort | uniq -c |
        awk -v plans="$plans" '$1 == plans { print "#define " $2 }'
}
