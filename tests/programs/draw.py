"""Draws a program from a seed."""

import numpy as np

from .program import Lookup, Optimizer, Program, Step, Table

# What programs have. Leave one out to search on where a defect of it is known.
DRAWN = frozenset(
    (
        "frozen layers",
        "frozen keyed tables",
        "refused steps with keyed tables",
        "several max_norms of a table",
        "infinite max_norm",
        "ftrl with NaN",
        "NaN rows with max_norm",
        "several types of row splits",
        "clipnorm of a table in several calls",
    )
)

HOW_STEPS_RUN = {"eager": 0.55, "function": 0.1, "layer": 0.25, "layer function": 0.05, "fit": 0.05}
KEYS = {
    "int64": (0, 1, 2, 3, 7, -1, -7, 2**40, 2**63 - 1, -(2**63), 12345678901, -(2**33)),
    "int32": (0, 1, 2, 3, 7, -1, -7, 2**31 - 1, -(2**31), 77777, 100, 101),
    "uint64": (0, 1, 2, 3, 7, 2**63, 2**64 - 1, 2**40, 2**63 + 5, 12345, 100, 101),
}
DENSE = None  # the combiner of dense ids


def draw(seed, drawn=DRAWN):
    return _Draw(seed, drawn).program()


class _Draw:
    def __init__(self, seed, drawn):
        self.seed, self.drawn = seed, drawn
        self.rng = np.random.default_rng(seed)

    def chance(self, share):
        return bool(self.rng.random() < share)

    def one_of(self, choices):
        return choices[int(self.rng.integers(len(choices)))]

    def number(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def program(self):
        self.way = str(self.rng.choice(list(HOW_STEPS_RUN), p=list(HOW_STEPS_RUN.values())))
        self.is_layer = self.way not in ("eager", "function")
        self.optimizer = self.draw_optimizer()
        self.tables = [self.draw_table(i) for i in range(self.number(1, 3))]
        self.num_calls = 1 if self.is_layer or self.chance(0.7) else 2
        self.dense_call = self.number(0, 1) if self.num_calls == 2 and self.chance(0.3) else None
        self.lookups = self.draw_lookups()
        self.invalid_ids = "ignore" if self.chance(0.15) else "raise"
        clip = self.draw_clip()
        self.concat = self.chance(0.3)
        steps = self.draw_steps()
        return Program(
            self.seed,
            self.way,
            tuple(self.tables),
            tuple(self.lookups),
            self.optimizer,
            tuple(steps),
            clip=clip,
            invalid_ids=self.invalid_ids,
            concat=self.concat,
            routed=self.chance(0.15),
            watches_all=self.is_layer or self.chance(0.5),
        )

    # Optimizers

    def draw_optimizer(self):
        families = (
            ["keras", "own"] if self.way == "fit" else ["keras", "keras", "legacy", "v1", "own"]
        )
        family = self.one_of(families)
        name, arguments = getattr(self, f"draw_{family}")()
        if family != "v1" and self.chance(0.4):
            arguments[self.one_of(["clipnorm", "global_clipnorm", "clipvalue"])] = self.one_of(
                [0.05, 0.5, 3.0]
            )
        return Optimizer(family, name, arguments)

    def rate(self):
        return self.one_of([0.01, 0.1, 0.5])

    def draw_keras(self):
        name, arguments = self.draw_stock(
            ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "RMSprop"]
        )
        if name == "AdamW" or self.chance(0.15):
            arguments["weight_decay"] = self.one_of([0.01, 0.3])
        return name, arguments

    def draw_legacy(self):
        return self.draw_stock(["SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "RMSprop"])

    def draw_stock(self, names):
        name = self.one_of(names)
        arguments = {"learning_rate": self.rate()}
        if name in ("Adadelta", "Adam", "AdamW", "Adamax", "RMSprop"):
            arguments["epsilon"] = 1e-3
        if name in ("Adam", "AdamW"):
            arguments["amsgrad"] = self.chance(0.3)
        if name == "SGD":
            arguments.update(momentum=self.one_of([0.0, 0.9]), nesterov=self.chance(0.3))
            # Stock Nesterov makes NaN of an infinity times no momentum.
            arguments["nesterov"] &= arguments["momentum"] > 0
        if name == "Adagrad":
            arguments["initial_accumulator_value"] = self.one_of([0.1, 0.5])
        if name == "RMSprop":
            arguments.update(momentum=self.one_of([0.0, 0.5]), centered=self.chance(0.3))
        if name == "Ftrl":
            arguments.update(
                l1_regularization_strength=self.one_of([0.0, 0.01]),
                l2_regularization_strength=self.one_of([0.0, 0.02]),
                l2_shrinkage_regularization_strength=self.one_of([0.0, 0.03]),
                beta=self.one_of([0.0, 0.1]),
                initial_accumulator_value=self.one_of([0.1, 0.3]),
            )
        return name, arguments

    def draw_v1(self):
        name = self.one_of(
            ["GradientDescent", "Momentum", "Adadelta", "Adagrad", "Adam", "Ftrl", "RMSProp"]
        )
        arguments = {"learning_rate": self.rate()}
        if name == "Momentum":
            arguments.update(momentum=0.9, use_nesterov=self.chance(0.4))
        if name in ("Adadelta", "Adam", "RMSProp"):
            arguments["epsilon"] = 1e-3
        if name == "RMSProp":
            arguments.update(momentum=self.one_of([0.0, 0.5]), centered=self.chance(0.3))
        if name == "Ftrl":
            arguments.update(
                l1_regularization_strength=self.one_of([0.0, 0.01]),
                l2_regularization_strength=self.one_of([0.0, 0.02]),
                l2_shrinkage_regularization_strength=self.one_of([0.0, 0.03]),
                learning_rate_power=self.one_of([-0.5, -0.6]),
            )
        return f"{name}Optimizer", arguments

    def draw_own(self):
        name = self.one_of(["RowwiseAdagrad", "RowwiseAdam", "LazyAdam", "Lamb"])
        arguments = {"learning_rate": self.rate(), "epsilon": 1e-2}
        if name == "Lamb":
            arguments["weight_decay"] = 0.02
        elif self.chance(0.15):
            arguments["weight_decay"] = 0.3
        return name, arguments

    # Tables and lookups

    def draw_table(self, i):
        arguments = {"name": f"t{i}", "dim": self.one_of([1, 2, 3, 4, 5, 8, 17])}
        arguments["seed"] = self.number(0, 10**6)
        if self.chance(0.1):
            arguments["trainable"] = False
        if self.chance(0.5):
            return self.draw_keyed(arguments)
        arguments["rows"] = self.number(1, 12)
        if self.chance(0.03) and self.may_poison():
            arguments["poison"] = ((self.number(0, arguments["rows"] - 1), 0, float("nan")),)
        return Table(**arguments)

    def may_poison(self):
        is_ftrl = self.optimizer.name in ("Ftrl", "FtrlOptimizer")
        if is_ftrl and "ftrl with NaN" not in self.drawn:
            return False
        return not self.optimizer.swallows_nan

    def draw_keyed(self, arguments):
        key_dtype = self.one_of(["int64", "int64", "int64", "int32", "uint64"])
        keys = tuple(self.rng.permutation(len(KEYS[key_dtype])).tolist()[: self.number(1, 12)])
        keys = tuple(KEYS[key_dtype][i] for i in keys)
        filter_freq = self.one_of([2, 3]) if self.chance(0.2) else 0
        return Table(
            **arguments,
            rows=len(keys),
            keys=keys,
            key_dtype=key_dtype,
            filter_freq=filter_freq,
            counts_steps=self.chance(0.3),
        )

    def draw_lookups(self):
        shared_norm = {table.name: self.draw_max_norm(table) for table in self.tables}
        lookups = []
        for i in range(self.number(1, 5)):
            table = self.one_of(self.tables)
            call = self.number(0, self.num_calls - 1)
            if table.filter_freq:  # a second call in a step would find what the first admitted
                call = 0
            common = {"name": f"f{i}", "table": table.name, "call": call}
            common["ids_dtype"] = table.key_dtype
            if not table.is_keyed or table.key_dtype == "int64":
                common["ids_dtype"] = self.one_of(["int64", "int64", "int32"])
                if any(not -(2**31) <= key < 2**31 for key in table.keys):
                    common["ids_dtype"] = "int64"
            if call == self.dense_call:
                lookups.append(Lookup(combiner=DENSE, form="dense", **common))
                continue
            one_norm = self.is_layer or "several max_norms of a table" not in self.drawn
            norm = shared_norm[table.name]
            if not one_norm and self.chance(0.3):
                norm = self.draw_max_norm(table)
            lookups.append(self.draw_sparse_lookup(norm, common))
        used = sorted({lookup.call for lookup in lookups})
        self.tables = [t for t in self.tables if any(x.table == t.name for x in lookups)]
        return [_with(lookup, call=used.index(lookup.call)) for lookup in lookups]

    def draw_max_norm(self, table):
        if table.poison and "NaN rows with max_norm" not in self.drawn:
            return None
        if not self.chance(0.35):
            return None
        norms = [0.3, 1.0, 4.0]
        if "infinite max_norm" in self.drawn and not self.is_layer:
            norms.append(float("inf"))
        return self.one_of(norms)

    def draw_sparse_lookup(self, norm, common):
        forms = ["sparse", "ragged", "dense"] if self.is_layer else ["sparse", "ragged"]
        splits = [self.one_of(["int64", "int32"]) for _ in range(2)]
        if "several types of row splits" not in self.drawn:
            splits = ["int64", "int64"]
        return Lookup(
            combiner=self.one_of(["sum", "mean", "sqrtn"]),
            weighted=self.chance(0.4),
            max_norm=norm,
            form=self.one_of(forms),
            splits_dtype=splits[0],
            weight_splits_dtype=splits[1],
            **common,
        )

    def is_in_several_calls(self):
        return any(
            len({lookup.call for lookup in self.lookups if lookup.table == table.name}) > 1
            for table in self.tables
        )

    def draw_clip(self):
        several = self.is_in_several_calls()
        if several and "clipnorm of a table in several calls" not in self.drawn:
            for name in ("clipnorm", "global_clipnorm"):
                self.optimizer.arguments.pop(name, None)
        # TensorFlow's functions see the rows of two calls one by one: a stock program, too.
        if several or self.way == "fit" or not self.chance(0.2):
            return None
        return self.one_of(["norm", "global_norm", "value"]), self.one_of([0.05, 0.5, 3.0])

    # Steps

    def draw_steps(self):
        self.is_refusing = self.invalid_ids == "raise" and self.chance(0.25)
        # What a first call inserted stays if a second one is refused.
        may_refuse = "refused steps with keyed tables" in self.drawn and self.num_calls == 1
        if not may_refuse:
            self.is_refusing &= not any(table.is_keyed for table in self.tables)
        self.length = {x.name: self.number(1, 3) for x in self.lookups}
        is_poisoned = self.chance(0.08) and self.may_poison()
        count = self.number(2, 5)
        steps = [self.draw_step() for _ in range(count)]
        if is_poisoned:
            steps[-1] = self.poisoned(steps[-1])
        return steps

    def draw_step(self):
        samples = self.number(1, 5)
        ids = {x.name: self.draw_ids(x, samples) for x in self.lookups}
        if self.is_refusing and self.chance(0.4):
            self.spoil(ids)
        weights = {
            x.name: [[self.draw_weight() for _ in row] for row in ids[x.name]]
            for x in self.lookups
            if x.weighted
        }
        frozen, unused = self.draw_frozen(), ()
        if self.chance(0.1) and len(self.lookups) > 1 and not self.concat and self.way != "fit":
            lookup = self.one_of(self.lookups)
            # Eagerly nobody knows it when the keys are looked up.
            unused = () if self.table_of(lookup).is_keyed else (lookup.name,)
        return Step(self.number(0, 10**6), ids, weights, frozen, unused)

    def table_of(self, lookup):
        return next(table for table in self.tables if table.name == lookup.table)

    def draw_frozen(self):
        if not self.chance(0.25):
            return ()
        if self.is_layer:  # the layer as a whole
            names = [table.name for table in self.tables]
            allowed = "frozen layers" in self.drawn
        else:
            names = [table.name for table in self.tables if self.chance(0.5)]
            # In a graph its group says whether keys are inserted.
            allowed = "frozen keyed tables" in self.drawn and self.way == "eager"
        if not allowed and any(t.is_keyed for t in self.tables if t.name in names):
            return ()
        return tuple(names)

    def draw_ids(self, lookup, samples):
        table, most = self.table_of(lookup), self.length[lookup.name]
        rows = []
        for _ in range(samples):
            count = most if lookup.form == "dense" else self.number(0, most)
            rows.append([self.draw_id(lookup, table) for _ in range(count)])
        return rows

    def draw_id(self, lookup, table):
        if not table.is_keyed and lookup.combiner is not DENSE and self.chance(0.1):
            return -self.number(1, 3)
        if not table.is_keyed and self.invalid_ids == "ignore" and self.chance(0.1):
            return table.rows + self.number(0, 3)
        # Skewed, so that some come again.
        return int(table.rows * self.rng.random() ** 1.7)

    def spoil(self, ids):
        """Has one id lie outside its table."""
        places = [
            (x, row, i)
            for x in self.lookups
            if not self.table_of(x).is_keyed
            for row in ids[x.name]
            for i in range(len(row))
        ]
        if places:
            lookup, row, i = self.one_of(places)
            row[i] = self.table_of(lookup).rows + self.number(0, 5)

    def draw_weight(self):
        if self.chance(0.15):
            return 0.0
        if self.optimizer.name != "Lamb" and self.chance(0.15):
            return -round(float(self.rng.uniform(0.3, 2)), 2)
        return round(float(self.rng.uniform(0.3, 2)), 2)

    def poisoned(self, step):
        width = sum(self.table_of(x).dim for x in self.lookups)
        places = [
            (self.number(0, step.samples - 1), self.number(0, width - 1), self.one_of(VALUES))
            for _ in range(self.number(1, 2))
        ]
        return _with(step, poison=tuple(places))


VALUES = [float("nan"), float("inf"), -float("inf")]


def _with(record, **changes):
    return type(record)(**{**vars(record), **changes})
