# bash completion for epa2a. Candidates come from `epa2a __complete`, so from the program's own
# tables; here they are only handed on. Needs no bash-completion, but is loaded by it.

# Words as the shell will see them, up to the cursor, to `words`: readline also splits at the
# characters of COMP_WORDBREAKS, = among them.
_epa2a_words() {
    local i text=${COMP_LINE:0:COMP_POINT} rest part glued=
    rest=$text
    words=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        part=${COMP_WORDS[i]}
        if [[ $rest == [[:space:]]* ]]; then
            rest=${rest#"${rest%%[![:space:]]*}"}
            glued=
        fi
        if ((i == COMP_CWORD)); then
            part=$rest # what is behind the cursor does not count
        else
            rest=${rest#"$part"}
        fi
        if [[ $glued ]]; then
            words[${#words[@]} - 1]+=$part
        else
            words+=("$part")
        fi
        glued=1
    done
}

_epa2a() {
    local IFS=$' \t\n' words line word cut kind='' rest bytes name end
    local -a candidates=()
    _epa2a_words
    COMPREPLY=()
    words=("${words[@]//[\'\"\\]/}") # quotes are the shell's and not the program's
    word=${words[${#words[@]} - 1]}
    # What readline takes for the start of the word is not in its candidates.
    cut=
    [[ $COMP_WORDBREAKS == *=* ]] && cut+='='
    [[ $COMP_WORDBREAKS == *:* ]] && cut+=':'
    [[ ${COMP_WORDS[COMP_CWORD]} == [\'\"]* ]] && cut=
    [[ $cut ]] && cut=${word%"${word##*["$cut"]}"}
    while IFS= read -r line; do
        case $line in
            :files* | :folders*)
                IFS=' ' read -r kind bytes rest <<<"$line"
                name=${word:bytes}
                while IFS= read -r name; do
                    end=${name##*.}
                    if [[ -d ${name/#\~/$HOME} || $kind == :files &&
                        (-z $rest || " $rest " == *" $end "*) ]]; then
                        candidates+=("${word:0:bytes}$name")
                    fi
                done < <(compgen -f -- "$name")
                compopt -o filenames 2>/dev/null
                ;;
            ?*) candidates+=("${line%%$'\t'*}") ;;
        esac
    done < <("${words[0]/#\~/$HOME}" __complete "${words[@]:1}" 2>/dev/null)
    for line in "${candidates[@]}"; do
        word=${line#"$cut"}
        if [[ $kind != :* && $word == *[^A-Za-z0-9_.,:=/+@%-]* &&
            ${COMP_WORDS[COMP_CWORD]} != [\'\"]* ]]; then
            printf -v word %q "$word" # of files' names readline does that
        fi
        COMPREPLY+=("$word")
        [[ $line == *[=.] && ! -e $line ]] && compopt -o nospace 2>/dev/null
    done
}

complete -F _epa2a epa2a
