#!/bin/sh
# Checks that each file of DIR calls only functions of files above it in DIR/MANIFEST (order.awk), so that no files call one
# another in a cycle: sh tests/layout/order.sh DIR. One call is allowed: texts of errors name tensors (%T).
found=$(awk -f "$(dirname "$0")/order.awk" "$1/MANIFEST" $(find "$1" -name cuda -prune -o -name '*.[ch]' -print) |
    grep -v '^base/text.c uses gckpti_text_tensor ') || exit 0
echo "$found"
exit 1
