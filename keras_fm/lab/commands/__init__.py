"""The commands of `keras-fm`, one file each.

A command is a module with `NAME`, `SUMMARY` (a line of the usage text),
`WORDS` (its help), `define(values)` (its absl flags) and `run(values, rest)`
(the work; returns the exit status). `POSITIONAL`, where it has one, names what
may follow the flags; `ALONE` is true where it needs no Keras. Nothing heavy is
imported before `run`.
"""

from keras_fm.lab.commands import (
    audit,
    compare,
    compose,
    doctor,
    ledger,
    report,
    reproduce,
    schema,
    verify,
)

COMMANDS = {
    c.NAME: c
    for c in (
        compare,
        schema,
        reproduce,
        compose,
        audit,
        report,
        ledger,
        verify,
        doctor,
    )
}
