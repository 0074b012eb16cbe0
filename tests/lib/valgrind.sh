#!/bin/sh
# valgrind.sh PYTHON EXAMPLE.PY DISPATCH_COMBINE EXAMPLE...: valgrind finds no wrong access and no lost memory
# in the examples, with 2 ranks each. Exits with 77 without valgrind.
set -eu
python=$1 start=$2 dispatch_combine=$3
shift 3
if ! command -v valgrind >/dev/null; then
    echo "SKIP: there is no valgrind (Debian: valgrind)"
    exit 77
fi
memcheck='valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite'
for example; do
    $memcheck "$example"
done
# shellcheck disable=SC2086 # words of a command
"$python" "$start" "$dispatch_combine" 2 $memcheck
