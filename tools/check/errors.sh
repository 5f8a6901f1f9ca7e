#!/bin/bash
# Does docs/errors.md list exactly the codes that the sources use, and is the exit code beside each
# the one that its status has, or that main() gives it? Prints what differs; exit 1 if something does.
set -o pipefail
cd "$(dirname "$0")/../.." || exit 2
git ls-files 'vmm/*.[ch]' 'policy/*.[ch]' 'engine/*.[ch]' | xargs perl -e '
    my (%exit_of, %own, %uses, %documented);
    open(my $in, "<", "docs/errors.md") or die "docs/errors.md: $!\n";
    while (<$in>) {
        $documented{$1} = $2 if /^\| `(E_[A-Z0-9_]+)` \| ([0-9, ]+|any) \|/;
    }
    for my $file (@ARGV) {
        open(my $source, "<", $file) or die "$file: $!\n";
        my $text = do { local $/; <$source> };
        $exit_of{$1} = $2 while $file eq "vmm/base/status.h" &&
            $text =~ /X\(((?:ERR_)[A-Z_]+), -?\d+, (\d+),/g;
        $own{$1} = $2 while $file eq "engine/cli/main.c" &&
            $text =~ /strcmp\(code, "(E_[A-Z0-9_]+)"\) == 0\)\s*return (\d+);/g;
        $text =~ s{/\*.*?\*/}{}gs;
        $uses{$1} //= {} while $text =~ /"(E_[A-Z0-9_]+)"/g;
        $uses{$2}{$1} = 1 while $text =~ /MP_(ERR_[A-Z_]+)\s*,\s*"(E_[A-Z0-9_]+)"/g;
    }
    my $bad = 0;
    for my $code (sort keys %uses) {
        if (!exists $documented{$code}) {
            print "$code is not in docs/errors.md\n";
            $bad = 1;
            next;
        }
        next if $documented{$code} eq "any";
        my %listed = map { $_ => 1 } split /, /, $documented{$code};
        for my $status (sort keys %{$uses{$code}}) {
            my $exit = $own{$code} // $exit_of{$status};
            next if $listed{$exit};
            print "$code ends with $exit (MP_$status), docs/errors.md says $documented{$code}\n";
            $bad = 1;
        }
    }
    for my $code (sort keys %documented) {
        next if exists $uses{$code};
        print "$code is in docs/errors.md, but not in the sources\n";
        $bad = 1;
    }
    die "no codes found\n" if !%uses;
    exit $bad;'
