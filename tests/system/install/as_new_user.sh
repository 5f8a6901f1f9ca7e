#!/bin/bash
# Usage: tests/system/install/as_new_user.sh FOLDER
#
# As root, where the packages are installed (tools/try_fresh packages): makes a user and tries what
# is in them as that user would. FOLDER has tiny-moe (the bundled model), chat (templates), python
# (the Python package) and newest.c (a policy). Ends with one line.
set -eu
folder=$1
if [ "$(id -u)" -eq 0 ]; then
    useradd --create-home tester
    cp -r "$folder"/. /home/tester/
    cp "$0" /home/tester/try.sh
    chown -R tester /home/tester
    exec su tester -c 'cd && bash try.sh .'
fi

tried=0
passed() { echo "ok: $*"; tried=$((tried + 1)); }
failed() { echo "$1: $2"; cat out err 2>/dev/null || true; exit 1; }
try() # WANTED COMMAND...: the output has WANTED
{
    local wanted=$1
    shift
    "$@" >out 2>err </dev/null || failed "$*" "ended with $?"
    [ -z "$wanted" ] || grep -qF -- "$wanted" out || failed "$*" "no '$wanted' in:"
    passed "$*"
}
refuse() # WANTED COMMAND...: refused, and the message has WANTED
{
    local wanted=$1
    shift
    if "$@" >out 2>err </dev/null; then failed "$*" "was not refused"; fi
    grep -qF -- "$wanted" err || failed "$*" "no '$wanted' in:"
    passed "refused: $*"
}

model=tiny-moe sort='sort 5 3 9 1 ->'
m=(--model "$model")

first_steps()
{
    try "moepager 0." moepager --version
    try "plan" moepager help
    try "--target-tpot" moepager plan --help
    try "TH MOEPAGER" zcat -f /usr/share/man/man1/moepager.1*
    try "complete" cat /usr/share/bash-completion/completions/moepager
    try "policies" moepager info
    try "all experts     18.0 MiB" moepager info "${m[@]}"
    try "MOEPAGER_BUDGET" moepager env
    try "disk" moepager doctor "${m[@]}"
    refuse "did you mean 'bench'" moepager bnech
    refuse "did you mean '--budget'" moepager run "${m[@]}" --prompt x --bugdet 25%
    refuse 'did you mean --budget 25%?' moepager run "${m[@]}" --prompt x --budget 25
}

texts()
{
    try "1 3 5 9" moepager run "${m[@]}" --budget 25% --prompt "$sort" --max-tokens 8 --trace trace.txt --timeline line.json
    try "1 3 5 9" moepager run "$model" "$sort" -n 8 -c 64 -t 1 -s 3 --temp 0
    printf %s "$sort" >prompt.txt
    try "1 3 5 9" moepager run -m "$model" --prompt-file prompt.txt --n-predict 8
    try '"hit_rate"' moepager run "$model" "$sort" -n 8 --json
    try "sort" moepager tokenize "${m[@]}" --prompt 'sort'
    try '"tokens"' moepager tokenize "${m[@]}" --special --prompt '<|im_end|>' --json
    printf 'sort 7 2 ->\n/stats\n/reset\nsort 5 3 9 1 ->\n/save talk.json\n/exit\n' >talk.txt
    moepager chat "${m[@]}" --max-tokens 8 <talk.txt >out 2>err || failed "moepager chat" "ended with $?"
    grep -qF "2 7" out && grep -qF "1 3 5 9" out && [ -s talk.json ] || failed "moepager chat" "said:"
    passed "moepager chat"
}

plans()
{
    try "tokens_per_s" moepager bench "${m[@]}" --budget 25% --gen-tokens 8 --json
    try "measured routing" moepager plan "${m[@]}" --budget 25%,50%,100% --gen-tokens 4 --target-tpot 1s
    grep -qE "^ +50\.0 +9\.0 MiB" out || failed "moepager plan" "printed:"
    moepager plan "${m[@]}" --budget 25%,50%,100% --gen-tokens 4 --json >plan.json
    moepager bench "${m[@]}" --budget 25% --profile lru --gen-tokens 8 --repeat 1 --json >bench.json
    try "hit_rate" moepager replay trace.txt --evict lru,lfu --budget 25%,50% --csv
    cp out replay.csv
    try "lru" moepager simulate --machine host-disk --model qwen1.5-moe --profile lru --budget 50% --gen-tokens 4
    try "" moepager plot hits replay.csv --out hits.svg
    try "" moepager plot heat trace.txt --out heat.png
    try "" moepager plot timeline line.json --out line.svg
    try "" moepager plot speed plan.json bench.json --out speed.svg
    for picture in hits.svg heat.png line.svg speed.svg; do [ -s "$picture" ]; done
}

files()
{
    printf 'sort 5 3 9 1 -> 1 3 5 9\nsort 7 2 8 -> 2 7 8\n' >text.txt
    try "perplexity" moepager eval --perplexity "${m[@]}" --text text.txt
    try "" moepager calibrate "${m[@]}" --out calibration --text text.txt
    try "packed" moepager repack "${m[@]}" --out packed
    try "1 3 5 9" moepager run packed "$sort" --budget 25% -n 8
    try "q8.gguf" moepager repack "${m[@]}" --out q8.gguf --type q8_0
    try "1 3 5 9" moepager run q8.gguf "$sort" -n 8
}

# A server on $port: serve ARGUMENT..., then say PATH [JSON], then end_server.
port=8123 server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null' EXIT
say() # PATH [JSON]
{
    python3 - "http://127.0.0.1:$port$1" "${2:-}" >out 2>err <<'EOF' || failed "$1" "was not answered"
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], sys.argv[2].encode() or None, 60) as reply:
        sys.stdout.write(reply.read().decode())
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode())
EOF
}
expect() # WANTED PATH [JSON]
{
    local wanted=$1
    shift
    say "$@"
    [ -z "$wanted" ] || grep -qF -- "$wanted" out || failed "$*" "no '$wanted' in:"
    passed "$*"
}
listening() # PORT LOG
{
    for _ in $(seq 100); do
        if grep -qs "serving .*:$1\$" "$2"; then return; fi
        sleep 0.2
    done
    cat "$2"
    failed "moepager serve" "does not listen"
}
serve()
{
    moepager serve "${m[@]}" --port "$port" --ctx 512 --batch 2 "$@" >serve.log 2>&1 &
    server=$!
    listening "$port" serve.log
}
end_server()
{
    kill -TERM "$server"
    wait "$server" || { cat serve.log; failed "moepager serve" "ended with $?"; }
    server=
}

servers()
{
    local hello='"messages": [{"role": "user", "content": "hi"}]' add='"tools": [{"type": "function", "function": {"name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]'

    serve --memory 64MiB --prefix-memory 2MiB
    expect "ok" /health
    expect '"tiny-moe"' /v1/models
    expect "1 3 5 9" /v1/completions "{\"prompt\": \"$sort\", \"max_tokens\": 8}"
    expect '"role":"assistant"' /v1/chat/completions "{$hello, \"max_tokens\": 8}"
    expect "data: [DONE]" /v1/completions "{\"prompt\": \"$sort\", \"max_tokens\": 4, \"stream\": true}"
    say /v1/chat/completions "{$hello, \"max_tokens\": 64, \"response_format\": {\"type\": \"json_object\"}}"
    grep -qE '"content":"[ \\n]*\{' out || failed "response_format" "gave:"
    passed "response_format"
    expect '"tokens"' /tokenize '{"content": "sort"}'
    expect "moepager_budget_bytes" /metrics
    expect "<html" /
    try "serve" moepager top
    grep -qF "of   18.0 MiB" out || failed "moepager top" "printed:"
    try '"processes"' moepager top --json
    end_server
    passed "moepager serve --memory --prefix-memory"

    serve --budget 25% --chat-template chat/hermes.jinja
    expect '"name":"add"' /v1/chat/completions "{$hello, $add, \"tool_choice\": \"required\", \"parallel_tool_calls\": false, \"max_tokens\": 400}"
    end_server
    serve --budget 25% --chat-template chat/coder.jinja
    expect '"reasoning_content":"' /v1/chat/completions "{$hello, \"max_tokens\": 8}"
    expect '"content":"' /v1/chat/completions "{$hello, \"max_tokens\": 8, \"chat_template_kwargs\": {\"enable_thinking\": false}}"
    end_server
    passed "moepager serve --chat-template"
}

cluster()
{
    local one='{"machine": "a100-32gb-xeon6230r", "device_gib": 0.014, "mbit": 500, "arrival_s": 1, "reads": true, "devices": 1}' rank
    echo "{\"model\": \"deepseek-v2-lite\", \"requests\": 1, \"prompt\": 1, \"gen\": 1, \"latency_us\": 100, \"servers\": [$one, $one]}" >cluster
    # shellcheck disable=SC2016  # for the shell of each rank
    mpirun --oversubscribe -n 2 --mca btl tcp,self --mca btl_tcp_if_include lo sh -c \
        'r=$OMPI_COMM_WORLD_RANK; echo $$ >pid.$r; exec moepager serve --model "$1" --cluster cluster --port $((8130 + r)) \
            --threads 1 --batch 2 --ctx 256 2>rank.$r' sh "$model" &
    server=$!
    for rank in 0 1; do
        port=$((8130 + rank))
        listening "$port" "rank.$rank"
        expect "1 3 5 9" /v1/completions "{\"prompt\": \"$sort\", \"max_tokens\": 8}"
    done
    kill -TERM "$(cat pid.0)" "$(cat pid.1)"
    wait "$server" || { cat rank.*; failed "moepager serve --cluster" "ended with $?"; }
    server=
    passed "moepager serve --cluster"
}

others()
{
    try "library" moepager preload --check -- sh
    try "libmoepager_preload" moepager preload --budget 1MiB -- cat /proc/self/maps
    try "moepager_begin" cat /usr/include/moepager.h
    mkdir -m 755 plugins
    try "" cc -std=gnu11 -fPIC -shared -I/usr/include/moepager newest.c -o plugins/newest.so
    chmod 755 plugins/newest.so
    try "1 3 5 9" env MOEPAGER_PLUGINS="$PWD/plugins" moepager run "$model" "$sort" -n 8 --budget 25% --evict newest
    python3 -m venv env
    env/bin/pip install -q ./python >out 2>err || failed "pip install" "ended with $?"
    try "1 3 5 9" env/bin/python3 -c "import moepager; print(moepager.run('$model', '$sort', max_tokens=8)['text'])"
    try "rows" env/bin/python3 -c "import moepager; print(moepager.plan('$model', budget=['50%'], gen_tokens=2).keys())"
}

first_steps
texts
plans
files
servers
cluster
others
echo "as_new_user: ok, $tried commands"
