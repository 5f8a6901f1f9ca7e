#!/bin/bash
# Usage: tests/system/tools/without_git.sh
#
# Where git is missing, the checks that ask it for the files fail, and install_deps names it.
cd "$(dirname "$0")/../../.." || exit 2
bin=$(mktemp -d) || exit 2
trap 'rm -rf "$bin"' EXIT
for directory in /usr/bin /bin; do
    ln -s "$directory"/* "$bin" 2>/dev/null
done
rm -f "$bin"/git "$bin"/git-*
! PATH=$bin command -v git || { echo "git is still found"; exit 2; }
bad=0
for check in check/source check/errors; do
    "tools/$check.sh" >/dev/null || { echo "$check.sh fails with git"; bad=1; }
    PATH=$bin "tools/$check.sh" >/dev/null 2>&1 && { echo "$check.sh passes without git"; bad=1; }
done
PATH=$bin bash tools/install_deps --check | grep -qw git || { echo "install_deps does not miss git"; bad=1; }
exit $bad
