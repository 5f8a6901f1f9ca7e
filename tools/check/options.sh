#!/bin/bash
# Usage: tools/check/options.sh MOEPAGER
#
# Is docs/options.md what `moepager env --markdown` prints? To renew it:
#     env -i build/release/moepager env --markdown >docs/options.md
cd "$(dirname "$0")/../.." || exit 2
[ $# -eq 1 ] || { echo "usage: tools/check/options.sh MOEPAGER" >&2; exit 2; }
diff -u docs/options.md <(env -i "$1" env --markdown) ||
    { echo "docs/options.md is stale; see the head of tools/check/options.sh"; exit 1; }
