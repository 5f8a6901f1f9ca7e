#!/bin/bash
# Does every file that a document names exist, and is every table cell of docs/reproduction.md short
# enough to read? Prints what is wrong; exit 1 if something is. Checked are the targets of links, and
# names that begin with a folder of the tree: in `backticks` (also patterns, and names of tests or
# files without their ending), and anywhere else if they end like a file. Code blocks do not count.
cd "$(dirname "$0")/../.." || exit 2
git ls-files '*.md' | xargs perl -e '
    my $folders = join "|", map { quotemeta } grep { chomp; -d } `git ls-tree --name-only HEAD`;
    my $suites = join "|", map { m{tests/(\w+)} } glob "tests/*/";
    my %tests = map { m{NAME ([\w/]+)} ? ($1 => 1) : () } `git grep -h "add_test(NAME" -- "*.cmake"`;
    my $bad = 0;

    # A name, a pattern, a file without its ending, or a test as ctest calls it (suite/name:variant).
    sub exists_somehow
    {
        my $name = shift;
        $name =~ s{[.,:;]+$}{};
        $name =~ s{<[^>]*>}{*}g;
        $name =~ s{:[^/]*$}{};
        return 1 if $tests{$name};
        $name = "tests/$name" if !-e $name && $name =~ m{^(?:$suites)/}; # interpose/ is both
        my @named = glob $name;
        for my $one (@named) {
            my @with_ending = glob "$one.*";
            return 0 if !-e $one && !-e ($with_ending[0] // "");
        }
        return @named > 0;
    }

    for my $file (@ARGV) {
        my ($folder) = $file =~ m{^(.*/)};
        my $in_code = 0;
        open(my $in, "<", $file) or die "$file: $!\n";
        while (my $line = <$in>) {
            $in_code = !$in_code if $line =~ /^\s*```/;
            next if $in_code || $line =~ /^    \S/;
            if ($file eq "docs/reproduction.md" && $line =~ /^\|/) {
                for my $cell (split /\|/, $line) {
                    next if length($cell) <= 202;
                    print "$file:$.: a cell has ", length($cell) - 2, " characters, at most 200 can be read\n";
                    $bad = 1;
                }
            }
            my @names;
            while ($line =~ /\]\(([^)#\s]+)[^)]*\)/g) {
                push @names, ($folder // "") . $1 if $1 !~ /^[a-z]+:/;
            }
            push @names, $1 while $line =~ m{`((?:$folders|$suites)/[^`\s]*)`}g;
            push @names, $1 while $line =~ m{(?<![\w`/.-])((?:$folders)/[\w./-]*\.[a-z]+)\b}g;
            for my $name (@names) {
                next if exists_somehow($name);
                print "$file:$.: there is no $name\n";
                $bad = 1;
            }
        }
    }
    exit $bad;'
