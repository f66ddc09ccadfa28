#!/usr/bin/env bats
# Wrong inputs of a run: one line that says what is wrong, where, what was got and what is
# wanted; a second with the nearest thing that works, where there is one; the exit status;
# and nothing written.

load common

setup() {
    mkdir "$BATS_TEST_TMPDIR/work"
    cd "$BATS_TEST_TMPDIR/work"
    for word in one two three four five six seven eight nine ten; do
        printf 'The %s cats sat on %s mats and ate rice.\n' "$word" "$word"
    done >ok.txt
    cat >run.yaml <<'EOF'
model: {vocab: 257, layers: 1, hidden: 16, heads: 2, ffn: 24}
data:
  train: ok.txt
  seq_len: 16
train:
  steps: 2
  global_batch: 4
log: {every: 1}
checkpoint: {dir: out}
EOF
}

# Refused by `angel pretrain` with this status, first line and, where given, second line.
wrong() { # exit status, line, hint, arguments ...
    local status=$1 line=$2 hint=$3
    shift 3
    angel pretrain "$@"
    [ "$code" = "$status" ] || fail "wanted exit status $status from: $*"
    [ -z "$out" ] || fail 'wanted an empty stdout'
    # the last lines are the error: what a run logs may stand before
    local got=${err##*$'\n'angel: } second=''
    got=${got#angel: }
    case $got in
    *$'\n'*) second=${got#*$'\n'} got=${got%%$'\n'*} ;;
    esac
    case $got in
    *"$line"*) ;;
    *) fail "wanted '$line' from: $*" ;;
    esac
    case $got in
    *got*wanted* | *'system says'* | *'zstd says'* | *'not YAML'*) ;;
    *) fail "wanted 'got ..., wanted ...' from: $*" ;;
    esac
    case $second in
    *$'\n'*) fail "wanted two lines at most from: $*" ;;
    esac
    if [ -n "$hint" ]; then
        has "$second" "$hint"
    fi
    [ ! -e out/step-000000000002 ] || fail 'wanted no checkpoint'
}

# A run file with more lines at its end.
with() {
    cp run.yaml bad.yaml
    printf "$@" >>bad.yaml
}

@test "the run that is made wrong below is right" {
    angel pretrain run.yaml
    code_is 0
    [ -e out/step-000000000002/COMMIT ]
}

@test "unknown keys and options" {
    wrong 2 "unknown key (command line): got 'train.stepz', wanted" \
        'did you mean train.steps?' run.yaml train.stepz=2
    with 'data.seq_length: 4\n'
    wrong 2 "unknown key (bad.yaml:10): got 'data.seq_length', wanted" \
        'did you mean data.seq_len?' bad.yaml
    wrong 2 "unknown option (command line): got '--quik', wanted" 'did you mean --quiet?' \
        run.yaml --quik
    wrong 2 "--allow-change (command line): got 'train.lr', wanted a key" '' \
        run.yaml --allow-change train.lr
    angel pretrian run.yaml
    refuses 2 "got 'pretrian'"
}

@test "wrong types and values out of range" {
    wrong 2 "train.steps (command line): got 'abc', wanted a count" '' run.yaml train.steps=abc
    wrong 2 "train.steps (command line): got '0', wanted 1 to" '' run.yaml train.steps=0
    wrong 2 "train.steps (command line): got '-3', wanted 1 to" '' run.yaml train.steps=-3
    wrong 2 "train.micro_batch (command line): got '0', wanted 1 to" '' \
        run.yaml train.micro_batch=0
    wrong 2 "model.layers (command line): got '99999999999999999999', wanted" '' \
        run.yaml model.layers=99999999999999999999
    wrong 2 "train.optimizer.lr (command line): got 'nan', wanted a number" '' \
        run.yaml train.optimizer.lr=nan
    wrong 2 "train.optimizer.clip (command line): got '-1', wanted 0 to" '' \
        run.yaml train.optimizer.clip=-1
    wrong 2 "train.precision (command line): got 'fp31', wanted fp32 or bf16" \
        'did you mean fp32?' run.yaml train.precision=fp31
    wrong 2 "train.nonfinite (command line): got 'skips', wanted skip or stop" \
        'did you mean skip?' run.yaml train.nonfinite=skips
    wrong 2 'data.valid_fraction (command line): got' '' run.yaml data.valid_fraction=0.99
    sed 's/steps: 2/steps: [1, 2]/' run.yaml >bad.yaml
    wrong 2 'train.steps (bad.yaml:6): got a list of 2, wanted a count' '' bad.yaml
    sed 's/seq_len: 16/seq_len: {a: 1}/' run.yaml >bad.yaml
    wrong 2 "data.seq_len.a" '' bad.yaml
    wrong 2 'data.train[1].weight (command line): got' '' \
        run.yaml 'data.train=[ok.txt, {path: ok.txt, weight: -1}]'
}

@test "missing files" {
    wrong 66 'cannot open (runn.yaml): system says' 'did you mean run.yaml?' runn.yaml
    wrong 66 'cannot open file (text/): system says' '' run.yaml data.train=text/
    wrong 66 "model (command line): got 'm.yaml', wanted a file that is there" '' \
        run.yaml model=m.yaml
    wrong 66 'init: no such checkpoint: got nowhere, wanted one that exists' '' \
        run.yaml init=nowhere
    wrong 66 '(nowhere): system says' '' run.yaml checkpoint.resume=nowhere
    wrong 66 '(valid.txt): system says' '' run.yaml data.valid=valid.txt
}

@test "YAML that is no configuration" {
    with 'train: {steps: 4}\n'
    wrong 2 "duplicate key (bad.yaml:10): got 'train' again, wanted one" '' bad.yaml
    with 'memory: {host: 1GiB, host: 2GiB}\n'
    wrong 2 "duplicate key (bad.yaml:10): got 'memory.host' again" '' bad.yaml
    with 'memory: &m {host: 1GiB}\ncopy: *m\n'
    wrong 2 'anchor (bad.yaml:10): got one, wanted plain keys and values' '' bad.yaml
    with 'memory: &m [*m]\n'
    wrong 2 'anchor (bad.yaml:10): got one' '' bad.yaml
    with 'memory:\n\thost: 1GiB\n'
    wrong 2 'not YAML (bad.yaml:11): ' 'indent with spaces, not with tabs' bad.yaml
    printf 'model: [\n' >bad.yaml
    wrong 2 'not YAML (bad.yaml:2): ' '' bad.yaml
    printf -- '- 1\n- 2\n' >bad.yaml
    wrong 2 'not a configuration (bad.yaml:1): got a list, wanted a mapping' '' bad.yaml
    printf '\177ELF\000\001' >bad.yaml
    wrong 2 'not YAML (bad.yaml, byte 0): ' '' bad.yaml
    : >bad.yaml
    wrong 2 'model.vocab (configuration): got nothing, wanted a count' \
        'model=configs/models/llama-tiny.yaml' bad.yaml
    wrong 2 'not a file (.): got a folder, wanted YAML' '' .
}

@test "a gigabyte of YAML is refused at once" {
    truncate -s 1G big.yaml
    begin=$EPOCHREALTIME
    wrong 2 'too large for a configuration (big.yaml): got 1073741824 bytes, wanted at most' \
        '' big.yaml
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a < 2) }'
}

@test "numbers that do not fit each other" {
    wrong 2 'model.hidden (run.yaml:1) and model.heads (command line): got 16 and 3, wanted' \
        'nearest that work: model.heads=2 or 4' run.yaml model.heads=3
    wrong 2 'model.kv_heads (command line) and model.heads (command line): got 3 and 4' \
        'model.kv_heads=2 or 4' run.yaml model.heads=4 model.kv_heads=3
    wrong 2 'train.micro_batch (command line) and train.global_batch (run.yaml:7): got 3 and 4' \
        'train.micro_batch=2 or 4' run.yaml train.micro_batch=3
    wrong 2 'model.vocab (command line) and data.tokenizer (default): got 100 and bytes' \
        'model.vocab=257' run.yaml model.vocab=100
    wrong 2 'data is too short for sequences of 100000 tokens (ok.txt): got' \
        'is the longest that fits' run.yaml data.seq_len=100000
    wrong 71 'the run does not fit in memory (memory.device): got 10.0 KiB, wanted' \
        'need' run.yaml memory.device=10KiB
}

@test "text that is none" {
    : >empty.txt
    wrong 65 'no text (empty.txt): got 0 tokens, wanted at least 17' '1 empty' \
        run.yaml data.train=empty.txt
    mkdir none
    wrong 65 'no text (none): got 0 tokens' '' run.yaml data.train=none
    head -c 5000 "$ANGEL" >binary
    wrong 65 'not a text file (binary): got NUL bytes near its begin, wanted text' '' \
        run.yaml data.train=binary
    wrong 2 'data.train (configuration): got nothing, wanted text' '' run.yaml 'data.train=[]'
}

@test "bytes are bytes: text that is not UTF-8 trains" {
    for i in 1 2 3 4 5 6 7 8 9; do
        printf 'caf\351 \377\376 and plain words, enough of them to be trained on.\n'
    done >latin.txt
    angel pretrain run.yaml data.train=latin.txt
    code_is 0
}

@test "malformed JSON lines are named by file and line" {
    good='{"text": "The cats sat on mats and ate rice, all of them, all day."}'
    printf '%s\n{"text": "The\n%s\n' "$good" "$good" >bad.jsonl
    wrong 65 'malformed JSON (bad.jsonl:2, byte 13): got the end, wanted' '' \
        run.yaml data.train=bad.jsonl
    printf '%s\n%s\n{"txt": "x"}\n' "$good" "$good" >bad.jsonl
    wrong 65 "no text in JSON line (bad.jsonl:3): got nothing under key 'text'" \
        "data.text_field names the key; the line's first is 'txt'" \
        run.yaml data.train=bad.jsonl
    printf '%s\n{"text": 5}\n' "$good" >bad.jsonl
    wrong 65 'no text in JSON line (bad.jsonl:2): got a number' '' \
        run.yaml data.train=bad.jsonl
    printf '%s\n[1]\n' "$good" >bad.jsonl
    wrong 65 'malformed JSON line (bad.jsonl:2): got an array, wanted an object' '' \
        run.yaml data.train=bad.jsonl
}

@test "damaged compressed text" {
    command -v zstd >/dev/null || skip 'no zstd program here to make the files with'
    for i in $(seq 500); do
        echo "{\"text\": \"number $i $RANDOM $RANDOM $RANDOM\"}"
    done | zstd -q >whole.jsonl.zst
    angel pretrain run.yaml data.train=whole.jsonl.zst checkpoint.dir=whole
    code_is 0
    head -c 3000 whole.jsonl.zst >cut.jsonl.zst
    wrong 65 'zstd file is cut short (cut.jsonl.zst): got 3000 bytes' '' \
        run.yaml data.train=cut.jsonl.zst
    echo nothing of the kind >none.jsonl.zst
    wrong 65 'damaged zstd file (none.jsonl.zst, near byte 0)' '' \
        run.yaml data.train=none.jsonl.zst
}

@test "what this build lacks says so" {
    wrong 69 'device (command line): this build has no CUDA backend' '' run.yaml device=cuda
    wrong 69 'parallel.cp (command line): context parallelism is not in this build' '' \
        run.yaml parallel.cp=2
}

@test "command lines that say too much or nothing" {
    wrong 2 'no run given (command line): got nothing, wanted RUN.yaml' 'angel pretrain'
    wrong 2 "too many arguments (command line): got 'run.yaml' after 'run.yaml'" '' \
        run.yaml run.yaml
}

@test "outputs that cannot be" {
    : >file
    wrong 73 'cannot create' '' run.yaml checkpoint.dir=file/out
    wrong 73 'got a folder, wanted a file' '' run.yaml log.jsonl=.
}

@test "closed standard streams: the run goes on, its files hold what is theirs" {
    for streams in '>&-' '2>&-' '<&-' '>&- 2>&- <&-'; do
        rm -rf out
        code=0
        bash -c "'$ANGEL' pretrain run.yaml checkpoint.every=1 $streams" >o 2>e || code=$?
        case $streams in
        '>&-'*) code_is 74 ;; # the summary could not be written
        *) code_is 0 ;;
        esac
        angel ckpt verify --deep out
        code_is 0
        jq -e . out/metrics.jsonl >/dev/null || fail "metrics hold something else: $streams"
    done
}

@test "a reader of stdout that goes away does not stop the run" {
    bash -c "'$ANGEL' pretrain run.yaml train.steps=20 2>&1 | head -n 1" >/dev/null
    for _ in $(seq 100); do
        [ -e out/step-000000000020/COMMIT ] && return 0
        sleep 0.05
    done
    fail 'wanted the last checkpoint'
}
