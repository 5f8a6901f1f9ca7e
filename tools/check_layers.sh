#!/bin/sh
# Print every #include that crosses the layers the wrong way, and every call that moves or leases
# units of a space from outside vmm and the pager; exit 1 if there is one.
# Rules are in docs/architecture.md; this is their only executable form.
cd "$(dirname "$0")/.." || exit 2
bad=0
grep -rn --include='*.[ch]' --include='*.cu' --include='*.cuh' '^#include "' \
    kernels vmm policy engine interpose 2>/dev/null |
awk -F'[:"]' '
{
    from = $1; to = $4
    ok = 0
    if      (from ~ /^kernels\//)          ok = to ~ /^kernels\//
    else if (from ~ /^vmm\/base\//)        ok = to ~ /^vmm\/base\//
    else if (from ~ /^vmm\//)              ok = to ~ /^vmm\//
    else if (from ~ /^policy\/pager(_[a-z]+)?\.[ch]$/) ok = to ~ /^(policy|vmm)\//
    else if (from ~ /^policy\/moepager\.c$/)  ok = to ~ /^(policy|vmm)\//  # the face of the library
    else if (from ~ /^policy\/step(_[a-z]+)?\.[ch]$/)  ok = to ~ /^(policy|vmm\/base)\//
    else if (from ~ /^policy\//)           ok = to ~ /^(policy\/[a-z_]*|vmm\/base\/.*)\.h$/ && to !~ /^policy\/(pager|step)/
    else if (from ~ /^engine\//)           ok = to ~ /^(engine|policy|vmm|kernels)\//
    else if (from ~ /^interpose\//)        ok = to ~ /^(interpose|policy|vmm)\//
    if (!ok) { print from ":" $2 ": must not include " to; bad = 1 }
}
END { exit bad }' || bad=1
grep -rnE --include='*.[ch]' 'mp_space_(load|promote|cancel|poll|wait|wait_any|evict|lease|release)\(' \
    policy engine interpose 2>/dev/null | grep -v '^policy/pager' | sed 's/$/ <- only the pager may/' |
    grep . && bad=1
exit $bad
