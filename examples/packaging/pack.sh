# Functions of examples/packaging/*/archive.sh (boards.sh).

# pack ARCHIVE FOLDER: packs the folder as ARCHIVE (.zip, .tar.gz). The archive's bytes do not depend on time and machine.
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

# prints SOURCE OUTPUT option..: compiles SOURCE with PLAN for this machine and writes its output, a plan or weights as C
prints()
{
    source=$1 output=$2
    shift 2
    $LINKED -std=gnu99 -DPLAN "$@" "$source" -lm -o "${host:?}/program" &&
        "$host/program" > "$output" 2> "$host/said" || { cat "$host/said" >&2 && return 1; }
}

# parts FILE: prints the #define lines that omit the parts of the header that no plan in the file needs
parts()
{
    plans=$(grep -c '^#define [A-Za-z0-9_]*_exec_bytes ' "$1")
    sed -n 's/^ \* It runs with \(.*\), too\. \*\/$/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort | uniq -c |
        awk -v plans="$plans" '$1 == plans { print "#define " $2 }'
}
