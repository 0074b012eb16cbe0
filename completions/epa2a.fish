# fish completion for epa2a. `epa2a __complete` prints the candidates from the tables of the
# program.

function __epa2a_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set word (string replace -ra '[\'"\\\\]' '' -- $word)
    set words[1] (string replace -r '^~' $HOME -- $words[1])
    for line in ($words[1] __complete $words[2..-1] "$word" 2>/dev/null)
        switch $line
            case ':files*' ':folders*'
                set -l parts (string split ' ' -- $line)
                set -l before (string sub -l $parts[2] -- $word)
                set -l name (string sub -s (math $parts[2] + 1) -- $word)
                for path in (__fish_complete_path $name)
                    set -l file (string split -m 1 \t -- $path)[1]
                    if string match -q '*/' -- $file
                        printf '%s%s\n' "$before" $file
                    else if test $parts[1] = :files
                        if not set -q parts[3]
                            or string match -qr '\.('(string join '|' $parts[3..-1])')$' -- $file
                            printf '%s%s\n' "$before" $file
                        end
                    end
                end
            case '*'
                echo $line
        end
    end
end

complete -c epa2a -f -a '(__epa2a_complete)'
