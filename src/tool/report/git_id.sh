#!/bin/sh
# git_id.sh SOURCE OUTPUT DEPFILE: writes the header that names the commit of the build, such as
# "7e9ccca8dc59" or "7e9ccca8dc59-dirty"; "" without git or a repository. The depfile lists the files
# that decide the text: the files of git that name the commit, and all tracked files. So ninja runs
# the script only after one of them has changed, and an unchanged tree has nothing left to build.
set -eu
source=$1 output=$2 depfile=$3

# Without optional locks, `git status` does not write the index.
run_git() { git --no-optional-locks -C "$source" "$@" 2>/dev/null; }

# An update of the branch changes logs/HEAD or the file of the branch.
list_inputs() {
    for name in HEAD logs/HEAD packed-refs "$(run_git symbolic-ref -q HEAD || echo HEAD)"; do
        file=$(run_git rev-parse --git-path "$name")
        [ "${file#/}" != "$file" ] || file=$source/$file
        [ ! -f "$file" ] || echo "$file"
    done
    run_git -c core.quotePath=false ls-files | while IFS= read -r name; do
        [ ! -f "$source/$name" ] || echo "$source/$name"
    done
}

id=$(run_git rev-parse --short=12 HEAD) || id=
inputs=
if [ -n "$id" ]; then
    [ -z "$(run_git status --porcelain --untracked-files=no)" ] || id=$id-dirty
    inputs=$(list_inputs | sed 's/[ #]/\\&/g; s/\$/$$/g')
fi
printf '%s: %s\n' "$output" "$(printf '%s' "$inputs" | tr '\n' ' ')" >"$depfile"
printf '/* The commit of the sources; "" without a repository. */\n#define EPA2A_GIT "%s"\n' "$id" >"$output.new"
if cmp -s "$output.new" "$output"; then # the unchanged time of the header spares a compilation
    rm "$output.new"
else
    mv "$output.new" "$output"
fi
