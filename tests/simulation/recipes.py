# SPDX-License-Identifier: Apache-2.0
"""Kinds of worlds: the tested parts, and the rates of their faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tests.simulation.plan import MIXED as MIXED_WEIGHTS
from tests.simulation.plan import Recipe

MILD = Recipe("mild", faults=5)
MIXED = Recipe("mixed")
HARSH = Recipe(
    "harsh", faults=25, duration_ms=5000, lost_answers=0.2, repeated_calls=0.2, late_calls=0.2, idempotent=25
)
SINGLE = Recipe("single", min_isr=1, faults=12)
UNCLEAN = Recipe("unclean", unclean=True, faults=15, weights={**MIXED_WEIGHTS, "elect_last_known": 3})
UNCLEAN_SINGLE = replace(UNCLEAN, name="unclean-single", min_isr=1)
GROUP_COMMIT = Recipe("group-commit", group_commit=True, faults=15)
FILES = Recipe("files", files=True, faults=12)
DISKS = Recipe("disks", faults=12, weights={"failed_disk": 5, "full_disk": 5, "slow_disk": 4, "crash": 2, "cut": 2})
FILES_HARSH = Recipe(
    "files-harsh",
    files=True,
    faults=20,
    duration_ms=5000,
    weights={"power": 6, "crash": 5, "crash_all": 2, "cut": 4},
)
FILES_UNCLEAN = Recipe("files-unclean", files=True, unclean=True, min_isr=1, faults=15)
FILES_GROUP_COMMIT = Recipe("files-group-commit", files=True, group_commit=True, faults=12)
SETTINGS = Recipe("settings", faults=20, weights={**MIXED_WEIGHTS, "settings": 15})
_GOING = {
    "delete_records": 6,
    "crash": 4,
    "crash_all": 1,
    "power": 1,
    "depose": 2,
    "pause": 2,
    "cut": 4,
    "isolate": 3,
    "full_disk": 2,
    "failed_disk": 1,
    "cut_zookeeper": 2,
    "cut_controller": 2,
    "elect": 2,
}
COMPACTED = Recipe("compacted", compacted=True, faults=12, weights={**_GOING, "delete_records": 0})
RETAINED = Recipe("retained", retention_bytes=1200, faults=14, weights=_GOING)
COMPACTED_FILES = replace(COMPACTED, name="compacted-files", files=True)
RETAINED_FILES = replace(RETAINED, name="retained-files", files=True, retention_bytes=4000)
TOMBSTONES = replace(COMPACTED, name="tombstones", delete_retention_ms=6_000, quiet_ms=7_000)
TOMBSTONES_FILES = replace(TOMBSTONES, name="tombstones-files", files=True, segment_bytes=700)
COMPACTED_RETAINED = replace(RETAINED, name="compacted-retained", compacted=True)
COMPACTED_UNCLEAN = replace(COMPACTED, name="compacted-unclean", unclean=True, min_isr=1)
RETAINED_UNCLEAN = replace(RETAINED, name="retained-unclean", unclean=True, min_isr=1)
RETAINED_GROUP_COMMIT = replace(RETAINED, name="retained-group-commit", group_commit=True)
DISKS_FILES = replace(DISKS, name="disks-files", files=True)
ONE_DIRECTORY = replace(DISKS, name="one-directory", directories=1)
_MOVING = {
    "reassign": 9,
    "cancel": 3,
    "drop_moves": 1,
    "add_partition": 3,
    "remove_partition": 3,
    "shutdown": 2,
    "crash": 3,
    "power": 1,
    "pause": 2,
    "cut": 3,
    "isolate": 1,
    "break": 1,
    "cut_zookeeper": 2,
    "cut_controller": 3,
    "depose": 1,
    "controller_crash": 3,
    "controller_pause": 1,
    "lost_answers": 2,
}
MOVES = Recipe("moves", brokers=(0, 1, 2, 3), faults=18, weights=_MOVING)
MOVES_HARSH = replace(
    MOVES, name="moves-harsh", faults=35, duration_ms=5000, lost_answers=0.15, repeated_calls=0.2, late_calls=0.2
)
MOVES_SINGLE = replace(MOVES, name="moves-single", min_isr=1)
MOVES_FILES = replace(MOVES, name="moves-files", files=True)
MOVES_RETAINED = replace(
    MOVES, name="moves-retained", retention_bytes=1200, weights={**_MOVING, "delete_records": 8, "full_disk": 2}
)
MOVES_COMPACTED = replace(MOVES, name="moves-compacted", compacted=True)
TOPICS = replace(MOVES, name="topics", weights={**_MOVING, "make_topic": 15, "move_topic": 6, "delete_topic": 10})
SCHEMAS = replace(
    MOVES,
    name="schemas",
    typed=True,
    faults=30,
    weights={
        **_MOVING,
        "make_topic": 14,
        "evolve_topic": 30,
        "move_topic": 5,
        "configure_topic": 5,
        "delete_topic": 8,
        "controller_crash": 6,
        "lost_answers": 6,
        "cut_controller": 6,
    },
)
ROWS = replace(
    SCHEMAS,
    name="rows",
    faults=90,
    weights={
        "make_topic": 8,
        "evolve_topic": 20,
        "delete_topic": 3,
        "move_topic": 2,
        "controller_crash": 1,
        "cut_controller": 4,
        "crash": 2,
        "write_row": 40,
        "read_rows": 12,
    },
)
"""Rows are written and read while versions are made."""
_ROTTING = {
    "rot": 8,
    "crash": 5,
    "crash_all": 1,
    "depose": 2,
    "elect": 1,
    "cut": 3,
    "isolate": 2,
    "cut_zookeeper": 2,
    "pause": 2,
}
ROTTEN = Recipe("rotten", min_isr=1, faults=15, weights=_ROTTING)
ROTTEN_FILES = replace(ROTTEN, name="rotten-files", files=True)
ROTTEN_UNCLEAN = replace(ROTTEN, name="rotten-unclean", unclean=True, weights={**_ROTTING, "elect_last_known": 2})
ROTTEN_UNCLEAN_FILES = replace(ROTTEN_UNCLEAN, name="rotten-unclean-files", files=True)
NEAR = replace(HARSH, name="near", near=True)
NEAR_UNCLEAN = replace(UNCLEAN, name="near-unclean", near=True)
NEAR_SINGLE = replace(UNCLEAN_SINGLE, name="near-single", near=True)
NEAR_RETAINED = replace(RETAINED, name="near-retained", near=True)
NEAR_COMPACTED = replace(COMPACTED_FILES, name="near-compacted", near=True)
NEAR_GROUP_COMMIT = replace(GROUP_COMMIT, name="near-group-commit", near=True)
NEAR_MOVES = replace(MOVES, name="near-moves", near=True)
NEAR_KILLED = replace(
    NEAR,
    name="near-killed",
    faults=18,
    weights={"delete_records": 6, "crash": 6, "crash_all": 3, "slow_disk": 4, "cut": 3},
)
_FLIPPING = {
    "flip": 8,
    "flip_alive": 8,
    "crash": 8,
    "crash_all": 1,
    "depose": 2,
    "elect": 1,
    "cut": 3,
    "isolate": 4,
    "cut_zookeeper": 2,
    "pause": 2,
}
FLIPPED = Recipe("flipped", faults=18, duration_ms=5000, election_wait_ms=0, checkpoint_ms=700, weights=_FLIPPING)
FLIPPED_SINGLE = replace(FLIPPED, name="flipped-single", min_isr=1, duration_ms=6000, produces=40)
FLIPPED_UNCOMMITTED = replace(
    FLIPPED, name="flipped-uncommitted", weights={"flip_uncommitted": 8, "cut": 3, "isolate": 2, "elect": 2, "pause": 2}
)
FLIPPED_FILES = replace(FLIPPED, name="flipped-files", files=True)
_ERRING = {"failed_sync": 5, "failed_read": 5, "failed_disk": 2, "slow_disk": 3, "crash": 2, "cut": 2, "isolate": 1}
ERRORS = Recipe("errors", faults=14, weights=_ERRING)
ERRORS_GROUP_COMMIT = replace(
    ERRORS, name="errors-group-commit", group_commit=True, weights={**_ERRING, "power": 3, "failed_disk": 4}
)
ERRORS_FILES = replace(ERRORS_GROUP_COMMIT, name="errors-files", files=True)
_HURTING = {
    "hurt_node": 10,
    "unregister": 4,
    "controller_crash": 4,
    "controller_pause": 2,
    "isolate": 5,
    "cut": 4,
    "pause": 3,
    "depose": 3,
    "elect": 3,
    "cut_zookeeper": 3,
    "lost_answers": 2,
}
HURT = Recipe("hurt", faults=18, weights={**_HURTING, "crash": 4})
HURT_SINGLE = replace(HURT, name="hurt-single", min_isr=1)
SET_BACK = Recipe("set-back", faults=18, weights={**_HURTING, "set_back": 8, "elect": 8})
_TEARING = {"tear_all": 6, "crash": 4, "crash_all": 1, "isolate": 2, "cut": 2, "depose": 1, "controller_crash": 2}
TORN = Recipe("torn", faults=10, duration_ms=5000, produces=40, weights=_TEARING)
TORN_SINGLE = replace(TORN, name="torn-single", min_isr=1)
TORN_FILES = replace(TORN, name="torn-files", files=True)
TRANSACTIONS = Recipe(
    "transactions", files=True, faults=14, duration_ms=5000, produces=15, idempotent=5, transactions=80
)
SHORTENED = replace(
    TORN, name="shortened", torn=0.0, election_wait_ms=5000, faults=6, weights={"tear_all": 6, "controller_crash": 2}
)

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        MILD,
        MIXED,
        HARSH,
        SINGLE,
        UNCLEAN,
        UNCLEAN_SINGLE,
        GROUP_COMMIT,
        FILES,
        DISKS,
        FILES_HARSH,
        FILES_UNCLEAN,
        FILES_GROUP_COMMIT,
        SETTINGS,
        COMPACTED,
        RETAINED,
        COMPACTED_FILES,
        RETAINED_FILES,
        TOMBSTONES,
        TOMBSTONES_FILES,
        COMPACTED_RETAINED,
        COMPACTED_UNCLEAN,
        RETAINED_UNCLEAN,
        RETAINED_GROUP_COMMIT,
        DISKS_FILES,
        ONE_DIRECTORY,
        MOVES,
        MOVES_HARSH,
        MOVES_SINGLE,
        MOVES_FILES,
        MOVES_RETAINED,
        MOVES_COMPACTED,
        TOPICS,
        NEAR,
        NEAR_UNCLEAN,
        NEAR_SINGLE,
        NEAR_RETAINED,
        NEAR_COMPACTED,
        NEAR_GROUP_COMMIT,
        NEAR_MOVES,
        NEAR_KILLED,
        ROTTEN,
        ROTTEN_FILES,
        ROTTEN_UNCLEAN,
        ROTTEN_UNCLEAN_FILES,
        FLIPPED,
        FLIPPED_SINGLE,
        FLIPPED_UNCOMMITTED,
        FLIPPED_FILES,
        ERRORS,
        ERRORS_GROUP_COMMIT,
        ERRORS_FILES,
        HURT,
        HURT_SINGLE,
        SET_BACK,
        TORN,
        TORN_SINGLE,
        TORN_FILES,
        SHORTENED,
        SCHEMAS,
        ROWS,
        TRANSACTIONS,
    )
}


def recipe_of(seed: int) -> Recipe:
    """Every kind in turn; each second world is of the mixed kind."""
    kinds = list(RECIPES.values())
    return kinds[(seed // 2) % len(kinds)] if seed % 2 else MIXED
