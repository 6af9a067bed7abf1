"""One module a command of ``drivert``: HELP, EXAMPLES, add_arguments(parser), execute(args)."""
