# Completion of angel(1) for bash. `make completion` writes it.

_angel_commands() {
    echo 'pretrain ckpt help'
}

_angel_options() {
    case $1 in
    pretrain) echo '--set --dry-run --print-config --dump-program --json --quiet -v --help --version --report --allow-change --threads-ranks' ;;
    ckpt) echo '--tensors --deep --tolerance --keep --json --quiet -v --help --version' ;;
    help) echo '--json --quiet -v --help --version' ;;
    '') echo '--json --quiet -v --help --version' ;;
    esac
}

_angel_actions() {
    case $1 in
    ckpt) echo 'inspect verify diff prune' ;;
    esac
}

_angel_argument() {
    case $1 in
    --set) echo '@setting' ;;
    --report) echo '@folder' ;;
    --allow-change) echo '@key' ;;
    --threads-ranks) echo '' ;;
    --tolerance) echo '' ;;
    --keep) echo '' ;;
    *) return 1 ;;
    esac
}

_angel_keys() {
    cat <<'END'
model
model.vocab
model.layers
model.hidden
model.heads
model.kv_heads
model.head_dim
model.ffn
model.act
model.norm
model.norm_eps
model.norm_plus_one
model.norm_order
model.position
model.max_positions
model.rope_theta
model.rope_scaling.type
model.rope_scaling.factor
model.rope_scaling.low_freq_factor
model.rope_scaling.high_freq_factor
model.rope_scaling.original_max_positions
model.rope_scaling.beta_fast
model.rope_scaling.beta_slow
model.rope_scaling.attention_factor
model.qk_norm
model.bias
model.tied
model.window
model.window_every
model.attn_softcap
model.final_softcap
model.embed_scale
model.attn_scale
model.init_std
data
data.train
data.valid
data.valid_fraction
data.tokenizer
data.seq_len
data.text_field
data.mask_documents
data.shuffle
train
train.steps
train.tokens
train.global_batch
train.micro_batch
train.seed
train.precision
train.optimizer.type
train.optimizer.lr
train.optimizer.betas
train.optimizer.eps
train.optimizer.weight_decay
train.optimizer.clip
train.optimizer.decay_norms
train.optimizer.decay_biases
train.optimizer.decay_embeddings
train.schedule.type
train.schedule.warmup
train.schedule.min_lr
train.schedule.decay_steps
train.nonfinite
train.spike_z
train.eval_every
train.eval_batches
train.threads
init
parallel
parallel.tp
parallel.pp
parallel.vpp
parallel.dp
parallel.zero
parallel.zero_accumulate
parallel.schedule
parallel.layers_per_stage
parallel.tp_comm
parallel.reductions
parallel.order
parallel.deadline_s
memory
memory.activations
memory.device
device
checkpoint
checkpoint.dir
checkpoint.every
checkpoint.keep
checkpoint.resume
log
log.every
log.jsonl
log.tensorboard
log.prometheus
log.monitor_every
END
}

_angel_values() {
    case $1 in
    model) echo '@yaml' ;;
    model.vocab) echo '' ;;
    model.layers) echo '' ;;
    model.hidden) echo '' ;;
    model.heads) echo '' ;;
    model.kv_heads) echo 'auto' ;;
    model.head_dim) echo 'auto' ;;
    model.ffn) echo '' ;;
    model.act) echo 'swiglu geglu gelu gelu_tanh' ;;
    model.norm) echo 'rmsnorm layernorm' ;;
    model.norm_eps) echo '' ;;
    model.norm_plus_one) echo 'true false' ;;
    model.norm_order) echo 'pre post sandwich residual' ;;
    model.position) echo 'rope learned none' ;;
    model.max_positions) echo 'auto' ;;
    model.rope_theta) echo '' ;;
    model.rope_scaling.type) echo 'none linear llama3 yarn' ;;
    model.rope_scaling.factor) echo '' ;;
    model.rope_scaling.low_freq_factor) echo '' ;;
    model.rope_scaling.high_freq_factor) echo '' ;;
    model.rope_scaling.original_max_positions) echo '' ;;
    model.rope_scaling.beta_fast) echo '' ;;
    model.rope_scaling.beta_slow) echo '' ;;
    model.rope_scaling.attention_factor) echo 'auto' ;;
    model.qk_norm) echo 'none head full' ;;
    model.bias) echo 'none qkv all' ;;
    model.tied) echo 'true false' ;;
    model.window) echo '' ;;
    model.window_every) echo '' ;;
    model.attn_softcap) echo '' ;;
    model.final_softcap) echo '' ;;
    model.embed_scale) echo '' ;;
    model.attn_scale) echo 'auto' ;;
    model.init_std) echo '' ;;
    data) echo '@yaml' ;;
    data.train) echo '@file' ;;
    data.valid) echo '@file' ;;
    data.valid_fraction) echo '' ;;
    data.tokenizer) echo 'bytes' ;;
    data.seq_len) echo '' ;;
    data.text_field) echo '' ;;
    data.mask_documents) echo 'true false' ;;
    data.shuffle) echo 'true false' ;;
    train) echo '@yaml' ;;
    train.steps) echo 'auto' ;;
    train.tokens) echo 'auto' ;;
    train.global_batch) echo '' ;;
    train.micro_batch) echo 'auto' ;;
    train.seed) echo '' ;;
    train.precision) echo 'fp32 bf16' ;;
    train.optimizer.type) echo 'adamw' ;;
    train.optimizer.lr) echo '' ;;
    train.optimizer.betas) echo '' ;;
    train.optimizer.eps) echo '' ;;
    train.optimizer.weight_decay) echo '' ;;
    train.optimizer.clip) echo '' ;;
    train.optimizer.decay_norms) echo 'true false' ;;
    train.optimizer.decay_biases) echo 'true false' ;;
    train.optimizer.decay_embeddings) echo 'true false' ;;
    train.schedule.type) echo 'cosine linear constant wsd' ;;
    train.schedule.warmup) echo 'auto' ;;
    train.schedule.min_lr) echo 'auto' ;;
    train.schedule.decay_steps) echo 'auto' ;;
    train.nonfinite) echo 'skip stop' ;;
    train.spike_z) echo '' ;;
    train.eval_every) echo '' ;;
    train.eval_batches) echo '' ;;
    train.threads) echo 'auto' ;;
    init) echo '@file' ;;
    parallel) echo '@yaml' ;;
    parallel.tp) echo 'auto' ;;
    parallel.pp) echo 'auto' ;;
    parallel.vpp) echo 'auto' ;;
    parallel.dp) echo 'auto' ;;
    parallel.zero) echo 'auto' ;;
    parallel.zero_accumulate) echo 'local sharded' ;;
    parallel.schedule) echo 'auto 1f1b interleaved zb' ;;
    parallel.layers_per_stage) echo 'auto' ;;
    parallel.tp_comm) echo 'fp32 bf16' ;;
    parallel.reductions) echo 'ordered fast' ;;
    parallel.order) echo 'auto' ;;
    parallel.deadline_s) echo 'auto' ;;
    memory) echo '@yaml' ;;
    memory.activations) echo 'keep selective recompute auto' ;;
    memory.device) echo 'auto' ;;
    device) echo 'auto cpu' ;;
    checkpoint) echo '@yaml' ;;
    checkpoint.dir) echo 'auto @file' ;;
    checkpoint.every) echo '' ;;
    checkpoint.keep) echo '' ;;
    checkpoint.resume) echo 'auto @file' ;;
    log) echo '@yaml' ;;
    log.every) echo '' ;;
    log.jsonl) echo 'auto @file' ;;
    log.tensorboard) echo '@file' ;;
    log.prometheus) echo '@file' ;;
    log.monitor_every) echo '' ;;
    esac
}

# Words, or files of a kind, that begin with $1. A reply follows $2, which
# readline has already.
_angel_reply() { # begin, words ...
    local begin=$1 word plain=()
    shift
    for word in "$@"; do
        case $word in
        @file) COMPREPLY+=($(compgen -f -- "$begin")) ;;
        @folder) COMPREPLY+=($(compgen -d -- "$begin")) ;;
        @yaml)
            COMPREPLY+=($(compgen -d -- "$begin")
                $(compgen -f -X '!*.yaml' -- "$begin")
                $(compgen -f -X '!*.yml' -- "$begin"))
            ;;
        *) plain+=("$word") ;;
        esac
    done
    case " $* " in
    *' @'*) compopt -o filenames 2>/dev/null ;;
    esac
    COMPREPLY+=($(compgen -W "${plain[*]}" -- "$begin"))
}

# key=value in $1: keys, or what may follow the equals sign.
_angel_setting() {
    local value=${1#*=}
    if [ "$value" = "$1" ]; then
        compopt -o nospace 2>/dev/null
        COMPREPLY+=($(compgen -S = -W "$(_angel_keys)" -- "$1"))
        return
    fi
    _angel_reply "$value" $(_angel_values "${1%%=*}")
    case $COMP_WORDBREAKS in
    *=*) ;;
    *) COMPREPLY=("${COMPREPLY[@]/#/${1%%=*}=}") ;;
    esac
}

_angel() {
    local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT} cur words word
    local command='' actions='' before='' argument
    COMPREPLY=()
    cur=${line##*[[:space:]]}
    read -ra words <<<"${line%"$cur"}"
    for word in "${words[@]:1}"; do
        before=$word
        case " $(_angel_commands) " in
        *" $word "*) command=${command:-$word} ;;
        esac
    done
    case $cur in
    --set=*) cur=${cur#--set=} before=--set ;;
    --report=*) cur=${cur#--report=} before=--report ;;
    --allow-change=*) cur=${cur#--allow-change=} before=--allow-change ;;
    esac
    if argument=$(_angel_argument "$before"); then
        case $argument in
        @setting) _angel_setting "$cur" ;;
        @key) _angel_reply "$cur" $(_angel_keys) ;;
        *) _angel_reply "$cur" $argument ;;
        esac
        return
    fi
    case $command:$cur in
    *:-*) _angel_reply "$cur" $(_angel_options "$command") ;;
    :*) _angel_reply "$cur" $(_angel_commands) ;;
    help:*)
        case $before in
        help) _angel_reply "$cur" $(_angel_commands) options ;;
        options) _angel_reply "$cur" $(_angel_keys) ;;
        esac
        ;;
    *)
        actions=$(_angel_actions "$command")
        if [ -n "$actions" ]; then
            [ "$before" != "$command" ] || _angel_reply "$cur" $actions
            [ "$before" = "$command" ] || _angel_reply "$cur" @folder
            return
        fi
        _angel_setting "$cur"
        case $cur in
        *=*) ;;
        *) _angel_reply "$cur" @yaml ;;
        esac
        ;;
    esac
}

complete -F _angel angel
