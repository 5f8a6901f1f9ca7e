#!/bin/bash
# Which folder may include which: this table is the only executable form of the map in
# docs/architecture.md. Prints every #include that is not in it, every private header (*_int.h,
# *_impl.h) that is included from outside of its folder, and every call that moves or leases units
# from outside of the pager; exits with 1 if there is one.
#
#   FOLDER: what its files may include besides the folder itself; DIR/* stands for all below DIR.
cd "$(dirname "$0")/.." || exit 2
table='
kernels/cpu:        kernels/cpu/amx kernels/cpu/quant
kernels/cpu/amx:    kernels/cpu kernels/cpu/quant
kernels/cpu/quant:  kernels/cpu
kernels/cuda:       kernels/cpu kernels/cpu/quant
kernels/cuda/ptx:   kernels/cuda
vmm/base:
vmm/output:         vmm/base
vmm/options:        vmm/base vmm/output
vmm/live:           vmm/base vmm/output vmm/options
vmm/topo:           vmm/base vmm/output vmm/options
vmm/backend:        vmm/base vmm/topo
vmm/backend/cuda:   vmm/base vmm/topo vmm/backend
vmm/io:             vmm/base vmm/output vmm/options vmm/backend
vmm/format:         vmm/base vmm/io
vmm/space:          vmm/base vmm/output vmm/backend vmm/io
policy:             vmm/base vmm/options
policy/admit:       vmm/base policy
policy/assign:      vmm/base policy
policy/evict:       vmm/base policy policy/assign
policy/lookahead:   vmm/base
policy/partition:   vmm/base policy
policy/place:       vmm/base policy
policy/predict:     vmm/base policy
policy/prefetch:    vmm/base policy policy/assign policy/route
policy/route:       vmm/base policy
policy/library:     vmm/* policy policy/pager
policy/pager:       vmm/base vmm/space policy
policy/record:      vmm/base vmm/output policy
policy/replay:      vmm/base policy policy/assign policy/record
policy/sim:         vmm/base vmm/options vmm/space policy policy/pager policy/record policy/replay
policy/sim/cluster: vmm/base vmm/options vmm/format policy policy/place policy/record policy/sim
engine/pool:        vmm/base vmm/options vmm/topo
engine/text:        vmm/base vmm/format engine/text/jinja engine/text/calls
engine/text/calls:  vmm/base
engine/text/jinja:  vmm/base
engine/text/grammar: vmm/base vmm/format engine/text
engine/model:       vmm/* kernels/cpu policy engine/model/arch engine/model/sidecar
engine/model/arch:  vmm/base engine/model
engine/model/gguf:  vmm/* engine/model engine/model/arch
engine/model/sidecar: vmm/* policy policy/lookahead engine/model
engine/repack:      vmm/* policy kernels/cpu kernels/cpu/quant engine/model engine/model/arch
engine/convert:     vmm/* kernels/cpu kernels/cpu/quant engine/model engine/model/arch engine/pool engine/text
engine/gpu:         vmm/* kernels/* policy
engine/preload:     vmm/* engine/session
engine/doctor:      vmm/* kernels/cpu
engine/top:         vmm/*
engine/probe:       vmm/* kernels/* policy engine/pool engine/gpu
engine/forward:     vmm/* kernels/cpu policy policy/lookahead policy/pager policy/record policy/replay engine/model engine/model/sidecar engine/pool engine/gpu engine/forward/cpu engine/forward/cuda
engine/forward/cpu: vmm/base kernels/cpu policy/pager engine/model engine/pool engine/forward
engine/forward/cuda: vmm/* kernels/* policy policy/pager engine/model engine/gpu engine/forward engine/forward/cpu
engine/cluster:     vmm/* policy policy/pager policy/place engine/model engine/forward
engine/calibrate:   vmm/base policy engine/model engine/model/sidecar engine/forward
engine/session:     vmm/* policy engine/model engine/text engine/pool engine/gpu engine/probe engine/forward engine/forward/cuda engine/session/draft
engine/session/draft: vmm/* engine/model engine/text engine/forward engine/session
engine/batch:       vmm/* policy policy/pager engine/model engine/text engine/forward engine/session
engine/measure:     vmm/* policy policy/replay policy/sim engine/model engine/forward engine/session
engine/serve:       vmm/* policy policy/pager engine/session engine/batch engine/text engine/text/grammar engine/text/calls engine/forward engine/model
engine/cli/args:    vmm/base engine/calibrate engine/convert engine/model engine/model/sidecar engine/repack engine/session engine/text
engine/cli/chat:    vmm/base
engine/cli:         vmm/* policy/* kernels/* engine/*
interpose:          vmm/base
interpose/preload:  vmm/base vmm/options interpose interpose/cuda/hooks
interpose/model:    vmm/* interpose
interpose/mapping:  vmm/* interpose interpose/model
interpose/pager:    vmm/* policy/* kernels/cpu interpose interpose/model interpose/mapping
interpose/entry:    vmm/* interpose interpose/pager
interpose/cuda:     vmm/* policy interpose
interpose/cuda/hooks: vmm/base vmm/options vmm/backend/cuda interpose/preload interpose/cuda
'
bad=0
git ls-files -- kernels vmm policy engine interpose | grep -E '\.(c|h|cu|cuh)$' |
    TABLE=$table perl -ne '
    BEGIN {
        for my $row (split /\n/, $ENV{TABLE}) {
            $may{$1} = [ split " ", $2 ] if $row =~ /^(\S+):\s*(.*)$/;
        }
    }
    chomp;
    my $file = $_;
    (my $from = $file) =~ s{/[^/]*$}{};
    my $allowed = $may{$from};
    print("$file: folder $from is not in the table of tools/check_layers.sh\n"), $bad = 1, next
        if !$allowed;
    open(my $in, "<", $file) or die "$file: $!";
    while (my $line = <$in>) {
        next unless $line =~ /^#\s*include "([^"]+)"/;
        my $header = $1;
        (my $to = $header) =~ s{/[^/]*$}{};
        my $ok = $to eq $from;
        for my $entry (@$allowed) {
            (my $dir = $entry) =~ s{/\*$}{};
            $ok ||= $to eq $dir || ($entry =~ /\*$/ && index($to, "$dir/") == 0);
        }
        $ok = 0 if $header =~ /_(int|impl)\.h$/ && $to ne $from && index($from, "$to/") != 0;
        print("$file:$.: must not include $header\n"), $bad = 1 if !$ok;
    }
    END { $? = $bad ? 1 : 0 }' || bad=1
moves='load|promote|cancel|poll|wait|wait_any|evict|lease|release|lease_host|release_host'
git grep -nE "mp_space_($moves)\(" -- 'policy/*.[ch]' 'engine/*.[ch]' 'interpose/*.[ch]' |
    grep -v '^policy/pager/' | sed 's/$/ <- only the pager may/' | grep . && bad=1
exit $bad
