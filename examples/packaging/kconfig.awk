# Prints a Kconfig option for each GCKPT_NO_.. in the manual of gradckpt.h (4), with the manual's text as help.
# Variables: on, the names of options that are set by default; style, esp-idf or zephyr, which selects the indentation.
BEGIN {
    line = style == "zephyr" ? "\t" : "    "
    text = line (style == "zephyr" ? "  " : "    ")
}
function end_option()
{
    if (name == "")
        return
    printf "config GRADCKPT_%s\n%sbool \"Leave out %s\"\n", name, line, substr(name, 4)
    if (index(" " on " ", " " name " "))
        printf "%sdefault y\n", line
    printf "%shelp\n%s\n", line, help
    name = ""
}
/^ \* 4\. Compile options/ { listed = 1 }
/^ \* 5\. / && listed { end_option(); exit }
listed && /^ \*    [^ ]/ {
    end_option()
    if ($2 !~ /^GCKPT_NO_[A-Z0-9]+$/)
        next
    name = substr($2, 7)
    sub(/^ \* +[^ ]+ +(\[[AI]\])? */, "")
    help = text "GCKPT_" name ": " $0
    next
}
listed && name != "" {
    sub(/^ \* +/, "")
    help = help "\n" text $0
}
