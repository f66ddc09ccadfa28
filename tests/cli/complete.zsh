# What zsh makes of a line and a tab, in a terminal of its own.
#
#   zsh -f complete.zsh FOLDER_OF_SCRIPTS SCRATCH_FOLDER LINE WANTED
zmodload zsh/zpty
setopt extendedglob
zpty -b z zsh -f -i

got=
wait_for() { # text: reads until it is there, 5 s at most
    local i out
    for i in {1..100}; do
        while zpty -r -t z out; do got+=$out; done
        got=${got//($'\e['[0-9;?]#[a-zA-Z]|$'\a')/} # bells and colours
        [[ $got == *$1* ]] && return
        sleep 0.05
    done
    print -r -- "no '$1' in: ${(V)got}"
    exit 1
}

zpty -w z "fpath=($1 \$fpath); autoload -U compinit; compinit -u -d $2/dump; cd $2; \
PS1='rea''dy>'"
wait_for 'ready>'
got=
zpty -w -n z "$3"$'\t'
wait_for "$4"
