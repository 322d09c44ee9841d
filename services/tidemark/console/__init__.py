# SPDX-License-Identifier: Apache-2.0
"""The console: web pages that show a cluster. The console is an ordinary client of the cluster, with the rights of its
user.

To add a page:

1. A module in `pages/` with a function `load(asked: Asked) -> View`. The function asks the cluster through `queries/`
   or `asked.need` and `asked.see`, and returns plain data: dicts, lists, texts, numbers.
2. A template of the same name in `templates/`, which fills the block `content` from `data`. Every value is escaped.
3. A line in the table `PAGES` in `pages/table.py`.

The page then has its address, its login, its error states and its metrics. The page also has its JSON twin (the header
`Accept: application/json` at the same address) and its live updates (`Accept: text/event-stream`). A page that makes a
change has `methods=("GET", "POST")`: GET is the dry run, POST carries the change out and returns `Done`.
`pages/dry_run.py` refuses a change whose dry run has another result by now, and a change of a console that only reads.
"""
