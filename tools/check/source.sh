#!/bin/bash
# Print every call that does not belong where it stands; exit 1 if there is one. What may be called
# where is listed here and nowhere else.
set -o pipefail # no git, no list: a failure
cd "$(dirname "$0")/../.." || exit 2
bad=0

# WHY NAMES EXCEPT DIR...: calls of NAMES (a regular expression) in the C files of the directories,
# except in files that match EXCEPT. Comments and strings do not count; a name after '.' or '->' or
# as a part of a longer one is another.
forbid()
{
    local why=$1 names=$2 except=$3
    shift 3
    git ls-files -- "${@/%//*.[ch]}" | WHY=$why NAMES=$names EXCEPT=$except perl -ne '
        chomp;
        next if m{$ENV{EXCEPT}};
        my $file = $_;
        open(my $in, "<", $file) or die "$file: $!";
        my $text = do { local $/; <$in> };
        $text =~ s{(/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*")}{ (my $c = $1) =~ s/[^\n]//g; $c }gse;
        my $number = 0;
        for my $line (split /\n/, $text) {
            $number++;
            next unless $line =~ /(?:^|[^_A-Za-z0-9.>])($ENV{NAMES}) *\(/;
            print "$file:$number: $1(): $ENV{WHY}\n";
            $bad = 1;
        }
        END { $? = $bad ? 1 : 0 }' || bad=1
}

all=(vmm policy engine kernels interpose)
forbid "the environment is read in vmm/options/opt.c only (what is MPI's in mpi_listen.c), with secure_getenv" \
    'getenv|secure_getenv|setenv|putenv' '^(vmm/options/opt|engine/cluster/mpi_listen)\.c$' "${all[@]}"
forbid "plain getenv is honoured in privileged programs" 'getenv' '^$' "${all[@]}"
forbid "only main() ends the program" \
    'exit|_exit|_Exit|quick_exit|abort|assert' '^(vmm/base/assert\.[ch]|engine/cli/main\.c)$' "${all[@]}"
forbid "time comes from an injected clock" \
    'clock_gettime|gettimeofday|time|clock' '^vmm/base/clock\.c$' "${all[@]}"
forbid "a library prints nothing unasked" \
    'printf|puts|putchar|perror' '^$' vmm policy kernels interpose
forbid "no bound, hidden state or a shell" \
    'gets|sprintf|vsprintf|strtok|atoi|atol|atof|system|popen|alloca|rand|srand|tmpnam|mktemp' \
    '^$' "${all[@]}"
exit "$bad"
