#!/bin/sh
# Replaces the text between <!-- TARGET --> and <!-- --> in a page by the contents of a file.
#
#     sh tests/table.sh TARGET FILE PAGE
grep -qxF "<!-- $1 -->" "$3" || { echo "$3 has no place for $1" >&2 && exit 1; }
awk -v begin="<!-- $1 -->" -v file="$2" '$0 == "<!-- -->" { skip = 0 } !skip { print } $0 == begin { skip = 1
    while ((getline line < file) > 0) print line; print "" }' "$3" > "$3.new" && cp "$3.new" "$3" && rm "$3.new"
