#!/bin/bash
# Has every line of a threat model in docs/security.md a test? The last column of its tables names
# functions of tests (in Python or C, each of which also is called), files of tests/, or tests as
# ctest calls them; only what is "not defended against" needs none. Prints what is wrong; exit 1 if something is.
cd "$(dirname "$0")/../.." || exit 2
perl -e '
    my ($bad, $tests, $column) = (0, "", undef);
    for my $file (`git ls-files tests`) {
        chomp $file;
        next if $file !~ /\.(py|c|h|cmake)$/;
        open(my $in, "<", $file) or die "$file: $!\n";
        local $/;
        $tests .= "\n" . <$in>;
    }
    sub is_tested
    {
        my $name = shift;
        return 1 if grep { -e } glob("tests/$name tests/$name.c tests/system/*/$name tests/*/*/$name.c tests/*/*/*/$name.c");
        my $calls = () = $tests =~ /\b\Q$name\E\b/g;
        return $tests =~ /^(?:def |(?:static )?void )\Q$name\E\(/m && $calls > 1;
    }
    open(my $in, "<", "docs/security.md") or die;
    while (my $line = <$in>) {
        if ($line !~ /^\|/) {
            $column = undef;
            next;
        }
        my @cells = map { s/^\s+|\s+$//gr } split /\|/, $line, -1;
        if (!defined $column) { # the head of a table
            $column = 0;
            print "docs/security.md:$.: the last column of a threat model is its tests\n" and $bad = 1
                if $cells[-2] ne "test";
            next;
        }
        next if $line =~ /^\|-/ || $cells[3] =~ /^not defended against/;
        my @names = $cells[-2] =~ /`([^`]+)`/g;
        print "docs/security.md:$.: no test is named\n" and $bad = 1 if !@names;
        for my $name (grep { !is_tested($_) } @names) {
            print "docs/security.md:$.: there is no test $name\n";
            $bad = 1;
        }
    }
    exit $bad;'
