#!/usr/bin/env python3
"""messages.py ROOT: the program does not search its own messages.

The text of an error is for users. Code that has to know the reason of a failure reads the status, the key or the stage of
struct epa_error, or its awaited ranks; a search in the text breaks with the next change of a word. The check also finds a
search, or a look at a character, by a local pointer to the text, and by a function of the same file that gets the text."""
import re
import sys

import sources

TEXT = r"(?<![\w.>])(?:\w+(?:\.|->))*(?:\w*err|error|why|failed|found|cause|reason)(?:\.|->)(?:last\.)?text"
# A local pointer to the text of an error: `const char *why = err->text;`, also behind other variables of the declaration.
POINTER = re.compile(rf"\b(\w+) = {TEXT}\s*[;,]")
END = re.compile(r"^}", re.M)  # of a function
FUNCTION = re.compile(r"^[\w *]*\b(\w+)\(([^()]*)\)\n\{", re.M)


def search_in(text):
    """Returns the pattern of a search in `text`, which is a pattern itself."""
    return rf'\b(?:strstr|strcasestr|strchr|strpbrk|memmem|fnmatch|sscanf|strncmp|strncasecmp|memcmp)\({text}\b|' \
           rf'\bstr(?:case)?cmp\({text}, *(?:"|strerror)'


SEARCH = re.compile(search_in(TEXT))


def split_arguments(code, at):
    """Returns the arguments of the call whose parenthesis ends before `at`."""
    arguments, depth, begin = [], 0, at
    for i in range(at, len(code)):
        if depth == 0 and code[i] in ",)":
            arguments.append(code[begin:i].strip())
            begin = i + 1
            if code[i] == ")":
                break
        depth += (code[i] in "([{") - (code[i] in ")]}")
    return arguments


def find_calls_that_search(code):
    """Yields the positions of calls that pass the text of an error to a function that searches this parameter."""
    for function in FUNCTION.finditer(code):
        end = END.search(code, function.end())
        body = code[function.end():end.start() if end else len(code)]
        for n, parameter in enumerate(function.group(2).split(",")):
            name = re.fullmatch(r"\s*const char \*(\w+)", parameter)
            if name is None or not re.search(rf"{search_in(name.group(1))}|\b{name.group(1)}\[", body):
                continue
            for call in re.compile(rf"\b{function.group(1)}\(").finditer(code):
                arguments = split_arguments(code, call.end())
                if n < len(arguments) and re.fullmatch(TEXT, arguments[n]):
                    yield call.start()


def find_searches(code):
    """Yields the positions of searches in texts of errors."""
    for call in SEARCH.finditer(code):
        yield call.start()
    yield from find_calls_that_search(code)
    for pointer in POINTER.finditer(code):
        name, end = re.escape(pointer.group(1)), END.search(code, pointer.end())
        body = code[:end.start() if end else len(code)]
        for use in re.compile(rf"{search_in(name)}|\b{name}\[").finditer(body, pointer.end()):
            yield use.start()


def main(root):
    checked, wrong = 0, []
    for file in sources.read_tree(root):
        if file.path.parts[0] not in ("src", "plugins") or file.suffix not in sources.C:
            continue
        checked += 1
        code = file.code()
        wrong += [f"{file.path}:{code.count(chr(10), 0, at) + 1}: searches the text of an error; use its status, key, stage or awaited ranks"
                  for at in sorted(set(find_searches(code)))]
    for message in wrong:
        print(message)
    print(f"{checked} files, {len(wrong)} searches in messages")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
