"""`Job`: a function that ranks on the hosts of a bed call, one process each."""

from support.programs import ranks


class Job(ranks.Job):
    """`ranks.Job` on a `Bed`: `where` names its hosts."""

    def __init__(self, bed, *args, **kwargs):
        self._bed = bed
        super().__init__(*args, **kwargs)

    def _start_on(self, name, command, **pipes):
        return self._bed.hosts[name].start(command, **pipes)

    def _address_of(self, name):
        return self._bed.hosts[name].address

    def _process_of(self, name):
        return self._bed.hosts[name].pid

    def _variables(self):
        return {"HOROVOD_GLOO_IFACE": "eth0"}
