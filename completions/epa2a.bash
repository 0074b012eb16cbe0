# bash completion for epa2a. The candidates are those that `epa2a __complete` prints from the
# tables of the program. bash-completion is optional and loads this file.

# Splits the line up to the cursor into the words of the shell, stored in `words`: readline also
# splits at the characters of COMP_WORDBREAKS, including =.
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
            part=$rest # ignores text behind the cursor
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
    words=("${words[@]//[\'\"\\]/}") # removes quotes
    word=${words[${#words[@]} - 1]}
    # Candidates lack the part before the start of the word for readline.
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
            printf -v word %q "$word" # readline quotes only file names
        fi
        COMPREPLY+=("$word")
        # A list that is not closed continues.
        [[ ($line == *[=.] || $line == *=\[* && $line != *\]*) && ! -e $line ]] && compopt -o nospace 2>/dev/null
    done
}

complete -F _epa2a epa2a
