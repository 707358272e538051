"""What the catalogue says of the experiments, known without Keras."""

from keras_fm.lab import known
from keras_fm.lab.reproduce import facts


def chosen_facts(paper, which):
    """The facts of a paper that an experiment's declaration chooses."""
    if which is None:
        return ()
    which = dict(which)
    with_epochs = which.pop("with_epochs", False)
    found = facts.select(paper, **which)
    return tuple(f for f in found if f.epochs is not None or not with_epochs)


def catalogue_table():
    """The catalogue as text, one line for each experiment."""
    lines = [
        f"{'experiment':32} {'data':22} {'minutes':>7} {'numbers':>7}  what",
    ]
    lines.append("-" * 100)
    for name, declared in known.experiments().items():
        numbers = chosen_facts(name.split(":")[0], declared.get("facts"))
        names = [a.split(":")[1] for a in declared.get("aliases", ())]
        what = declared["title"]
        if names:
            what += f" ({', '.join(names)})"
        both, small = declared.get("both", {}), declared.get("small", {})
        lines.append(
            f"{name:32} {(both | small).get('data', '-'):22} "
            f"{declared['minutes']:>7g} {len(numbers):>7}  {what}"
        )
    lines += [
        "",
        "minutes: of the small form, on two cores. numbers: what the paper",
        "prints for it.",
    ]
    return "\n".join(lines)
