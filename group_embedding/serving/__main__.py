"""`python -m group_embedding.serving COMMAND`; with options, as `--model NAME=PATH`, the server."""

import argparse
import importlib
import sys

from group_embedding.serving import server

# {command: (module, its function that adds the command's arguments, help)}. The function sets
# `run`, a function of the parsed options that returns the exit status.
_VERSIONS = "serving.versions.versions_command"
COMMANDS = {
    "from-hps": (
        *("compat.hps", "add_from_hps"),
        "the models and the server of HugeCTR's HPS",
    ),
    "inspect": (_VERSIONS, "add_inspect", "the versions of a target"),
    "verify": (_VERSIONS, "add_verify", "read all files; exit status 1 if one is damaged"),
    "load": (
        *("serving.session.load_command", "add_load"),
        "fill the tiers below memory before a server starts",
    ),
    "mirror": ("serving.mirror.mirror_command", "add_mirror", "copies versions as they come"),
    "quantize": (
        *("serving.versions.quantize_command", "add_quantize"),
        "a SavedModel whose rows take fewer bytes",
    ),
    "rollback": (_VERSIONS, "add_rollback", "go back to an older version"),
}


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    is_option = arguments[:1] and arguments[0].startswith("--") and arguments[0] != "--help"
    if arguments[:1] == ["serve"] or is_option:
        return server.main(arguments[arguments[0] == "serve" :])
    parser = argparse.ArgumentParser(prog="python -m group_embedding.serving", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("serve", help="the server: its arguments are those of ge-serve")
    for name, (module, function, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        found = importlib.import_module(f"group_embedding.{module}")
        getattr(found, function)(command)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
