#compdef epa2a
# zsh completion for epa2a. Candidates come from `epa2a __complete`, so from the program's own
# tables; here they are only handed on.

_epa2a() {
    local -a lines full open
    local line name help bytes ends files=
    lines=("${(@f)$(_call_program epa2a-words $words[1] __complete \
        ${(q)${(@Q)words[2,CURRENT - 1]}} ${(q)${(Q)PREFIX}} 2>/dev/null)}")
    for line in $lines; do
        case $line in
            :files*)
                files=1
                bytes=${${(s: :)line}[2]}
                ends=(${${(s: :)line}[3,-1]})
                ;;
            :folders*)
                compset -p ${${(s: :)line}[2]}
                _files -/
                return
                ;;
            ?*)
                name=${line%%$'\t'*} help=${line#*$'\t'}
                name=${name//:/\\:}${help:+:$help}
                # A list that is not closed continues.
                if [[ ${line%%$'\t'*} == (*[=.]|*=\[[^]]#) ]]; then
                    open+=($name)
                else
                    full+=($name)
                fi
                ;;
        esac
    done
    local found=1
    (($#full)) && _describe -t words epa2a full && found=0
    (($#open)) && _describe -t keys key open -S '' && found=0
    if [[ $files ]]; then
        compset -p $bytes
        if (($#ends)); then
            _path_files -g "*.(${(j:|:)ends})(-.) *(-/)" && found=0
        else
            _files && found=0
        fi
    fi
    return found
}

if [[ $funcstack[1] == _epa2a ]]; then
    _epa2a "$@"
else
    compdef _epa2a epa2a # when sourced or evaluated
fi
