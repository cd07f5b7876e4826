# Prints a Kconfig option for each switch GCKPT_NO_NAME in the tables of docs/building.md, with the table's text as help.
# Variables: on, the names of options that are set by default; style, esp-idf or zephyr, which selects the indentation.
BEGIN {
    FS = " *[|] *"
    line = style == "zephyr" ? "\t" : "    "
    text = line (style == "zephyr" ? "  " : "    ")
}
$2 ~ /^`GCKPT_NO_[A-Z0-9_]+`$/ {
    name = substr($2, 8, length($2) - 8)
    help = $3 ~ /^[AI]$/ ? $4 : $3 ($4 != "" ? " (and " $4 ")" : "")
    gsub(/`/, "", help)
    printf "config GRADCKPT_%s\n%sbool \"Leave out %s\"\n", name, line, substr(name, 4)
    if (index(" " on " ", " " name " "))
        printf "%sdefault y\n", line
    printf "%shelp\n", line
    words = split("GCKPT_" name ": " help, word, " ")
    for (i = 1; i <= words; i = next_line) { # kconfcheck refuses lines of 120 characters
        written = text word[i]
        for (next_line = i + 1; next_line <= words && length(written " " word[next_line]) <= 100; next_line++)
            written = written " " word[next_line]
        print written
    }
}
