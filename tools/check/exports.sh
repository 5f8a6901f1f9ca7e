#!/bin/bash
# Usage: tools/check/exports.sh LIBMOEPAGER.SO
#
# Does the library export exactly the functions that its header declares with MOEPAGER_API, under the
# versions that policy/library/moepager.symbols records?
cd "$(dirname "$0")/../.." || exit 2
export LC_ALL=C
[ $# -eq 1 ] || { echo "usage: tools/check/exports.sh LIBMOEPAGER.SO" >&2; exit 2; }
declared=$(grep -A 1 '^MOEPAGER_API' policy/moepager.h | grep -oE '\bmoepager_[a-z_]+\(' | tr -d '(' |
    sort -u)
exported=$(nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | sort -u)
[ -n "$declared" ] || { echo "check_exports: no declarations found"; exit 1; }
diff <(echo "$declared") <(echo "$exported") ||
    { echo "check_exports: < is declared only, > is exported only"; exit 1; }
recorded=$(grep -v '^#' policy/library/moepager.symbols)
versions=$(nm -D --defined-only --with-symbol-versions "$1" | awk '$2 != "A" { print $3 }' | sort)
diff <(echo "$recorded") <(echo "$versions") ||
    { echo "check_exports: < is recorded only, > is exported only; a name keeps its version"; exit 1; }
