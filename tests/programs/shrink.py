"""Makes a program smaller that differs, as long as it does."""

import dataclasses


def shrink(program, differs, at_most=300):
    """The smallest program found for which `differs` is true.

    Args:
        program: a Program for which it is.
        differs: a function of a Program.
        at_most: how many programs are tried.
    """
    tried = 0
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(program):
            if tried == at_most:
                return program
            tried += 1
            if differs(smaller):
                program, progress = smaller, True
                break
    return program


def _smaller(program):
    """Programs with one thing less, the largest things first."""
    for i in range(len(program.steps) if len(program.steps) > 1 else 0):
        yield _with(program, steps=_without(program.steps, i))
    for lookup in program.lookups if len(program.lookups) > 1 else ():
        yield without_lookup(program, lookup)
    if program.way != "eager" and not program.is_layer:
        yield _with(program, way="eager")
    if program.is_layer and program.way != "layer":
        yield _with(program, way="layer")
    yield from _plainer(program, program, lambda plain: plain)
    for i, table in enumerate(program.tables):
        if not table.is_keyed or table.filter_freq or table.counts_steps:
            yield from _plainer(program, table, lambda x, i=i: _put(program, "tables", i, x))
    for i, lookup in enumerate(program.lookups):
        if lookup.combiner is not None and not lookup.weighted:
            yield from _plainer(program, lookup, lambda x, i=i: _put(program, "lookups", i, x))
    for name in ("clipnorm", "global_clipnorm", "clipvalue", "weight_decay", "amsgrad", "centered"):
        if name in program.optimizer.arguments and program.optimizer.name not in ("Lamb", "AdamW"):
            arguments = {k: v for k, v in program.optimizer.arguments.items() if k != name}
            yield _with(program, optimizer=_with(program.optimizer, arguments=arguments))
    for s, step in enumerate(program.steps):
        for smaller in _smaller_steps(program, step):
            yield _put(program, "steps", s, smaller)


# Fields that say how a program, table or lookup is more than plain; a default is plainer.
_PLAIN = {
    "Program": ("clip", "concat", "routed", "watches_all"),
    "Table": ("trainable", "filter_freq", "counts_steps", "poison"),
    "Lookup": ("max_norm", "splits_dtype", "weight_splits_dtype"),
}


def _plainer(program, record, put):
    defaults = {field.name: field.default for field in dataclasses.fields(record)}
    for name in _PLAIN[type(record).__name__]:
        if getattr(record, name) != defaults[name]:
            yield put(_with(record, **{name: defaults[name]}))


def _smaller_steps(program, step):
    for name in ("frozen", "unused", "poison"):
        if getattr(step, name):
            yield _with(step, **{name: ()})
    for sample in range(step.samples if step.samples > 1 else 0):
        yield _with(
            step,
            ids={name: _without(rows, sample) for name, rows in step.ids.items()},
            weights={name: _without(rows, sample) for name, rows in step.weights.items()},
            poison=tuple(place for place in step.poison if place[0] < step.samples - 1),
        )
    forms = {lookup.name: lookup.form for lookup in program.lookups}
    for name, rows in step.ids.items():
        for s, row in enumerate(rows):
            for i in range(len(row) if forms[name] != "dense" else 0):
                weights = dict(step.weights)
                if name in weights:
                    weights[name] = _replaced(weights[name], s, _without(weights[name][s], i))
                ids = {**step.ids, name: _replaced(rows, s, _without(row, i))}
                yield _with(step, ids=ids, weights=weights)


def without_lookup(program, lookup):
    lookups = tuple(other for other in program.lookups if other is not lookup)
    used = {other.table for other in lookups}
    calls = sorted({other.call for other in lookups})
    return _with(
        program,
        lookups=tuple(_with(other, call=calls.index(other.call)) for other in lookups),
        tables=tuple(table for table in program.tables if table.name in used),
        steps=tuple(
            _with(
                step,
                ids={name: rows for name, rows in step.ids.items() if name != lookup.name},
                weights={name: w for name, w in step.weights.items() if name != lookup.name},
                frozen=tuple(name for name in step.frozen if name in used),
                unused=tuple(name for name in step.unused if name != lookup.name),
                poison=(),
            )
            for step in program.steps
        ),
    )


def _put(program, name, i, record):
    return _with(program, **{name: tuple(_replaced(getattr(program, name), i, record))})


def _replaced(values, i, value):
    return [*values[:i], value, *values[i + 1 :]]


def _without(values, i):
    return values[:i] + values[i + 1 :]


def _with(record, **changes):
    return dataclasses.replace(record, **changes)
