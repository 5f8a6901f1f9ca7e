#!/bin/bash
# Usage: tests/system/install/as_new_user.sh MODEL
#
# As root, where the packages are installed (tools/try_fresh packages): makes a user and tries what
# is in them as that user would, with a copy of the bundled model. Ends with one line.
set -eu
model=$1
if [ "$(id -u)" -eq 0 ]; then
    useradd --create-home tester
    cp -r "$model" /home/tester/model
    cp "$0" /home/tester/try.sh
    chown -R tester /home/tester
    exec su tester -c 'cd && bash try.sh model'
fi

tried=0
try() # WANTED COMMAND...: the output has WANTED
{
    local wanted=$1
    shift
    "$@" >out 2>err </dev/null || { echo "$*: ended with $?"; cat out err; exit 1; }
    grep -qF -- "$wanted" out || { echo "$*: no '$wanted' in:"; cat out err; exit 1; }
    echo "ok: $*"
    tried=$((tried + 1))
}

m=(--model "$model")
try "moepager 0." moepager --version
try "plan" moepager help
try "1 3 5 9" moepager run "${m[@]}" --budget 25% --prompt 'sort 5 3 9 1 ->' --max-tokens 8 --trace trace.txt --timeline line.json
try "1 3 5 9" moepager run "$model" 'sort 5 3 9 1 ->' -n 8
try "tokens_per_s" moepager bench "${m[@]}" --budget 25% --gen-tokens 8 --json
try "sort" moepager tokenize "${m[@]}" --prompt 'sort'
try "policies" moepager info
try "MOEPAGER_BUDGET" moepager env
try "disk" moepager doctor
try "TPOT" moepager plan "${m[@]}" --budget 50% --gen-tokens 4
try "hit_rate" moepager replay trace.txt --evict lru --budget 50% --csv
try "lru" moepager simulate --machine host-disk --model qwen1.5-moe --profile lru --budget 50% --gen-tokens 4
try "library" moepager preload --check -- sh
try "packed" moepager repack "${m[@]}" --out packed
try "1 3 5 9" moepager run --model packed --budget 25% --prompt 'sort 5 3 9 1 ->' --max-tokens 8
printf 'sort 5 3 9 1 -> 1 3 5 9\nsort 7 2 8 -> 2 7 8\n' >text.txt
try "perplexity" moepager eval --perplexity "${m[@]}" --text text.txt
try "" moepager calibrate "${m[@]}" --out calibration --text text.txt
try "" moepager top --json
try "moepager_begin" cat /usr/include/moepager.h
try "TH MOEPAGER" zcat -f /usr/share/man/man1/moepager.1*

echo "sort 5 3 9 1 ->" | moepager chat "${m[@]}" --max-tokens 8 >out 2>err || { cat out err; exit 1; }
tried=$((tried + 1))
echo "ok: moepager chat"

moepager serve "${m[@]}" --port 8123 >serve.log 2>&1 &
server=$!
for _ in $(seq 50); do
    if exec 3<>/dev/tcp/127.0.0.1/8123; then break; fi 2>/dev/null
    sleep 0.2
done
printf 'GET /health HTTP/1.0\r\nHost: 127.0.0.1:8123\r\n\r\n' >&3
grep -qF "200" <&3 || { cat serve.log; exit 1; }
kill -TERM "$server"
wait "$server" || { echo "serve ended with $?"; cat serve.log; exit 1; }
tried=$((tried + 1))
echo "ok: moepager serve"
echo "as_new_user: ok, $tried commands"
