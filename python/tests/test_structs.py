"""The structs of ctypes and the header of the library agree.

$EPA2A_HEADER is the path of epa2a.h; $CC is the compiler."""

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import support
from epa2a import structs

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HEADER = os.environ.get("EPA2A_HEADER", os.path.join(ROOT, "include", "epa2a.h"))
CONSTANTS = {
    "EPA2A_VERSION": structs.VERSION,
    "EPA2A_HOST": structs.HOST,
    **{f"EPA2A_{n}": getattr(structs, n) for n in ("F32", "BF16", "FP8_E4M3", "F16", "INT8")},
    **{
        f"EPA2A_{n}": getattr(structs, n)
        for n in ("EXPERT_PADDED", "EXPERT_PACKED", "RANK_PACKED", "RANK_PADDED")
    },
    **{
        f"EPA2A_{n}": getattr(structs, n)
        for n in ("RECV_NATIVE", "RECV_FP8", "SCALE_POW2", "SCALE_UE8M0", "SCALE_BY_GROUP", "COMBINE_LOGFMT")
    },
}
COMPILER = shlex.split(os.environ.get("CC", "cc"))
if shutil.which(COMPILER[0]) is None:
    support.skip(f"there is no C compiler {COMPILER[0]}")


def declared():
    """Returns the header without comments."""
    with open(HEADER, encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)


def compile_and_run(lines):
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "a.c"), os.path.join(folder, "a")
        with open(source, "w", encoding="utf-8") as file:
            file.write('#include "epa2a.h"\n#include <stdio.h>\nint main(void)\n{\n')
            file.writelines(f"    {line}\n" for line in lines)
            file.write("    return 0;\n}\n")
        folder_of_header = os.path.dirname(os.path.abspath(HEADER))
        subprocess.run([*COMPILER, "-I", folder_of_header, source, "-o", program], check=True)
        out = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return dict(line.rsplit(" ", 1) for line in out.splitlines())


class Structs(unittest.TestCase):
    def test_sizes_offsets_and_constants(self):
        lines, wanted = [], {}

        def add(name, expression, value):
            lines.append(f'printf("{name} %lld\\n", (long long)({expression}));')
            wanted[name] = str(value)

        for struct in structs.ALL:
            c = f"struct {struct.c_name}"
            add(c, f"sizeof({c})", ctypes.sizeof(struct))
            for field in struct._fields_:
                at = getattr(struct, field[0])
                add(f"{c}.{field[0]}", f"offsetof({c}, {field[0]})", at.offset)
                add(f"{c}.{field[0]} bytes", f"sizeof((({c} *)0)->{field[0]})", at.size)
        for name, value in CONSTANTS.items():
            add(name, name, value)
        self.assertEqual(compile_and_run(lines), wanted)

    def test_packed_structs_have_the_fields(self):
        for struct in (structs.Tokens, structs.Outputs):
            arguments, fields = [], {}
            for name, kind in struct._fields_[1:]:
                n = getattr(kind, "_length_", 1)
                values = [len(arguments) + i + 1 for i in range(n)]
                fields[name] = values if n > 1 else values[0]
                arguments += values
            found = struct.from_buffer_copy(structs.packer(struct)(*arguments))
            self.assertEqual(found.size, ctypes.sizeof(struct))
            for name, value in fields.items():
                field = getattr(found, name)
                self.assertEqual(list(field) if isinstance(value, list) else field, value, name)

    def test_every_struct_with_a_size_is_bound(self):
        found = re.findall(r"struct (\w+) \{\s*size_t size;", declared())
        self.assertEqual(sorted(found), sorted(s.c_name for s in structs.ALL))

    def test_every_function_is_bound_with_its_number_of_arguments(self):
        text = declared()
        found = {}
        for name, arguments in re.findall(
            r"^EPA2A_(?:API|EXPORT)\s[^;{(]*?\b(epa2a_\w+)\(((?:[^()]|\([^()]*\))*)\)\s*;", text, flags=re.M
        ):
            flat = re.sub(r"\([^()]*\)", "", arguments)
            found[name] = 0 if arguments.strip() == "void" else flat.count(",") + 1
        bound = {name: len(args) for name, (_, args) in structs.FUNCTIONS.items()}
        self.assertEqual(found, bound)

    def test_statuses_have_classes(self):
        from epa2a import errors, library

        names = dict(re.findall(r"(EPA2A_ERR_\w+) = (-\d+)", declared()))
        for name, value in names.items():
            error = errors.from_status(int(value), "text")
            self.assertEqual(error.status, name)
            self.assertEqual(library.load().epa2a_status_name(int(value)).decode(), name)


if __name__ == "__main__":
    support.main()
