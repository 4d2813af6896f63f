"""The variables of an optimizer as Keras saves them with a model: slots as one process has them.

Every rank must save."""

from group_embedding.exchange import assign_rows, gather_rows


class SavedWhole:
    """Mixed into optimizers that Keras saves with a model."""

    def save_own_variables(self, store):
        save_whole(self, store)

    def load_own_variables(self, store):
        load_whole(self, store, super().load_own_variables)


def save_whole(optimizer, store):
    for i, variable in enumerate(optimizer.variables):
        store[str(i)] = gather_rows(variable).numpy()


def load_whole(optimizer, store, load_stock):
    """`load_stock`: Keras's own, which says so when there are more variables or fewer."""
    if len(store.keys()) != len(optimizer.variables):
        load_stock(store)
        return
    for i, variable in enumerate(optimizer.variables):
        assign_rows(variable, store[str(i)][...])
