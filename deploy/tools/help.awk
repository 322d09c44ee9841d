# SPDX-License-Identifier: Apache-2.0
# Prints the list of `make help` from the comments of a Makefile:
#   ##@ HEADING
#   target: prerequisites ## [OPTIONS |] TEXT
#   ##: TARGET AND OPTIONS | TEXT        where the rule has no line of its own
BEGIN { column = 34; width = 118 }

function entry(usage, text,    words, count, i, line) {
    line = sprintf("  %-" (column - 3) "s", usage)
    if (length(line) >= column) { print line; line = sprintf("%" (column - 1) "s", "") }
    count = split(text, words, " ")
    for (i = 1; i <= count; i++) {
        if (length(line) + 1 + length(words[i]) > width) { print line; line = sprintf("%" (column - 1) "s", "") }
        line = line " " words[i]
    }
    print line
}

function described(target, comment,    bar) {
    bar = index(comment, " | ")
    if (bar) entry("make " target " " substr(comment, 1, bar - 1), substr(comment, bar + 3))
    else entry("make " target, comment)
}

/^##@ / { printf "\n%s\n", substr($0, 5) }
/^##: / { bar = index($0, " | "); entry("make " substr($0, 5, bar - 5), substr($0, bar + 3)) }
/^[a-z][a-z-]*:.* ## / {
    target = $0
    sub(/:.*/, "", target)
    described(target, substr($0, index($0, " ## ") + 4))
}
