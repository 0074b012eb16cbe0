#!/usr/bin/env python3
"""trust.py EPA2A PLUGIN: whose plugins are loaded. PLUGIN is a transport that leaves a mark when its code runs.

Needs root, to give files to users, and mount namespaces, to give these users names and groups of their own."""
import os
import pathlib
import re
import re
import shutil
import struct
import subprocess
import sys
import tempfile

EPA2A, PLUGIN = (os.path.realpath(arg) for arg in sys.argv[1:3])
ME, SOFT, OTHER, TEAM = 54321, 54322, 54323, 54400

NAMED = {"passwd": f"root:x:0:0::/:/bin/sh\nme:x:{ME}:{ME}::/:/bin/sh\nsoft:x:{SOFT}:{SOFT}::/:/bin/sh\nother:x:{OTHER}:{OTHER}::/:/bin/sh\n",
         "group": f"root:x:0:\nme:x:{ME}:\nsoft:x:{SOFT}:\nother:x:{OTHER}:\nteam:x:{TEAM}:me\n"}
SHARED = {**NAMED, "group": NAMED["group"].replace(f"me:x:{ME}:", f"me:x:{ME}:me,other")}
FIRST = {**NAMED, "passwd": NAMED["passwd"].replace(f":{OTHER}:{OTHER}:", f":{OTHER}:{ME}:")}
RENAMED = {**NAMED, "group": NAMED["group"].replace(f"team:x:{TEAM}:me", f"users:x:{TEAM}:").replace(f"me:x:{ME}:", f"mine:x:{TEAM + 1}:")}
OWN_NUMBER = {**NAMED, "group": NAMED["group"].replace(f"me:x:{ME}:", "").replace(f"team:x:{TEAM}:me", f"me:x:{TEAM}:me")}

# (why, user of the process, owner of the program, owner and group and mode of the plugin and its folder, names, words of the refusal or "")
CASES = [
    ("own", ME, 0, ME, ME, 0o755, None, ""),
    ("root's", ME, 0, 0, 0, 0o755, None, ""),
    ("another user's", ME, 0, OTHER, OTHER, 0o755, None, f"belongs to user {OTHER}"),
    ("another user's, by name", ME, 0, OTHER, OTHER, 0o755, NAMED, f"belongs to user {OTHER} (other)"),
    ("the program's", ME, SOFT, SOFT, SOFT, 0o755, None, ""),
    ("not the program's", ME, SOFT, OTHER, SOFT, 0o755, None, f"belongs to user {OTHER}"),
    ("a user's tree, run by root", 0, ME, ME, ME, 0o755, None, ""),
    ("own program, plugin of another user", ME, ME, OTHER, ME, 0o755, None, f"belongs to user {OTHER}"),
    ("umask 002, no names", ME, ME, ME, ME, 0o775, None, ""),
    ("umask 002", ME, ME, ME, ME, 0o775, NAMED, ""),
    ("umask 002, a group of the name with another number", ME, ME, ME, TEAM, 0o775, OWN_NUMBER, ""),
    ("umask 002, the program's owner", ME, SOFT, SOFT, SOFT, 0o775, NAMED, ""),
    ("umask 002, run by root", 0, ME, ME, ME, 0o775, NAMED, ""),
    ("umask 000", ME, ME, ME, ME, 0o777, NAMED, "chmod o-w"),
    ("a group of several", ME, ME, ME, TEAM, 0o775, NAMED, "chmod g-w"),
    ("a group of several, with its number only", ME, ME, ME, TEAM, 0o775, None, "chmod g-w"),
    ("another user's private group", ME, ME, ME, OTHER, 0o775, NAMED, "chmod g-w"),
    ("own group with another member", ME, ME, ME, ME, 0o775, SHARED, "chmod g-w"),
    ("own group, the first one of another user", ME, ME, ME, ME, 0o775, FIRST, "chmod g-w"),
    ("a first group of another name", ME, ME, ME, TEAM, 0o775, RENAMED, "chmod g-w"),
]


def run(top, user, names, *command, namespace=()):
    """Returns the message about the plugin, and whether its code ran."""
    mark = f"{top}/mark/ran"
    mounts = "".join(f"mount --bind {top}/{name} /etc/{name}; " for name in names or {})
    shell = f'{mounts}exec "$@"'
    for name, text in (names or {}).items():
        pathlib.Path(top, name).write_text(text, "ascii")
    under = ["unshare", "-m", "sh", "-c", shell, "sh", "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *namespace]
    done = subprocess.run([*under, *command], env={"PATH": os.environ["PATH"], "EPA2A_TEST_MARK": mark}, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    ran = os.path.exists(mark)
    if ran:
        os.remove(mark)
    return re.sub(r"\n +", " ", done.stdout), ran  # list folds long lines


def make(top, program_owner, owner, group, mode):
    os.chmod(top, 0o755)
    for folder in ("bin", "p", "mark"):
        os.makedirs(f"{top}/{folder}")
    os.chmod(f"{top}/mark", 0o777)
    shutil.copy(EPA2A, f"{top}/bin/epa2a")
    os.chown(f"{top}/bin/epa2a", program_owner, program_owner)
    shutil.copy(PLUGIN, f"{top}/p/")
    for path in (f"{top}/p", f"{top}/p/{os.path.basename(PLUGIN)}"):
        os.chown(path, owner, group)
        os.chmod(path, mode)


def check(why, text, ran, refused):
    assert ran == (refused == "") and refused in text, f"{why}: {'loaded' if ran else 'not loaded'}: {text[-700:]}"


if os.geteuid() != 0 or not shutil.which("setpriv") or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
    print("needs root, setpriv and mount namespaces")
    sys.exit(77)
for why, user, program, owner, group, mode, names, refused in CASES:
    with tempfile.TemporaryDirectory(prefix="epa2a-trust-") as top:
        make(top, program, owner, group, mode)
        text, ran = run(top, user, names, f"{top}/bin/epa2a", "list", "transport", "--plugin-path", f"{top}/p")
        check(why, text, ran, refused)
# The group bits contain the mask of an access control list.
with tempfile.TemporaryDirectory(prefix="epa2a-trust-") as top:
    make(top, ME, ME, ME, 0o755)
    entries = [(1, 7, -1), (2, 7, OTHER), (4, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]  # user, a named user, group, mask, others
    try:
        os.setxattr(f"{top}/p", "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries))
    except OSError as error:
        print(f"no access control lists here: {error}")
    else:
        text, ran = run(top, ME, NAMED, f"{top}/bin/epa2a", "list", "transport", "--plugin-path", f"{top}/p")
        check("an access control list", text, ran, "setfacl -b")
# Namespaces that map only this user, or none: / and all files of root belong to 65534.
for how, program, owner, refused in ((["--map-user", str(ME), "--map-group", str(ME)], ME, ME, ""), ([], ME, ME, ""),
                                     (["--map-user", str(ME), "--map-group", str(ME)], 0, 0, ""),
                                     (["--map-user", str(ME), "--map-group", str(ME)], ME, OTHER, "belongs to user 65534")):
    with tempfile.TemporaryDirectory(prefix="epa2a-trust-") as top:
        make(top, program, owner, owner, 0o755)
        text, ran = run(top, ME, None, f"{top}/bin/epa2a", "list", "transport", "--plugin-path", f"{top}/p", namespace=["unshare", "-U", *how])
        if "unshare" in text and "Operation not permitted" in text:
            print("no user namespaces here")
            break
        check(f"user namespace {how}, program of {program}, plugin of {owner}", text, ran, refused)
# The id 65534 outside a namespace is an ordinary user.
with tempfile.TemporaryDirectory(prefix="epa2a-trust-") as top:
    make(top, ME, ME, ME, 0o755)
    os.chown(top, 65534, 65534)
    text, ran = run(top, ME, None, f"{top}/bin/epa2a", "list", "transport", "--plugin-path", f"{top}/p")
    check("a folder above of user 65534", text, ran, "belongs to user 65534")
print(f"{len(CASES)} cases of owners, groups and modes")
