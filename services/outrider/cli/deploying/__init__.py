"""The work of `outrider deploy`. Importing its modules imports ray: `environment.prepare` comes first.

- `commands`     what the command does
- `cluster`      a Ray cluster through its REST API, and how one is found
- `local`        a Ray cluster of this machine alone
- `here`         whether this machine has what a file asks for
- `models`       whether nodes can find its models
- `progress`     waiting, with a table
- `status`       what Serve says, for people
- `addresses`    where clients reach it
- `environment`  what must be set before Ray is imported
"""
