"""The commands of `keras-fm`, one file each.

A command is a module with `NAME`, `SUMMARY` (a line of the usage text),
`WORDS` (its help), `define(values)` (its absl flags) and `run(values, rest)`
(the work; returns the exit status). `check(values, rest)`, where it has one,
refuses what is seen to be wrong without Keras. `POSITIONAL`, where it has
one, names what may follow the flags; `ALONE` is true where it needs no Keras,
or answers that for `values` and `rest`. Nothing heavy is imported before `run`.
"""

from keras_fm.lab.commands import (
    audit,
    compare,
    completion,
    compose,
    doctor,
    ledger,
    report,
    reproduce,
)

COMMANDS = {
    c.NAME: c
    for c in (
        compare,
        reproduce,
        compose,
        audit,
        report,
        ledger,
        doctor,
        completion,
    )
}
