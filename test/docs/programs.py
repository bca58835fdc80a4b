#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What programs say of themselves and what is written about them is the same.

programs.py PROGRAM...: the options that --help lists are those that the manual page and the
completions for bash and zsh know, and the other way round; --version prints a name and a number; an
option that is not there ends with 2; for daemons, what --print-config prints passes --check-config.
Skipped (77) while a program is not built.
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LONG = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def page_of(name):
    folder = os.path.join(ROOT, "man")
    return next(f"man/{page}" for page in os.listdir(folder) if page in (f"{name}.8", f"{name}.1"))


def bash_offers(program, words, word):
    """What bash offers for the last word of a command line, asked from bash itself."""
    function = {"icms": "_icms", "icms-etcd": "_icms_etcd"}.get(program, "_icms_daemon")
    script = (f'. "{ROOT}/deploy/completion/icms.bash"; COMP_WORDS=({program} {words} "{word}"); '
              f'COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); '
              f'{function} {program} "{word}" "${{COMP_WORDS[COMP_CWORD - 1]}}"; '
              f'printf "%s\\n" "${{COMPREPLY[@]}}"')
    return set(run("bash", "-c", script).stdout.split())


def options_offered(program, words=""):
    return {word[2:] for word in bash_offers(program, words, "--")}


def options_written(name):
    """Options that the manual page describes."""
    return {option for line in read(page_of(name)).splitlines() if line.startswith(".It Fl")
            for option in re.findall(r"Fl \\-([a-z-]+)", line)}


def compare(say, told, known, what):
    for option in sorted(told ^ known):
        say(f"--{option} is in {'--help' if option in told else what} and not in "
            f"{what if option in told else '--help'}")


def check_client(path, say):
    """Every command of icms."""
    zsh = read("deploy/completion/icms.zsh").split("_icms() {")[1].split("_icms_etcd() {")[0]
    commands = set(re.findall(r"^  (\w+) ", run(path, "--help").stdout, re.M))
    compare(say, commands, bash_offers("icms", "", ""), "bash completion")
    compare(say, commands, set(re.findall(r"^        '(\w+):", zsh, re.M)), "zsh completion")
    compare(say, commands, set(re.findall(r"^\.It Cm (\w+)$", read("man/icms.1"), re.M)),
            "its manual page")
    every = set()
    for command in sorted(commands - {"help", "version"}):
        told = set(LONG.findall(run(path, command, "--help").stdout))
        every |= told
        compare(say, told, options_offered("icms", command), f"bash completion of {command}")
        if run(path, command, "--no-such-option").returncode != 2:
            say(f"{command}: an unknown option does not end with 2")
    written = options_written("icms")
    for command in commands: # some have a page of their own
        if os.path.exists(os.path.join(ROOT, f"man/icms-{command}.1")):
            written |= options_written(f"icms-{command}")
    compare(say, every, written, "its manual pages")
    compare(say, every, set(LONG.findall(zsh)), "zsh completion")


def check_daemon(path, name, say):
    told = set(LONG.findall(run(path, "--help").stdout))
    zsh = set(LONG.findall(read("deploy/completion/icms.zsh").split("_icms() {")[0]))
    if name != "icms-target":
        zsh.discard("format")
    compare(say, told, options_written(name), "its manual page")
    compare(say, told, options_offered(name), "bash completion")
    compare(say, told, zsh, "zsh completion")
    example = run(path, "--print-config").stdout
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(example)
        file.flush()
        checked = run(path, "--check-config", "--config", file.name)
        if checked.returncode != 0:
            say(f"its own example is refused: {checked.stderr.strip()}")
        file.write("nonsense: 1\n")
        file.flush()
        checked = run(path, "--check-config", "--config", file.name)
        if checked.returncode != 2 or file.name + ":" not in checked.stderr:
            say(f"a wrong file is answered with {checked.returncode}: {checked.stderr.strip()}")


def check_etcd(path, name, say):
    told = set(LONG.findall(run(path, "--help").stdout))
    compare(say, told, options_written(name), "its manual page")
    compare(say, told, options_offered(name), "bash completion")
    compare(say, told, set(LONG.findall(read("deploy/completion/icms.zsh").split("_icms_etcd() {")[1])),
            "zsh completion")


def main():
    wrong, missing = [], []
    for path in sys.argv[1:]:
        name = os.path.basename(path)
        if not os.path.exists(path):
            missing.append(name)
            continue

        def say(text, name=name):
            wrong.append(f"{name}: {text}")
        version = run(path, "--version")
        if version.returncode != 0 or not re.fullmatch(rf"{name} \d+\.\d+\.\d+\n", version.stdout):
            say(f"--version says {version.stdout!r}")
        if run(path, "--no-such-option").returncode != 2:
            say("an unknown option does not end with 2")
        if run(path, "--help").returncode != 0:
            say("--help does not end with 0")
        if name == "icms":
            check_client(path, say)
        elif name == "icms-etcd":
            check_etcd(path, name, say)
        else:
            check_daemon(path, name, say)
    for line in wrong:
        print(line, file=sys.stderr)
    if missing and not wrong:
        print("not built: " + " ".join(missing))
    sys.exit(1 if wrong else 77 if missing else 0)


main()
